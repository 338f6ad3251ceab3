"""Figures as they stand in the page: each panel drawn twice, for a wide and for a narrow screen; the style sheet picks one."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from reports.figures import Figure
from reports.svg import LABEL_CHARACTERS, Frame, draw_key, draw_panel

NARROW = Frame(344, 250, left=50, right=14)


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure with its drawn panels and legend swatches."""

    figure: Figure
    wide: list[Markup]
    narrow: list[Markup]
    keys: list[tuple[Markup, str]]


def pictures(figures: list[Figure]) -> list[Picture]:
    """Draw them all."""
    return [_picture(figure) for figure in figures]


def _picture(figure: Figure) -> Picture:
    only_lines = all(s.style == "line" for panel in figure.panels for s in panel.series)
    # A name that is cut tells no line from the next: the legend has them whole.
    whole = all(len(s.name) <= LABEL_CHARACTERS for panel in figure.panels for s in panel.series)
    labelled = figure.spec.wide and len(figure.panels) == 1 and not figure.spec.label_points and only_lines and whole
    if len(figure.panels) > 1 or not figure.spec.wide:
        frame = Frame(492, 300)
    else:
        frame = Frame(1020, 360, right=_label_room(figure) if labelled else 16)
    return Picture(
        figure,
        [draw_panel(figure, panel, frame, labelled) for panel in figure.panels],
        [draw_panel(figure, panel, NARROW, False) for panel in figure.panels],
        [(draw_key(key), key.text) for key in figure.keys],
    )


def _label_room(figure: Figure) -> int:
    """Pixels right of the plot for the names at the ends of its lines."""
    longest = max((len(s.name) for p in figure.panels for s in p.series), default=0)
    return 24 + round(7.6 * longest)
