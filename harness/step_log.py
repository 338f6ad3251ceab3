"""The steps that an engine's own log told while a cell ran, kept with the cell.

Which lines belong to a cell goes by where the log stood when its load began and once it was over. The line of the last step may
be written a moment after its tokens went out (the loop writes it as it comes round), so the end is where the log stands still.
"""

from __future__ import annotations

import time
from pathlib import Path

from backends.base import Backend
from backends.redact import public_text
from backends.server_log import lines_between, log_size
from results.clock import ClockPair, now_ns
from results.errors import StoreError
from results.kv_use import setting
from results.logged_steps import LoggedSteps
from results.records import Fault, SessionRecord
from results.step_log import write_logged

NOT_TOLD = "steps_not_told"
_NO_LINE = "the server's log holds no line of a step of this cell"
_OUTSIDE = "no line of a step in the server's log is stamped within this cell and holds what a step can: lines read: "
# Longer than most steps; a server that writes on and on is not waited for.
_STILL_S, _LONGEST_S = 0.05, 0.5
_GUESSES = "the engine guesses tokens ahead: its lines say how many were tried in a step, not how many were kept"


class StepLog:
    """The log of one session's server. `begin` where a cell's load begins, `keep` once it is over."""

    def __init__(self, backend: Backend, record: SessionRecord, log: Path) -> None:
        self._backend, self._record, self._log, self._start, self._began = backend, record, log, 0, now_ns()

    def begin(self) -> None:
        self._start, self._began = log_size(self._log), now_ns()

    def keep(self, folder: Path) -> list[Fault]:
        """Write what the log told since `begin` into the cell's folder; a fault says why it cannot be told, where lines of steps
        are there or were asked for. Raises StoreError where the disk does not take it."""
        if not self._backend.capabilities.step_log:
            return []
        try:
            return self._keep(folder)
        except StoreError:
            raise
        except Exception as error:  # whatever a log holds or an adapter makes of it, the cell was measured
            return [
                Fault(NOT_TOLD, f"its lines cannot be read: {type(error).__name__}: {public_text(str(error))[:200]}")
            ]

    def _keep(self, folder: Path) -> list[Fault]:
        end, clocks = self._end(), ClockPair.read()
        told = self._backend.logged_steps(lines_between(self._log, self._start, end), clocks.wall_ns)
        if isinstance(told, LoggedSteps) and not len(told):
            return [Fault(NOT_TOLD, _NO_LINE)] if self._record.asked.get("step_log") else []
        if setting(self._record.to_dict(), "speculative_decoding"):
            return [Fault(NOT_TOLD, _GUESSES)]
        if isinstance(told, str):
            return [Fault(NOT_TOLD, told)]
        within = told.within(clocks.to_wall(self._began), clocks.wall_ns)
        if not len(within):
            return [Fault(NOT_TOLD, f"{_OUTSIDE}{len(told):,}")]
        write_logged(folder, within, clocks.monotonic_ns - clocks.wall_ns)
        return []

    def _end(self) -> int:
        """Where the log stands once nothing more is written; a log that said nothing since `begin` is not waited for."""
        size = log_size(self._log)
        for _ in range(round(_LONGEST_S / _STILL_S)):
            before = size
            if before == self._start:
                break
            time.sleep(_STILL_S)
            size = log_size(self._log)
            if size == before:
                break
        return size
