"""Drawing instructions: the figures of the table, filled with a run's points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from reports.figure_specs import FIGURES, REALISED, FigureSpec, Layer, PanelSpec
from reports.scales import Axis
from results.comparison_pareto import unbeaten
from results.report_data import ReportData
from results.report_format import UNKNOWN, count, listed, number, size
from results.report_measures import MEASURE, Value
from results.report_shapes import Line, Point

# Above this ratio of largest to smallest a linear axis would hide the small values.
_LOG_RATIO = 30.0
# Why something is not drawn, and which points it is.
Missing = dict[str, list[str]]
LOAD_WORDS = {"batch": "batch", "concurrency": "requests in flight", "rate": "request rate"}
FLAGS = {"batch": "batch", "concurrency": "concurrency", "rate": "rate"}
GUIDE_WORDS = {"weight_bytes": "weights", "kv_pool_bytes": "KV pool"}


@dataclass(slots=True)
class Mark:
    """One point of a series. `low..high` is its range (over blocks or waves), `inner` the middle half of it where it is a box;
    `hollow` marks a SUSPECT cell."""

    x: float
    y: float
    low: float
    high: float
    hollow: bool
    tip: str
    label: str
    inner: tuple[float, float] | None = None


# Styles of which only the curve is drawn: its marks are no points of the run.
CURVES = ("ghost", "front", "ceiling", "steps")
# Pieces of a stacked bar: full; hatched, not told what for; an open end, not told how much.
BARS = ("bars", "hatched", "open")


@dataclass(slots=True)
class Series:
    """Marks in order; None is a gap at which the line breaks. `colour` and `shape` index the palette and the marker table;
    `style` is `line`, `points`, one of `BARS` (each mark from `inner[0]` to `inner[1]`), or one of `CURVES`."""

    name: str
    colour: int
    shape: int
    style: str
    marks: list[Mark | None]


@dataclass(slots=True)
class Panel:
    """One plot to draw."""

    title: str
    series: list[Series]
    guides: list[tuple[float, str]] = field(default_factory=list)

    @property
    def marks(self) -> list[Mark]:
        return [m for s in self.series for m in s.marks if m is not None]

    @property
    def points(self) -> list[Mark]:
        """Those that are points of the run."""
        return [m for s in self.series if s.style not in CURVES for m in s.marks if m is not None]


@dataclass(slots=True)
class Key:
    """A legend entry. Colour -1 is neutral, shape -1 is a plain line."""

    text: str
    colour: int
    shape: int
    style: str
    hollow: bool = False


@dataclass(slots=True)
class Figure:
    """A figure ready to be drawn. `missing` says, in words, what is not drawn and why."""

    spec: FigureSpec
    x_axis: Axis
    y_axis: Axis
    panels: list[Panel]
    keys: list[Key]
    missing: list[str]


def build_figures(data: ReportData) -> list[Figure]:
    """All figures for which the run has at least one point."""
    figures = [_figure(spec, data) for spec in FIGURES]
    return [f for f in figures if any(panel.marks for panel in f.panels)]


def line_style(line: Line, data: ReportData) -> tuple[int, int]:
    """(colour, shape): colour, and the dash of a line with it, tells engines apart where there are several, else lengths; the
    shape of marks always tells lengths."""
    engines = [e.label for e in data.engines]
    colour = engines.index(line.engine) if len(engines) > 1 else line.workload.index
    return colour, line.workload.index


def line_name(line: Line, data: ReportData) -> str:
    """A line's name, no longer than it must be."""
    mode = "" if len({x.load_mode for x in data.lines}) == 1 else f", {line.load_mode}"
    one_output = line.workload.input_tokens is not None and len({w.output_tokens for w in data.workloads}) == 1
    workload = f"{line.workload.input_label} in" if one_output else line.workload.label
    return f"{line.engine} · {workload}{mode}" if len(data.engines) > 1 else f"{workload}{mode}"


