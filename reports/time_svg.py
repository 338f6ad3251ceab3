"""One cell on its time axis as inline SVG: its requests in lanes, and below them everything that was read over time.

Both pictures share left and right edge, so that what stands above each other happened together.
"""

from __future__ import annotations

import math

import numpy as np
from markupsafe import Markup, escape

from reports.scales import Axis, Scale, fit
from reports.svg import COLOURS, Frame
from results.events import Floats, Ints
from results.report_format import UNKNOWN, number, percent, plural
from results.report_times import CellTimes
from results.time_lanes import Lanes
from results.time_tracks import Track

_LABEL, _PLOT, _GAP, _FOOT = 24, 50, 12, 40
_LANES_HEIGHT, _LANE = 230, (3.0, 15.0)
_CURSORS = 80
# The stretches of a bar: class, shape of its key, words.
_WAITS, _FULL = "M1 6.4h32v1.2h-32z", "M1 2h32v10h-32z"
_STRETCHES = (("waits", _WAITS, "due, waits at the client"), ("decodes", _FULL, "tokens come"))
_TOLD = (("queues", _FULL, "in the engine's queue"), ("prefills", _FULL, "prefill, until the first token is here"))
_UNTOLD = (("prefills", _FULL, "queue and prefill: one stretch, this engine does not tell them apart"),)
# A line is broken where two readings lie further apart than so many times the usual.
_FAR = 4.0


def stretch_keys(lanes: Lanes) -> list[tuple[str, str, str]]:
    """What the parts of a bar mean, in the order of time: class, path, words."""
    waits, decodes = _STRETCHES
    return [waits, *(_TOLD if lanes.queue_told else _UNTOLD), decodes]


def draw_lanes(times: CellTimes, frame: Frame) -> Markup:
    """The requests: thin while they wait at the client, pale until their first token (paler in the engine's queue, where it tells),
    full while tokens come."""
    lanes = times.lanes
    pitch = min(max(_LANES_HEIGHT / max(lanes.lanes, 1), _LANE[0]), _LANE[1])
    base = _LABEL + 6 + pitch * lanes.lanes
    time = _time(times, frame)
    parts = [_window(times, time, _LABEL, base), _axis(time, frame, base)]
    parts.append(f'<text class="label" x="0" y="13">requests, {plural(lanes.lanes, "lane")}</text>')
    parts += [_bar(lanes, at, time, pitch) for at in range(lanes.drawn)]
    return _svg("Requests over time", f"{lanes.drawn} requests", frame, base + _FOOT, parts)


def draw_tracks(times: CellTimes, frame: Frame, told: list[str]) -> Markup:
    """What was read over time, one plot below the other; a column of time is a mark that tells all of them (`told_moments`)."""
    shown = [track for track in times.tracks if not track.absent]
    time = _time(times, frame)
    parts, top = [], 0.0
    height = len(shown) * (_LABEL + _PLOT + _GAP)
    parts.append(_window(times, time, _LABEL, height - _GAP))
    for place, track in enumerate(shown):
        parts += _plot(track, place, time, top, frame)
        top += _LABEL + _PLOT + _GAP
    parts.append(_axis(time, frame, height - _GAP))
    parts += _cursors(times, told, time, height - _GAP)
    return _svg("Readings over time", f"{len(shown)} plots", frame, height - _GAP + _FOOT, parts)


