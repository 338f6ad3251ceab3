"""How sure the report is: intervals over blocks, the comparison of the engines, and the throughput that meets objectives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from results.comparison import Comparison, Options
from results.comparison_runs import RunFacts, compare_run
from results.comparison_words import ratio_sentence, verdict_sentence
from results.precision import half_width, precision, width_words
from results.report_format import count, listed, number, plural
from results.report_sentences import Sentence
from results.report_shapes import CellRow, load_words
from results.slo_points import SESSIONS
from results.statistics import BLOCKS_FOR_A_VERDICT, Interval, mean_interval

MEASURE = "output_tokens_per_s"


@dataclass(frozen=True, slots=True)
class Level:
    """Output tokens/s of one engine at one point over its blocks: the geometric mean with its 95 % interval."""

    engine: str
    workload: str
    load: str
    interval: Interval
    suspect: int
    invalid: int

    @property
    def verdict(self) -> str:
        return "SUSPECT" if self.suspect else "VALID"

    @property
    def width(self) -> float | None:
        return half_width(self.interval)


@dataclass(slots=True)
class Sure:
    """What the report says of its own certainty; empty for a run of one block without objectives."""

    levels: list[Level] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    sentences: list[Sentence] = field(default_factory=list)
    slo: Mapping[str, Any] | None = None

    def __bool__(self) -> bool:
        return bool(self.levels or self.comparisons or self.slo)


def sure_of(
    name: str, summary: Mapping[str, Any], experiment: Mapping[str, Any], rows: Sequence[CellRow], blocks: int
) -> Sure:
    """All of it for one run. `rows` are its cells as shown."""
    found = Sure(slo=summary.get("slo"))
    if found.slo:
        found.sentences += [Sentence("Objectives", text, caution) for text, caution in slo_sentences(found.slo)]
    if blocks > 1 and not found.slo:
        found.levels = _levels(rows)
        run = RunFacts(name, summary)
        if len(run.labels) > 1:
            found.comparisons = compare_run(run, Options())
        found.sentences += _precision(summary, experiment)
    return found


def comparison_sentences(sure: Sure, blocks: int) -> list[tuple[str, str]]:
    """Each engine with the verdict on it against the first or, of too few blocks for any, its ratio with the interval."""
    said = verdict_sentence if blocks >= BLOCKS_FOR_A_VERDICT else ratio_sentence
    return [(c.other, said(c)) for c in sure.comparisons]


def slo_sentences(slo: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """`reference meets ... up to 12 in flight: 410 output tokens/s`, with whether it is to be read with care."""
    asked = listed([str(text) for text in slo.get("objectives") or []], 6)
    joint = f" ({100 * slo['share']:g} % of the requests all limits)" if slo.get("share") else ""
    found = []
    for point in slo.get("points") or []:
        where = f"{point['engine']}, {point['workload']}"
        head = f"{where}: {asked}{joint} {_slo_words(point)}"
        found.append((f"{head}{'; SUSPECT' if point.get('suspect') else ''}.", bool(_careful(point))))
    return found or [(f"No cell says whether {asked} is met.", True)]


def _slo_words(point: Mapping[str, Any]) -> str:
    if point.get("highest") is None:
        return f"{point['verdict']}: {point['why']}"
    load = load_words(str(point["mode"]), float(point["highest"]))
    rates = (
        f"{number(point.get('output_tokens_per_s'))} output tokens/s, {number(point.get('requests_per_s'))} requests/s"
    )
    tail = f" ({point['why']})" if point.get("why") else ""
    # Runs of before do not tell of how many sessions they speak.
    if (sessions := point.get("sessions")) and sessions < SESSIONS:
        return f"was met up to {load}: {rates}; not confirmed{tail}"
    told = "is met up to" if point["verdict"] == "met" else "is met at least up to"
    return f"{told} {load}: {rates}{'; the rest is undetermined' if point['verdict'] == 'undetermined' else ''}{tail}"


def _careful(point: Mapping[str, Any]) -> bool:
    return point.get("verdict") != "met" or bool(point.get("suspect"))


def _levels(rows: Sequence[CellRow]) -> list[Level]:
    groups: dict[tuple[str, str, str], list[CellRow]] = {}
    for row in rows:
        groups.setdefault((row.engine, row.workload.label, load_words(row.load_mode, row.load_value)), []).append(row)
    return [_level(*place, found) for place, found in groups.items()]


def _level(engine: str, workload: str, load: str, rows: Sequence[CellRow]) -> Level:
    usable = [row for row in rows if row.verdict != "INVALID" and (row.values[MEASURE].mean or 0) > 0]
    logs = mean_interval([math.log(row.values[MEASURE].mean or 1.0) for row in usable])

    def back(value: float | None) -> float | None:
        return None if value is None else math.exp(value)

    interval = Interval(back(logs.estimate), back(logs.low), back(logs.high), logs.n, refused=logs.refused)
    suspect = sum(row.verdict == "SUSPECT" for row in usable)
    return Level(engine, workload, load, interval, suspect, sum(row.verdict == "INVALID" for row in rows))


def _precision(summary: Mapping[str, Any], experiment: Mapping[str, Any]) -> list[Sentence]:
    """How narrow the intervals are, and whether that is what was asked for."""
    target = experiment.get("until_ci")
    target = float(target) if isinstance(target, int | float) and not isinstance(target, bool) else None
    found = precision(summary.get("cells") or [], target)
    if found.widest is None:
        if not found.why or not target:
            return []
        return [Sentence("How sure", f"No interval at {found.where}: {found.why}.", True)]
    of = "the ratio of output tokens/s" if len(experiment.get("engines") or []) > 1 else "output tokens/s"
    text = f"The widest 95 % interval of {of} over {plural(found.blocks, 'block')} is {width_words(found.widest)}, at {found.where}"
    if target is None:
        return [Sentence("How sure", f"{text}.")]
    if found.reached(target):
        return [Sentence("How sure", f"{text}: within the ±{100 * target:g} % that were asked for.")]
    needed = f"; about {count(found.needed)} blocks would reach it" if found.needed else ""
    return [Sentence("How sure", f"{text}: ±{100 * target:g} % were asked for and not reached{needed}.", caution=True)]
