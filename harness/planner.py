"""Planners: given the results so far, which cell next, or stop.

A session is one server's life, so the runner keeps a server up for as long as consecutive cells name the same engine
and block. A grid, a search or "skip what is larger than what ran out of memory" are planners, not special cases.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from harness.experiment import Cell, Experiment, cells_of
from workloads.base import request_seed


class Planner(Protocol):
    """Decides what is measured next."""

    def next_cell(self, results: Mapping[str, Mapping[str, Any]]) -> Cell | None:
        """The next cell, or None to stop.

        `results` maps the ids of finished cells, in the order they were finished, to their entries of summary.json; a cell
        whose engine could not be measured has {"failure": {"class", "words", ...}} instead.
        """
        ...

    def planned(self) -> list[Cell]:
        """What is known to come, in order: for the plan that is printed and for the ETA."""
        ...


@runtime_checkable
class LeavesOut(Protocol):
    """A planner that may leave out cells that were planned."""

    def skipped(self) -> list[dict[str, Any]]:
        """Those left out so far, each as it is to stand in summary.json: what it is, and {"skipped": {"code", "words"}}."""
        ...


def block_order(experiment: Experiment, block: int) -> list[Cell]:
    """The cells of one block in the order they run."""
    one = [c.model_copy(update={"block": block}) for c in cells_of(experiment.model_copy(update={"blocks": 1}))]
    labels = [engine.label for engine in experiment.engines]
    shift = block % len(labels)
    order: list[Cell] = []
    for label in labels[shift:] + labels[:shift]:
        own = [c for c in one if c.engine.label == label]
        # The order is the same for every engine of a block: what a cell inherits from the one before it is too.
        random.Random(request_seed(experiment.seed, "order", block)).shuffle(own)
        order.extend(own)
    return order


class GridPlanner:
    """The whole grid, block by block: in each block every engine runs all its cells in an order of its own draw, and the
    engines take turns at going first (split plot)."""

    def __init__(self, experiment: Experiment) -> None:
        self._order = [cell for block in range(experiment.blocks) for cell in block_order(experiment, block)]

    def next_cell(self, results: Mapping[str, Mapping[str, Any]]) -> Cell | None:
        return next((cell for cell in self._order if cell.id not in results), None)

    def planned(self) -> list[Cell]:
        return list(self._order)
