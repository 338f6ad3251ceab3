"""How near a cell came to what its client can measure on this machine (`dyno calibrate`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results.reason_rules import CellFacts, Finding

# Past this share of the ceiling, what else the machine does may already be in the numbers.
NEAR_CEILING = 0.70


def good_for(ceiling: Any) -> float | None:
    """Up to which load of a worker a ceiling of its calibration leaves no doubt; None where it tells nothing."""
    found = _bound(ceiling)
    return None if found is None else found[0] * found[1]


def _bound(ceiling: Any) -> tuple[float, float, str] | None:
    """(the bound of a ceiling, the share of it that is good, what it is)."""
    if not isinstance(ceiling, Mapping):
        return None
    bound = ceiling.get("value")
    # Where no ceiling was met, what was tried is known to be good as a whole.
    share, words = (NEAR_CEILING, "the ceiling") if ceiling.get("met") else (1.0, "the most that calibration tried")
    if not bound:  # no load was good: near the least that was not, a cell is no better
        bound, words = ceiling.get("passed_at"), "the least that calibration tried, which was too much,"
    return (float(bound), share, words) if bound else None


def near_client_ceiling(f: CellFacts) -> Finding | None:
    load = f.client_load
    if load is None or load.ceiling is None:
        return None
    parts = []
    for what, value, name in (
        ("chunks/s in the busiest second", load.chunks_per_s, "chunks_per_s"),
        ("streams at once", load.streams, "streams"),
    ):
        found = _bound(load.ceiling.get(name))
        if found is None or value is None:
            continue
        bound, share, words = found
        if value > share * bound:
            parts.append(f"{value:,.0f} {what}, {value / bound:.0%} of {words} of {bound:,.0f}")
    return Finding("; ".join(parts)) if parts else None


def client_not_calibrated(f: CellFacts) -> Finding | None:
    if f.client_load is None or f.client_load.ceiling is not None:
        return None
    return Finding("no calibration of this machine was found")
