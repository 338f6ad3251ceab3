"""Which planner an experiment asks for."""

from __future__ import annotations

from harness.experiment import Experiment
from harness.planner import GridPlanner, Planner
from harness.planner_ci import BlocksPlanner
from harness.planner_memory import MemoryPlanner
from harness.planner_slo import SloPlanner


def planner_for(experiment: Experiment, try_all: bool = False) -> Planner:
    """The planner an experiment asks for. Unless `try_all`, cells that are larger than one that ran out of memory are left
    out."""
    planner = _asked_for(experiment)
    if try_all:
        return planner
    return MemoryPlanner(planner)


def _asked_for(experiment: Experiment) -> Planner:
    if experiment.slo is not None:
        return SloPlanner(experiment)
    if experiment.until_ci is not None or experiment.budget_s is not None:
        return BlocksPlanner(experiment)
    return GridPlanner(experiment)
