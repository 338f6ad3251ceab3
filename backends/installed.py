"""Which version of an engine a command starts, asked of the interpreter that the command runs on.

Reading the installed distribution takes a fraction of a second, while an engine's own `--version` imports all of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path

Version = tuple[int, int, int]

_PROBE_S = 60.0
# A Python that takes longer to start says nothing: the engine's own start will.
_LOOK_S = 10.0
_VERSION = re.compile(r"(?<![\w.])v?(\d+)\.(\d+)(?:\.(\d+))?\S*")


def parse_version(text: str) -> Version | None:
    """(0, 32, 0) from `0.32.0+cpu`, `vLLM 0.11.1rc2.dev3`, ...; None when there is no number."""
    found = _VERSION.search(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))


def show_version(version: Version) -> str:
    """`0.11` or `0.10.1`."""
    return ".".join(map(str, version if version[2] else version[:2]))


def image_version(image: str) -> str:
    """What a container image's tag tells of a version: `1.2.0` of `registry.example/nvidia/tensorrt-llm/release:1.2.0`, else ""."""
    _, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    found = _VERSION.search(tag)
    return "" if found is None else found[0].removeprefix("v")


def python_of(command: tuple[str, ...], script: str) -> tuple[str, ...]:
    """The words that start the Python which `python -m ...` or a console script runs on, a prefix (taskset, env) kept in
    front; () where the command shows none."""
    if "-m" in command and (at := command.index("-m")) > 0:
        return command[:at]
    for at, word in enumerate(command):
        if Path(word).name == script and (python := interpreter_of(word)):
            return (*command[:at], *python)
    return ()


def interpreter_of(script: str) -> tuple[str, ...]:
    """The words of a console script's first line, where that is a Python."""
    path = shutil.which(script)
    if path is None:
        return ()
    try:
        with open(path, "rb") as file:
            first = file.readline(4096)
    except OSError:
        return ()
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    return tuple(words) if any("python" in Path(word).name for word in words) else ()


@cache
def installed_version(python: tuple[str, ...], distributions: tuple[str, ...]) -> tuple[str, str]:
    """(distribution, version) of the first of these that the Python has; ("", "") where it has none or does not answer."""
    answer = last_line((*python, "-c", _probe(distributions))) if python else ""
    if not answer.startswith("["):
        return "", ""
    name, version = json.loads(answer)
    return name, version


def python_without(command: Sequence[str], package: str, env: Mapping[str, str]) -> str | None:
    """The Python that a command runs a module of that package on, where it does not have the package: no start can mend that.
    None for a command that is not plainly of this form (a wrapper, a container, a script), and where that Python does not tell.
    Nothing of the package is imported."""
    python = tuple(takewhile(lambda word: word != "-m", command))
    module = command[len(python) + 1 : len(python) + 2]
    if not python or not Path(python[0]).name.startswith("python") or any(word[:1] != "-" for word in python[1:]):
        return None
    if module and module[0].partition(".")[0] != package:
        return None
    probe = f"import importlib.util; print(importlib.util.find_spec({package!r}) is not None)"
    # Like the launch: a folder of the user's that is named like the package is not it.
    answer = last_line((*python, "-c", probe), _LOOK_S, {**os.environ, **env, "PYTHONSAFEPATH": "1"})
    return python[0] if answer == "False" else None


def last_line(argv: Sequence[str], limit_s: float = _PROBE_S, env: Mapping[str, str] | None = None) -> str:
    """The last line a command prints; "" when it cannot be run, fails or takes too long."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, env=env)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.strip().splitlines()
    return lines[-1].strip() if done.returncode == 0 and lines else ""


def _probe(distributions: Sequence[str]) -> str:
    return (
        "import importlib.metadata as m, json\n"
        f"for name in {tuple(distributions)!r}:\n"
        "    try: found = m.version(name)\n"
        "    except m.PackageNotFoundError: continue\n"
        "    print(json.dumps([name, found])); break\n"
    )
