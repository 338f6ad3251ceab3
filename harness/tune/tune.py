"""`dyno tune`: a search among settings, then a confirmation of its best in fresh sessions.

The search is a run, the confirmation another inside its folder, `confirm-<hash>/`, whose name tells who takes part. Both are
completed by the same command and read by `dyno report`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from harness.ceilings import keep_ceilings
from harness.experiment import Experiment
from harness.manifest import make_manifest
from harness.observer import Observer
from harness.planner import Planner
from harness.planner_memory import MemoryPlanner
from harness.runner import Runner, RunOutcome
from harness.telemetry.choose import choose
from harness.tune.asked import Ready
from harness.tune.confirm import ConfirmPlanner, Entrant, Equal, entrants, equalised, refusal_of
from harness.tune.ledger import Ledger
from harness.tune.measure import Measurement, Results, whole_session_s
from harness.tune.predictor import predictor_for
from harness.tune.search import ROUNDS_SHARE, SEARCH_SHARE, Arm, SearchPlanner, Standing
from reports.build import render_report
from results.audit import OWN_DEFAULTS
from results.clock import NS_PER_S, now_ns
from results.errors import DynoError
from results.planned import SEARCH, planned
from results.report_data import load_report_data
from results.store import RunWriter
from workloads.base import canonical

# As many as an experiment may name: asking for more blocks of a confirmation completes what is there.
_MOST_BLOCKS = 1000


@dataclass(slots=True)
class Confirmed:
    """The confirmation: who took part, where it lies, how it went, what was made equal, why entrants were left out, and whether the
    budget ended it, with what a block takes in seconds (about, and only then)."""

    entrants: list[Entrant]
    folder: Path
    outcome: RunOutcome
    equal: Equal | None = None
    cut_off: bool = False
    block_s: float = 0.0
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Tuned:
    """What came of it. `told` are the settings that each engine's defaults came to, `session_s` how long a session of whole
    cells takes of each backend, about; `confirmed` is None where the confirmation was not begun."""

    ready: Ready
    folder: Path
    ledger: Ledger
    planner: SearchPlanner
    standings: Mapping[str, Standing]
    told: Mapping[str, Mapping[str, Any]]
    search: RunOutcome
    session_s: Mapping[str, float]
    confirmed: Confirmed | None = None

    @property
    def outcomes(self) -> list[RunOutcome]:
        return [self.search, *([self.confirmed.outcome] if self.confirmed else [])]

    @property
    def needs_s(self) -> float:
        """About the budget that one round of trials more, and the confirmation of the best, would have taken."""
        experiment = self.ready.experiment
        each = 2 if len(experiment.engines) == 1 else 3
        block_s = each * sum(self.session_s.get(engine.backend, 0.0) for engine in experiment.engines)
        return max((self.planner.wanted_s or 0.0) / ROUNDS_SHARE, experiment.blocks * block_s / (1 - SEARCH_SHARE))


def tune(ready: Ready, folder: Path, observer: Callable[[str], Observer], command: list[str]) -> Tuned:
    """Search, then confirm. `observer` makes a listener for each, told which. Raises UsageError where the folder holds another
    search."""
    begun, budget_s = now_ns(), ready.experiment.budget_s
    tuned = _search(ready, folder, observer("search"), command)
    if not tuned.search.interrupted and tuned.search.error is None:
        left_s = None if budget_s is None else budget_s - (now_ns() - begun) / NS_PER_S
        tuned.confirmed = _confirm(tuned, observer, command, left_s)
    return tuned


def _search(ready: Ready, folder: Path, observer: Observer, command: list[str]) -> Tuned:
    experiment = ready.experiment.model_copy(update={"blocks": 1})
    with RunWriter.start(folder, experiment.to_yaml(), {**_manifest(ready, command), SEARCH: True}) as store:
        ledger, measurement = Ledger.open(folder, _identity(ready)), Measurement(experiment)
        predictor = predictor_for(measurement.at_rung(0).experiment, store)
        arms = [
            Arm(engine, ready.spaces[engine.label], ready.refuse_trial(engine), partial(_told, store, engine.label))
            for engine in experiment.engines
        ]
        planner = SearchPlanner(arms, measurement, ledger, predictor, ready.asked.trials, experiment.budget_s)
        store.update_manifest(**planned(cells=None, blocks=1))
        outcome = _run(ready, experiment, planner, store, observer)
        ledger.save()
        standings = planner.standing(results_of(outcome))
        told = {arm.label: arm.defaults() for arm in arms}
        session_s = whole_session_s(measurement, store.cells(), store.sessions())
        return Tuned(ready, folder, ledger, planner, standings, told, outcome, session_s)


def _confirm(
    tuned: Tuned, observer: Callable[[str], Observer], command: list[str], left_s: float | None
) -> Confirmed | None:
    """None where there is nobody to confirm: no engine whose search gave a number."""
    ready, experiment = tuned.ready, tuned.ready.experiment
    bases = {e.label: e for e in experiment.engines if e.label not in tuned.search.failed_engines}
    found = {label: tuned.standings[label].best for label in bases}
    best = {label: tuned.planner.engine(score.trial) if score else None for label, score in found.items()}
    took_part: list[Entrant] = []
    left_out: dict[str, str] = {}
    equal = equalised(bases, tuned.told, ready.refuse)
    if equal is not None and (refused := refusal_of(equal, bases, ready.refuse)):
        left_out["the engines equalised"], equal = refused, None
    for entrant in entrants(bases, best, equal):
        if why := ready.refuse(entrant.engine):
            left_out[entrant.engine.label] = why
        else:
            took_part.append(entrant)
    if len(took_part) < 2:
        return None
    engines = tuple(entrant.engine for entrant in took_part)
    named = experiment.model_copy(update={"engines": engines, "blocks": _MOST_BLOCKS})
    digest = hashlib.sha256(canonical([e.public().model_dump(mode="json") for e in engines]).encode()).hexdigest()[:8]
    folder = tuned.folder / f"confirm-{digest}"
    expected_s = sum(tuned.session_s.get(engine.backend, 0.0) for engine in engines)
    planner = ConfirmPlanner(engines, Measurement(named), experiment.blocks, left_s, expected_s)
    # What the audit reads to tell these from engines that somebody set by hand.
    searched = {"tuned": [entrant.engine.label for entrant in took_part if entrant.kind != OWN_DEFAULTS]}
    with RunWriter.start(folder, named.to_yaml(), {**_manifest(ready, command), **searched}) as store:
        cells = None if experiment.slo else len(planner.planned())
        store.update_manifest(**planned(cells, experiment.blocks))
        listener = observer("confirmation") if planner.has_room or store.cells() else Observer()
        outcome = _run(ready, named, planner, store, listener)
    return Confirmed(took_part, folder, outcome, equal, planner.cut_off, planner.longest_s, left_out)


def _run(ready: Ready, experiment: Experiment, planner: Planner, store: RunWriter, observer: Observer) -> RunOutcome:
    """Run a planner into a run of its own, and write its report."""
    inner = MemoryPlanner(planner)
    if any(not store.has_cell(cell.id) for cell in planner.planned()):
        keep_ceilings(store)
    outcome = Runner(experiment, inner, store, ready.model, ready.parts.vocabulary, observer).run()
    try:
        render_report(store, load_report_data(store, outcome.summary))
    except DynoError as error:
        outcome.error = outcome.error or error
    return outcome


def results_of(outcome: RunOutcome) -> Results:
    """Cells of a run by their id, those left out among them."""
    summary = outcome.summary
    return {str(cell["id"]): cell for name in ("cells", "skipped") for cell in summary.get(name) or ()}


def _manifest(ready: Ready, command: list[str]) -> dict[str, Any]:
    experiment, parts = ready.experiment, ready.parts
    return make_manifest(command, experiment.model, parts.folder, parts.config, choose(experiment.telemetry))


def _identity(ready: Ready) -> dict[str, Any]:
    """What makes it the same search, beside its experiment."""
    slo = ready.experiment.slo
    return {
        "varied": {label: {name: list(v) for name, v in space.axes.items()} for label, space in ready.spaces.items()},
        "slo": None if slo is None else slo.model_dump(mode="json"),
    }


def _told(store: RunWriter, label: str) -> dict[str, Any]:
    """The settings that an engine's last session told, by name."""
    own = [s for s in store.sessions() if s.get("engine") == label and s.get("settings")]
    return {name: found.get("value") for name, found in (own[-1]["settings"] if own else {}).items()}
