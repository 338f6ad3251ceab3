"""A look at a server that is starting: does it get on, or is it silent and idle, or has it lost a worker?

A first start may download, compile and capture graphs for many minutes, and says so, or computes; a dead one does neither.
So what is bounded is the time without a sign of life, not only the whole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from backends.base import FailurePattern
from backends.failure_table import STALLED, UNKNOWN, FailureClass
from backends.failures import classify, death_line
from backends.keeper import Process
from backends.server_log import log_size, read_log, tail_lines

# Less of a core than this is the price of being asked whether it is ready.
_IDLE_SHARE = 0.03
_IDLE_S = 0.05
# Helpers that live for a moment (a compiler, a version query) are no workers.
_WORKER_LIVED_S = 0.5
# A front that reports the death of its worker and ends by itself is to have its say.
_LAST_WORDS_S = 0.6


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a start is given up: in words, and as the failure class where the log names none."""

    words: str
    failure: FailureClass
    lines: int


class StartWatch:
    """Call `look` a few times a second with the processes of the server's tree."""

    def __init__(self, log: Path, stall_s: float | None, patterns: Sequence[FailurePattern] = ()) -> None:
        self._log, self._stall_s, self._patterns = log, stall_s, patterns
        self._born: dict[Process, float] = {}
        self._lost: Process | None = None
        now = time.monotonic()
        self._logged, self._spoke = log_size(log), now
        self._cpu_s, self._worked = 0.0, now

    def look(self, tree: Iterable[Process]) -> Trouble | None:
        """What is wrong, as far as one can see now."""
        now, here = time.monotonic(), set(tree)
        if (size := log_size(self._log)) != self._logged:
            self._logged, self._spoke = size, now
        used = sum(cpu_seconds(process.pid) for process in here)
        # A process that ended took its time out of the sum: something happened, too.
        if used < self._cpu_s or used - self._cpu_s > _IDLE_S + _IDLE_SHARE * (now - self._worked):
            self._cpu_s, self._worked = used, now
        gone = [p for p, born in self._born.items() if p not in here and now - born > _WORKER_LIVED_S]
        self._born = {process: self._born.get(process, now) for process in here}
        self._lost = gone[0] if gone else self._lost
        if self._lost is not None and now - self._spoke > _LAST_WORDS_S:
            if self._names_a_death():
                words = f"its process {self._lost.pid} ended, and its log names a cause that the others do not survive"
                return Trouble(words, UNKNOWN, 15)
            self._lost = None
        still = now - max(self._spoke, self._worked)
        if self._stall_s is not None and still > self._stall_s:
            last = (tail_lines(read_log(self._log), 1) or ["(none)"])[0]
            words = f"it stalled: no line in its log and no CPU time for {self._stall_s:g} s; the last line is {last!r}"
            return Trouble(words, STALLED, 50)
        return None

    def _names_a_death(self) -> bool:
        log = read_log(self._log)
        return classify(log, None, self._patterns).is_out_of_memory or bool(death_line(log, self._patterns))


def cpu_seconds(pid: int, thread: int | None = None) -> float:
    """CPU time so far of a process, all its threads, or of one thread; 0 for one that is gone, or where there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return 0.0
    fields = text[text.rfind(b")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_S


_TICKS_S = float(os.sysconf("SC_CLK_TCK"))