def _figure(spec: FigureSpec, data: ReportData) -> Figure:
    missing: Missing = {}
    engines = [e.label for e in data.engines if any(x.engine == e.label for x in data.lines)]
    if spec.by_engine and len(engines) > 1:
        panels = [
            _panel(panel, spec, data, [x for x in data.lines if x.engine == engine], missing, engine)
            for panel in spec.panels
            for engine in engines
        ]
    else:
        panels = [_panel(panel, spec, data, data.lines, missing, _panel_title(panel, data)) for panel in spec.panels]
    y_axis = log_where_wide(spec.y_axis, panels)
    keys = _keys(spec, data)
    if spec.front:
        fronts = [front for panel in panels if len(panel.points) > 1 for front in _fronts(panel)]
        panels[0].series[:0] = fronts
        keys += [Key("not beaten in both", -1, -1, "front")] if fronts else []
    keys += suspect_key(panels)
    spec = worded(spec, data, panels)
    if any(s.style == "front" for panel in panels for s in panel.series):
        band = "The pale band joins the points that no other of their workload beats in both."
        spec = replace(spec, reading=f"{spec.reading} {band}")
    notes = [f"{why}: {enumerate_labels(labels)}" for why, labels in missing.items()]
    x_axis = realised_axis(data) if spec.x == "batch_realised" else spec.x_axis
    return Figure(spec, x_axis, y_axis, panels, keys, notes)


def suspect_key(panels: Sequence[Panel]) -> list[Key]:
    """What a hollow mark means, where there is one."""
    there = any(m.hollow for panel in panels for m in panel.marks)
    return [Key("SUSPECT cell", -1, 0, "points", hollow=True)] if there else []


def log_where_wide(axis: Axis, panels: Sequence[Panel]) -> Axis:
    """Logarithmic where a linear axis would hide the small values."""
    values = [m.y for panel in panels for m in panel.marks if m.y > 0]
    wide = bool(values) and max(values) / min(values) > _LOG_RATIO
    return Axis(axis.label, 10) if wide and not axis.log else axis


def realised_axis(data: ReportData) -> Axis:
    """The axis of the realised batch names what that was read from."""
    return replace(REALISED, label=f"realised batch ({data.readings.batch_words})") if data.readings.batch else REALISED


def worded(spec: FigureSpec, data: ReportData, panels: Sequence[Panel]) -> FigureSpec:
    """The spec with its title and reading in the words of this run: its kind of load, and no more than its points can show."""
    modes = list(dict.fromkeys(line.load_mode for line in data.lines))
    load = LOAD_WORDS.get(modes[0], "load") if len(modes) == 1 else "load"
    most = max((sum(m is not None for m in s.marks) for panel in panels for s in panel.series), default=0)
    reading = spec.reading
    if most < spec.needs:
        have = "One load" if most == 1 else f"{most} loads"
        reading = f"{have} cannot show {spec.shows}: measure more of them (--{FLAGS.get(modes[0], 'batch')} 1,4,16)."
    if spec.id == "memory" and any(
        p.coalesced or p.verdict == "SUSPECT" for p in data.points if p.verdict != "INVALID"
    ):
        reading += (
            " Here the client was late or read several tokens at once in some cells, and the formula is fed with its "
            "stamps: where the two differ, either may be off."
        )
    if any(m.high > m.low for panel in panels for m in panel.marks):
        over = listed(sorted({v.over for p in data.points for v in p.values.values() if v.n > 1}))
        reading += f" Whiskers reach from the lowest to the highest of the {over}."
    return replace(spec, title=spec.title.format(load=load), reading=reading)


def _panel_title(panel: PanelSpec, data: ReportData) -> str:
    estimated = any(data.readings.estimated(layer.measure) for layer in panel.layers)
    return f"{panel.title}, the client's estimate" if estimated else panel.title


def _keys(spec: FigureSpec, data: ReportData) -> list[Key]:
    """The legend: with several engines one entry an engine (colour and dash; none where each has a panel of its name) and
    one a length (marker), else one a line."""
    layers = [layer for panel in spec.panels for layer in panel.layers if layer.words]
    style = "points" if layers else "line"
    if len(data.engines) > 1:
        keys = [] if spec.by_engine else [Key(e.label, i, -1, "line") for i, e in enumerate(data.engines)]
        keys += [Key(w.label, -1, w.index, "points") for w in data.workloads] if len(data.workloads) > 1 else []
    else:
        keys = [Key(line_name(x, data), *line_style(x, data), style) for x in data.lines]
    return keys + [Key(x.words, -1, 0, x.style) for x in layers]


