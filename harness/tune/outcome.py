"""The answer of a tuning as plain data (`tune.json`): what to run, every trial and why it ended, and the three arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.runner import RunOutcome
from harness.tune.command import launch_words, measuring_words
from harness.tune.measure import Measurement, verdict_of
from harness.tune.search import Score, Standing, ran_out
from harness.tune.space import shown
from harness.tune.tune import Tuned, results_of
from harness.tune.verdict import (
    NO_TRIAL,
    NOTHING,
    OPEN,
    TOO_SHORT,
    UNFINISHED,
    ArmVerdict,
    ByBlock,
    Number,
    judge_arm,
    three_arms,
    too_short,
)
from results.audit import EQUALISED, OWN_DEFAULTS, TUNED
from results.errors import EXIT_ENVIRONMENT, EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_OK, DynoError
from results.precision import LOOKED_AT
from results.report_format import plural, seconds
from results.report_shapes import load_words, workload_info

FILE = "tune.json"


def conclude(tuned: Tuned) -> dict[str, Any]:
    """Everything that is told of it. Nothing is measured here."""
    experiment = tuned.ready.experiment
    values = block_values(tuned)
    verdicts = {engine.label: _judged(tuned, engine.label, values) for engine in experiment.engines}
    audit = tuned.confirmed.outcome.summary.get("audit") if tuned.confirmed else None
    equal = tuned.confirmed.equal if tuned.confirmed else None
    arms = three_arms(
        _labels(tuned, verdicts), values, audit, equal.unequal if equal else "", _effort(tuned, list(verdicts))
    )
    slo = experiment.slo
    return {
        "run": str(tuned.folder),
        "confirmation": str(tuned.confirmed.folder) if tuned.confirmed else None,
        "model": experiment.model,
        "workloads": [workload_info(w.model_dump(mode="json")).label for w in experiment.workloads],
        "loads": [load_words(load.mode, float(load.value or 0)) for load in experiment.loads],
        "objective": "output tokens/s" + (f" at {', '.join(slo.objectives)}" if slo else ""),
        "budget_s": experiment.budget_s,
        "blocks": experiment.blocks,
        "order": tuned.ledger.order,
        "engines": [_engine(tuned, label, verdict) for label, verdict in verdicts.items()],
        "arms": [arm.to_dict() | {"words": arm.words} for arm in arms],
        "equalised": dict(equal.settings) if equal and any(arm.kind == EQUALISED for arm in arms) else {},
        "confidence": LOOKED_AT,
        "trials": _trials(tuned),
        "left_out": [
            *({"what": what, "why": why} for what, why in tuned.ledger.left_out.items()),
            *(
                {"what": what, "why": why}
                for what, why in (tuned.confirmed.left_out if tuned.confirmed else {}).items()
            ),
        ],
        "notes": list(tuned.ready.notes),
    }


def exit_code(tuned: Tuned, document: Mapping[str, Any]) -> int:
    """130 interrupted, the code of an error that ended a run, 4 where an engine's own defaults could not be measured, 3 where an
    engine has no verdict. Trials that fail are part of the answer."""
    for outcome in tuned.outcomes:
        if outcome.interrupted:
            return EXIT_INTERRUPTED
        if outcome.error is not None:
            return outcome.error.exit_code
    bases = {engine.label for engine in tuned.ready.experiment.engines}
    if any(bases & outcome.failed_engines.keys() for outcome in tuned.outcomes):
        return EXIT_ENVIRONMENT
    undecided = (NOTHING, OPEN, UNFINISHED, TOO_SHORT)
    return EXIT_INCONCLUSIVE if any(e["verdict"] in undecided for e in document["engines"]) else EXIT_OK


def block_values(tuned: Tuned) -> dict[str, dict[int, Number]]:
    """The number that is to be large of every engine of the confirmation, in the blocks that have one."""
    if tuned.confirmed is None:
        return {}
    results, measurement = results_of(tuned.confirmed.outcome), Measurement(tuned.ready.experiment)
    values: dict[str, dict[int, Number]] = {}
    for entrant in tuned.confirmed.entrants:
        own = values.setdefault(entrant.engine.label, {})
        for block in range(tuned.ready.experiment.blocks):
            look = measurement.look(entrant.engine, block, results)
            value, _ = measurement.value(look)
            if value is not None:
                own[block] = Number(value, verdict_of(look) == "SUSPECT")
    return values


def _stopped(outcome: RunOutcome) -> bool:
    return outcome.interrupted or outcome.error is not None


def _judged(tuned: Tuned, arm: str, values: Mapping[str, ByBlock]) -> ArmVerdict:
    if _stopped(tuned.search):
        return ArmVerdict(UNFINISHED, f"{arm}: the search did not come to its end.", arm, None)
    best, planner, budget_s = tuned.standings[arm].best, tuned.planner, tuned.ready.experiment.budget_s
    trials = _trials_of(tuned, arm)
    if best is None and planner.wanted_s is not None and budget_s is not None and trials < 2:
        return too_short(arm, budget_s, planner.longest_s if trials else None, tuned.needs_s)
    if best is None and trials == 1 and tuned.standings[arm].rungs[0][0].look.failure is None:
        words = f"{arm}: nothing beside the defaults was tried; what was left out is told with the reason."
        return ArmVerdict(NO_TRIAL, words, arm, None)
    label = planner.engine(best.trial).label if best else None
    found = judge_arm(arm, label, values)
    if found.verdict == OPEN and tuned.confirmed is not None and _stopped(tuned.confirmed.outcome):
        done, asked = len(values.get(arm, ())), tuned.ready.experiment.blocks
        words = f"{arm}: the confirmation did not come to its end ({done} of {asked} blocks): the same command goes on from here."
        return ArmVerdict(UNFINISHED, words, arm, found.against)
    confirmed, blocks = tuned.confirmed, len(values.get(arm, ()))
    if found.verdict == OPEN and confirmed is not None and confirmed.cut_off:
        spent = (
            f"The budget ended it after {blocks} of {plural(tuned.ready.experiment.blocks, 'block')} of about "
            f"{seconds(confirmed.block_s)}: the same command goes on from here."
        )
        return replace(found, words=f"{found.words} {spent}")
    return found


def _trials_of(tuned: Tuned, arm: str) -> int:
    rungs = tuned.standings[arm].rungs
    return len(rungs[0]) if rungs else 0


def _effort(tuned: Tuned, arms: Sequence[str]) -> str:
    """`trials: reference 8, vllm 2`: where a space runs out they are not as many."""
    return f"trials: {', '.join(f'{arm} {_trials_of(tuned, arm)}' for arm in arms)}"


def _labels(tuned: Tuned, verdicts: Mapping[str, ArmVerdict]) -> list[dict[str, str]]:
    """What each engine is called in each arm. Tuned is what is to be run: the defaults where nothing beat them."""
    found = []
    for arm, verdict in verdicts.items():
        entrants = tuned.confirmed.entrants if tuned.confirmed else []
        own = {entrant.kind: entrant.engine.label for entrant in entrants if entrant.arm == arm}
        if OWN_DEFAULTS in own:
            own[TUNED] = verdict.run
        found.append(own)
    return found


def _engine(tuned: Tuned, arm: str, verdict: ArmVerdict) -> dict[str, Any]:
    standing, space = tuned.standings[arm], tuned.ready.spaces[arm]
    best = standing.best
    base = next(engine for engine in tuned.ready.experiment.engines if engine.label == arm)
    chosen = best.trial if best is not None and verdict.run != arm else None
    engine = tuned.planner.engine(chosen) if chosen is not None else base
    model, name = tuned.ready.model, tuned.ready.experiment.model
    try:
        command, measuring = launch_words(engine, model, name), measuring_words(engine, model, name)
    except DynoError as error:
        command, measuring = f"# not known: {error}", []
    return {
        "engine": arm,
        "backend": base.backend,
        "verdict": verdict.verdict,
        "words": verdict.words,
        "run": verdict.run,
        "settings": dict(chosen.values) if chosen is not None else {},
        "best": None if best is None else {"settings": dict(best.trial.values), "rung": best.rung, "value": best.value},
        "against_defaults": verdict.against.to_dict() if verdict.against else None,
        "trials": _trials_of(tuned, arm),
        "combinations": space.size,
        "varied": {name: list(values) for name, values in space.axes.items()},
        "command": command,
        "measuring_only": measuring,
    }


def _trials(tuned: Tuned) -> list[dict[str, Any]]:
    rows, measurement = [], Measurement(tuned.ready.experiment)
    for arm in tuned.ready.spaces:
        standing = tuned.standings[arm]
        for number, trial in enumerate(tuned.ledger.trials(arm)):
            score = standing.last(trial)
            rows.append(
                {
                    "engine": arm,
                    "trial": number,
                    "settings": dict(trial.values),
                    "label": shown(trial.values),
                    "chosen": trial.why,
                    "rung": score.rung if score else 0,
                    "share": round(measurement.share(score.rung if score else 0), 3),
                    "value": score.value if score else None,
                    "verdict": verdict_of(score.look) if score else "",
                    "ended": ended(standing, score),
                }
            )
    return rows


def ended(standing: Standing, score: Score | None) -> str:
    """Why a trial went no further."""
    if score is None:
        return "not counted: its round was cut off"
    if standing.best is not None and standing.best.trial is score.trial:
        return "the best, to be confirmed"
    if score.look.missing is not None:
        return "cut off"
    if ran_out(score):
        return f"out of memory: {score.why}"
    if score.look.failure is not None:
        return f"failed: {score.why}"
    if score.value is None:
        return score.why
    if not score.trial.values:
        return f"what the others are held against{', measured again beside the few best' if score.rung else ''}"
    kept = standing.kept(score.rung + 1)
    return f"not the best{f' {kept}' if kept > 1 else ''} of {len(standing.rungs[score.rung])}"
