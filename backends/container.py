"""Engines in containers, docker's or podman's: any backend, its command line unchanged, wrapped into `run`.

The model's folder and the session's are mounted at the paths they have on the host, so that nothing else of a plan changes. The
container carries labels (whose it is, which session), its id is written to a file, and the keeper removes it once the `run`
command has ended, or the harness has. What an earlier harness could not remove is swept away before the next start.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from backends import container_end, keeper
from backends.base import Backend, InContainer, LaunchPlan
from backends.container_process import Box, ask
from backends.container_spec import ContainerSpec
from results.errors import EngineError, UsageError

OWNER = "dyno.owner"
# How long the keeper tries to remove a container.
TRIES_S = 25.0


def inner_command(backend: Backend, spec: ContainerSpec, asked: Sequence[str] | None) -> InContainer:
    """What is started inside. Raises UsageError where neither the experiment nor the adapter knows."""
    usual = backend.in_container
    if asked:
        return InContainer(tuple(asked), usual.replaces_entrypoint if usual else False)
    if usual is None:
        raise UsageError(
            f"Backend {backend.name!r} has no usual container image, so what starts it in {spec.image!r} is not known: "
            "name its `command`."
        )
    return usual


def find_image(spec: ContainerSpec) -> str:
    """The digest of the image, which has to be there: a pull would be measured as part of a start. Raises EngineError."""
    told, text = ask(spec.runtime, "image", "inspect", spec.image)
    if not told:
        if "no such image" in text.lower() or "not known" in text.lower():
            raise EngineError(
                f"The image {spec.image} is not on this machine, and dyno does not fetch it while it measures. Fetch it once: "
                f"`{spec.runtime} pull {spec.image}`."
            )
        # Docker's own complaint ends with a question, others with a full stop or nothing.
        said = text if text.endswith(("?", ".")) else f"{text or 'it said nothing'}."
        raise EngineError(
            f"{spec.runtime} cannot be asked for the image {spec.image}: {said} Is it installed, does its daemon run, and may this "
            f"user use it? `{spec.runtime} info` tells."
        )
    return _digest(text)


def _digest(text: str) -> str:
    try:
        (image, *_) = json.loads(text)
    except ValueError:
        return ""
    digests = image.get("RepoDigests") or [] if isinstance(image, dict) else []
    return str(digests[0]) if digests else str(image.get("Id", "")) if isinstance(image, dict) else ""


def sweep(runtime: str) -> list[str]:
    """Remove containers whose harness is dead; the ids of those removed. Those of a living one, or of another machine's
    that runs, are left alone."""
    line = '{{.ID}} {{.Label "' + OWNER + '"}} {{.State}}'
    told, text = ask(runtime, "ps", "--all", "--filter", f"label={OWNER}", "--format", line)
    removed = []
    for row in text.splitlines() if told else ():
        container, owner, *state = row.split()
        if not _lives(owner, state[:1] == ["running"]) and ask(runtime, "rm", "--force", "--volumes", container)[0]:
            removed.append(container)
    return removed


def _owner() -> str:
    """This process, unmistakably: number, start and boot."""
    me = keeper.identify(os.getpid())
    return f"{os.getpid()}:{me.start if me else 0}:{_boot()}"


def _lives(owner: str, runs: bool) -> bool:
    pid, _, rest = owner.partition(":")
    start, _, boot = rest.partition(":")
    if boot != _boot():
        return runs
    if not (pid.isdigit() and start.isdigit()):
        return False
    return keeper.alive(keeper.Process(int(pid), int(start)))


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"


def wrap(
    plan: LaunchPlan,
    spec: ContainerSpec,
    inner: InContainer,
    models: Sequence[Path],
    folder: Path,
    port: int,
    digest: str = "",
) -> tuple[LaunchPlan, Box]:
    """The plan as a `run` command. `models` are the folders it reads, `folder` is the session's, which it may write.

    Values of variables do not stand in it: the runtime takes them from its own environment.
    """
    session = secrets.token_hex(8)
    box = Box(spec.runtime, session, folder / "container.id", spec.image, digest)
    argv = [spec.runtime, "run", "--name", f"dyno-{session}", "--pull", "never", "--init", "--ipc", "host"]
    argv += ["--cidfile", str(box.cidfile), "--label", f"{OWNER}={_owner()}", "--label", box.label]
    argv += gpu_words(spec)
    argv += ["--network", "host"] if spec.network == "host" else ["--publish", f"127.0.0.1:{port}:{port}"]
    for mount in (*mounts_of(models), f"{folder}:{folder}", *spec.mounts):
        argv += ["--volume", mount]
    env = {"TZ": time_zone(time.localtime().tm_gmtoff), **plan.env}
    for name in sorted(env):
        argv += ["--env", name]
    argv += spec.args
    words = plan.argv
    if spec.entrypoint is not None:
        argv += ["--entrypoint", spec.entrypoint]
    elif inner.replaces_entrypoint:
        argv += ["--entrypoint", words[0]]
        words = words[1:]
    argv += [spec.image, *words]
    after = (
        sys.executable,
        "-I",
        "-S",
        container_end.__file__,
        spec.runtime,
        box.label,
        str(box.cidfile),
        str(TRIES_S),
    )
    notes = (*plan.notes, f"in a container of {spec.image} ({digest or 'no digest told'}), network {spec.network}")
    return replace(plan, argv=tuple(argv), env=env, after=after, notes=notes), box


def time_zone(offset_s: int) -> str:
    """This machine's offset from UTC as a zone that needs no files: an image has none, and its log's times would be off."""
    sign, (hours, minutes) = "-" if offset_s >= 0 else "+", divmod(abs(offset_s) // 60, 60)
    return f"<host>{sign}{hours:02d}:{minutes:02d}"


def mounts_of(models: Sequence[Path]) -> list[str]:
    """Folders read-only at their own paths, with the folders their files are links into (as in a download cache)."""
    folders: set[Path] = set()
    for model in models:
        folders.add(model)
        for path in model.rglob("*") if model.is_dir() else ():
            if path.is_symlink() and path.exists() and not (target := path.resolve()).is_relative_to(model):
                folders.add(target.parent)
    return [f"{one}:{one}:ro" for one in sorted(folders)]


def gpu_words(spec: ContainerSpec) -> list[str]:
    """Which devices it sees. By UUID: an index counts in another order inside than outside."""
    wanted = spec.gpus
    if wanted is None:
        wanted = "all" if Path("/dev/nvidiactl").exists() else "none"
    if wanted == "none":
        return []
    if spec.runtime == "podman":
        names = ["all"] if wanted == "all" else uuids(wanted)
        return [word for name in names for word in ("--device", f"nvidia.com/gpu={name}")]
    if wanted == "all":
        return ["--gpus", "all"]
    listed = ",".join(uuids(wanted))
    return ["--gpus", f'"device={listed}"' if "," in listed else f"device={listed}"]


def uuids(text: str) -> list[str]:
    """`0,1` as the UUIDs of those devices, where NVML tells them; UUIDs as they are."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not any(name.isdigit() for name in names):
        return names
    known = nvml_uuids()
    return [known.get(name, name) for name in names]


def nvml_uuids() -> dict[str, str]:
    """Index -> UUID; {} without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        count = pynvml.nvmlDeviceGetCount()
        return {str(i): str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i))) for i in range(count)}
    except pynvml.NVMLError:
        return {}
    finally:
        pynvml.nvmlShutdown()
