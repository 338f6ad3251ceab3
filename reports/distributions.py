"""Latencies as they are spread over requests: a box for each point of the run, and the whole distribution of one cell."""

from __future__ import annotations

import math
from collections.abc import Callable

from reports.figure_specs import REALISED, FigureSpec
from reports.figures import Figure, Key, Mark, Panel, Series, log_where_wide, realised_axis, suspect_key
from reports.scales import Axis
from results.report_data import ReportData
from results.report_format import number, plural
from results.report_shapes import Point
from results.report_times import CellTimes, Spread

_MOST_PANELS = 6
_STEPS = 160
_READ = ((0.1, "p10"), (0.25, "p25"), (0.5, "p50"), (0.75, "p75"), (0.9, "p90"), (0.99, "p99"))
_KINDS: tuple[tuple[str, str, str, Callable[[CellTimes], Spread]], ...] = (
    ("ttft", "Time to first token", "TTFT", lambda times: times.ttft_ms),
    ("tpot", "Time per output token", "TPOT", lambda times: times.tpot_ms),
)


def spread_figures(data: ReportData) -> list[Figure]:
    """A figure for TTFT and one for TPOT: a panel a workload, a box a point, engines side by side."""
    return [f for kind in _KINDS if (f := _spread_figure(data, *kind)) is not None]


def _spread_figure(
    data: ReportData, id_: str, title: str, short: str, read: Callable[[CellTimes], Spread]
) -> Figure | None:
    parts: dict[tuple[str, str, str, float], list[Spread]] = {}
    for times in data.times.cells:
        cell = times.cell
        if cell.verdict != "INVALID":
            key = (cell.engine, cell.workload.key, cell.load_mode, cell.load_value)
            parts.setdefault(key, []).append(read(times))
    labels = [e.label for e in data.engines]
    panels, missing = [], []
    for workload in data.workloads:
        series = []
        for line in (x for x in data.lines if x.workload.key == workload.key):
            marks = []
            for point in line.points:
                pooled = Spread.pooled(parts.get((point.engine, workload.key, point.load_mode, point.load_value), []))
                mark = _box(point, short, pooled, labels.index(point.engine), len(labels))
                if mark is None:
                    missing.append(f"{point.label}: fewer than two requests tell")
                marks.append(mark)
            colour = labels.index(line.engine) if len(labels) > 1 else workload.index
            # A panel is of one workload: here the shape tells engines apart, as the colour does.
            series.append(Series(line.engine, colour, colour, "points", marks))
        if any(m for s in series for m in s.marks):
            panels.append(Panel(workload.label, series))
    if not panels:
        return None
    if len(panels) > _MOST_PANELS:
        missing.append(f"{plural(len(panels) - _MOST_PANELS, 'further workload')}: see the cells one by one below")
    panels = panels[:_MOST_PANELS]
    spec = FigureSpec(
        f"spread-{id_}",
        f"{title}: how it is spread over requests",
        "The mark is the median, the thick bar holds the middle half of the requests, the thin one reaches from p10 to p90; each "
        "only where enough requests tell, and n is in its words. A long upper end is a queue: few wait, and they wait long. "
        "Blocks of a point are pooled.",
        "",
        REALISED,
        Axis(f"{short}, ms"),
        (),
        wide=True,
        detail=True,
    )
    keys = [Key(label, i, i, "points") for i, label in enumerate(labels)] if len(labels) > 1 else []
    keys += suspect_key(panels)
    return Figure(spec, realised_axis(data), log_where_wide(spec.y_axis, panels), panels, keys, missing)


def _box(point: Point, short: str, spread: Spread, place: int, engines: int) -> Mark | None:
    x, middle = point.values["batch_realised"].mean, spread.at(0.5)
    if not x or middle is None or middle <= 0:
        return None
    low, high = spread.at(0.1), spread.at(0.9)
    first, third = spread.at(0.25), spread.at(0.75)
    told = [f"{name} {number(value)}" for share, name in _READ if (value := spread.at(share)) is not None]
    tip = f"{point.label}\n{short}, ms: {', '.join(told)}\nn = {spread.n:,} requests\n{point.verdict}"
    # Beside each other on a logarithmic axis, so that equal batches do not lie on one another.
    x *= 2 ** (0.11 * (place - (engines - 1) / 2))
    inner = (first, third) if first is not None and third is not None else None
    ends = (low if low is not None else middle, high if high is not None else middle)
    return Mark(x, middle, *ends, point.verdict == "SUSPECT", tip, "", inner)


def cell_distributions(times: CellTimes) -> list[Figure]:
    """The share of a cell's requests that had at most so many ms, for TTFT and TPOT; nothing where no request tells."""
    return [f for kind in _KINDS if (f := _ecdf(times, kind[0], kind[2], kind[3](times))) is not None]


def _ecdf(times: CellTimes, id_: str, short: str, spread: Spread) -> Figure | None:
    values = spread.values
    if not len(values):
        return None
    ranks = sorted({round(i * (len(values) - 1) / (_STEPS - 1)) for i in range(_STEPS)})
    steps: list[Mark | None] = []
    before = 0.0
    for rank in ranks:
        x = float(values[rank])
        share = 100 * (rank + 1) / len(values)
        steps += [Mark(x, y, y, y, False, "", "") for y in (before, share)]
        before = share
    read: list[Mark | None] = [_quantile(short, spread, share, name) for share, name in _READ]
    spec = FigureSpec(
        f"ecdf-{id_}",
        f"{short} of its requests",
        "",
        "",
        Axis(f"{short}, ms"),
        Axis("% of the requests at or below", ends=100.0),
        (),
        label_points=True,
    )
    series = [Series("", 0, 0, "steps", steps), Series("", 0, 0, "points", read)]
    return Figure(spec, spec.x_axis, spec.y_axis, [Panel(f"n = {spread.n:,}", series)], [], [])


def _quantile(short: str, spread: Spread, share: float, name: str) -> Mark | None:
    value = spread.at(share)
    if value is None or math.isnan(value):
        return None
    return Mark(value, 100 * share, 100 * share, 100 * share, False, f"{short} {name}: {number(value)} ms", name)
