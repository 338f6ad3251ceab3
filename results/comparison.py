"""Is one engine faster than another, point by point, by how much, and how sure is that?

The block is the unit: each point (workload and load) of each block gives one number a side. Inside a run both sides ran in
each block, so the log ratios of blocks are paired; two runs share no block, so they are compared unpaired, which is wider.

    faster, slower   the interval of the ratio leaves 1 out, from at least 5 blocks
    equivalent       two one-sided tests show the ratio to lie within the margin
    inconclusive     neither, with the smallest difference that so many blocks would find
    refused          no block in which both sides have a cell that is not INVALID

Equivalent comes first: a difference that is real but within the margin is no reason to choose.
One metric is primary and declared beforehand; its points each stand for themselves, and `overall`, the mean over the
points of each block, is one test for all of them. All other metrics are looked at besides: their p-values, those against "no
difference" and those against "outside the margin", are Holm's, each over all of their kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from results.comparison_points import Side, SidePoint, by_point
from results.errors import UnknownNameError
from results.metrics import METRICS, Direction
from results.report_measures import MEASURE, SCOPE
from results.report_readings import Readings
from results.statistics import (
    BLOCKS_FOR_A_VERDICT,
    CONFIDENCE,
    Interval,
    blocks_needed,
    detectable,
    equivalence_p,
    holm,
    paired,
    unpaired,
)

FASTER, SLOWER, EQUIVALENT, INCONCLUSIVE, REFUSED = "faster", "slower", "equivalent", "inconclusive", "refused"
PRIMARY, MARGIN = "output_tokens_per_s", 0.03
# Looked at besides the primary one, where cells know them.
SECONDARY = (
    "output_tokens_per_s",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
    "ttft_ms_p50",
    "ttft_ms_p90",
    "tpot_ms_p50",
    "tpot_ms_p90",
    "e2e_ms_p50",
)
_DIRECTION = {m.id: m.direction for m in METRICS}


@dataclass(frozen=True, slots=True)
class Options:
    """How to compare: the metrics, the margin of equivalence (0.03 is 3 %), the confidence of each interval."""

    primary: str = PRIMARY
    margin: float = MARGIN
    confidence: float = CONFIDENCE
    secondary: Sequence[str] = SECONDARY

    @property
    def metrics(self) -> list[str]:
        return [self.primary, *(m for m in self.secondary if m != self.primary)]


@dataclass(frozen=True, slots=True)
class Row:
    """One metric at one point (or over all: `workload` and `load` None), other / base.

    `ratio` above 1 means that the number is larger, `verdict` says whether that is better. `p` is that against "no difference",
    `p_adjusted` Holm's of what a secondary row claims (a difference or equivalence). `n_blocks` counts the blocks it rests on,
    `mde` is the smallest slowdown that so many of this spread find in 95 of 100 cases, and `blocks_needed` how many would find
    one as large as the margin. `suspect` counts the SUSPECT cells among them, `invalid` the INVALID ones left out.
    """

    metric: str
    unit: str
    primary: bool
    workload: str | None
    load: str | None
    base: float | None
    other: float | None
    ratio: float | None
    low: float | None
    high: float | None
    n_blocks: int
    paired: bool
    margin: float
    mde: float | None
    p: float | None
    p_adjusted: float | None
    verdict: str
    why: str
    blocks_needed: int | None = None
    suspect: int = 0
    invalid: int = 0
    codes: tuple[str, ...] = ()


@dataclass(slots=True)
class Comparison:
    """Two sides compared. `missing` names points that only one of them has; `unlike` holds what the caller was told to
    disregard; `differs` what is known to differ and is what is being compared (versions, settings that bear)."""

    base: str
    other: str
    base_run: str
    other_run: str
    paired: bool
    confidence: float
    margin: float
    metric: str
    scope: str
    overall: Row | None
    points: list[Row]
    missing: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)

    @property
    def primary(self) -> list[Row]:
        return [row for row in self.points if row.primary]

    @property
    def verdict(self) -> str:
        """That of `overall`; of the only point where there is one."""
        return self.overall.verdict if self.overall else REFUSED

    def to_dict(self) -> dict[str, Any]:
        out = asdict(self)
        out["verdict"] = self.verdict
        return out


def metric_id(text: str) -> str:
    """A metric as typed (`ttft_ms.p50` or `ttft_ms_p50`); raises UnknownNameError for one that has no better and worse."""
    found = text.replace(".", "_")
    if found not in comparable_metrics():
        raise UnknownNameError("metric", text, comparable_metrics())
    return found


def comparable_metrics() -> list[str]:
    """The metrics of which it is known whether more is better."""
    return [m.id for m in MEASURE.values() if m.path[:1] == (SCOPE,) and direction(m.id) is not Direction.NONE]


def direction(metric: str) -> Direction:
    path = MEASURE[metric].path
    return _DIRECTION.get(path[1], Direction.NONE) if path[:1] == (SCOPE,) else Direction.NONE


def compare(base: Side, other: Side, scope: str, readings: Readings, options: Options) -> Comparison:
    """Every point that both sides have. Cells are paired where both sides belong to one run."""
    is_paired = base.run == other.run
    a, b = (by_point(side, scope, readings) for side in (base, other))
    common = [key for key in a if key in b]
    found = [_row(metric, a[key], b[key], is_paired, options) for metric in options.metrics for key in common]
    rows = _adjusted(found, options)
    only = [(base, [a[k] for k in a if k not in b]), (other, [b[k] for k in b if k not in a])]
    return Comparison(
        base=base.name,
        other=other.name,
        base_run=base.run,
        other_run=other.run,
        paired=is_paired,
        confidence=options.confidence,
        margin=options.margin,
        metric=options.primary,
        scope=scope,
        overall=_overall([(a[k], b[k]) for k in common], is_paired, options),
        points=rows,
        missing=[f"{p.label}: only in {_named(side, base, other)}" for side, points in only for p in points],
        differs=differing_versions(
            base.versions, other.versions, (_named(base, base, other), _named(other, base, other))
        ),
    )


def _row(metric: str, a: SidePoint, b: SidePoint, is_paired: bool, options: Options) -> tuple[Row, Interval]:
    base, other = a.known(metric), b.known(metric)
    if is_paired:
        shared = [block for block in base if block in other]
        base, other = ({k: v[k] for k in shared} for v in (base, other))
        ratio = paired(list(base.values()), list(other.values()), options.confidence)
    else:
        ratio = unpaired(list(base.values()), list(other.values()), options.confidence)
    row = _judged(metric, ratio, is_paired, options, metric == options.primary)
    suspect = a.suspect(list(base)) + b.suspect(list(other))
    row = replace(
        row,
        workload=a.workload,
        load=a.load,
        base=_geometric(list(base.values())),
        other=_geometric(list(other.values())),
        suspect=suspect,
        invalid=a.invalid + b.invalid,
        codes=tuple(sorted(a.codes | b.codes)) if suspect else (),
    )
    return row, ratio


def _overall(pairs: Sequence[tuple[SidePoint, SidePoint]], is_paired: bool, options: Options) -> Row | None:
    """One test over all points: a block's value is the geometric mean over the points that every block of its side knows, so
    that no block differs from another by what it lacks."""
    metric = options.primary
    usable = [(a, b) for a, b in pairs if a.known(metric) and b.known(metric)]
    if not usable:
        return None
    base = _over_points([a.known(metric) for a, _ in usable])
    other = _over_points([b.known(metric) for _, b in usable])
    if is_paired:
        shared = [k for k in base if k in other]
        base, other = ({k: v[k] for k in shared} for v in (base, other))
    test = paired if is_paired else unpaired
    ratio = test(list(base.values()), list(other.values()), options.confidence)
    row = _judged(metric, ratio, is_paired, options, primary=True)
    suspect = sum(a.suspect(list(base)) + b.suspect(list(other)) for a, b in usable)
    return replace(
        row,
        suspect=suspect,
        invalid=sum(a.invalid + b.invalid for a, b in pairs),
        codes=tuple(sorted({c for a, b in usable for c in a.codes | b.codes})) if suspect else (),
    )


def _over_points(points: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The geometric mean over points, in the blocks that all of them know."""
    blocks = [k for k in points[0] if all(k in p for p in points)]
    return {k: math.exp(fmean(math.log(p[k]) for p in points)) for k in blocks}