def enumerate_labels(labels: Iterable[str]) -> str:
    """The first of them, and how many more."""
    found = list(dict.fromkeys(labels))
    return "; ".join(found[:6]) + (f"; and {len(found) - 6} more" if len(found) > 6 else "")


def _panel(
    panel: PanelSpec, spec: FigureSpec, data: ReportData, lines: Sequence[Line], missing: Missing, title: str
) -> Panel:
    series = []
    for line in lines:
        colour, shape = line_style(line, data)
        for layer in panel.layers:
            marks = [_mark(point, spec, layer, data, missing) for point in line.points]
            series.append(Series(line_name(line, data), colour, shape, layer.style, marks))
    return Panel(title, series, _guides(panel, lines))


def _fronts(panel: Panel) -> list[Series]:
    """Of each workload (a shape) the points that no other beats on both axes, from left to right."""
    found = []
    for shape in dict.fromkeys(s.shape for s in panel.series):
        marks = [m for s in panel.series if s.shape == shape for m in s.marks if m is not None]
        best = [m for m, stays in zip(marks, unbeaten([(m.x, m.y) for m in marks]), strict=True) if stays]
        if len(best) > 1:
            best.sort(key=lambda m: m.x)
            found.append(Series("", 0, shape, "front", [*best]))
    return found


def _mark(point: Point, spec: FigureSpec, layer: Layer, data: ReportData, missing: Missing) -> Mark | None:
    x, y = point.values[spec.x], point.values[layer.measure]
    if point.verdict == "INVALID":
        missing.setdefault("INVALID, left out", []).append(point.label)
        return None
    if x.mean is None or y.mean is None:
        measure, value = (MEASURE[spec.x], x) if x.mean is None else (MEASURE[layer.measure], y)
        missing.setdefault(f"{measure.words} {value.why or 'not known'}", []).append(point.label)
        return None
    if x.mean <= 0 or y.mean <= 0:
        missing.setdefault(f"{MEASURE[layer.measure].words} is 0", []).append(point.label)
        return None
    if point.blocks_invalid:
        missing.setdefault(
            f"{point.blocks_invalid} of {point.blocks + point.blocks_invalid} blocks INVALID, left out", []
        ).append(point.label)
    low, high = y.low if y.low is not None else y.mean, y.high if y.high is not None else y.mean
    low, high = (low, high) if low > 0 else (y.mean, y.mean)
    return Mark(
        x.mean, y.mean, low, high, point.verdict == "SUSPECT", _tip(point, spec, layer, data), count(point.load_value)
    )


def _tip(point: Point, spec: FigureSpec, layer: Layer, data: ReportData) -> str:
    realised = point.values["batch_realised"]
    lines = [
        point.label,
        f"{MEASURE[layer.measure].words}: {quantity(point.values[layer.measure], MEASURE[layer.measure].unit)}"
        + (" (estimate)" if data.readings.estimated(layer.measure) else ""),
    ]
    if spec.x != "batch_realised":
        lines.append(f"{MEASURE[spec.x].words}: {quantity(point.values[spec.x], MEASURE[spec.x].unit)}")
    source = f" ({data.readings.batch_words})" if data.readings.batch else ""
    lines.append(f"realised batch {number(realised.mean)}{source}")
    lines.append(point.verdict + (f", {point.blocks} blocks" if point.blocks > 1 else ""))
    return "\n".join(lines)


def quantity(value: Value, unit: str) -> str:
    """A value with its unit and, over several blocks, its range."""
    if value.mean is None:
        return f"{UNKNOWN} ({value.why})" if value.why else UNKNOWN
    show = size if unit == "B" else number
    text = show(value.mean) if unit in ("B", "") else f"{show(value.mean)} {unit}"
    if value.n > 1 and value.low is not None and value.high is not None:
        low, high = show(value.low), show(value.high)
        over = f"{value.n} {value.over}"
        text += f" (alike in {over})" if low == high else f" ({low} to {high} over {over})"
    return text


def _guides(panel: PanelSpec, lines: Sequence[Line]) -> list[tuple[float, str]]:
    """Level lines at the largest value that any point of `lines` has."""
    guides = []
    for measure in panel.guides:
        known = [v for line in lines for p in line.points if (v := p.values[measure].mean)]
        if known:
            guides.append((max(known), f"{GUIDE_WORDS[measure]} {size(max(known))}"))
    return guides
