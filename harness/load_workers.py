"""How many processes share a cell's load: as many as were asked for, else one, or more where this machine's calibration says that
one cannot measure it.

What a cell will ask of its client is known beforehand in part: the streams of a closed loop, the tokens a second of a rate. One
worker is good for what `near_client_ceiling` leaves unmarked; more of them are made only where there are cores for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backends.base import get_backend
from harness.calibration.store import cell_ceiling
from harness.experiment import Cell, EngineSpec, Experiment, cells_of
from harness.loads import BatchLoad, ConcurrencyLoad, Load, RampLoad
from harness.placement import Machine, ThisMachine, physical_cores
from results.report_format import plural
from results.rules_client import good_for

# Of the cores of a machine that also runs the engine, a client has one in so many.
_CORES_EACH = 4


@dataclass(frozen=True, slots=True)
class Workers:
    """How many, why it is not the one of old (empty where nothing was asked and one is enough), and where they run."""

    count: int = 1
    why: str = ""
    place: str = "here"


ALONE = Workers()


class WorkerChoice:
    """Chooses for the cells of one experiment on this machine."""

    def __init__(
        self, experiment: Experiment, ceiling: Mapping[str, Any] | None = None, machine: Machine | None = None
    ) -> None:
        self._asked, self._experiment = experiment.workers, experiment
        self._ceiling = cell_ceiling() if ceiling is None else ceiling
        self._cores = max(1, len(physical_cores(machine or ThisMachine())))

    def of(self, cell: Cell) -> Workers:
        if self._asked is not None:
            return Workers(self._asked, "as --workers asked" if self._asked > 1 else "", self._experiment.workers_on)
        if self._ceiling is None:
            return ALONE
        wants = [_need(*want, self._ceiling) for want in _asked_of_client(cell.load, cell.workload.expected_output)]
        needed, words = max(wants, default=(1, ""))
        if needed == 1:
            return ALONE
        launches = get_backend(cell.engine.backend).capabilities.launches
        cores = max(1, self._cores // _CORES_EACH) if launches else self._cores
        count, held = min(
            (needed, ""), (_shared_by(cell.load), "the load cannot be shared by more"), (cores, _few(cores))
        )
        told = f"{words} (calibrated {str(self._ceiling.get('date', ''))[:10]})"
        return Workers(
            count, f"{told}: {plural(count, 'worker')}" + (f"; {needed} are wanted, but {held}" if held else "")
        )

    def most(self, engine: EngineSpec) -> int:
        """The most that any cell of an engine gets, also of one that a planner thought of on the way."""
        return max(self.of(cell).count for cell in self._grid(engine))

    def plan(self) -> list[str]:
        """What there is to say of it before anything starts, a line a load; nothing where --workers says how many."""
        if self._asked is not None:
            return []
        told = {
            f"{c.load.mode} {c.load.value or 0:g}": why
            for c in self._grid(*self._experiment.engines)
            if (why := self.of(c).why)
        }
        return [f"{load}: {why}." for load, why in told.items()]

    def _grid(self, *engines: EngineSpec) -> list[Cell]:
        return cells_of(self._experiment.model_copy(update={"engines": engines, "blocks": 1}))


def _asked_of_client(load: Load, output_len: int) -> list[tuple[str, str, float]]:
    """What is known beforehand of what a cell asks of its client: (name of the ceiling, words, number)."""
    if isinstance(load, BatchLoad | ConcurrencyLoad):
        return [("streams", "streams at once", float(load.in_flight))]
    rate = max(load.from_rate, load.to_rate) if isinstance(load, RampLoad) else load.value
    found = [] if rate is None else [("chunks_per_s", "tokens/s", rate * output_len)]
    if load.max_in_flight is not None and load.max_in_flight < (load.expected_requests or math.inf):
        found.append(("streams", "streams at once at most", float(load.max_in_flight)))
    return found


def _need(name: str, words: str, number: float, ceiling: Mapping[str, Any]) -> tuple[int, str]:
    good = good_for(ceiling.get(name))
    if not good or number <= good:
        return 1, ""
    return math.ceil(number / good), f"{number:,.0f} {words}, one worker is good for {good:,.0f}"


def _shared_by(load: Load) -> int:
    """The most workers that can share a load."""
    if isinstance(load, BatchLoad):
        return 1
    most = load.in_flight if isinstance(load, ConcurrencyLoad) else load.max_in_flight
    return min(n for n in (most, load.expected_requests, 64) if n is not None)


def _few(cores: int) -> str:
    return f"there {'is one core' if cores == 1 else f'are {cores} cores'} for them"
