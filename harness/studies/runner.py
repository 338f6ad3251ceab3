"""Runs studies one after the other and writes what they found: studies.json and report.html. Studies that an earlier call left in
the same folder stay in both."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.studies import table
from harness.studies.kept import NUMBERS, device_of, kept, outcome_of
from harness.studies.lab import Lab
from harness.studies.study import HOLDS, OPEN, Finding, Outcome, Study

if TYPE_CHECKING:
    from reports.study_page import StudyRow


PAGE = "report.html"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Done:
    """A study with its outcome and the seconds it took."""

    study: Study
    outcome: Outcome
    seconds: float

    @property
    def holds(self) -> bool:
        """True when the hypothesis does."""
        return self.outcome.verdict == HOLDS


def run_studies(lab: Lab, studies: Sequence[Study], quick: bool, say: Callable[[Done], None]) -> list[Done]:
    """All of them, in turn; `say` hears of each as it ends."""
    done = []
    for number, study in enumerate(studies, 1):
        _log.info("[%d of %d] %s begins: %s", number, len(studies), study.name, study.title)
        start = time.monotonic()
        outcome = study.run(lab, quick)
        done.append(Done(study, outcome, time.monotonic() - start))
        say(done[-1])
    return done


def as_data(lab: Lab, quick: bool, done: Sequence[Done]) -> dict[str, Any]:
    """What --json prints; studies.json holds it with the studies of earlier calls among its `studies`."""
    timed = {"model": lab.timed.name, "dtype": lab.timed.dtype, "threads": lab.timed.threads}
    how = {
        "model": lab.name,
        "device": lab.device,
        "seed": lab.seed,
        "threads": lab.threads,
        "quick": quick,
        "measured": _today(),
        "timed": timed,
    }
    return {
        "schema": 1,
        "model": lab.name,
        "device": lab.device,
        "seed": lab.seed,
        "threads": lab.threads,
        "timed": timed,
        "seconds": sum(d.seconds for d in done),
        "quick": quick,
        "studies": [{**_study(d), "how": how} for d in done],
    }


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


def make_folder(folder: Path) -> None:
    """The folder for the results, before anything is measured. Raises StoreError where it cannot be written into, or what an
    earlier call left there cannot be read."""
    from results.files import store_error

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise store_error(folder, error) from error
    for entry in kept(folder, ()):
        outcome_of(entry)


def write(folder: Path, lab: Lab, quick: bool, done: Sequence[Done]) -> Path:
    """Write both files into `folder` and return the page's path. Raises StoreError."""
    from reports.study_page import render_studies
    from results.files import to_json, write_atomic
    from results.report_format import plural, seconds

    make_folder(folder)
    data, studies = as_data(lab, quick, done), table.STUDIES
    earlier = kept(folder, [(d.study.name, lab.device) for d in done])
    order = {name: place for place, name in enumerate(studies)}

    def place(name: str, device: str) -> tuple[int, str]:
        return order.get(name, len(order)), device

    data["studies"] = sorted([*data["studies"], *earlier], key=lambda e: place(e["name"], device_of(e)))
    write_atomic(folder / NUMBERS, to_json(data))
    ran = [(d, lab.device) for d in done]
    ran += [
        (Done(studies[e["name"]], outcome_of(e), e["seconds"]), device_of(e)) for e in earlier if e["name"] in studies
    ]
    ran.sort(key=lambda found: place(found[0].study.name, found[1]))
    shown = [found for found, _ in ran]
    hold, left_open = (sum(d.outcome.verdict == verdict for d in shown) for verdict in (HOLDS, OPEN))
    title = f"What each mechanism buys: {hold} of {plural(len(shown), 'hypothesis', 'hypotheses')} {'holds' if len(shown) == 1 else 'hold'}"
    title += f", {left_open} undetermined" if left_open else ""
    labs = [lab, lab.clock] if lab.clock else [lab]
    meta = " · ".join(
        [
            "Reference engine in one process",
            *(f"{'timed: ' if of is not lab else ''}{of.words}" for of in labs),
            *(["quick"] if quick else []),
            seconds(sum(d.seconds for d in done)),
        ]
    )
    page = folder / PAGE
    write_atomic(page, render_studies(title, meta, [_page(d, device) for d, device in ran]).encode())
    return page


def _study(done: Done) -> dict[str, Any]:
    study, outcome = done.study, done.outcome
    return {
        "name": study.name,
        "claim": study.claim,
        "switch": study.switch,
        "hypothesis": study.hypothesis,
        "verdict": outcome.verdict,
        "seconds": done.seconds,
        "findings": [
            {
                "words": f.words,
                "value": f.value,
                "low": f.low,
                "high": f.high,
                "holds": f.holds,
                "verdict": f.verdict,
                "why_open": f.why_open or None,
                "basis": "step log" if f.clock is None else "clock",
                "interval": None if f.clock is None else [f.clock.low, f.clock.high],
                "rounds": None if f.clock is None else f.clock.n,
            }
            for f in outcome.findings
        ],
        "curves": [{"name": c.name, "points": c.points} for c in outcome.curves],
        "arms": [
            {
                "label": arm.label,
                "requests": len(arm.arrivals),
                "steps": len(arm.steps),
                "generated_tokens": len(arm.tokens),
                "computed_tokens": arm.computed,
                "cached_tokens": arm.cached,
                "preemptions": arm.preemptions,
                "tokens_per_s": arm.tokens_per_s,
            }
            for arm in outcome.arms
        ],
        "clock": outcome.clock,
    }


def study_row(finding: Finding) -> StudyRow:
    """A finding in words, for the page and the terminal alike."""
    from reports.study_page import StudyRow, bounds_words, interval_words, value_words

    clock = finding.clock
    spread = interval_words(clock.low, clock.high, clock.n) if clock else ""
    return StudyRow(
        finding.words,
        value_words(finding.value),
        spread,
        bounds_words(finding.low, finding.high),
        finding.verdict.lower(),
        tone(finding.verdict),
        finding.why_open,
    )


def tone(verdict: str) -> str:
    """How a verdict is coloured: as a cell's."""
    return {HOLDS: "valid", OPEN: "suspect"}.get(verdict, "invalid")


def _page(done: Done, device: str) -> Any:
    """The part of the page on one study. One on a GPU says so, since the same on the CPU may stand beside it."""
    from reports.study_page import StudyPage, study_picture

    study, outcome = done.study, done.outcome
    name, title = (
        (study.name, study.title) if device == "cpu" else (f"{study.name}-{device}", f"{study.title} ({device})")
    )
    return StudyPage(
        name,
        title,
        outcome.verdict,
        tone(outcome.verdict),
        study.claim,
        study.switch,
        study.hypothesis,
        study.limits,
        study_picture(
            name,
            f"{study.y_axis.label[:1].upper()}{study.y_axis.label[1:]} against {study.x_axis.label}",
            study.reading,
            (study.x_axis, study.y_axis),
            [(c.name, c.points) for c in outcome.curves],
        ),
        [study_row(f) for f in outcome.findings],
        outcome.clock,
    )
