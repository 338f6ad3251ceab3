"""`dyno why`: a cell again and again, each time with one resource changed, and what its throughput does.

Each change is tried in pairs: the cell as it was and the changed one, right after each other, since what disturbs a machine
drifts; which comes first alternates. A round is one pair of every change. Everything is a run of its own inside the run's
folder: `why/<cell>-<hash>/`, which the same command completes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.base import get_backend
from harness.brings import check_commands
from harness.ceilings import keep_ceilings
from harness.experiment import Cell, Experiment
from harness.find_cell import find_cell
from harness.manifest import make_manifest
from harness.model_parts import model_parts
from harness.observer import Observer
from harness.runner import Runner, RunOutcome, check_attached
from harness.telemetry.choose import choose
from harness.why_knobs import KNOBS, Change, Measured, NoChange, changes_of
from results.cell_summary import cell_summary
from results.clock import NS_PER_S, now_ns
from results.elasticity import Elasticity, agrees, decided, elasticity, is_open, throughput
from results.errors import UnknownNameError, UsageError
from results.files import to_json, write_atomic
from results.planned import planned
from results.report_format import seconds
from results.store import RunStore, RunWriter
from workloads.base import canonical

# As many blocks as an experiment may name, and pairs that they hold of every resource there is.
_MOST_BLOCKS = 1000
MOST_PAIRS = _MOST_BLOCKS // len(KNOBS)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: a cell as it was measured, the changes to try, and how often."""

    run: RunStore
    experiment: Experiment
    cell: Cell
    entry: Mapping[str, Any]
    changes: tuple[Change, ...]
    left_out: tuple[NoChange, ...]
    pairs: int
    budget_s: float | None

    def pair(self, number: int, place: int) -> tuple[Cell, Cell]:
        """The cell as it was and the changed one, of one round and the change at that place."""
        block = {"block": number * len(self.changes) + place}
        return self.cell.model_copy(update=block), self.changes[place].cell.model_copy(update=block)

    @property
    def folder(self) -> Path:
        """Where its own run lies."""
        cells = [self.cell.model_dump(mode="json"), *(c.cell.model_dump(mode="json") for c in self.changes)]
        digest = hashlib.sha256(canonical(cells).encode()).hexdigest()[:8]
        return self.run.path / "why" / f"{self.entry['id']}-{digest}"


class WhyPlanner:
    """Round by round, pair by pair; each pair is a block of its own. A round is begun only where the budget has room for one
    as long as the longest so far; the first always is."""

    def __init__(self, question: Question, clock: Callable[[], int] = now_ns) -> None:
        self._question, self._clock, self._begun = question, clock, clock()
        self._round_begun: int | None = None
        self._longest_s = 0.0
        self.out_of_budget = False

    def next_cell(self, results: Mapping[str, Mapping[str, Any]]) -> Cell | None:
        for number in range(self._question.pairs):
            cells = self._round(number)
            missing = [cell for cell in cells if cell.id not in results]
            if missing and len(missing) == len(cells) and not self._begin(number):
                self.out_of_budget = True
                return None
            if missing:
                return missing[0]
        return None

    def planned(self) -> list[Cell]:
        return [cell for number in range(self._question.pairs) for cell in self._round(number)]

    def _begin(self, number: int) -> bool:
        now, budget = self._clock(), self._question.budget_s
        if self._round_begun is not None:
            self._longest_s = max(self._longest_s, (now - self._round_begun) / NS_PER_S)
        self._round_begun = now
        return budget is None or number == 0 or (now - self._begun) / NS_PER_S + self._longest_s <= budget

    def _round(self, number: int) -> list[Cell]:
        cells: list[Cell] = []
        for place in range(len(self._question.changes)):
            pair = self._question.pair(number, place)
            cells += pair if (number + place) % 2 == 0 else pair[::-1]
        return cells


def ask(run: Path, name: str, pairs: int = 5, budget_s: float | None = None, only: list[str] | None = None) -> Question:
    """Make out the cell (`name`: its id, or the beginning of it) and what of it can be changed. Raises UsageError."""
    if unknown := sorted(set(only or []) - KNOBS.keys()):
        raise UnknownNameError("resource", unknown[0], KNOBS)
    store, experiment, record, cell = find_cell(run, name)
    session = next((s for s in store.sessions() if s["id"] == record.session), {})
    entry = cell_summary(store, record, session)  # of this cell alone: a run may have hundreds
    settings = {key: found.get("value") for key, found in (session.get("settings") or {}).items()}
    measured = Measured(cell, settings, entry, _cores())
    found, left_out = changes_of(measured, only)
    if not found:
        reasons = "; ".join(f"{n.resource}: {n.why}" for n in left_out)
        raise UsageError(f"Nothing of cell {record.id} can be changed from here ({reasons}).")
    return Question(store, experiment, cell, entry, tuple(found), tuple(left_out), pairs, budget_s)


