"""Where the server's memory is, point by point: weights, KV that holds tokens, KV that does not, and the rest.

What an engine does not tell stays in the picture: hatched where its size is known, else as a bar with an open end.
"""

from __future__ import annotations

from dataclasses import replace

from reports.figure_specs import FigureSpec
from reports.figures import Figure, Key, Mark, Panel, Series, enumerate_labels, realised_axis, suspect_key
from reports.scales import Axis
from results.report_data import ReportData
from results.report_format import listed, plural, size
from results.report_shapes import Line, Point

_MOST_PANELS = 6
# What a bar is stacked of, from below.
_WORDS = (
    "weights",
    "KV that holds tokens",
    "KV reserved, no tokens in it",
    "KV pool not in use",
    "rest of the server's memory",
)
_UNTOLD = "not told what for"
_OPEN = "open end: more, not told how much"
_GREY = 7
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def memory_parts(point: Point) -> list[float | None]:
    """Bytes of each part, None where it is not known. Blocks that are allocated or promised count as reserved; of an engine
    that takes its pool at the start the rest of the pool is memory all the same."""
    value = {name: v.mean for name, v in point.values.items()}
    held, pool = value["kv_bytes_engine"], value["kv_pool_bytes"]
    taken = [v for v in (value["kv_allocated_bytes"], value["kv_reserved_bytes"]) if v is not None]
    reserved = max(taken) if taken else None
    empty = None if reserved is None or held is None else max(reserved - held, 0.0)
    used = max((v for v in (held, reserved) if v is not None), default=None)
    idle = None if pool is None or used is None else max(pool - used, 0.0)
    return [value["weight_bytes"], held, empty, idle, value["other_bytes"]]


def absent_parts(point: Point) -> list[str]:
    """What is missing in a bar. Reserved blocks that are not told are in the rest of the pool: they are no gap."""
    parts = memory_parts(point)
    return [_WORDS[at] for at in (0, 1, 3, 4) if parts[at] is None]


def untold_part(point: Point) -> float | None:
    """Bytes of the server's memory of which it does not tell what they are for; None where nothing is left to tell or the whole
    is not known either."""
    whole = point.values["rss_bytes"].mean
    if whole is None or not absent_parts(point):
        return None
    left = whole - sum(part or 0.0 for part in memory_parts(point))
    # A pool whose pages were never touched is not in the server's memory: then there is no such rest.
    return left if left > 0 else None


def memory_figure(data: ReportData) -> Figure | None:
    """Stacked bars, a panel for each engine and workload; None where nothing but the formula is known."""
    lines = [x for x in data.lines if any(p.verdict != "INVALID" and p.values["batch_realised"].mean for p in x.points)]
    if not any(memory_parts(p)[1] is not None for x in lines for p in x.points if p.verdict != "INVALID"):
        return None
    shown = lines[:_MOST_PANELS]
    tops = [
        sum(v or 0.0 for v in (*memory_parts(p), untold_part(p)))
        for x in shown
        for p in x.points
        if p.verdict != "INVALID"
    ]
    scale, unit = next(((s, u) for s, u in _UNITS if max(tops) >= s), (1, "B"))
    missing = _missing(shown)
    if len(lines) > len(shown):
        missing.append(f"{plural(len(lines) - len(shown), 'further panel')}: the table below has all numbers")
    spec = FigureSpec(
        "memory-parts",
        "Where the memory is",
        "Each bar is one load, at its most. Weights stay as they are; what grows with the batch is the KV cache. The dotted line is "
        "weights and the KV cache that the formula predicts: KV that holds tokens should end on it. Reserved KV without tokens is what "
        "paging is there to avoid. From the bottom up, pieces stand in the legend's order.",
        "",
        realised_axis(data),
        Axis(unit),
        (),
        wide=True,
        detail=True,
    )
    panels = [_panel(line, len(data.engines) > 1, scale) for line in shown]
    there = {at for line in shown for p in line.points for at, v in enumerate(memory_parts(p)) if v}
    keys = [Key(words, at, 1, "points") for at, words in enumerate(_WORDS) if at in there]
    styles = {s.style for panel in panels for s in panel.series}
    keys += [Key(_UNTOLD, _GREY, 1, "hatched")] if "hatched" in styles else []
    keys += [Key(_OPEN, _GREY, 1, "open")] if "open" in styles else []
    keys.append(Key("weights + KV by the formula", -1, -1, "ghost"))
    keys += [Key("SUSPECT cell, pale", -1, 1, "points", hollow=True)] if suspect_key(panels) else []
    if "hatched" in styles:
        spec = replace(
            spec, reading=f"{spec.reading} Hatched is memory of the server that it does not tell the use of."
        )
    if "open" in styles:
        warning = "A bar with an open end is not the whole: it cannot be held against the others."
        spec = replace(spec, reading=f"{spec.reading} {warning}")
    return Figure(spec, spec.x_axis, spec.y_axis, panels, keys, missing)


def _panel(line: Line, named: bool, scale: int) -> Panel:
    stacks: list[list[Mark | None]] = [[] for _ in _WORDS]
    untold: list[Mark | None] = []
    ends: list[Mark | None] = []
    predicted: list[Mark | None] = []
    for point in line.points:
        x = point.values["batch_realised"].mean
        if point.verdict == "INVALID" or not x:
            continue
        base = 0.0
        for at, part in enumerate(memory_parts(point)):
            if not part:
                continue
            top = base + part
            stacks[at].append(_piece(point, x, base / scale, top / scale, f"{_WORDS[at]}: {size(part)}"))
            base = top
        absent = absent_parts(point)
        if left := untold_part(point):
            told = f"{size(left)} not told what for: {listed(absent, 5)}"
            untold.append(_piece(point, x, base / scale, (base + left) / scale, told))
        elif absent:
            ends.append(_piece(point, x, base / scale, base / scale, f"more, not told how much: {listed(absent, 5)}"))
        weights, formula = point.values["weight_bytes"].mean, point.values["kv_bytes_predicted"].mean
        if weights and formula:
            y = (weights + formula) / scale
            predicted.append(Mark(x, y, y, y, False, "", ""))
    series = [Series(words, at, 1, "bars", marks) for at, (words, marks) in enumerate(zip(_WORDS, stacks, strict=True))]
    series += [Series(_UNTOLD, _GREY, 1, "hatched", untold), Series(_OPEN, _GREY, 1, "open", ends)]
    title = line.label if named else line.workload.label
    return Panel(title, [*(s for s in series if s.marks), Series("", _GREY, 0, "ghost", predicted)])


def _piece(point: Point, x: float, low: float, high: float, words: str) -> Mark:
    """A piece of a bar, from `low` to `high` in the unit of the axis."""
    tip = f"{point.label}\n{words}\n{point.verdict}"
    return Mark(x, high, high, high, point.verdict == "SUSPECT", tip, "", (low, high))


def _missing(lines: list[Line]) -> list[str]:
    """Which cells do not count, and which parts of the others are not known, said once for each engine."""
    found: dict[str, list[str]] = {}
    invalid = [point.label for line in lines for point in line.points if point.verdict == "INVALID"]
    for line in lines:
        for point in (p for p in line.points if p.verdict != "INVALID"):
            for at, part in enumerate(memory_parts(point)):
                if part is None and line.engine not in found.setdefault(_WORDS[at], []):
                    found[_WORDS[at]].append(line.engine)
    unknown = [f"{words} not known of {', '.join(engines)}" for words, engines in found.items()]
    return [*([f"INVALID, left out: {enumerate_labels(invalid)}"] if invalid else []), *unknown]
