"""The run under the machine's measured ceilings: FLOP/s against FLOPs a byte."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reports.figure_specs import FigureSpec
from reports.figures import Figure, Key, Mark, Panel, Series, line_style, suspect_key
from reports.scales import Axis
from results.report_data import ReportData
from results.report_format import listed, number, percent
from results.report_limits import TOO_LOW
from results.report_shapes import Point

_G = 1e9
_X = Axis("arithmetic intensity, FLOPs a byte", log=10)
_Y = Axis("GFLOP/s", log=10)


@dataclass(frozen=True, slots=True)
class _Part:
    """Which steps of a cell a mark stands for, by the measures that tell of them; `shape` indexes the marker table."""

    mfu: str
    mbu: str
    words: str
    shape: int


_PARTS = (
    _Part("mfu", "mbu", "all steps", 0),
    _Part("mfu_prefill", "mbu_prefill", "steps that only prefill", 2),
    _Part("mfu_decode", "mbu_decode", "full batches that decode", 1),
)
_SPEC = FigureSpec(
    "roofline",
    "Roofline: what the steps did under the measured ceilings",
    "The slope is the memory's ceiling, the roof that of arithmetic, both measured right before the run. A mark close under the slope "
    "reads memory as fast as it can; one close under the roof computes as fast as it can; one far below both waits for something "
    "else. Lines join the loads, smallest first. FLOPs and bytes are worked out from what each step held; seconds are measured.",
    "",
    _X,
    _Y,
    (),
    wide=True,
    detail=True,
)


def roofline_figure(data: ReportData) -> Figure | None:
    """None where no point has both steps and ceilings."""
    series: list[Series] = []
    missing: list[str] = []
    for line in data.lines:
        colour, _ = line_style(line, data)
        for part in _PARTS:
            marks: list[Mark | None] = [_mark(point, part) for point in line.points]
            if any(marks):
                series.append(Series(line.label, colour, part.shape, "line", marks))
        missing += [
            f"{p.label}: {p.values['mfu'].why or 'not known'}" for p in line.points if not p.values["mfu"].known
        ]
    points = [m for s in series for m in s.marks if m is not None]
    if not points:
        return None
    panel = Panel("", [*_ceilings(data, points), *series])
    several = len(data.engines) > 1
    keys = [Key(e.label, i, -1, "line") for i, e in enumerate(data.engines)] if several else []
    if not several and len(data.workloads) > 1:
        drawn = {s.colour for s in series}
        keys = [Key(w.label, w.index, -1, "line") for w in data.workloads if w.index in drawn]
    shapes = {s.shape for s in series}
    keys += [Key(part.words, -1, part.shape, "points") for part in _PARTS if part.shape in shapes]
    keys += [*suspect_key([panel]), Key("measured ceilings", -1, -1, "ceiling")]
    above = any(
        (v := p.values[name].mean) and v > 1 for p in data.points for part in _PARTS for name in (part.mfu, part.mbu)
    )
    spec = replace(_SPEC, reading=_SPEC.reading + TOO_LOW) if above else _SPEC
    return Figure(spec, _X, _Y, [panel], keys, missing)


def _mark(point: Point, part: _Part) -> Mark | None:
    values = point.values
    mfu, mbu = values[part.mfu].mean, values[part.mbu].mean
    flops, speed = values["ceiling_flops_per_s"].mean, values["ceiling_bytes_per_s"].mean
    if point.verdict == "INVALID" or not mfu or not mbu or not flops or not speed:
        return None
    rate, intensity = mfu * flops, mfu * flops / (mbu * speed)
    tip = (
        f"{point.label}\n{part.words}: {number(rate / _G)} GFLOP/s at {number(intensity)} FLOPs a byte\n"
        f"MFU {percent(mfu)}, MBU {percent(mbu)} of the measured ceilings\n{point.verdict}"
    )
    return Mark(intensity, rate / _G, rate / _G, rate / _G, point.verdict == "SUSPECT", tip, "")


def _ceilings(data: ReportData, points: list[Mark]) -> list[Series]:
    """A line for each pair of ceilings that points have: engines may run with different threads or formats."""
    # Ceilings that read alike are one: means over blocks differ in their last digits.
    pairs: dict[tuple[str, str], tuple[float, float, list[str]]] = {}
    for p in data.points:
        flops, speed = p.values["ceiling_flops_per_s"].mean, p.values["ceiling_bytes_per_s"].mean
        if flops and speed:
            _, _, engines = pairs.setdefault((number(flops / _G), number(speed / _G)), (flops, speed, []))
            engines += [p.engine] if p.engine not in engines else []
    found = []
    for flops, speed, engines in sorted(pairs.values()):
        ridge = flops / speed
        low, high = min(ridge / 2, *(m.x for m in points)), max(ridge * 2, *(m.x for m in points))
        corners = ((low, low * speed), (ridge, flops), (high, flops))
        marks: list[Mark | None] = [Mark(x, y / _G, y / _G, y / _G, False, "", "") for x, y in corners]
        name = f"ceiling of {listed(engines, 3)}: {number(flops / _G)} GFLOP/s" if len(pairs) > 1 else ""
        found.append(Series(name, 0, 0, "ceiling", marks))
    return found
