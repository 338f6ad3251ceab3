"""Why a server failed: its failure class, found by reading its whole log, and the errors that carry it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from backends.base import FailurePattern
from backends.failure_table import CRASH, ENGINE_DIED, FAILURES, KILLED, TIMEOUT, UNKNOWN, FailureClass
from results.errors import EngineError


class Stage(StrEnum):
    """How far a server had come when it failed."""

    SPAWN = "spawn"
    START = "start"
    LISTEN = "listen"
    FIRST_TOKEN = "first_token"
    READY = "ready"


STAGE_WORDS = {
    Stage.SPAWN: "while its command was being executed",
    Stage.START: "while it was starting, before it listened on its port",
    Stage.LISTEN: "after it listened on its port, before it was ready",
    Stage.FIRST_TOKEN: "after it said it was ready, before it gave its first token",
    Stage.READY: "after it was ready, while it was in use",
}


_BY_ID = {row.id: row for row in (*FAILURES, ENGINE_DIED)}
_DEATHS = "|".join(f"(?:{pattern})" for pattern in ENGINE_DIED.patterns)
_CRASH_SIGNALS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
_ERROR_LINES = 4
# Lines an engine does not mean as an error: they name optional packages, unreadable caches and the like.
_HARMLESS = re.compile(r"\b(DEBUG|INFO|WARN|WARNING)\b|\w*Warning:|falling back", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong (`failure` is a row's id), the line that says so ("" when only the exit tells), and what to do."""

    failure: str
    words: str
    advice: str
    evidence: str = ""

    @property
    def is_out_of_memory(self) -> bool:
        """Whether asking for more would fail as well."""
        return self.failure.startswith("out_of_memory")


def classify(
    log: str, exit_code: int | None, patterns: Sequence[FailurePattern] = (), otherwise: FailureClass = TIMEOUT
) -> Failure:
    """Name a failure. The first cause in the whole log wins over what follows from it; then the exit code tells.

    `exit_code` is negative for a signal and None for a server that did not exit; `otherwise` is what that is where the log
    tells nothing (it was not ready in time). `patterns` are the adapter's own, tried before the common ones on each line.
    """
    own = [(re.compile(p.pattern, re.IGNORECASE), p.failure, p.advice) for p in patterns if p.failure != ENGINE_DIED.id]
    rows = own + [(re.compile(p, re.IGNORECASE), row.id, row.advice) for row in FAILURES for p in row.patterns]
    anything = re.compile("|".join(f"(?:{pattern.pattern})" for pattern, _, _ in rows), re.IGNORECASE)
    lines = log.splitlines()
    for at, line in enumerate(lines):
        if anything.search(line) and not _HARMLESS.search(line):
            if (found := _first_match(line, rows)) is None:
                continue
            # An error of several lines: its head says that something is wrong, a line below it what and which way out.
            for more in lines[at : at + _ERROR_LINES]:
                if (better := _first_match(more, own)) is not None and better.failure == found.failure:
                    return better
            return found
    row = otherwise if exit_code is None else _by_exit(exit_code)
    if row not in (CRASH, KILLED) and (line := death_line(log, patterns)):
        return Failure(ENGINE_DIED.id, ENGINE_DIED.words, ENGINE_DIED.advice, line)
    return Failure(row.id, row.words, row.advice)


def death_line(log: str, patterns: Sequence[FailurePattern] = ()) -> str:
    """The first line that only an engine writes that cannot go on, even while its server still answers; else "".

    What an adapter calls `engine_died` is that at any level; of the common ones warnings are not believed.
    """
    own = "|".join(f"(?:{p.pattern})" for p in patterns if p.failure == ENGINE_DIED.id)
    common, adapters = re.compile(_DEATHS, re.IGNORECASE), re.compile(own or r"(?!)", re.IGNORECASE)
    for line in log.splitlines():
        if adapters.search(line) or (common.search(line) and not _HARMLESS.search(line)):
            return line.strip()[:300]
    return ""


def _first_match(line: str, rows: Sequence[tuple[re.Pattern[str], str, str]]) -> Failure | None:
    """The failure that the first matching row names."""
    for pattern, name, advice in rows:
        if pattern.search(line):
            row = _BY_ID.get(name)
            return Failure(name, row.words if row else name, advice, line.strip()[:300])
    return None


def _by_exit(exit_code: int) -> FailureClass:
    # A shell in between reports a child's signal as 128 + its number.
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number == signal.SIGKILL:
        return KILLED
    return CRASH if number in _CRASH_SIGNALS else UNKNOWN


def exit_words(exit_code: int | None) -> str:
    """`exit code 3`, `signal 11 (SIGSEGV)`, or that it still ran."""
    if exit_code is None:
        return "no exit: it still ran"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"signal {-exit_code}"


class ServerError(EngineError):
    """A server that failed: how far it had come, how it ended, why, and where to read on."""

    def __init__(
        self,
        what: str,
        *,
        stage: Stage,
        server_exit: int | None,
        failure: Failure,
        log_path: Path,
        tail: Iterable[str] = (),
    ) -> None:
        evidence = f" ({failure.evidence!r})" if failure.evidence else ""
        message = f"{what} Likely cause: {failure.words}{evidence}. {failure.advice}"
        lines = "\n".join(f"  | {line}" for line in tail)
        message += f"\nLast lines of its log:\n{lines}" if lines else " It wrote nothing to its log."
        super().__init__(f"{message}\nWhole log: {log_path}")
        self.stage, self.server_exit, self.failure, self.log_path = stage, server_exit, failure, log_path

    def to_record(self) -> dict[str, str]:
        """For `SessionRecord.failure`."""
        return {
            "class": self.failure.failure,
            "words": self.failure.words,
            "evidence": self.failure.evidence,
            "advice": self.failure.advice,
            "stage": self.stage.value,
            "exit": exit_words(self.server_exit),
        }


class StartupError(ServerError):
    """A server that did not become ready."""


class ServerDiedError(ServerError):
    """A server that ended while it was in use."""


class LeftBehindError(EngineError):
    """A server could not be ended completely: processes, its port or device memory are still held."""
