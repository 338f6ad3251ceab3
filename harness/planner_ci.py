"""Blocks until intervals are narrow enough, or until the budget is spent: `--until-ci 3%`, `--budget 3h`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.experiment import Cell, Experiment
from harness.planner import block_order
from harness.planner_memory import lacked_memory
from results.clock import NS_PER_S, now_ns
from results.precision import precision
from results.statistics import BLOCKS_FOR_A_VERDICT

# Beyond so many blocks of one experiment the spread is the answer.
MOST_BLOCKS = 100


class BlocksPlanner:
    """Block after block of the whole grid. A block is begun only where the budget has room for one as long as the longest so
    far, so a run ends between blocks and not in one.

    With `until_ci` there are at least 5 blocks (or `blocks`, if more), then further ones until every interval is as narrow;
    without it, `blocks` of them. The time is that of this start of the command: a run that is completed later has it anew.
    """

    def __init__(self, experiment: Experiment, clock: Callable[[], int] = now_ns) -> None:
        self._experiment, self._clock, self._begun = experiment, clock, clock()
        until = experiment.until_ci
        self._least = experiment.blocks if until is None else max(experiment.blocks, BLOCKS_FOR_A_VERDICT)
        self._most = self._least if until is None else max(self._least, MOST_BLOCKS)
        self._order: list[list[Cell]] = []
        self._block_begun: int | None = None
        self._longest_s = 0.0

    def next_cell(self, results: Mapping[str, Mapping[str, Any]]) -> Cell | None:
        for block in range(self._most):
            cells = self._block(block)
            missing = [cell for cell in cells if cell.id not in results]
            if missing and len(missing) < len(cells):
                return missing[0]
            if missing:
                return missing[0] if self._begin(block, results) else None
        return None

    def planned(self) -> list[Cell]:
        return [cell for block in range(self._least) for cell in self._block(block)]

    def _begin(self, block: int, results: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether another block is wanted and fits."""
        now = self._clock()
        if self._block_begun is not None:
            self._longest_s = max(self._longest_s, (now - self._block_begun) / NS_PER_S)
        self._block_begun = now
        if block >= self._least and self._narrow(results):
            return False
        budget = self._experiment.budget_s
        # The first block is always measured: without it there is nothing to say.
        return budget is None or block == 0 or (now - self._begun) / NS_PER_S + self._longest_s <= budget

    def _narrow(self, results: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether nothing is gained by a further block: every interval is narrow enough, or no engine is left to measure."""
        target = self._experiment.until_ci
        failed = {cell.engine.label for cells in self._order for cell in cells if "failure" in results.get(cell.id, {})}
        if target is None or failed == {engine.label for engine in self._experiment.engines}:
            return True
        ids = {cell.id for cells in self._order for cell in cells if cell.engine.label not in failed}
        # No further block makes a point any narrower at which the engine's memory is not enough.
        cells = [found for key, found in results.items() if key in ids and not lacked_memory(found)]
        found = precision(cells, target)
        return found.reached(target) or not found.where

    def _block(self, block: int) -> list[Cell]:
        while len(self._order) <= block:
            self._order.append(block_order(self._experiment, len(self._order)))
        return self._order[block]
