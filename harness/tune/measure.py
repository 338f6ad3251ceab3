"""One engine measured once, in one block: its cells, and the number that is to be large.

Where no objective is asked for that number is output tokens/s at the load, of several points the geometric mean. With
objectives (`--slo`) it is output tokens/s at the highest load that meets them, which a search inside the block's session finds:
that further sessions bear it out is what the blocks of the confirmation are for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.experiment import Cell, EngineSpec, Experiment
from harness.loads import Load, smaller_load
from harness.planner import Planner, block_order
from harness.planner_slo import SloPlanner
from results.clock import NS_PER_S
from results.elasticity import throughput
from results.records import CellRecord
from results.slo_points import slo_points

Results = Mapping[str, Mapping[str, Any]]


def share_of(rung: int) -> float:
    """The part of a whole cell's requests or time that a cell of a rung has: a quarter at rung 0, then twice as much each."""
    return min(1.0, 2.0 ** (rung - 2))


@dataclass(frozen=True, slots=True)
class Look:
    """How far a measurement is: the cell that is missing next (None: it is whole), and the entries of those that are there."""

    missing: Cell | None
    found: tuple[Mapping[str, Any], ...]

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """Why its engine could not be measured, where it could not."""
        return next((entry["failure"] for entry in self.found if "failure" in entry), None)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is measured of every engine alike: the workloads and loads of `experiment`, whose engines do not matter."""

    experiment: Experiment

    def at_rung(self, rung: int) -> Measurement:
        """The same with cells as short as those of a rung (`share_of`)."""
        factor = share_of(rung)
        if factor == 1.0:
            return self
        loads: list[Load] = [
            type(load).model_validate(smaller_load(load.model_dump(mode="json"), factor))
            for load in self.experiment.loads
        ]
        return Measurement(self.experiment.model_copy(update={"loads": tuple(loads)}))

    def share(self, rung: int) -> float:
        """The part of a whole cell's requests or time that a cell of a rung really has: more than `share_of` where a load cannot
        be so short. Of several loads the mean."""
        short, whole = self.at_rung(rung).experiment.loads, self.experiment.loads
        return math.fsum(_length(a) / _length(b) for a, b in zip(short, whole, strict=True)) / len(whole)

    def look(self, engine: EngineSpec, block: int, results: Results) -> Look:
        """How far the measurement of an engine in a block is. Nothing is kept: what was measured decides."""
        asked = self.experiment.model_copy(
            update={"engines": (engine,), "blocks": 1, "until_ci": None, "budget_s": None}
        )
        if asked.slo is not None:
            return _search(SloPlanner(asked), block, results)
        cells = block_order(asked, block)
        found = tuple(results[cell.id] for cell in cells if cell.id in results)
        failed = any("failure" in entry for entry in found)
        return Look(None if failed else next((c for c in cells if c.id not in results), None), found)

    def value(self, look: Look) -> tuple[float | None, str]:
        """The number that is to be large, or None and why there is none."""
        if look.missing is not None:
            return None, "not measured to the end"
        if look.failure is not None:
            return None, str(look.failure.get("words") or "its engine failed")
        if self.experiment.slo is not None:
            return self._at_objectives(look.found)
        rates = [throughput(entry) for entry in look.found]
        if None in rates or not rates:
            return None, next((w for e in look.found if (w := _why(e))), "a cell gave no throughput")
        return _geometric([rate for rate in rates if rate]), ""

    def _at_objectives(self, cells: Sequence[Mapping[str, Any]]) -> tuple[float | None, str]:
        tops: dict[str, float] = {}
        for load in self.experiment.loads:
            tops[load.mode] = max(tops.get(load.mode, 0.0), float(load.value or 0))
        points = slo_points(cells, tops)
        rates = [point.output_tokens_per_s for point in points]
        if None in rates or not rates:
            return None, next((p.why for p in points if p.why), "no load was shown to meet the objectives")
        return _geometric([rate for rate in rates if rate]), ""


def whole_session_s(
    measurement: Measurement, cells: Sequence[CellRecord], sessions: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """How long a session of whole cells takes at the most, by the name of its backend, in seconds: the loads of a search's short
    cells in proportion, and what does not grow with them (start, warm-up) as it was. The rung of a session is its block."""
    load_s: dict[str, float] = {}
    for cell in cells:
        load_s[cell.session] = load_s.get(cell.session, 0.0) + (cell.ended - cell.started) / NS_PER_S
    longest: dict[str, float] = {}
    for session in sessions:
        spawn, ended = (session.get("timeline") or {}).get("spawn"), session.get("ended")
        own_s = load_s.get(str(session.get("id")))
        if own_s is not None and isinstance(spawn, int) and isinstance(ended, int):
            backend, share = str(session.get("backend")), measurement.share(int(session.get("block") or 0))
            took_s = (ended - spawn) / NS_PER_S + own_s * (1 / share - 1)
            longest[backend] = max(longest.get(backend, 0.0), took_s)
    return longest


def _search(planner: Planner, block: int, results: Results) -> Look:
    """Replay a search over the cells of one block, as far as one session takes it."""
    own: dict[str, Mapping[str, Any]] = {}
    while (cell := planner.next_cell(own)) is not None and cell.block == 0:
        moved = cell.model_copy(update={"block": block})
        if moved.id not in results:
            return Look(moved, tuple(own.values()))
        own[cell.id] = results[moved.id]
    return Look(None, tuple(own.values()))


def _length(load: Load) -> float:
    """Requests, or seconds where only time ends it."""
    return float(load.expected_requests or load.duration_s or 1)


def verdict_of(look: Look) -> str:
    """The worst verdict of its cells; failed where the engine could not be measured."""
    if look.failure is not None:
        return "failed"
    verdicts = {str(entry.get("verdict")) for entry in look.found}
    return next((v for v in ("INVALID", "SUSPECT", "VALID") if v in verdicts), "")


def _why(entry: Mapping[str, Any]) -> str:
    if "skipped" in entry:
        return str(entry["skipped"].get("words"))
    reasons = entry.get("reasons") or ()
    return next((f"{r.get('words')}: {r.get('evidence')}" for r in reasons if r.get("severity") == "invalid"), "")


def _geometric(values: Sequence[float]) -> float | None:
    return math.exp(math.fsum(math.log(v) for v in values) / len(values)) if values else None
