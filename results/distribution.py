"""Distributions as they are shown: percentiles only where there are enough values, intervals only where they hold.

Percentiles are linear between order statistics of the raw values (numpy's default). The p-th one is shown when
n (1 - p) >= 1: p50 from 2 values on, p90 from 10, p95 from 20, p99 from 100. Its interval is made of two order
statistics, with at most 2.5 % outside on either side, whatever the shape of the distribution; it exists from 6, 36, 72
and 368 values on. It assumes independent values, so callers say when they are not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from results.events import Floats

PERCENTILES = (50, 90, 95, 99)
CONFIDENCE = 0.95


def distribution(values: Floats, dependent: str | None = None) -> dict[str, Any]:
    """{n, mean, min, max, p50.., intervals, withheld} of the finite ones of `values`; all null when there are none.

    `dependent` says why the values are not independent of each other; the intervals are then withheld for that reason.
    """
    kept = np.sort(values[np.isfinite(values)])
    n = len(kept)
    out: dict[str, Any] = {
        "n": n,
        "mean": float(kept.mean()) if n else None,
        "min": float(kept[0]) if n else None,
        "max": float(kept[-1]) if n else None,
    }
    intervals: dict[str, list[float] | None] = {}
    withheld: dict[str, str] = {}
    for percent in PERCENTILES:
        name = f"p{percent}"
        out[name], intervals[name] = None, None
        if not shown(n, percent):
            withheld[name] = f"needs {needed(percent)} values, there are {n}"
            continue
        out[name] = float(np.quantile(kept, percent / 100))
        ranks = None if dependent else interval_ranks(n, percent)
        if ranks:
            intervals[name] = [float(kept[ranks[0]]), float(kept[ranks[1]])]
    if dependent and n:
        withheld["intervals"] = dependent
    return {**out, "intervals": intervals, "withheld": withheld}


def shown(n: int, percent: int) -> bool:
    """Whether the percentile may be shown: n (1 - p) >= 1, in whole numbers (1 - 0.9 is not 0.1 in floats)."""
    return n * (100 - percent) >= 100


def needed(percent: int) -> int:
    """The fewest values with which the percentile is shown."""
    return -(-100 // (100 - percent))


def interval_ranks(n: int, percent: int) -> tuple[int, int] | None:
    """0-based ranks of the order statistics that enclose the percentile with CONFIDENCE; None when n is too small."""
    p, tail = percent / 100, (1 - CONFIDENCE) / 2
    if n == 0 or p**n > tail or (1 - p) ** n > tail:
        return None
    first, cdf = _binomial_cdf(n, p)
    # l: the largest rank (1-based) with P(N <= l - 1) <= tail. u: the smallest with P(N <= u - 1) >= 1 - tail.
    low = first + int(np.searchsorted(cdf, tail, side="right"))
    high = first + int(np.searchsorted(cdf, 1 - tail, side="left")) + 1
    return max(low, 1) - 1, min(high, n) - 1


def _binomial_cdf(n: int, p: float) -> tuple[int, Floats]:
    """(k0, P(N <= k0), P(N <= k0 + 1), ...) over the 12 standard deviations around the mean, where all the mass is."""
    spread = 12 * float(np.sqrt(n * p * (1 - p))) + 12
    k = np.arange(max(0, int(n * p - spread)), min(n, int(n * p + spread)) + 1, dtype=np.float64)
    # Each pmf value from the one before: pmf(k+1) / pmf(k) = (n - k) / (k + 1) * p / (1 - p).
    log_pmf = np.concatenate([[0.0], np.cumsum(np.log((n - k[:-1]) / (k[:-1] + 1)) + np.log(p / (1 - p)))])
    pmf = np.exp(log_pmf - log_pmf.max())
    return int(k[0]), np.cumsum(pmf / pmf.sum())
