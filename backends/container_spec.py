"""What an experiment says of the container an engine runs in."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class ContainerSpec(BaseModel):
    """An image and how it is run. The engine's `env`, settings and options are given as if it ran on the host.

    `gpus`: `all`, `none`, indices or UUIDs with commas between; left out, all where the machine has NVIDIA devices.
    `network`: the host's (nothing between client and server), or `bridge` with the port published, which costs a proxy.
    `mounts`: more `HOST:CONTAINER[:ro]`; the model's folder and the session's are there by themselves. `args`: more words for
    `run`. `entrypoint`: in place of the image's own and of what the adapter would do.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str = Field(min_length=1)
    runtime: Literal["docker", "podman"] = "docker"
    gpus: str | None = None
    network: Literal["host", "bridge"] = "host"
    mounts: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    entrypoint: str | None = None

    @field_validator("image")
    @classmethod
    def _image(cls, value: str) -> str:
        if value.startswith("-") or not value.isprintable() or any(c.isspace() for c in value):
            raise ValueError(f"{value!r} cannot be the name of an image")
        return value

    @field_validator("mounts")
    @classmethod
    def _mounts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for mount in value:
            if not mount.startswith("/") or ":/" not in mount:
                raise ValueError(
                    f"{mount!r} is no mount: write /on/the/host:/in/the/container, :ro behind it to protect it"
                )
        return value