def answer(question: Question, observer: Observer, command: list[str]) -> tuple[dict[str, Any], RunOutcome]:
    """Run what is missing and say what follows; why.json beside the run keeps it. The outcome tells of engines that failed."""
    cells = [question.cell, *(change.cell for change in question.changes)]
    launches = get_backend(question.cell.engine.backend).capabilities.launches
    parts = model_parts(question.experiment.model, question.experiment.tokenizer, needs_folder=launches)
    experiment = _experiment(question, cells)
    check_attached(experiment)
    manifest = make_manifest(command, experiment.model, parts.folder, parts.config, choose(experiment.telemetry))
    planner = WhyPlanner(question)
    missing = [cell for cell in planner.planned() if not RunStore(question.folder).has_cell(cell.id)]
    check_commands(cell.engine for cell in missing[:1])  # all are of one engine
    question.folder.parent.mkdir(exist_ok=True)
    with RunWriter.start(question.folder, experiment.to_yaml(), manifest) as store:
        store.update_manifest(**planned(len(planner.planned()), blocks=None))
        if launches and missing:
            keep_ceilings(store)
        outcome = Runner(experiment, planner, store, parts.model, parts.vocabulary, observer).run()
        document = conclude(question, outcome.summary.get("cells", []), planner.out_of_budget, outcome.interrupted)
        write_atomic(question.folder / "why.json", to_json(document))
    return document, outcome


def conclude(
    question: Question, cells: Sequence[Mapping[str, Any]], out_of_budget: bool = False, interrupted: bool = False
) -> dict[str, Any]:
    """The elasticities from the cells that were measured, what they decide, and whether the cell's own factors agree.
    `out_of_budget`, `interrupted`: that, and not the number of pairs asked for, ended it."""
    by_id = {cell["id"]: throughput(cell) for cell in cells}
    found: list[Elasticity] = []
    for place, change in enumerate(question.changes):
        cells_of_pairs = [question.pair(number, place) for number in range(question.pairs)]
        rates = [(by_id.get(base.id), by_id.get(changed.id)) for base, changed in cells_of_pairs]
        pairs = [(a, b) for a, b in rates if a is not None and b is not None]
        found.append(elasticity(change.resource, change.factors, change.before, change.after, pairs))
    done = min((e.n for e in found), default=0)
    next_step = "more --pairs"
    if interrupted:
        next_step = "it was interrupted; the same command goes on"
    elif out_of_budget:
        next_step = (
            f"the budget of {seconds(question.budget_s)} ended it after {done} of {question.pairs} pairs; the same command with a "
            "longer --budget goes on"
        )
    resource, words = decided(found, next_step)
    limits = question.entry.get("limits") or {}
    named = {side: (limits.get(side) or {}).get("factor") for side in ("batch", "step")}
    return {
        "run": question.run.name,
        "cell": question.entry["id"],
        "engine": question.entry["engine"],
        "factors": {
            side: {
                "named": name,
                "agrees": agrees(str(name), found),
                "tried": any(str(name) in e.factors for e in found),
            }
            for side, name in named.items()
        },
        "elasticities": [e.to_dict() for e in found],
        "pairs_asked": question.pairs,
        "out_of_budget": out_of_budget,
        "undetermined": is_open(found),
        "left_out": [{"resource": n.resource, "why": n.why} for n in question.left_out],
        "holds": resource,
        "words": words,
        "folder": str(question.folder),
    }


def _experiment(question: Question, cells: list[Cell]) -> Experiment:
    """An experiment that names everything the planner may run."""
    engines = {cell.engine.label: cell.engine for cell in cells}
    loads: list[Any] = []
    for cell in cells:
        if cell.load not in loads:
            loads.append(cell.load)
    return question.experiment.model_copy(
        update={
            "engines": tuple(engines.values()),
            "workloads": (question.cell.workload,),
            "loads": tuple(loads),
            # Not how many pairs: asking for more of them completes what is there.
            "blocks": _MOST_BLOCKS,
            "until_ci": None,
            "budget_s": None,
            "slo": None,
        }
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
