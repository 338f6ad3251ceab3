"""Studies as one HTML file in the report's clothes, from plain texts, numbers and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.figure_specs import FigureSpec
from reports.figures import Figure, Key, Mark, Panel, Series
from reports.page import render_page
from reports.pictures import Picture, pictures
from reports.scales import Axis
from results.report_format import count, number

_SHAPED = 12  # marks of more points would hide their own line, which then is drawn alone


@dataclass(frozen=True, slots=True)
class StudyRow:
    """A finding in words. `spread` tells of its interval where it was timed, `why` why there is no verdict; `tone` is that of a
    cell's verdict: valid, suspect, invalid."""

    words: str
    value: str
    spread: str
    expected: str
    verdict: str
    tone: str
    why: str


@dataclass(frozen=True, slots=True)
class StudyPage:
    """What one study's part of the page shows."""

    id: str
    title: str
    verdict: str
    tone: str
    claim: str
    switch: str
    hypothesis: str
    limits: str
    picture: Picture
    rows: list[StudyRow]
    clock: list[str]


def study_picture(
    name: str,
    title: str,
    reading: str,
    axes: tuple[Axis, Axis],
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]],
) -> Picture:
    """One panel over the whole width with a line a curve; points that an axis cannot show (zero on a logarithm) are left out."""
    x_axis, y_axis = axes
    series, keys = [], []
    shaped = all(len(points) <= _SHAPED for _, points in curves)
    for at, (label, points) in enumerate(curves):
        style, shape = ("line", at) if shaped else ("steps", -1)
        marks: list[Mark | None] = [
            None if x <= 0 or (y_axis.log and y <= 0) else Mark(x, y, y, y, False, _tip(label, axes, x, y), "")
            for x, y in points
        ]
        series.append(Series(label, at, at, style, marks))
        keys.append(Key(label, at, shape, style))
    spec = FigureSpec(f"study-{name}", title, reading, "", x_axis, y_axis, (), wide=True)
    return pictures([Figure(spec, x_axis, y_axis, [Panel("", series)], keys, [])])[0]


def render_studies(title: str, meta: str, pages: Sequence[StudyPage]) -> str:
    """The whole page; it opens from disk and asks nothing of any network."""
    return render_page("studies.html.j2", title=title, meta=meta, pages=pages)


def value_words(value: float) -> str:
    """Whole numbers as such, others in three digits."""
    return count(value) if float(value).is_integer() else number(value)


def bounds_words(low: float | None, high: float | None) -> str:
    """`4`, `20 to 45`, `at least 3`, `at most 2`, `any`."""
    if low is None or high is None:
        if low is None and high is None:
            return "any"
        return f"at most {count(high)}" if high is not None else f"at least {count(low or 0)}"
    return count(low) if low == high else f"{count(low)} to {count(high)}"


def interval_words(low: float | None, high: float | None, n: int) -> str:
    """`3.41 to 3.62, 7 rounds`."""
    return f"{n} rounds" if low is None or high is None else f"{number(low)} to {number(high)}, {n} rounds"


def _tip(label: str, axes: tuple[Axis, Axis], x: float, y: float) -> str:
    return f"{label}\n{axes[0].label}: {count(x)}\n{axes[1].label}: {count(y)}"