def _svg(title: str, holds: str, frame: Frame, height: float, parts: list[str]) -> Markup:
    label = f"{title}: {holds}. Arrow keys step through them."
    size = f'viewBox="0 0 {frame.width} {height:.0f}" width="{frame.width}" height="{height:.0f}"'
    return Markup(
        f'<svg class="plot" {size} role="group" tabindex="0" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _time(times: CellTimes, frame: Frame) -> Scale:
    return Scale(Axis("s after the first request was due"), 0.0, times.seconds, frame.left, frame.width - frame.right)


def _axis(time: Scale, frame: Frame, base: float) -> str:
    right = frame.width - frame.right
    ticks = "".join(
        f'<path class="axis" d="M{time(t):.1f} {base:.0f}v5"/>'
        f'<text class="tick" x="{time(t):.1f}" y="{base + 18:.0f}" text-anchor="middle">{escape(time.text(t))}</text>'
        for t in time.ticks(max(3, (right - frame.left) // 80))
    )
    return (
        f'<path class="axis" d="M{frame.left} {base:.0f}H{right}"/>{ticks}'
        f'<text class="label" x="{right}" y="{base + 35:.0f}" text-anchor="end">{escape(time.axis.label)}</text>'
    )


def _window(times: CellTimes, time: Scale, top: float, base: float) -> str:
    """The steady window, behind everything."""
    if times.window is None:
        return ""
    low, high = (min(max(t, 0.0), times.seconds) for t in times.window)
    width = time(high) - time(low)
    return f'<rect class="steady" x="{time(low):.1f}" y="{top:.0f}" width="{width:.1f}" height="{base - top:.0f}"/>'


def _bar(lanes: Lanes, at: int, time: Scale, pitch: float) -> str:
    """A request's stretches, each only where both of its ends are known."""
    middle = _LABEL + 6 + pitch * (float(lanes.lane[at]) + 0.5)
    stamps = [float(c[at]) for c in (lanes.due, lanes.sent, lanes.first, lanes.last, lanes.end)]
    due, sent, first, last, end = stamps
    stop = next((t for t in (last, end, first, sent) if not math.isnan(t)), due)
    parts = [_stretch("waits", due, sent, middle, 1.2, time)]
    height = 2 * max(pitch * 0.38, 1.0)
    taken = float(lanes.scheduled[at])
    begin = sent if math.isnan(taken) else taken
    parts += [
        _stretch("queues", sent, taken, middle, height, time),
        _stretch("prefills", begin, stop if math.isnan(first) else first, middle, height, time),
        _stretch("decodes", first, stop, middle, height, time),
    ]
    failed = "" if lanes.ok[at] else " failed-bar"
    return f'<g class="mark bar{failed}" tabindex="-1" role="img" aria-label="{escape(_told(lanes, at))}">{"".join(parts)}</g>'


def _stretch(kind: str, low: float, high: float, middle: float, height: float, time: Scale) -> str:
    if math.isnan(low) or math.isnan(high) or high < low:
        return ""
    width = max(time(high) - time(low), 0.6)
    return (
        f'<path class="{kind}" d="M{time(low):.1f} {middle - height / 2:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"/>'
    )


def _told(lanes: Lanes, at: int) -> str:
    stamps = (lanes.due, lanes.sent, lanes.scheduled, lanes.first, lanes.last)
    due, sent, taken, first, last = (float(c[at]) for c in stamps)
    tokens, given = int(lanes.tokens[at]), int(lanes.input_tokens[at])
    lines = [f"request due at {number(due)} s"]
    lines += [f"waited at the client {_ms(sent - due)}"] if sent - due >= 5e-4 else []
    parts = "" if math.isnan(taken) else f": {_ms(taken - sent)} in the queue, {_ms(first - taken)} of prefill"
    lines.append(f"first token after {_ms(first - sent)}{parts}")
    lines.append(f"then tokens for {_ms(last - first)}")
    sizes = [f"{n:,} {words}" for n, words in ((given, "in"), (tokens, "out")) if n >= 0]
    lines.append(f"{', '.join(sizes)}{'' if lanes.ok[at] else f'; {lanes.outcome[at]}'}")
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    return (
        UNKNOWN if math.isnan(seconds) else f"{number(1000 * seconds)} ms" if seconds < 10 else f"{number(seconds)} s"
    )


def _plot(track: Track, place: int, time: Scale, top: float, frame: Frame) -> list[str]:
    base = top + _LABEL + _PLOT
    y = fit(Axis(track.unit), [v for v in track.high.tolist() if not math.isnan(v)], base, top + _LABEL)
    name = f"{track.words}{f', {track.unit}' if track.unit and track.unit not in track.words else ''}"
    parts = [f'<text class="label" x="0" y="{top + 12:.0f}">{escape(name)}</text>']
    highest = y.ticks(3)[-1]
    for tick in (0.0, highest):
        parts.append(f'<path class="grid" d="M{frame.left} {y(tick):.1f}H{frame.width - frame.right}"/>')
        parts.append(
            f'<text class="tick" x="{frame.left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{escape(y.text(tick))}</text>'
        )
    if track.peak:
        share = f"{percent(highest / track.peak)} of the peak"
        right, above = frame.width - frame.right, y(highest) - 4
        parts.append(f'<text class="tick" x="{right}" y="{above:.1f}" text-anchor="end">{escape(share)}</text>')
    known = np.isfinite(track.mean)
    t, mean, low, high = (c[known] for c in (track.t, track.mean, track.low, track.high))
    breaks = _breaks(t)
    bands = "".join(_band(p, q, r, time, y) for p, q, r in _pieces(breaks, t, low, high) if (r > q).any())
    lines = "".join(_line(p, q, time, y) for p, q in _pieces(breaks, t, mean))
    parts.append(f'<g class="c{place % COLOURS}">{bands}<path class="curve thin" d="{lines}"/></g>')
    return parts


def _breaks(t: Floats) -> Ints:
    """Where the line is lifted: after these indices."""
    gaps = np.diff(t)
    far = gaps > _FAR * np.median(gaps) if len(gaps) > 2 else np.zeros(len(gaps), dtype=bool)
    return np.flatnonzero(far).astype(np.int64) + 1


def _pieces(breaks: Ints, *columns: Floats) -> list[tuple[Floats, ...]]:
    return list(zip(*(np.split(column, breaks) for column in columns), strict=True))


def _points(t: Floats, v: Floats, time: Scale, y: Scale) -> list[str]:
    """Both axes are linear, so all of it is placed at once."""
    xs = time.start + t * ((time.stop - time.start) / time.high)
    ys = y.start + v * ((y.stop - y.start) / y.high)
    return [f"{a:.0f} {b:.1f}" for a, b in zip(xs.tolist(), ys.tolist(), strict=True)]


def _line(t: Floats, v: Floats, time: Scale, y: Scale) -> str:
    points = _points(t, v, time, y)
    # A single reading is a dot as wide as the line.
    return f"M{'L'.join(points)}{'h0.5' if len(points) == 1 else ''}"


def _band(t: Floats, low: Floats, high: Floats, time: Scale, y: Scale) -> str:
    """From the lowest to the highest reading of each column."""
    outline = _points(t, high, time, y) + _points(t[::-1], low[::-1], time, y)
    return f'<path class="band" d="M{"L".join(outline)}z"/>'


def told_moments(times: CellTimes) -> list[str]:
    """What the tracks say in each of the stretches of time that can be stepped through, escaped for an attribute."""
    edges = np.linspace(0, times.seconds, _CURSORS + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    columns = [_columns(track, edges) for track in times.tracks if not track.absent]
    return [
        str(escape("\n".join([f"{number(middle)} s", *(column[at] for column in columns)])))
        for at, middle in enumerate(middles.tolist())
    ]


def _cursors(times: CellTimes, told: list[str], time: Scale, base: float) -> list[str]:
    width = (time.stop - time.start) / _CURSORS
    return [
        f'<g class="mark cursor" tabindex="-1" role="img" aria-label="{words}">'
        f'<path class="at" d="M{time.start + (at + 0.5) * width:.1f} {_LABEL}V{base:.0f}"/>'
        f'<rect class="hit" x="{time.start + at * width:.1f}" y="0" width="{width:.1f}" height="{base:.0f}"/></g>'
        for at, words in enumerate(told)
    ]


def _columns(track: Track, edges: Floats) -> list[str]:
    """What a track says in each stretch of time: its means there, lowest and highest beside them; else the nearest before."""
    known = np.flatnonzero(np.isfinite(track.mean))
    t = track.t[known]
    usual = float(np.median(np.diff(t))) if len(t) > 2 else math.inf
    out = []
    for low_edge, high_edge in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        first, last = np.searchsorted(t, (low_edge, high_edge)).tolist()
        if first == last and (first == 0 or low_edge - t[first - 1] > _FAR * usual):
            out.append(f"{track.words}: {UNKNOWN}")
            continue
        here = known[first:last] if last > first else known[first - 1 : first]
        out.append(_reading(track, here))
    return out


def _reading(track: Track, here: Ints) -> str:
    mean, low, high = float(track.mean[here].mean()), float(track.low[here].min()), float(track.high[here].max())

    def show(value: float) -> str:
        return percent(value / 100) if track.unit == "%" else number(value)

    unit = f" {track.unit}" if track.unit not in ("", "%") else ""
    spread = f" ({number(low)} to {number(high)})" if track.id != "tokens" and number(low) != number(high) else ""
    share = f", {percent(mean / track.peak)} of the peak" if track.peak else ""
    return f"{track.words}: {show(mean)}{unit}{spread}{share}"
