"""Whether a cell was in a steady state: rules over what `results.window` found."""

from __future__ import annotations

from results.reason_rules import CellFacts, Finding


def overloaded(f: CellFacts) -> Finding | None:
    return Finding(f.overload) if f.overload else None


def no_steady_state(f: CellFacts) -> Finding | None:
    return Finding(f.unsteady) if f.unsteady else None


def no_window(f: CellFacts) -> Finding | None:
    """Nothing to be said against the numbers, only what they are of."""
    if f.has_window:
        return None
    why = f"{f.window_why}; " if f.window_why else ""
    return Finding(f"{why}figures are of the whole cell, start-up and drain included")
