"""Single cells of a run: each drawn on its time axis, and how to do it again; one shown, all of them packed into the page."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from reports.distributions import cell_distributions
from reports.packed import pack
from reports.page import embed_json, render_part
from reports.pictures import NARROW, pictures
from reports.svg import Frame
from reports.time_svg import draw_lanes, draw_tracks, stretch_keys, told_moments
from results.report_data import ReportData
from results.report_format import listed, number, plural
from results.report_times import CellTimes

WIDE = Frame(1020, 0)
# Of a page's 6 MiB; beyond it cells are left out, and counted.
_MOST_BYTES = 7 * 2**19


def times_context(data: ReportData) -> dict[str, Any]:
    """What the section's template is given."""
    cells = data.times.cells

    def draw(at: int) -> Markup:
        return render_part("sections/_time_cell.html.j2", **view_context(cells[at]))

    packed = pack([times.cell.label for times in cells], draw, _first_shown(data), _MOST_BYTES)
    return {"packed": packed, "views": embed_json(packed.packed), "missing": data.times.missing}


def again_context(data: ReportData) -> dict[str, Any]:
    """What the section on doing it again is given: every cell by itself, one shown."""
    cells = data.reproduction.cells
    if not cells:
        return {"packed": None}

    def draw(at: int) -> Markup:
        return render_part("sections/_again_cell.html.j2", cell=cells[at])

    packed = pack([cell.label for cell in cells], draw, 0, _MOST_BYTES // 5)
    return {"packed": packed, "views": embed_json(packed.packed)}


def view_context(times: CellTimes) -> dict[str, Any]:
    """What the template of one cell is given."""
    told = told_moments(times)
    return {
        "times": times,
        "keys": stretch_keys(times.lanes),
        "wide": [draw_lanes(times, WIDE), draw_tracks(times, WIDE, told)],
        "narrow": [draw_lanes(times, NARROW), draw_tracks(times, NARROW, told)],
        "ecdfs": pictures(cell_distributions(times)),
        "notes": time_notes(times),
    }


def time_notes(times: CellTimes) -> list[str]:
    """What the pictures leave out, where each track was read, and what is not there at all."""
    lanes = times.lanes
    notes = []
    if lanes.drawn < lanes.total:
        of = f"{plural(lanes.lanes, 'lane')} of {lanes.all_lanes}"
        every = f", of those about every {lanes.every}th request" if lanes.every > 1 else ""
        notes.append(
            f"Drawn are {lanes.drawn:,} of {lanes.total:,} requests: {of}{every}; shortest and longest TTFT, the longest request "
            "and the first failure are always among them."
        )
    read = [f"{t.words}: {t.source} ({t.n:,} readings)" for t in times.tracks if not t.absent and t.id != "tokens"]
    tokens = times.tracks[0]
    lines = [f"Tokens/s: {tokens.source}"] if not tokens.absent else []
    if times.tokens_guessed:
        lines.append(f"{times.tokens_guessed:,} chunks that do not say how many tokens they hold count as one")
    lines += read
    notes.append(
        f"{'; '.join(lines)}. Where several readings share a place, the line is their mean and the pale band reaches from the "
        "lowest to the highest."
    )
    absent: dict[str, list[str]] = {}
    for track in times.tracks:
        if track.absent:
            absent.setdefault(track.absent, []).append(f"{track.words}{f' ({track.unit})' if track.unit else ''}")
    notes += [f"Not drawn: {listed(words, 9)}: {why}." for why, words in absent.items()]
    if times.window:
        low, high = times.window
        notes.append(f"Shaded is the steady window, {number(low)} to {number(high)} s, from which the numbers come.")
    return notes


def _first_shown(data: ReportData) -> int:
    """The cell with the most output tokens/s of those that count most."""
    order = {"VALID": 2, "SUSPECT": 1}
    cells = data.times.cells
    return max(
        range(len(cells)),
        key=lambda i: (
            order.get(cells[i].cell.verdict, 0),
            cells[i].cell.values["output_tokens_per_s"].mean or 0.0,
            -i,
        ),
    )
