"""When requests are to be sent: arrival times of open loops, drawn ahead from a seed on an absolute timeline.

All are ns after the start of the cell, in order, the first at 0: every time is computed from the start and none from the one
before it, so nothing adds up. A process is drawn at a rate of one a second and then stretched to its rate, which for a ramp
changes over time.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from results.clock import NS_PER_S

Arrivals = Literal["poisson", "constant", "gamma"]
_FEW = 64


def unit_arrivals(kind: Arrivals, n: int, seed: int, burstiness: float = 1.0) -> NDArray[np.float64]:
    """`n` arrivals of one a second in the mean, the first at 0.

    `burstiness` is the shape of gamma gaps: their coefficient of variation is 1 / sqrt(burstiness), so below 1 they come in
    bursts, 1 is Poisson and above it they are steadier.
    """
    if kind == "constant":
        return np.arange(n, dtype=np.float64)
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(size=n) if kind == "poisson" else rng.gamma(burstiness, 1 / burstiness, size=n)
    gaps[:1] = 0.0
    return np.cumsum(gaps)


def arrivals_within(kind: Arrivals, events: float, seed: int, burstiness: float = 1.0) -> NDArray[np.float64]:
    """All arrivals before the time at which `events` of them are expected, in unit time (see `unit_arrivals`)."""
    if kind == "constant":
        # Of 0.1 s at 30 a second there are three, although 0.1 x 30 is a little more than 3.
        return np.arange(math.ceil(round(events, 9)), dtype=np.float64)
    n = max(_FEW, int(events * 1.5))
    while True:
        # The first draws of a seed are the same however many are asked for.
        found = unit_arrivals(kind, n, seed, burstiness)
        if found[-1] >= events:
            return found[found < events]
        n *= 2


def at_rate(unit: NDArray[np.float64], rate: float) -> list[int]:
    """Stretched to `rate` arrivals a second (ns)."""
    times: list[int] = np.rint(unit / rate * NS_PER_S).astype(np.int64).tolist()
    return times


def along_ramp(unit: NDArray[np.float64], low: float, high: float, duration_s: float) -> list[int]:
    """Stretched so that the rate goes evenly from `low` to `high` a second over `duration_s`, and stays there (ns).

    By time t there are low t + (high - low) t^2 / (2 duration) arrivals in the mean; this is solved for t in the form that
    stays exact where low and high are equal.
    """
    events = (low + high) / 2 * duration_s
    slope = (high - low) / duration_s
    inside = np.minimum(unit, events)
    root = np.sqrt(np.maximum(low * low + 2 * slope * inside, 0.0))
    seconds = 2 * inside / (low + root) + (unit - inside) / high
    times: list[int] = np.rint(seconds * NS_PER_S).astype(np.int64).tolist()
    return times
