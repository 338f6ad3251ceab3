"""What the runner tells while it works. The terminal shows it; nothing in the harness depends on who listens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.experiment import Cell


@dataclass(frozen=True, slots=True)
class CellProgress:
    """How far the running cell is; `total` is 0 where only time ends it. `server` holds the newest server and host
    samples by metric name, `devices` those of each device."""

    done: int
    total: int
    in_flight: int
    failed: int
    tokens: int
    elapsed_s: float
    server: Mapping[str, float | None]
    devices: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)


class Observer:
    """Hears everything and does nothing: the base of listeners, and the quiet one."""

    def run_started(self, planned: Sequence[Cell], committed: Collection[str]) -> None:
        """The plan is known, in its order; cells of these ids were committed before."""

    def session_starting(self, engine: str, block: int, log: str) -> None:
        """A server is being launched, its output going to `log`, or attached to (then `log` is empty)."""

    def session_waiting(self, engine: str, elapsed_s: float, limit_s: float, phase: str) -> None:
        """It is not ready yet. It is given up after `limit_s`; `phase` is how far it has come, "" where nothing tells."""

    def session_ready(self, engine: str, elapsed_s: float) -> None:
        """It answers."""

    def session_ended(self, engine: str) -> None:
        """It is gone."""

    def run_interrupted(self) -> None:
        """Ctrl-C: servers are being stopped."""

    def run_ended(self) -> None:
        """No server is left, also none that was still starting, and nothing more is told."""

    def engine_failed(self, engine: str, message: str) -> None:
        """It did not start (or died too often): its remaining cells are left out."""

    def cell_skipped(self, entry: Mapping[str, Any]) -> None:
        """A planned cell is left out; `entry` is its line of the summary, with the reason in `skipped`."""

    def cell_started(self, cell: Cell) -> None:
        """Warm-up begins."""

    def cell_progress(self, cell: Cell, progress: CellProgress) -> None:
        """A few times a second."""

    def cell_done(self, cell: Cell, summary: Mapping[str, Any]) -> None:
        """Committed; `summary` is its entry of summary.json."""
