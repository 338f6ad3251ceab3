"""The regression gate: is the candidate no worse than the base, by more than a margin, and how sure is that?

Each metric at each point is a test of non-inferiority on the ratio of blocks (`results.statistics`), with the margin on the
side that is worse:

    pass          the whole interval is better than the margin
    regression    the whole interval is worse than the margin; where blocks are paired, in new sessions too
    suspected     worse than the margin, not confirmed yet
    inconclusive  the interval holds the margin, or there are too few blocks: more blocks would tell, and how many
    failed        a cell is missing or INVALID: nothing is passed by not being measured

A difference that is real but within the margin passes; so does one within the metric's floor. Counters that agree to the last
digit in all blocks are no sample of anything: their ratio is what it is, and needs no confirmation. Those that follow from when
requests come (steps, blocks held) do: that the same few requests missed a step in all of few blocks may be chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from results.comparison_points import PointKey, Side, SidePoint, by_point
from results.metrics import Direction
from results.regression_metrics import COUNTER, GateMetric, chosen
from results.report_readings import Readings
from results.statistics import (
    BLOCKS_FOR_A_VERDICT,
    CONFIDENCE,
    Interval,
    blocks_needed,
    detectable,
    paired,
    unpaired,
)

PASS, REGRESSION, SUSPECTED, INCONCLUSIVE, FAILED = "pass", "regression", "suspected", "inconclusive", "failed"
PAIRED, UNPAIRED, BASELINE = "paired", "unpaired", "baseline"
# Two sets of blocks have a spread each: three a side tell as much of it as five pairs do.
LEAST_UNPAIRED = 3
# A run that sees only what takes a thousand times as long sees nothing.
_MOST_SEEN = 0.999


@dataclass(frozen=True, slots=True)
class GateOptions:
    """What is looked at. `effect`: the slowdown that the announced blocks are to find; twice the margin where it is None."""

    metrics: Sequence[GateMetric] = field(default_factory=lambda: chosen((), {}))
    asked: bool = False
    confidence: float = CONFIDENCE
    effect: float | None = None


@dataclass(frozen=True, slots=True)
class GateRow:
    """One metric at one point, candidate / base. `margin` is the one that held (the floor may have widened it), `mde` the
    smallest worsening that so many blocks of this spread call a regression in 95 of 100 cases, `blocks_needed` how many
    would tell `effect` (and no difference at all) from the margin. `exact`: both sides agree in all blocks."""

    engine: str
    workload: str
    load: str
    metric: str
    unit: str
    kind: str
    better: str
    base: float | None
    cand: float | None
    ratio: float | None
    low: float | None
    high: float | None
    n_blocks: int
    margin: float
    effect: float
    mde: float | None
    blocks_needed: int | None
    verdict: str
    why: str = ""
    exact: bool = False
    suspect: int = 0
    confirmed: bool | None = None

    @property
    def place(self) -> str:
        return f"{self.load}, {self.workload}"

    @property
    def key(self) -> tuple[str, str, str]:
        return self.workload, self.load, self.metric


@dataclass(slots=True)
class Gate:
    """The gate's answer. `faults` names cells that are missing or INVALID, `unlike` what the caller was told to disregard,
    `differs` what is known to differ and is being compared, `silent` the metrics that neither side tells."""

    base: str
    cand: str
    mode: str
    confidence: float
    points: list[GateRow]
    faults: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    confirmed_by: str | None = None

    @property
    def verdict(self) -> str:
        """The worst of what was found; nothing looked at is inconclusive."""
        if self.faults:
            return FAILED
        found = {row.verdict for row in self.points}
        if REGRESSION in found:
            return REGRESSION
        return PASS if found == {PASS} else INCONCLUSIVE

    def of(self, verdict: str) -> list[GateRow]:
        return [row for row in self.points if row.verdict == verdict]

    def to_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}


def gate_points(side: Side, scope: str, readings: Readings) -> dict[PointKey, SidePoint]:
    """The points of a side with the counters of its cells among their values."""
    points = by_point(side, scope, readings)
    for cell in side.cells:
        for key, single in by_point(replace(side, cells=[cell]), scope, readings).items():
            for block in single.values:
                points[key].values[block] |= cell.get("counters") or {}
    return points


def gate(
    base: Mapping[PointKey, SidePoint],
    cand: Mapping[PointKey, SidePoint],
    names: tuple[str, str],
    mode: str,
    options: GateOptions,
    blocks: int | None = None,
) -> Gate:
    """Every point of the base. `mode`: PAIRED where both sides ran in each block of one run, else UNPAIRED or BASELINE.
    `blocks`: how many were planned, so that what never ran is missed. Pure."""
    rows: list[GateRow] = []
    told: set[str] = set()
    for key, mine in base.items():
        theirs = cand.get(key)
        if theirs is None:
            continue
        for metric in options.metrics:
            if row := _row(metric, names[1], mine, theirs, mode, options):
                rows.append(_before_confirmation(row, metric) if mode == PAIRED else row)
                told.add(metric.id)
    return Gate(
        *names,
        mode=mode,
        confidence=options.confidence,
        points=rows,
        faults=_faults(base, cand, names, mode, blocks),
        silent=[m.id for m in options.metrics if m.id not in told],
        extra=[p.label for key, p in cand.items() if key not in base],
    )


def confirm(first: Gate, again: Gate) -> Gate:
    """The first answer after new sessions: what they show again, by themselves, is a regression; what they clear passes.

    `again` is the same gate over the new sessions alone.
    """
    seen = {row.key: row for row in again.points}
    rows = []
    for row in first.points:
        if row.verdict != SUSPECTED:
            rows.append(row)
            continue
        new = seen.get(row.key)
        if new is not None and new.verdict in (SUSPECTED, REGRESSION):
            rows.append(replace(row, verdict=REGRESSION, confirmed=True, why=f"again in new sessions: {_ratio(new)}"))
        elif new is not None and new.verdict == PASS:
            rows.append(replace(row, verdict=PASS, confirmed=False, why=f"not in new sessions: {_ratio(new)}"))
        else:
            told = f"{_ratio(new)}" if new is not None else "no number"
            why = f"worse than the margin, and new sessions do not tell: {told}"
            rows.append(replace(row, verdict=INCONCLUSIVE, confirmed=False, why=why))
    faults = [*first.faults, *(f"{fault} (new sessions)" for fault in again.faults)]
    return replace(first, points=rows, faults=faults, confirmed_by=again.cand)


def judge(
    metric: GateMetric, base: Mapping[int, float], cand: Mapping[int, float], is_paired: bool, options: GateOptions
) -> tuple[Interval, float, str, str]:
    """(ratio, limit, verdict, why). `limit` is the margin that held, on the log of the ratio, counted towards worse."""
    test, least = (paired, BLOCKS_FOR_A_VERDICT) if is_paired else (unpaired, LEAST_UNPAIRED)
    ratio = test(list(base.values()), list(cand.values()), options.confidence)
    limit = _limit(metric, list(base.values()))
    if ratio.estimate is None:
        return ratio, limit, INCONCLUSIVE, ratio.refused or "no number on one side"
    worse = _worse(metric, ratio.estimate)
    if ratio.sd == 0 and (metric.kind == COUNTER or abs(worse) < 1e-12):
        if worse > limit and metric.by_arrival and ratio.n < least:
            return ratio, limit, INCONCLUSIVE, f"{ratio.n} blocks, a verdict needs {least}"
        return ratio, limit, REGRESSION if worse > limit else PASS, ""
    if not ratio.known:
        return ratio, limit, INCONCLUSIVE, ratio.refused
    if ratio.n < least:
        return ratio, limit, INCONCLUSIVE, f"{ratio.n} blocks, a verdict needs {least}"
    ends = [_worse(metric, end) for end in (ratio.low, ratio.high) if end is not None]
    if max(ends) < limit:
        return ratio, limit, PASS, ""
    if min(ends) > limit:
        return ratio, limit, REGRESSION, ""
    return ratio, limit, INCONCLUSIVE, f"the interval holds the margin of {100 * _share(metric, limit):.3g} %"


def _row(
    metric: GateMetric, engine: str, a: SidePoint, b: SidePoint, mode: str, options: GateOptions
) -> GateRow | None:
    is_paired = mode == PAIRED
    base, cand = _known(a, metric.id), _known(b, metric.id)
    # A baseline may be older than a metric.
    if not base and (not cand or mode == BASELINE) and not options.asked:
        return None
    if is_paired:
        shared = [block for block in base if block in cand]
        base, cand = ({k: v[k] for k in shared} for v in (base, cand))
    ratio, limit, verdict, why = judge(metric, base, cand, is_paired, options)
    exact = ratio.sd == 0 and verdict != INCONCLUSIVE
    effect = _log(metric, options.effect) if options.effect is not None else 2 * limit
    needed = None
    if ratio.sd and effect > limit:
        # So many tell the effect from the margin, and no difference from it as well.
        needed = blocks_needed(ratio.sd, -math.expm1(-min(effect - limit, limit)), options.confidence, df=ratio.df)
    found = detectable(ratio) if ratio.known else None
    if found is not None and found > _MOST_SEEN:
        found = None
    return GateRow(
        engine=engine,
        workload=b.workload,
        load=b.load,
        metric=metric.id,
        unit=metric.unit,
        kind=metric.kind,
        better=str(metric.direction),
        base=_mean(base),
        cand=_mean(cand),
        ratio=ratio.estimate,
        low=ratio.estimate if exact else ratio.low,
        high=ratio.estimate if exact else ratio.high,
        n_blocks=ratio.n,
        margin=_share(metric, limit),
        effect=_share(metric, effect),
        mde=_share(metric, limit) if exact else None if found is None else _share(metric, limit - math.log1p(-found)),
        blocks_needed=needed,
        verdict=verdict,
        why=why,
        exact=exact,
        suspect=a.suspect(list(base)) + b.suspect(list(cand)) if is_paired else b.suspect(list(cand)),
    )


def _before_confirmation(row: GateRow, metric: GateMetric) -> GateRow:
    if row.verdict != REGRESSION or (row.exact and not metric.by_arrival):
        return row
    return replace(row, verdict=SUSPECTED, why="to be confirmed in new sessions")


def _faults(
    base: Mapping[PointKey, SidePoint],
    cand: Mapping[PointKey, SidePoint],
    names: tuple[str, str],
    mode: str,
    blocks: int | None,
) -> list[str]:
    """What was to be measured and counts for nothing. A baseline has no cells: of it only the points are asked for."""
    found = []
    keys = dict.fromkeys([*base, *(cand if mode != BASELINE else ())])
    for key in keys:
        for name, points in zip(names, (base, cand), strict=True):
            if points is base and mode == BASELINE:
                continue
            point = points.get(key)
            if point is None:
                found.append(f"{name}: no cell at {(base.get(key) or cand[key]).label}")
                continue
            other = cand.get(key) if points is base else base.get(key)
            planned = set(range(blocks or 0)) | (set(other.verdicts) if other and mode == PAIRED else set())
            if missing := sorted(planned - set(point.verdicts)):
                found.append(f"{name}: {len(missing)} of {len(planned)} cells missing at {point.label}")
            if point.invalid:
                found.append(f"{name}: {point.invalid} of {len(point.verdicts)} cells INVALID at {point.label}")
    return found


def _known(point: SidePoint, metric: str) -> dict[int, float]:
    return {
        block: value
        for block, values in sorted(point.values.items())
        if point.verdicts[block] != "INVALID" and (value := values.get(metric)) is not None and value > 0
    }


def _worse(metric: GateMetric, ratio: float) -> float:
    """The log of a ratio, counted towards worse."""
    return -math.log(ratio) if metric.direction is Direction.HIGHER else math.log(ratio)


def _log(metric: GateMetric, share: float) -> float:
    """A worsening as a share on the scale of `_worse`: a rate falls by it, a time grows by it."""
    return -math.log1p(-share) if metric.direction is Direction.HIGHER else math.log1p(share)


def _share(metric: GateMetric, log: float) -> float:
    return -math.expm1(-log) if metric.direction is Direction.HIGHER else math.expm1(log)


def _limit(metric: GateMetric, base: Sequence[float]) -> float:
    usual = _mean(dict(enumerate(base)))
    floor = math.log1p(metric.floor / usual) if usual and metric.floor else 0.0
    return max(_log(metric, metric.margin), floor)


def _mean(values: Mapping[int, float]) -> float | None:
    """The geometric mean, so that means have the ratio that is told."""
    return math.exp(fmean(math.log(v) for v in values.values())) if values else None


def _ratio(row: GateRow) -> str:
    if row.ratio is None:
        return "no ratio"
    known = row.low is not None and row.high is not None
    return f"{row.ratio:.3f} [{row.low:.3f}, {row.high:.3f}]" if known else f"{row.ratio:.3f}"
