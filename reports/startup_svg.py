"""The starts of all servers as inline SVG: a bar a session on one time axis, a piece a phase."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from markupsafe import Markup, escape

from reports.scales import Axis, Scale
from reports.startup import Start, Starts
from reports.svg import Frame
from results.report_format import plural, seconds

_NAME, _ROW, _BAR, _FOOT = 26, 28, 20, 44
# Room for the name of a block, and for the seconds of a whole start.
_LEFT, _TOTAL = 66, 88
_CHARACTER = 7.0


def startup_keys(starts: Starts) -> list[tuple[Markup, str]]:
    """Swatch and words of each phase that is drawn, with its letter in both."""
    size = 'viewBox="0 0 34 14" width="34" height="14" aria-hidden="true"'
    path = '<path class="piece" d="M1 0h32v14h-32z"/>'
    keys = []
    for phase in starts.kinds:
        letter = starts.letters[phase.kind]
        text = f'<text class="inside" x="17" y="11" text-anchor="middle">{letter}</text>'
        keys.append(
            (Markup(f'<svg class="swatch {phase.style}" {size}>{path}{text}</svg>'), f"{letter}: {phase.words}")
        )
    return keys


def draw_starts(starts: Starts, frame: Frame) -> Markup:
    """Every bar says its seconds where there is room, and all of them to who points at it."""
    right = frame.width - _TOTAL
    time = Scale(Axis("s after the launch"), 0.0, starts.longest, _LEFT, right)
    parts: list[str] = []
    top = 0
    for engine, of_engine in starts.engines:
        parts.append(f'<text class="label" x="0" y="{top + 14}">{escape(engine)}</text>')
        top += _NAME
        for start in of_engine:
            parts += _bar(start, time, top, starts.letters)
            top += _ROW
    for tick in time.ticks(max(3, (right - _LEFT) // 70)):
        at = time(tick)
        parts.insert(0, f'<path class="grid" d="M{at:.1f} 0V{top}"/>')
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{top + 18}" text-anchor="middle">{escape(time.text(tick))}</text>'
        )
    parts.append(f'<path class="axis" d="M{_LEFT} {top}H{right}"/>')
    parts.append(f'<text class="label" x="{right}" y="{top + 37}" text-anchor="end">{escape(time.axis.label)}</text>')
    drawn = sum(len(of_engine) for _, of_engine in starts.engines)
    label = f"Start of each server: {plural(drawn, 'bar')}. Arrow keys step through their phases."
    size = f'viewBox="0 0 {frame.width} {top + _FOOT}" width="{frame.width}" height="{top + _FOOT}"'
    return Markup(f'<svg class="plot" {size} role="group" tabindex="0" aria-label="{label}">{"".join(parts)}</svg>')


def _bar(start: Start, time: Scale, top: int, letters: Mapping[int, str]) -> list[str]:
    """A piece says its letter and seconds, its letter alone, or nothing, as there is room."""
    left = time(0.0)
    middle = top + _BAR / 2 + 4
    parts = [f'<text class="tick" x="{left - 8:.0f}" y="{middle:.0f}" text-anchor="end">{escape(start.name)}</text>']
    for phase in start.phases:
        low, high = time(phase.low), time(phase.high)
        width = max(high - low, 0.8)
        letter = letters[phase.kind]
        fits = (t for t in (f"{letter} {seconds(phase.high - phase.low)}", letter) if width > _CHARACTER * len(t) + 4)
        inside = "".join(
            f'<text class="inside" x="{(low + high) / 2:.1f}" y="{middle:.0f}" text-anchor="middle">{text}</text>'
            for text in islice(fits, 1)
        )
        parts.append(
            f'<g class="mark {phase.style}" tabindex="-1" role="img" aria-label="{escape(start.told(phase))}">'
            f'<path class="piece dot" d="M{low:.1f} {top}h{width:.1f}v{_BAR}h-{width:.1f}z"/>{inside}</g>'
        )
    parts.append(
        f'<text class="label" x="{time(start.seconds) + 8:.1f}" y="{middle:.0f}">{seconds(start.seconds)}</text>'
    )
    return parts