def _judged(metric: str, ratio: Interval, is_paired: bool, options: Options, primary: bool) -> Row:
    verdict, why = judge(metric, ratio, options.margin, ratio.p)
    return Row(
        metric=metric,
        unit=MEASURE[metric].unit,
        primary=primary,
        workload=None,
        load=None,
        base=None,
        other=None,
        ratio=ratio.estimate,
        low=ratio.low,
        high=ratio.high,
        n_blocks=ratio.n,
        paired=is_paired,
        margin=options.margin,
        mde=detectable(ratio),
        p=ratio.p,
        p_adjusted=None,
        verdict=verdict,
        why=why,
        blocks_needed=_needed(verdict, ratio, options),
    )


def _needed(verdict: str, ratio: Interval, options: Options) -> int | None:
    """How many blocks (of two unpaired sets, a side) would find a difference as large as the margin, where these did not tell."""
    if verdict != INCONCLUSIVE or not ratio.sd:
        return None
    return blocks_needed(ratio.sd, options.margin, options.confidence, df=ratio.df)


def judge(
    metric: str, ratio: Interval, margin: float, p: float | None, p_equivalent: float | None = None
) -> tuple[str, str]:
    """The verdict on a ratio and why it is no better one. `p` and `p_equivalent` are what is held against alpha (Holm's, for
    secondary ones; None: that of the ratio by itself)."""
    if not ratio.n:
        return REFUSED, "no block in which both sides have a number from a cell that is not INVALID"
    if not ratio.known:
        return INCONCLUSIVE, ratio.refused
    if ratio.n < BLOCKS_FOR_A_VERDICT:
        return INCONCLUSIVE, f"{ratio.n} blocks, a verdict needs {BLOCKS_FOR_A_VERDICT}"
    alpha = 1 - ratio.confidence
    if p_equivalent is None:
        p_equivalent = equivalence_p(ratio, margin)
    if p_equivalent is not None and p_equivalent <= alpha:
        return EQUIVALENT, ""
    if p is not None and p < alpha and ratio.estimate is not None:
        larger = ratio.estimate > 1
        return FASTER if larger == (direction(metric) is Direction.HIGHER) else SLOWER, ""
    return INCONCLUSIVE, f"the interval holds 1 and is wider than the margin of {100 * margin:g} %"


