"""A plain SVG that grows downwards, for the pictures of the documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, LEFT, RIGHT = 860, 150, 20
PREFILL, DECODE, IDLE, HELD, ALLOCATED = "#2f6db3", "#d9772b", "#c9cdd3", "#3c8558", "#a9cfb5"
INK, MUTED, GRID = "#24292f", "#57606a", "#e3e6ea"


@dataclass(slots=True)
class Picture:
    """An SVG that grows downwards. It is white by itself, so that it can be read on a dark page."""

    title: str
    height: float = 44.0
    shapes: list[str] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self.shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.3):.1f}" height="{max(height, 0):.1f}" fill="{colour}"/>'
        )

    def text(
        self, x: float, y: float, words: str, anchor: str = "start", colour: str = INK, bold: bool = False
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(words)}</text>'
        )

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float = 1, dash: str = "") -> None:
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.shapes.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>')

    def steps(self, points: Sequence[tuple[float, float]], end: float, base: float, colour: str) -> None:
        """The area under a line that keeps each y up to the next x, and the last one up to `end`."""
        path = [f"M{points[0][0]:.1f} {base:.1f}"]
        for x, y in points:
            path.append(f"H{x:.1f}V{y:.1f}")
        self.shapes.append(f'<path d="{"".join(path)}H{end:.1f}V{base:.1f}Z" fill="{colour}"/>')

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        x = float(LEFT)
        for colour, words in entries:
            self.rect(x, self.height + 4, 10, 10, colour)
            self.text(x + 15, self.height + 13, words)
            x += 36 + 7 * len(words)
        self.height += 26

    def svg(self) -> str:
        body = "\n".join(self.shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:.0f}" font-family="sans-serif" '
            f'font-size="12" role="img" aria-label="{escape(self.title)}">\n<rect width="100%" height="100%" fill="#fff"/>\n'
            f'<text x="16" y="24" font-size="14" font-weight="600" fill="{INK}">{escape(self.title)}</text>\n{body}\n</svg>\n'
        )


def across(low: float, high: float) -> Callable[[float], float]:
    """Values to x."""
    return lambda value: LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / (high - low)
