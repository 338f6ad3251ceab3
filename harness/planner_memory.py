"""Leave out what is larger than what ran out of memory: a wrapper around any other planner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.experiment import Cell
from harness.loads import BatchLoad, ConcurrencyLoad
from harness.planner import Planner
from results.rules_engine import OUT_OF_MEMORY

SKIPPED = "skipped_after_oom"
Results = Mapping[str, Mapping[str, Any]]


def lacked_memory(found: Mapping[str, Any]) -> bool:
    """Whether a finished cell ran out of memory, or was left out because a smaller one had."""
    return "skipped" in found or any(
        reason.get("code") == OUT_OF_MEMORY and reason.get("severity") == "invalid"
        for reason in found.get("reasons") or ()
    )


class MemoryPlanner:
    """Asks the planner inside for cells, and skips those of an engine that are at least as large, in length and in number at
    once, as one that ran out of memory there. Which are left out does not depend on the order in which the others ran.

    To the planner inside a skipped cell is a finished one, INVALID, with "skipped" in place of numbers.
    """

    def __init__(self, inner: Planner) -> None:
        self._inner = inner
        self._cells = {cell.id: cell for cell in inner.planned()}
        self._skipped: dict[str, dict[str, Any]] = {}

    def next_cell(self, results: Results) -> Cell | None:
        while True:
            cell = self._inner.next_cell({**results, **self._skipped})
            if cell is None:
                return None
            self._cells[cell.id] = cell
            smaller = self._ran_out(cell, results)
            if smaller is None:
                return cell
            self._skipped[cell.id] = _entry(cell, smaller)

    def planned(self) -> list[Cell]:
        return self._inner.planned()

    def skipped(self) -> list[dict[str, Any]]:
        """The cells left out so far, as they stand in summary.json."""
        return list(self._skipped.values())

    def _ran_out(self, cell: Cell, results: Results) -> Cell | None:
        """A cell that is no larger than this one and ran out of memory."""
        for cell_id, found in results.items():
            other = self._cells.get(cell_id)
            if other is not None and lacked_memory(found) and _at_least(cell, other):
                return other
        return None


def _at_least(cell: Cell, other: Cell) -> bool:
    """Whether a cell needs at least the memory of another: the same engine, tokens of a request and requests at once."""
    if cell.engine.label != other.engine.label or cell.workload.longest < other.workload.longest:
        return False
    a, b = cell.load, other.load
    if isinstance(a, BatchLoad | ConcurrencyLoad) and isinstance(b, BatchLoad | ConcurrencyLoad):
        return a.in_flight >= b.in_flight
    # How many requests an open loop has in flight nobody knows beforehand; more of them a second are not fewer.
    return a.mode == b.mode and (a == b or (a.value is not None and b.value is not None and a.value >= b.value))


def _entry(cell: Cell, smaller: Cell) -> dict[str, Any]:
    load = cell.load.model_dump(mode="json")
    words = f"{_size(smaller)} ran out of memory on it, and this is no smaller"
    return {
        "id": cell.id,
        "engine": cell.engine.label,
        "block": cell.block,
        "workload": cell.workload.model_dump(mode="json"),
        "load": {**load, "value": cell.load.value},
        "verdict": "INVALID",
        "skipped": {"code": SKIPPED, "words": words},
    }


def _size(cell: Cell) -> str:
    return f"{cell.load.mode} {cell.load.value} with {cell.workload.longest:,} tokens a request"
