"""How an open loop went: the rate it was to have and the rate it had, how even its gaps were, who was late and why.

A request can be sent late because as many as allowed were in flight (`held`), because a connection had to be opened for it
first (the server's and the network's time), or because the client was late itself (`late`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from results.clock import NS_PER_MS, NS_PER_S
from results.events import MISSING, Bools, Ints, Requests

OPEN_LOOPS = ("rate", "ramp", "schedule")
_BURST_NS = NS_PER_S // 10


def arrival_numbers(
    load: Mapping[str, Any], asked: float | None, requests: Requests, descriptors: Any = None
) -> dict[str, Any] | None:
    """The `arrivals` part of a cell's client summary; None for a closed loop. `asked` is the mean rate of the load, if known;
    `descriptors` how many connections a worker could have, where that was too few for all.

    Rates are per second over the time from the first to the last of them: `intended_per_s` of the times that were drawn,
    `achieved_per_s` of the sends. `gap_cv` is the coefficient of variation of the gaps (0 constant, 1 Poisson).
    """
    if load.get("mode") not in OPEN_LOOPS:
        return None
    known = requests.intended != MISSING
    intended, sent = np.sort(requests.intended[known]), np.sort(requests.sent[requests.sent != MISSING])
    held = held_by_cap(requests, load.get("max_in_flight"), descriptors)
    both = known & (requests.sent != MISSING) & ~held
    late = (requests.sent - requests.intended - connecting_ns(requests))[both] / NS_PER_MS
    return {
        "asked_per_s": asked,
        "intended_per_s": _rate(intended),
        "achieved_per_s": _rate(sent),
        "intended_gap_cv": _cv(intended),
        "gap_ms_mean": float(np.diff(sent).mean()) / NS_PER_MS if len(sent) > 1 else None,
        "gap_cv": _cv(sent),
        "late_ms_p50": float(np.quantile(late, 0.5)) if len(late) else None,
        "late_ms_p99": float(np.quantile(late, 0.99)) if len(late) else None,
        "late_ms_max": float(late.max()) if len(late) else None,
        "held": int(held.sum()),
        "held_share": float(held.mean()) if len(held) else None,
        "most_sent_in_100_ms": _most_within(sent, _BURST_NS),
    }


def connecting_ns(requests: Requests) -> Ints:
    """How long each request waited for a connection that was opened for it; 0 where one was ready."""
    known = (requests.connect_start != MISSING) & (requests.connect_end != MISSING)
    out: Ints = np.where(known, requests.connect_end - requests.connect_start, 0)
    return out


def held_by_cap(requests: Requests, cap: Any, each: Any = None) -> Bools:
    """Requests that had to wait because, at their time, as many as allowed were in flight in their worker: its part of `cap`,
    and no more than `each`. None for no limit."""
    held = np.zeros(len(requests), dtype=bool)
    if not isinstance(cap, int) and not isinstance(each, int):
        return held
    workers = np.unique(requests.worker)
    for number, worker in enumerate(workers):
        mine = np.flatnonzero((requests.worker == worker) & (requests.intended != MISSING) & (requests.end != MISSING))
        mine = mine[np.argsort(requests.intended[mine], kind="stable")]
        parts = [len(range(number, cap, len(workers)))] if isinstance(cap, int) else []
        part = min([*parts, each] if isinstance(each, int) else parts)
        # They take their turn in order: those before it that are not over by its time are out, or wait as well.
        ended = np.searchsorted(np.sort(requests.end[mine]), requests.intended[mine], side="right")
        held[mine] = np.arange(len(mine)) - ended >= part
    return held


def _rate(stamps: Ints) -> float | None:
    """Events a second between the first and the last; stamps in order."""
    if len(stamps) < 2 or stamps[-1] <= stamps[0]:
        return None
    return float((len(stamps) - 1) / (stamps[-1] - stamps[0]) * NS_PER_S)


def _cv(stamps: Ints) -> float | None:
    gaps = np.diff(stamps)
    return float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() > 0 else None


def _most_within(stamps: Ints, width: int) -> int:
    """The most events in any stretch of `width` ns; stamps in order."""
    if not len(stamps):
        return 0
    return int((np.searchsorted(stamps, stamps + width, side="left") - np.arange(len(stamps))).max())
