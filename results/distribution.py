"""Distributions as they are shown: percentiles only where there are enough values, intervals only where they hold.

Percentiles are linear between order statistics of the raw values (numpy's default). The p-th one is shown when
n (1 - p) >= 1: p50 from 2 values on, p90 from 10, p95 from 20, p99 from 100. Its interval (`statistics_percentiles`) rests on
order statistics, allows for dependence in time or in steps, and exists from 20, 36, 72 and 368 effective values on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from results.events import Floats, Ints
from results.statistics import CONFIDENCE, Interval
from results.statistics_percentiles import (
    clustered_intervals,
    independent_interval,
    percentile_interval,
    sorted_quantile,
)

PERCENTILES = (50, 90, 95, 99)


def distribution(
    values: Floats, dependent: str | None = None, at: Ints | None = None, cluster: Ints | None = None
) -> dict[str, Any]:
    """{n, mean, min, max, p50.., intervals, withheld} of the finite ones of `values`; all null when there are none.

    `at` stamps the values, so that their dependence in time can be allowed for; `cluster` numbers, in time order, what came of
    one draw. Without both they count as independent. `dependent` says why they are not and cannot be allowed for: intervals are
    then withheld for that reason.
    """
    finite = np.isfinite(values)
    kept = values[finite]
    ordered = np.sort(kept)
    n = len(ordered)
    out: dict[str, Any] = {
        "n": n,
        "mean": float(ordered.mean()) if n else None,
        "min": float(ordered[0]) if n else None,
        "max": float(ordered[-1]) if n else None,
    }
    # Values of one instant in the order of their size: nothing else tells them apart.
    timed = kept[np.lexsort((kept, at[finite]))] if at is not None and not dependent else kept
    intervals: dict[str, list[float] | None] = {}
    withheld: dict[str, str] = {}
    refused = ""
    in_steps: dict[float, Interval] = {}
    if cluster is not None and not dependent:
        some = [p for p in PERCENTILES if shown(n, p)]
        in_steps = clustered_intervals(kept, cluster[finite], some, CONFIDENCE, ordered)
    for percent in PERCENTILES:
        name = f"p{percent}"
        out[name], intervals[name] = None, None
        if not shown(n, percent):
            withheld[name] = f"needs {needed(percent)} values, there are {n}"
            continue
        out[name] = sorted_quantile(ordered, percent / 100)
        if dependent:
            continue
        if percent in in_steps:
            found = in_steps[percent]
        elif at is not None:
            found = percentile_interval(timed, percent)
        else:
            found = independent_interval(ordered, percent)
        if found.low is not None and found.high is not None:
            intervals[name] = [found.low, found.high]
        refused = refused or found.refused
    if n and (dependent or (refused and not any(intervals.values()))):
        withheld["intervals"] = dependent or refused
    return {**out, "intervals": intervals, "withheld": withheld}


def shown(n: int, percent: int) -> bool:
    """Whether the percentile may be shown: n (1 - p) >= 1, in whole numbers (1 - 0.9 is not 0.1 in floats)."""
    return n * (100 - percent) >= 100


def needed(percent: int) -> int:
    """The fewest values with which the percentile is shown."""
    return -(-100 // (100 - percent))
