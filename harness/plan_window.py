"""Which cells of a plan are too short for a steady window, told before they cost anything."""

from __future__ import annotations

from collections.abc import Sequence

from harness.experiment import Cell
from harness.loads import Load, RateLoad
from results.report_format import plural
from results.window import CLOSED, LEAST_E2E, LEAST_S, VARYING, WARM_UP_E2E

# A round is one request in each slot. Where requests take about as long as each other it lasts one E2E, and a window needs so many
# before the last send: no fewer rounds will do.
LEAST_ROUNDS = WARM_UP_E2E + LEAST_E2E


def _too_short(load: Load) -> bool:
    if load.duration_s is not None and load.duration_s <= LEAST_S:
        return True
    if isinstance(load, RateLoad):
        return load.expected_requests / load.rate <= LEAST_S
    requests = load.requests if load.mode in CLOSED else None
    return requests is not None and requests < LEAST_ROUNDS * load.in_flight


def short_of_window(cells: Sequence[Cell]) -> str:
    """That cells of a plan are too short for a steady window, and what would give them one; empty where none is. A load that changes
    by plan has none however long it is, and is not counted."""
    held = [cell for cell in cells if cell.load.mode not in VARYING]
    short = sum(_too_short(cell.load) for cell in held)
    if not short:
        return ""
    return (
        f"No steady window is to be expected in {short} of {plural(len(held), 'cell')}: their figures will be of the whole "
        f"cell, start-up and drain included. A window takes more than {LEAST_S:.0f} s and {LEAST_ROUNDS} requests a slot; "
        f"--duration 120s (duration_s in a file) gives one where a request takes less than {120 // LEAST_ROUNDS} s."
    )
