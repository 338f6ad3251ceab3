"""How long a run will still take, by what its own sessions and cells have taken so far."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from statistics import mean, median

from harness.experiment import Cell


class CostSoFar:
    """What has been paid, in seconds of whatever clock the caller reads.

    A cell to come costs the median of what the same load on the same engine took (in an earlier block), else of what it took on
    another engine, else the mean of all cells. A session to come costs the mean of what sessions took beside their cells.
    """

    def __init__(self, planned: Sequence[Cell] = (), committed: Collection[str] = ()) -> None:
        self._left = {cell.id: cell for cell in planned if cell.id not in committed}
        self._cells: dict[Hashable, list[float]] = {}
        self._sessions: list[float] = []
        self._open: tuple[str, int] | None = None
        self._beside = 0.0  # what the open session has taken beside its cells
        self._since = 0.0  # when what runs now began
        self._in_cell = False

    def session_began(self, engine: str, block: int, at: float) -> None:
        """A server is started."""
        self._open, self._beside, self._since = (engine, block), 0.0, at

    def session_ended(self, at: float) -> None:
        """It is gone."""
        if self._open is not None:
            self._sessions.append(self._beside + at - self._since)
        self._open, self._in_cell = None, False

    def cell_began(self, at: float) -> None:
        """Its warm-up begins."""
        self._beside += at - self._since
        self._since, self._in_cell = at, True

    def cell_ended(self, cell: Cell, at: float) -> None:
        """It is committed."""
        for key in _likeness(cell):
            self._cells.setdefault(key, []).append(at - self._since)
        self._left.pop(cell.id, None)
        self._since, self._in_cell = at, False

    def left_out(self, cell_id: str) -> None:
        """It is not going to be run."""
        self._left.pop(cell_id, None)

    def seconds_left(self, at: float) -> float | None:
        """From now to the end of what is planned; None before the first cell has ended."""
        if not self._cells:
            return None
        left = sum(self._expected(cell) for cell in self._left.values())
        if self._in_cell:
            left = max(0.0, left - (at - self._since))
        to_come = {(cell.engine.label, cell.block) for cell in self._left.values()} - {self._open}
        return left + len(to_come) * mean(self._sessions or [self._beside])

    def _expected(self, cell: Cell) -> float:
        for key in _likeness(cell):
            if found := self._cells.get(key):
                return median(found) if key else mean(found)
        return 0.0


def _likeness(cell: Cell) -> tuple[Hashable, ...]:
    """What a cell has in common with others, the nearest first; () is common to all."""
    shape = (cell.workload.model_dump_json(), cell.load.model_dump_json())
    return (cell.engine.label, *shape), shape, ()