def _adjusted(rows: Sequence[tuple[Row, Interval]], options: Options) -> list[Row]:
    """Secondary rows judged anew by Holm's p-values over all of them; a claim that does not stand by those is inconclusive."""
    rest = [(row, ratio) for row, ratio in rows if not row.primary]
    differ = iter(holm([_known(row.p) for row, _ in rest]))
    same = iter(holm([_known(equivalence_p(ratio, options.margin)) for _, ratio in rest]))
    return [
        row if row.primary else _anew(row, ratio, options, next(differ), next(same), len(rest)) for row, ratio in rows
    ]


def _anew(row: Row, ratio: Interval, options: Options, differs: float, same: float, looks: int) -> Row:
    """A secondary row by its adjusted p-values of a difference and of equivalence (NaN: no test)."""
    verdict, why = judge(row.metric, ratio, options.margin, differs, same)
    claimed, before = (same, equivalence_p(ratio, options.margin)) if row.verdict == EQUIVALENT else (differs, row.p)
    if row.verdict in (FASTER, SLOWER, EQUIVALENT) and verdict == INCONCLUSIVE:
        why = f"{row.verdict}, but p {before:.2g} is {claimed:.2g} after {looks} looks (Holm)"
    adjusted = same if verdict == EQUIVALENT else claimed if verdict == INCONCLUSIVE else differs
    return replace(
        row,
        verdict=verdict,
        why=why,
        p_adjusted=None if math.isnan(adjusted) else adjusted,
        blocks_needed=_needed(verdict, ratio, options),
    )


def _known(p: float | None) -> float:
    return math.nan if p is None else p


def _geometric(values: Sequence[float]) -> float | None:
    return math.exp(fmean(math.log(v) for v in values)) if values else None


def _named(side: Side, base: Side, other: Side) -> str:
    return side.engine if base.engine != other.engine else side.run


def differing_versions(a: Mapping[str, Any], b: Mapping[str, Any], names: tuple[str, str]) -> list[str]:
    """Versions that differ, `torch: 2.13.0 / 2.12.1`; of what only one side has, `vllm: 0.32.0 (vllm-default alone)`."""
    found = []
    for key in sorted({*a, *b}):
        if key in a and key in b:
            found += [f"{key}: {a[key]} / {b[key]}"] if a[key] != b[key] else []
        else:
            found.append(f"{key}: {a.get(key, b.get(key))} ({names[0] if key in a else names[1]} alone)")
    return found
