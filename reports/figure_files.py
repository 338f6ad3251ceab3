"""Every figure of a report as an SVG file of its own: title, legend and plots on white, with the style inside.

The report's figures are SVG already, so nothing is needed to write them: no browser, no fonts but those of whoever looks.
"""

from __future__ import annotations

import re
from pathlib import Path

from markupsafe import escape

from reports.figures import Figure
from reports.page import without_turns
from reports.pictures import Picture, pictures
from reports.startup import starts_of
from reports.startup_svg import draw_starts, startup_keys
from reports.svg import COLOURS
from reports.time_svg import draw_lanes, draw_tracks, stretch_keys
from reports.times import WIDE
from results.files import store_error, write_atomic
from results.report_data import ReportData
from results.report_times import CellTimes

# As on the light page; without variables, which few programs besides browsers understand.
_PALETTE = ("#0067a5", "#c8500a", "#00805c", "#a64f86", "#94730a", "#4b5fc0", "#6b4a2b", "#555d66")
_STYLE = (
    "text{font-family:'DejaVu Sans',Arial,sans-serif;font-size:12.5px;fill:#555d66}.title{font-size:16px;font-weight:bold;fill:#1b1f24}"
    ".end-label{font-weight:bold}.point-label{font-size:11.5px}.grid{stroke:#e6e7e6}.axis{stroke:#d3d6d8;fill:none}"
    ".guide{stroke:#555d66;stroke-dasharray:1 3}.curve{fill:none;stroke-width:2.2}.whisker{stroke-width:1.6;fill:none}"
    ".curve.ghost{stroke-width:1.8;stroke-dasharray:1 4.5;stroke-linecap:round}.curve.ceiling{stroke:#555d66;stroke-width:1.6}"
    ".curve.front{stroke:#555d66;stroke-width:7;stroke-opacity:.22}.curve.thin{stroke-width:1.5}.hit,.cursor{fill:none;stroke:none}"
    ".dot{stroke:#fff}.hatch{fill:none;stroke-width:1.1}.dot.hollow{fill:#fff;stroke-width:2}.ring{fill:none;stroke-width:2}.steady{fill:#0a5c93;fill-opacity:.07}"
    ".waits{fill:#555d66}.queues{fill:#555d66;fill-opacity:.42}.prefills{fill:#c8500a;fill-opacity:.55}.decodes{fill:#0067a5}"
    ".failed-bar .prefills,.failed-bar .decodes{fill:#a3231b;fill-opacity:1}"
    ".piece{stroke:#fff}.lost .piece{fill:#a3231b}text.inside{fill:#fff;font-size:11.5px}.pale text.inside{fill:#1b1f24}"
    + "".join(
        f".c{i} .curve:not(.front):not(.ceiling),.c{i} .whisker,.c{i} .hatch,.c{i} .dot.hollow,.ring.c{i},.c{i}.swatch .curve{{stroke:{c}}}"
        f".c{i} .dot:not(.hollow),.c{i} .piece,.c{i} .bar-piece.hollow,text.c{i}{{fill:{c}}}"
        f".c{i} .band,.c{i} .box{{fill:{c};fill-opacity:.22}}"
        for i, c in enumerate(_PALETTE[:COLOURS])
    )
    + ".cx .curve,.cx .dot{stroke:#555d66}.cx .dot{fill:#555d66}.cx .dot.hollow{fill:#fff}.bar-piece.hollow{fill-opacity:.35}"
    ".pale .piece{fill-opacity:.3}"
)
_SIZE = re.compile(r'viewBox="0 0 (\d+) (\d+)"')
_MARGIN, _TITLE, _ROW, _GAP = 16, 34, 20, 14


def write_figures(data: ReportData, figures: list[Figure], folder: Path) -> list[Path]:
    """Write each figure to `folder/ID.svg`, the starts of the servers to `folder/startup.svg` and each cell's time axis to
    `folder/cell-ID.svg`; the paths in that order.

    Raises StoreError where the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise store_error(folder, error) from error
    drawn = {picture.figure.spec.id: _figure(picture) for picture in pictures(figures)}
    if (starts := starts_of(data.engines)).engines:
        keys = [(str(swatch), words) for swatch, words in startup_keys(starts)]
        drawn["startup"] = _sheet("How long each server took to start", keys, [str(draw_starts(starts, WIDE))], 1)
    drawn |= {f"cell-{_plain(times.cell.id)}": _cell(times) for times in data.times.cells}
    paths = []
    for name, text in drawn.items():
        path = folder / f"{name}.svg"
        write_atomic(path, without_turns(text).encode())
        paths.append(path)
    return paths


def _figure(picture: Picture) -> str:
    keys = [(str(swatch), text) for swatch, text in picture.keys]
    columns = 2 if len(picture.wide) > 1 else 1
    return _sheet(picture.figure.spec.title, keys, [str(svg) for svg in picture.wide], columns)


def _cell(times: CellTimes) -> str:
    keys = [
        (f'<svg viewBox="0 0 34 14" width="34" height="14"><path class="{kind}" d="{path}"/></svg>', words)
        for kind, path, words in stretch_keys(times.lanes)
    ]
    return _sheet(
        f"{times.cell.label}, {times.cell.verdict}",
        keys,
        [str(draw_lanes(times, WIDE)), str(draw_tracks(times, WIDE, []))],
        1,
    )


def _sheet(title: str, keys: list[tuple[str, str]], plots: list[str], columns: int) -> str:
    """Title, one legend entry a row, and the plots in so many columns."""
    sizes = [_size(svg) for svg in plots]
    width = max(w for w, _ in sizes) * columns + _GAP * (columns - 1) + 2 * _MARGIN
    top = _MARGIN + _TITLE
    parts = [f'<text class="title" x="{_MARGIN}" y="{_MARGIN + 18}">{escape(title)}</text>']
    for swatch, text in keys:
        parts.append(_placed(swatch, _MARGIN, top))
        parts.append(f'<text x="{_MARGIN + 42}" y="{top + 11}">{escape(text)}</text>')
        top += _ROW
    top += _GAP if keys else 0
    for at in range(0, len(plots), columns):
        row = list(zip(plots[at : at + columns], sizes[at : at + columns], strict=True))
        left = _MARGIN
        for svg, (wide, _) in row:
            parts.append(_placed(svg, left, top))
            left += wide + _GAP
        top += max(high for _, (_, high) in row) + _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}">'
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>'
    )


def _placed(svg: str, x: int, y: int) -> str:
    return svg.replace("<svg ", f'<svg x="{x}" y="{y}" overflow="visible" ', 1)


def _size(svg: str) -> tuple[int, int]:
    found = _SIZE.search(svg)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
