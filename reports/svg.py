"""Draws a panel as inline SVG. Colours and type come from the page's style sheet, so that light, dark and print follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from reports.figures import BARS, CURVES, Figure, Key, Mark, Panel, Series
from reports.scales import Scale, fit
from results.report_format import listed, plural

COLOURS = 8
DASHES = ("", "7 4", "2 4", "10 4 2 4", "4 3", "12 4")
LABEL_CHARACTERS = 30
# The width of a character of a label, px.
_CHARACTER = 7.0
_R = 4.5
_LONE = 18
_BAR, _OPEN = 10, 18


@dataclass(frozen=True, slots=True)
class Frame:
    """The drawing area inside a picture of `width` x `height` pixels."""

    width: int
    height: int
    left: int = 56
    right: int = 16
    top: int = 30
    bottom: int = 44


def draw_panel(figure: Figure, panel: Panel, frame: Frame, end_labels: bool) -> Markup:
    """One plot. All panels of a figure get the same axes, so that they can be compared by eye."""
    marks = [m for p in figure.panels for m in p.marks]
    levels = [value for p in figure.panels for value, _ in p.guides]
    x = fit(figure.x_axis, [m.x for m in marks], frame.left, frame.width - frame.right)
    y = fit(
        figure.y_axis,
        [*(v for m in marks for v in (m.low, m.y, m.high)), *levels],
        frame.height - frame.bottom,
        frame.top,
    )
    parts = [_axes(figure, panel, frame, x, y), *(_guide(frame, y, v, text) for v, text in panel.guides)]
    parts += [_curve(s, x, y) for s in panel.series]
    drawn = [(m, s) for s in panel.series if s.style not in CURVES for m in s.marks if m is not None]
    parts += [_mark(m, s, x, y) for m, s in drawn]
    parts += [_ring(m, s, x, y) for m, s in drawn if m.hollow and s.style not in BARS]
    if figure.spec.label_points:
        parts.append(_point_labels(panel.points, x, y))
    if end_labels:
        parts.append(_end_labels(panel.series, x, y))
    label = f"{figure.spec.title}{', ' + panel.title if panel.title else ''}: {_holds(panel)}"
    size = f'viewBox="0 0 {frame.width} {frame.height}" width="{frame.width}" height="{frame.height}"'
    return Markup(
        f'<svg class="plot" {size} role="group" tabindex="0" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _holds(panel: Panel) -> str:
    """What is in a panel, for who does not see it: what the arrow keys step through, and the curves by name."""
    pieces = sum(m is not None for s in panel.series if s.style in BARS for m in s.marks)
    points = len(panel.points) - pieces
    counts = ((points, "point", "points"), (pieces, "piece of bars", "pieces of bars"))
    stepped = [plural(n, one, several) for n, one, several in counts if n]
    curves = [s for s in panel.series if s.style in CURVES and any(m is not None for m in s.marks)]
    parts = [f"{listed(stepped)}. Arrow keys step through them."] if stepped else []
    if curves:
        names = list(dict.fromkeys(s.name for s in curves if s.name))
        parts.append(f"{plural(len(curves), 'curve')}{': ' + listed(names, len(names)) if names else ''}.")
    return " ".join(parts) or "empty."


def draw_key(key: Key) -> Markup:
    """The swatch of a legend entry, as an SVG of 34 x 14 pixels."""
    colour = f"c{key.colour % COLOURS}" if key.colour >= 0 else "cx"
    line = ""
    if key.style == "line":
        line = f'<path class="curve" d="M1 7H33"{_dash(max(key.colour, 0))}/>'
    elif key.style in CURVES:
        line = f'<path class="curve {key.style}" d="M1 7H33"/>'
    hollow = " hollow" if key.hollow else ""
    dot = ""
    if key.style in ("hatched", "open"):
        dot = (
            _hatch(7, 12, 2)
            if key.style == "hatched"
            else '<path class="hatch" stroke-dasharray="3 3" d="M7 13V1M27 13V1"/>'
        )
    elif key.style not in CURVES and key.shape >= 0:
        dot = f'<path class="dot{hollow}" d="{_shape(key.shape, 17, 7)}"/>'
    return Markup(
        f'<svg class="swatch {colour}" viewBox="0 0 34 14" width="34" height="14" aria-hidden="true">{line}{dot}</svg>'
    )


def _axes(figure: Figure, panel: Panel, frame: Frame, x: Scale, y: Scale) -> str:
    right, base = frame.width - frame.right, frame.height - frame.bottom
    parts = []
    for tick in y.ticks(6):
        at = y(tick)
        parts.append(f'<path class="grid" d="M{frame.left} {at:.1f}H{right}"/>')
        parts.append(
            f'<text class="tick" x="{frame.left - 8}" y="{at + 4:.1f}" text-anchor="end">{escape(y.text(tick))}</text>'
        )
    for tick in x.ticks(max(3, (right - frame.left) // 60)):
        at = x(tick)
        parts.append(f'<path class="axis" d="M{at:.1f} {base}v5"/>')
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{base + 19}" text-anchor="middle">{escape(x.text(tick))}</text>'
        )
    parts.append(f'<path class="axis" d="M{frame.left} {base}H{right}"/>')
    room = round(frame.width / _CHARACTER) - len(f" · {y.axis.label}")
    name = f"{_short(panel.title, room)} · {y.axis.label}" if panel.title else y.axis.label
    below = x.axis.label if len(x.axis.label) * _CHARACTER < right else x.axis.label.split(" (")[0]
    parts.append(f'<text class="label" x="0" y="15">{escape(name)}</text>')
    parts.append(f'<text class="label" x="{right}" y="{base + 38}" text-anchor="end">{escape(below)}</text>')
    return "".join(parts)


def _guide(frame: Frame, y: Scale, value: float, text: str) -> str:
    at, right = y(value), frame.width - frame.right
    return (
        f'<path class="guide" d="M{frame.left} {at:.1f}H{right}"/>'
        f'<text class="guide-label" x="{frame.left + 6}" y="{at - 5:.1f}">{escape(text)}</text>'
    )


def _curve(series: Series, x: Scale, y: Scale) -> str:
    """The line through the marks, broken at gaps, and the range over blocks as whiskers."""
    if series.style == "points" or series.style in BARS:
        return ""
    path, pen = [], "M"
    for mark in series.marks:
        if mark is None:
            pen = "M"
            continue
        path.append(f"{pen}{x(mark.x):.1f} {y(mark.y):.1f}")
        pen = "L"
    known = [mark for mark in series.marks if mark is not None]
    if series.style == "ghost" and len(known) == 1:
        # A line of one point is a dash through it, wider than a bar.
        path = [f"M{x(known[0].x) - _LONE:.1f} {y(known[0].y):.1f}h{2 * _LONE}"]
    style = f' class="curve {series.style}"' if series.style in CURVES else f' class="curve"{_dash(series.colour)}'
    name = _roof_name(series, x, y) if series.style == "ceiling" and series.name else ""
    return f'<g class="c{series.colour % COLOURS}"><path{style} d="{"".join(path)}"/>{name}</g>' if path else ""


def _roof_name(series: Series, x: Scale, y: Scale) -> str:
    """The name of a ceiling on its roof, at the right end."""
    end = next(m for m in reversed(series.marks) if m is not None)
    return f'<text class="guide-label" x="{x(end.x):.1f}" y="{y(end.y) - 5:.1f}" text-anchor="end">{escape(series.name)}</text>'


def _mark(mark: Mark, series: Series, x: Scale, y: Scale) -> str:
    at_x, at_y = x(mark.x), y(mark.y)
    if series.style in BARS and mark.inner is not None:
        return _bar(mark, series, at_x, y)
    whisker = ""
    if mark.high > mark.low:
        whisker = f'<path class="whisker" d="M{at_x:.1f} {y(mark.low):.1f}V{y(mark.high):.1f}"/>'
    if mark.inner is not None:
        low, high = (y(v) for v in mark.inner)
        whisker += f'<path class="box" d="M{at_x - _R:.1f} {low:.1f}h{2 * _R}V{high:.1f}h-{2 * _R}Z"/>'
    hollow = " hollow" if mark.hollow else ""
    return (
        f'<g class="mark c{series.colour % COLOURS}" tabindex="-1" role="img" aria-label="{escape(mark.tip)}">{whisker}'
        f'<path class="dot{hollow}" d="{_shape(series.shape, at_x, at_y)}"/>'
        f'<circle class="hit" cx="{at_x:.1f}" cy="{at_y:.1f}" r="12"/></g>'
    )


def _ring(mark: Mark, series: Series, x: Scale, y: Scale) -> str:
    """The outline of a SUSPECT mark once more, over all marks: none that lies on it hides the doubt."""
    outline = _shape(series.shape, x(mark.x), y(mark.y))
    return f'<path class="ring c{series.colour % COLOURS}" d="{outline}"/>'


def _bar(mark: Mark, series: Series, at: float, y: Scale) -> str:
    """A piece of a stacked bar."""
    low, high = (y(v) for v in mark.inner or (0.0, 0.0))
    high = min(high, low - 0.6)  # however little it is, it is there
    left = at - _BAR
    if series.style == "open":
        high = low - _OPEN
        piece = (
            f'<path class="hatch" stroke-dasharray="3 3" d="M{left:.1f} {low:.1f}v-{_OPEN}M{left + 2 * _BAR:.1f} {low:.1f}v-{_OPEN}"/>'
            f'<text class="tick" x="{at:.1f}" y="{low - 5:.1f}" text-anchor="middle">?</text>'
        )
    elif series.style == "hatched":
        piece = _hatch(left, low, high)
    else:
        hollow = " hollow" if mark.hollow else ""
        piece = f'<path class="dot bar-piece{hollow}" d="{_box(left, low, high)}"/>'
    over = "" if series.style == "bars" else f'<path class="hit" d="{_box(left, low, high)}"/>'
    return f'<g class="mark c{series.colour % COLOURS}" tabindex="-1" role="img" aria-label="{escape(mark.tip)}">{piece}{over}</g>'


def _box(left: float, low: float, high: float) -> str:
    return f"M{left:.1f} {low:.1f}h{2 * _BAR}V{high:.1f}h-{2 * _BAR}Z"


def _hatch(left: float, low: float, high: float) -> str:
    """The outline of a bar's piece and rising lines in it; a pattern would need an id for each picture of the page."""
    width, lines, at = 2 * _BAR, [], high + 5
    while at < low + width:
        # The line y = at - (x - left), cut at the edges of the box.
        begin, end = max(0.0, at - low), min(float(width), at - high)
        lines.append(f"M{left + begin:.1f} {at - begin:.1f}L{left + end:.1f} {at - end:.1f}")
        at += 5
    return f'<path class="hatch" d="{_box(left, low, high)}{"".join(lines)}"/>'


