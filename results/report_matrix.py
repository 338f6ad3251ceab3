"""The comparison at a glance: a row a point, a column an engine; throughput, ratio to the first engine, verdicts and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from results.audit import KIND_WORDS, Audit
from results.comparison import Comparison, Row
from results.comparison_words import interval_words
from results.report_format import number
from results.report_shapes import Line, Point
from results.report_verify import SameTokens

MEASURE = "output_tokens_per_s"


@dataclass(frozen=True, slots=True)
class MatrixEngine:
    """A column: the engine, how it was set among the others (own defaults, equalised, tuned, set by hand), and whether its tokens are those
    of the first; empty where nobody asked."""

    label: str
    kind: str
    tokens: str


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """An engine at a point. `ratio` is to the first engine, empty for itself; `finding` is the verdict on that ratio and
    `verdict` the one on the cells."""

    output: str
    ratio: str
    interval: str
    finding: str
    why: str
    verdict: str


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """A point of the run."""

    workload: str
    load: str
    cells: list[MatrixCell | None]


@dataclass(slots=True)
class Matrix:
    """Empty for a run of one engine."""

    engines: list[MatrixEngine] = field(default_factory=list)
    rows: list[MatrixRow] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.rows)


def matrix_of(
    labels: Sequence[str],
    lines: Sequence[Line],
    comparisons: Sequence[Comparison],
    audit: Audit | None,
    tokens: SameTokens | None,
) -> Matrix:
    """`labels` are the engines in their order."""
    if len(labels) < 2:
        return Matrix()
    kinds = {e.label: KIND_WORDS[e.kind] for e in audit.engines} if audit else {}
    engines = [
        MatrixEngine(label, kinds.get(label, ""), (tokens.kind_of(labels[0], label) if tokens else None) or "")
        for label in labels
    ]
    judged = {(c.other, row.workload, row.load): row for c in comparisons if c.base == labels[0] for row in c.primary}
    places: dict[tuple[int, str, str, float], dict[str, Point]] = {}
    for line in lines:
        for point in line.points:
            key = (point.workload.index, point.workload.label, point.load_mode, point.load_value)
            places.setdefault(key, {})[point.engine] = point
    rows = []
    for _, points in sorted(places.items()):
        some = next(iter(points.values()))
        cells = [_cell(points, labels[0], label, judged) for label in labels]
        rows.append(MatrixRow(some.workload.label, some.load_label, cells))
    return Matrix(engines, rows)


def _cell(
    points: Mapping[str, Point], base: str, label: str, judged: Mapping[tuple[str, str | None, str | None], Row]
) -> MatrixCell | None:
    point = points.get(label)
    if point is None:
        return None
    value = point.values[MEASURE]
    ratio = interval = finding = why = ""
    if label != base:
        row = judged.get((label, point.workload.label, point.load_label))
        if row is not None:
            ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
            interval = "" if row.low is None else interval_words(row)
            finding, why = row.verdict, row.why
        else:
            ratio, finding, why = _bare(points.get(base), point)
    return MatrixCell(number(value.mean), ratio, interval, finding, why or value.why or "", point.verdict)


def _bare(base: Point | None, point: Point) -> tuple[str, str, str]:
    """A ratio without a comparison: of one block there is no verdict."""
    below = base.values[MEASURE].mean if base is not None else None
    above = point.values[MEASURE].mean
    if not below or not above:
        return "", "", "not measured on both"
    return f"{above / below:.2f}", "no verdict", "one block: how much it varies is not known"
