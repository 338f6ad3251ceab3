"""The label of a figure tells who does not see it what it holds: points, pieces of bars, curves by name."""

from __future__ import annotations

import re
from html import unescape

import pytest

from reports.figure_specs import FigureSpec
from reports.figures import Figure, Mark, Panel, Series
from reports.scales import Axis
from reports.study_page import study_picture
from reports.svg import Frame, draw_panel

X, Y = Axis("requests"), Axis("ms")


def series(style: str, count: int, name: str = "") -> Series:
    marks = [Mark(x, 1.0, 1.0, 1.0, False, "tip", "", (0.0, 1.0)) for x in range(1, count + 1)]
    return Series(name, 0, 0, style, [*marks, None])


def label(*found: Series) -> str:
    panel = Panel("", list(found))
    figure = Figure(FigureSpec("id", "Title", "", "", X, Y, ()), X, Y, [panel], [], [])
    drawn = re.search(r'aria-label="([^"]*)"', str(draw_panel(figure, panel, Frame(400, 300), False)))
    assert drawn
    return unescape(drawn[1])


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([series("line", 3), series("points", 1)], "4 points. Arrow keys step through them."),
        ([series("line", 1)], "1 point. Arrow keys step through them."),
        ([series("steps", 9, "a"), series("steps", 9, "<b>")], "2 curves: a and <b>."),
        ([series("steps", 9)], "1 curve."),
        (
            [series("points", 2), series("ceiling", 3, "measured")],
            "2 points. Arrow keys step through them. 1 curve: measured.",
        ),
        ([series("bars", 2), series("hatched", 1)], "3 pieces of bars. Arrow keys step through them."),
        ([series("front", 0)], "empty."),
    ],
)
def test_a_label_tells_what_is_there_and_only_what_the_keys_reach_is_stepped_through(
    found: list[Series], words: str
) -> None:
    assert label(*found) == f"Title: {words}"


def test_curves_of_many_steps_are_told_by_the_names_of_their_arms() -> None:
    points = [(float(x), 1.0 + x) for x in range(1, 100)]
    picture = study_picture("study", "Gaps", "", (X, Y), [("one piece", points), ("in chunks", points)])
    assert 'aria-label="Gaps: 2 curves: one piece and in chunks."' in str(picture.wide[0])