def _point_labels(marks: Sequence[Mark], x: Scale, y: Scale) -> str:
    """The load beside each mark, where it runs into no other label and no other mark."""
    dots = [(x(m.x), y(m.y)) for m in marks]
    placed: list[tuple[float, float]] = []
    parts = []
    for mark, (dot_x, dot_y) in sorted(zip(marks, dots, strict=True), key=lambda pair: pair[1][1]):
        # Not so high that it runs into the name of the axis.
        left, base, width = dot_x + 8, max(dot_y - 7, y.stop + 6), 7.0 * len(mark.label)
        free = all(abs(left - px) > 20 or abs(base - py) > 13 for px, py in placed)
        if free and not any(left - 5 < dx < left + width + 5 and base - 14 < dy < base + 4 for dx, dy in dots):
            placed.append((left, base))
            parts.append(f'<text class="point-label" x="{left:.1f}" y="{base:.1f}">{escape(mark.label)}</text>')
    return "".join(parts)


def _end_labels(series: Sequence[Series], x: Scale, y: Scale) -> str:
    """The name of each line at its last mark, pushed apart where they would overlap; none where it would lie on another line's
    marks or below the axis, since the legend has it too."""
    ends = []
    dots = [(x(m.x), y(m.y), s) for s in series for m in s.marks if m is not None]
    for s in series:
        last = next((m for m in reversed(s.marks) if m is not None), None)
        if last is not None:
            ends.append((y(last.y), x(last.x), s))
    parts, floor = [], float("-inf")
    for at_y, at_x, s in sorted(ends, key=lambda e: e[0]):
        at = max(at_y, floor + 20)
        right = at_x + 12 + 7.5 * len(s.name)
        if at > y.start or any(of is not s and at_x + 4 < dx < right and at - 12 < dy < at + 10 for dx, dy, of in dots):
            continue
        floor = at
        parts.append(
            f'<text class="end-label c{s.colour % COLOURS}" x="{at_x + 12:.1f}" y="{at + 4:.1f}">{escape(s.name)}</text>'
        )
    return "".join(parts)


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _dash(colour: int) -> str:
    """Each colour has its dash, so that lines are told apart where colours are not."""
    dash = DASHES[colour % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _shape(shape: int, x: float, y: float) -> str:
    """A marker's outline around (x, y): circle, square, triangle, diamond, cross, inverted triangle."""
    r = _R
    if shape % 6 == 0:
        return f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0Z"
    outlines: dict[int, tuple[tuple[float, float], ...]] = {
        1: ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        2: ((0, -1.25), (1.2, 0.95), (-1.2, 0.95)),
        3: ((0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)),
        4: ((-1.2, -0.45), (-0.45, -0.45), (-0.45, -1.2), (0.45, -1.2), (0.45, -0.45), (1.2, -0.45), (1.2, 0.45),
            (0.45, 0.45), (0.45, 1.2), (-0.45, 1.2), (-0.45, 0.45), (-1.2, 0.45)),
        5: ((0, 1.25), (1.2, -0.95), (-1.2, -0.95)),
    }  # fmt: skip
    corners = [f"{x + r * dx:.1f} {y + r * dy:.1f}" for dx, dy in outlines[shape % 6]]
    return "M" + "L".join(corners) + "Z"
