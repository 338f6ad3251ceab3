"""The SLO search: the highest load of each engine that meets the objectives, found by asking about few loads.

Attainment falls with load, so the search is monotone: the lowest load first, then the highest, then the middle of what is
left (by ratio), until met and not met are within 5 % or one request in flight of each other. A load that its cell does not
decide is measured again in a further block, up to three, then counts as undetermined and the search goes on below it. What
comes out as the answer is measured in five sessions, the load that is met and then the lowest above it that is not: where the
others speak against the first, the search goes on farther from the limit, from the middle of what the first had found. Loads
between the two that were not decided are the answer's resolution; the lowest one above them that is not met is looked for in
the same way. While there is no answer at all (the lowest load is not decided, or nothing bounds the answer above), blocks go on
up to ten. Cells that are there already are never measured again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from harness.experiment import Cell, EngineSpec, Experiment, cells_of
from harness.loads import ConcurrencyLoad, Load
from results.clock import NS_PER_S, now_ns
from results.errors import UsageError
from results.slo import MET, NOT_MET, UNDETERMINED, needed_requests, parse_slo
from results.slo_points import SESSIONS, close, decided, slo_points
from workloads.union import Workload

# So often at most is a load measured to decide it, and so often while the search has no answer without it. What comes out as
# the answer is measured SESSIONS times.
MOST_BLOCKS = 3
LAST_BLOCKS = 10
_SEARCHED = ("concurrency", "rate")
_Place = tuple[EngineSpec, Workload]


class SloPlanner:
    """Searches engine by engine, so that one session serves most of an engine's search."""

    def __init__(self, experiment: Experiment, clock: Callable[[], int] = now_ns) -> None:
        if experiment.slo is None:
            raise UsageError("An SLO search needs objectives: --slo 'ttft_ms.p99<=200'.")
        modes = {load.mode for load in experiment.loads}
        if len(modes) != 1 or not modes <= set(_SEARCHED):
            raise UsageError(
                f"An SLO search varies one kind of load, --concurrency or --rate; this experiment has {', '.join(sorted(modes))}. "
                "Give the range to search, such as --concurrency 1,64."
            )
        self._experiment, self._clock, self._begun = experiment, clock, clock()
        self._slo = parse_slo(experiment.slo.objectives, experiment.slo.share)
        self._loads = {float(load.value or 0): load for load in experiment.loads}
        self._blocks = max(experiment.blocks, MOST_BLOCKS)
        self._given_out: dict[str, set[str]] = {engine.label: set() for engine in experiment.engines}
        self._places: list[_Place] = [(e, w) for e in experiment.engines for w in experiment.workloads]

    def next_cell(self, results: Mapping[str, Mapping[str, Any]]) -> Cell | None:
        if self._spent():
            return None
        for place in self._places:
            mine = self._given_out[place[0].label]
            if any("failure" in found for cell_id, found in results.items() if cell_id in mine):
                continue
            cell = self._next_of(place, results)
            # Whatever came of it, a cell is asked for once.
            if cell is not None and cell.id not in results:
                mine.add(cell.id)
                return cell
        return None

    def planned(self) -> list[Cell]:
        """The first question of each search: what follows depends on its answer."""
        return [self._cell(place, min(self._loads), 0) for place in self._places]

    def _spent(self) -> bool:
        budget = self._experiment.budget_s
        return budget is not None and (self._clock() - self._begun) / NS_PER_S >= budget

    def _next_of(self, place: _Place, results: Mapping[str, Mapping[str, Any]]) -> Cell | None:
        """The next cell of one search, or None where it is decided."""
        asked = self._asked(place, results)
        low, high = min(self._loads), max(self._loads)
        if low not in asked:
            return self._cell(place, low, 0)
        if asked[low] == NOT_MET:
            return self._confirm(place, [low], None, NOT_MET, results)
        if asked[low] == UNDETERMINED:
            return self._missing(place, low, self._most(place, low, results), results)
        if high not in asked:
            return self._cell(place, high, 0)
        met = sorted(v for v, told in asked.items() if told == MET and not any(u < v for u in _failing(asked)))
        above = min((v for v, told in asked.items() if told != MET and v > met[-1]), default=None)
        value = None if above is None else self._between(met[-1], above)
        if value is not None:
            return self._cell(place, value, 0)
        # Where the line is as near as it gets, what lies right above it must be decided as well.
        again = None if above is None else self._again(place, above, self._blocks, asked, results)
        failing = sorted(_failing(asked))
        below = max((v for v in asked if not failing or v < failing[0]), default=None)
        return (
            again
            or self._confirm(place, met[::-1], above, MET, results)
            or self._confirm(place, failing, below, NOT_MET, results)
            or self._narrowed(place, asked)
            or self._last(place, results)
        )

    def _narrowed(self, place: _Place, asked: Mapping[float, str]) -> Cell | None:
        """A load between the highest that was not decided and the lowest that is not met: how far up may the limit lie?"""
        failed = min(_failing(asked), default=None)
        if failed is None:
            return None
        undecided = max((v for v, told in asked.items() if told == UNDETERMINED and v < failed), default=None)
        value = None if undecided is None else self._between(undecided, failed)
        return None if value is None else self._cell(place, value, 0)

    def _last(self, place: _Place, results: Mapping[str, Mapping[str, Any]]) -> Cell | None:
        """While all that makes no answer, a further block of what is missing: a session that counts, or a load that is not met."""
        points = slo_points(self._own(place, results), {self._experiment.loads[0].mode: max(self._loads)})
        if not points or points[0].verdict != UNDETERMINED or points[0].highest is None:
            return None
        point = points[0]
        value = max(point.undecided, default=None)
        if point.failed is not None and point.failed_sessions < SESSIONS:
            value = point.failed
        if point.sessions < SESSIONS:
            value = point.highest
        return None if value is None else self._missing(place, value, self._most(place, value, results), results)

    def _most(self, place: _Place, value: float, results: Mapping[str, Mapping[str, Any]]) -> int:
        """How many blocks of a load that an answer hangs on; where all so far are INVALID, the next would be as well."""
        found = (c for c in self._own(place, results) if _value(c) == value and c.get("slo"))
        return LAST_BLOCKS if any(c.get("verdict") != "INVALID" for c in found) else self._blocks

    def _confirm(
        self,
        place: _Place,
        loads: Sequence[float],
        beyond: float | None,
        told: str,
        results: Mapping[str, Mapping[str, Any]],
    ) -> Cell | None:
        """A further session of the first of these loads, which are all met or all not, from the nearest to the limit on. Once others
        have taken back what the first session said of the load `beyond` them, of the middle one of those that are not confirmed
        yet: it may have been wrong about many."""
        own = self._own(place, results)
        # What is left out since a smaller one ran out of memory would be left out of any session.
        left_out = {_value(c) for c in own if "skipped" in c}
        left = list(
            takewhile(lambda v: v not in left_out and self._missing(place, v, SESSIONS, results) is not None, loads)
        )
        if not left:
            return None
        first = next((c for c in own if _value(c) == beyond and not c.get("block")), {})
        taken_back = (first.get("slo") or {}).get("met") == told
        return self._missing(place, left[(len(left) - 1) // 2] if taken_back else left[0], SESSIONS, results)

    def _again(
        self,
        place: _Place,
        value: float,
        blocks: int,
        asked: Mapping[float, str],
        results: Mapping[str, Mapping[str, Any]],
    ) -> Cell | None:
        """A further block of a load that is not decided, while there are fewer than so many."""
        return self._missing(place, value, blocks, results) if asked[value] == UNDETERMINED else None

    def _missing(
        self, place: _Place, value: float, blocks: int, results: Mapping[str, Mapping[str, Any]]
    ) -> Cell | None:
        """The next of the first so many blocks of a load that was not measured yet."""
        cells = (self._cell(place, value, block) for block in range(blocks))
        return next((cell for cell in cells if cell.id not in results), None)

    def _between(self, met: float, failed: float) -> float | None:
        """The load to ask about between one that is met and one that is not; None where they are close. Loads that were given
        come first."""
        mode = self._experiment.loads[0].mode
        if close(mode, met, failed):
            return None
        given = [v for v in self._loads if met < v < failed]
        target = math.sqrt(met * failed)
        if given:
            return min(given, key=lambda v: abs(math.log(v / target)))
        if mode == "concurrency":
            return float(min(max(round(target), int(met) + 1), int(failed) - 1))
        return float(f"{target:.3g}") if met < float(f"{target:.3g}") < failed else target

    def _asked(self, place: _Place, results: Mapping[str, Mapping[str, Any]]) -> dict[float, str]:
        """What the cells of this engine and workload under this kind of load say, whoever asked for them."""
        own = self._own(place, results)
        answers = decided(own)
        for found in own:
            # Left out since a smaller one ran out of memory: that load is not met. One of which nothing is known is not decided.
            answers.setdefault(_value(found), NOT_MET if "skipped" in found else UNDETERMINED)
        return answers

    def _own(self, place: _Place, results: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        engine, workload = place
        dumped, mode = workload.model_dump(mode="json"), self._experiment.loads[0].mode
        return [
            found
            for found in results.values()
            if found.get("engine") == engine.label
            and found.get("workload") == dumped
            and (found.get("load") or {}).get("mode") == mode
        ]

    def _cell(self, place: _Place, value: float, block: int) -> Cell:
        engine, workload = place
        load = self._load(value)
        only = self._experiment.model_copy(
            update={"engines": (engine,), "workloads": (workload,), "loads": (load,), "blocks": block + 1}
        )
        return next(cell for cell in cells_of(only) if cell.block == block)

    def _load(self, value: float) -> Load:
        """The load of this value: as given, else like the nearest one given, with as many requests as decide the objectives."""
        given = self._loads.get(value)
        like = given or self._loads[min(self._loads, key=lambda v: abs(math.log(v / value)))]
        data = {**like.model_dump(mode="json"), like.mode: int(value) if like.mode == "concurrency" else value}
        if like.duration_s is None and like.requests is not None:
            fewest = needed_requests(self._slo)
            if isinstance(like, ConcurrencyLoad):
                fewest = max(fewest, 4 * int(value))
            data["requests"] = max(like.requests, fewest)
        made: Load = type(like).model_validate(data)
        return made


def _value(cell: Mapping[str, Any]) -> float:
    return float((cell.get("load") or {}).get("value") or 0)


def _failing(asked: Mapping[float, str]) -> list[float]:
    return [v for v, told in asked.items() if told == NOT_MET]
