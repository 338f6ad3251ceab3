"""NVIDIA's own description of `trtllm-serve`, by version: command-line options, YAML keys, request fields.

The adapter is held to it (a test: all it can emit stands there), tells of a user's key that does not, and the tests' strict
fake server is made from it. Three snapshots stand for the versions around them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from backends.installed import Version


class Era(StrEnum):
    """Versions that take the same options."""

    V1_0 = "1.0"
    V1_2 = "1.2"
    MAIN = "main"


OLDEST: Version = (1, 0, 0)
_SINCE: tuple[tuple[Version, Era], ...] = (((1, 3, 0), Era.MAIN), ((1, 2, 0), Era.V1_2), (OLDEST, Era.V1_0))


def era_of(version: Version) -> Era:
    """The snapshot that stands for a version; the oldest one for what is older still."""
    return next((era for since, era in _SINCE if version >= since), Era.V1_0)


@dataclass(frozen=True, slots=True)
class Flag:
    """A command-line option: its own name, the type of its value (`flag`: none), its default, how it can be spelled."""

    name: str
    type: str
    default: Any
    spellings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """One snapshot."""

    era: Era
    flags: tuple[Flag, ...]
    keys: Mapping[str, str]
    blocks: Mapping[str, Any]
    request: Mapping[str, Any]
    # Whether the file wins over the command line, and which blocks of it are merged key by key: all, one or none.
    file_wins: bool
    merge: str
    from_command_line: tuple[str, ...]
    engine_keys: tuple[str, ...]

    def flag(self, spelling: str) -> Flag | None:
        """The option that is spelled so."""
        return next((flag for flag in self.flags if spelling in flag.spellings), None)

    def problems(self, config: Mapping[str, Any]) -> list[str]:
        """What this version would refuse in a configuration file, as `path: why`."""
        found: list[str] = []
        for key, value in config.items():
            if (kind := self.keys.get(key)) is None:
                found.append(f"{key}: Extra inputs are not permitted")
            elif kind.startswith("block") and isinstance(value, Mapping):
                found += self._in_block(key, value)
            elif not fits(kind, value):
                found.append(f"{key}: Input should be a valid {kind}, not {value!r}")
        return found

    def _in_block(self, block: str, values: Mapping[str, Any]) -> list[str]:
        known = self.blocks[block]
        if "decoding_type" in known:
            method = values.get("decoding_type")
            if method not in known["decoding_type"]:
                return [f"{block}.decoding_type: {method!r} is none of {', '.join(known['decoding_type'])}"]
            own = known["decoding_type"][method]
            known = {"decoding_type": "str", **known["common"], **(own if isinstance(own, dict) else {})}
            if own == "any":
                return []
        return [
            f"{block}.{key}: "
            + ("Extra inputs are not permitted" if key not in known else f"{value!r} is no {known[key]}")
            for key, value in values.items()
            if key not in known or not fits(known[key], value)
        ]


def fits(kind: str, value: Any) -> bool:
    """Whether a value is of a type of the reference's notation."""
    if value is None:
        return kind.endswith("?") or kind in ("any", "null") or "null" in kind.split("|")
    kind = kind.removesuffix("?")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    simple = {
        "any": True,
        "bool": isinstance(value, bool),
        "int": number and float(value).is_integer(),
        "num": number,
        "str": isinstance(value, str),
        "list": isinstance(value, list),
        "map": isinstance(value, Mapping),
        "block": isinstance(value, Mapping),
    }
    return simple[kind] if kind in simple else value in kind.split("|")


@cache
def reference(era: Era) -> Reference:
    """The snapshot of an era."""
    data = yaml.safe_load(files("backends.tensorrt_llm_data").joinpath(f"{era}.yaml").read_text(encoding="utf-8"))
    return Reference(
        era=era,
        flags=tuple(
            Flag(name, kind, default, tuple(spellings)) for name, (kind, default, *spellings) in data["flags"].items()
        ),
        keys=data["keys"],
        blocks=data["blocks"],
        request=data["request"],
        file_wins=data["precedence"].startswith("file"),
        merge=data["merge"],
        from_command_line=tuple(data.get("from_command_line", ())),
        engine_keys=tuple(data.get("engine_keys", ())),
    )
