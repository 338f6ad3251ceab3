"""Intervals of percentiles: from order statistics, whatever the distribution, allowing for dependence in time and in steps.

For n independent values the interval of the p-th percentile lies between the order statistics of real rank l and u with

    P(Beta(l, n + 1 - l) <= p) = 1 - alpha / 2,    P(Beta(u, n + 1 - u) <= p) = alpha / 2

read between neighbouring ranks, so that its coverage is close to nominal and not only above it. It exists from the n on
at which both ranks do: 20 for p50 (the least effective n), 36 for p90, 72 for p95, 368 for p99.

Values in time order are worth fewer: an n that counts the autocorrelation of "at or below the percentile" takes the place of
n. All streams of a batch share each step's gap, so gaps are one value a step: their share at or below the percentile varies
as it does between steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import betainc, ndtri, owens_t

from results.events import Floats, Ints
from results.statistics import CONFIDENCE, Interval, refusal
from results.statistics_series import LEAST_EFFECTIVE, dependence, integrated_time, scores

# So many values tell how alike those of one step are.
_READ = 200_000
_LAGS = np.arange(1, 200, dtype=np.float64)


def least_effective(percent: float, confidence: float = CONFIDENCE) -> int:
    """The effective n below which the percentile gets no interval."""
    p, tail = percent / 100, (1 - confidence) / 2
    return max(LEAST_EFFECTIVE, math.ceil(math.log(tail) / math.log(max(p, 1 - p)) - 1e-9))


def sorted_quantile(ordered: Floats, p: float) -> float:
    """`np.quantile` of sorted values, at least one, without the price of looking for them."""
    place = p * (len(ordered) - 1)
    at = int(place)
    return float(np.quantile(ordered[at : at + 2], place - at))


def independent_interval(ordered: Floats, percent: float, confidence: float = CONFIDENCE) -> Interval:
    """The interval of a percentile of sorted values that are known (or taken) to be independent."""
    n, p = len(ordered), percent / 100
    estimate = sorted_quantile(ordered, p) if n else None
    if n < least_effective(percent, confidence):
        return refusal(f"{n} values, an interval needs {least_effective(percent, confidence)}", n, confidence, estimate)
    low, high = _ends(ordered, p, float(n), confidence)
    return Interval(estimate, low, high, n, confidence, float(n))


def percentile_interval(values: Floats, percent: float, confidence: float = CONFIDENCE) -> Interval:
    """The interval of a percentile of values that stand in the order of their time."""
    n, p = len(values), percent / 100
    estimate = float(np.quantile(values, p)) if n and np.isfinite(values).all() else None
    found = dependence(scores(values), least_effective(percent, confidence))
    if found.refused or estimate is None:
        return refusal(found.refused or "a value is not finite", n, confidence, estimate)
    below = (values <= estimate).astype(np.float64)
    time, middle = integrated_time(below), integrated_time((values <= np.median(values)).astype(np.float64))
    # A tail is crossed too seldom to tell of slow wandering: the median tells.
    if why := _too_few(n, max(time, middle), percent, confidence, "values"):
        return refusal(why, n, confidence, estimate)
    worth = n / max(indicator_factor(p, found.used, n), time)
    low, high = _ends(np.sort(values), p, worth, confidence)
    return Interval(estimate, low, high, n, confidence, worth)


def _too_few(n: int, time: float, percent: float, confidence: float, what: str) -> str:
    least = least_effective(percent, confidence)
    if n / time >= least:
        return ""
    return f"{n} {what} are worth {n / time:.0f} independent ones, an interval needs {least}"


def clustered_intervals(
    values: Floats,
    cluster: Ints,
    percents: Sequence[float],
    confidence: float = CONFIDENCE,
    ordered: Floats | None = None,
) -> dict[float, Interval]:
    """Intervals of percentiles of values of which those of one cluster (a step) are one draw, by percentile. Clusters are
    numbered, from 0, in the order of their time; those without a value do not count. `ordered` are the values sorted, where
    that is done already."""
    n = len(values)
    if not n:
        return {percent: refusal("no value", 0, confidence) for percent in percents}
    ordered = np.sort(values) if ordered is None else ordered
    if int(cluster.max()) > 4 * n:
        # Numbers far apart: one counter each would not fit into memory.
        cluster = np.unique(cluster, return_inverse=True)[1]
    all_sizes = np.bincount(cluster)
    used = np.flatnonzero(all_sizes)
    sizes = all_sizes[used].astype(np.float64)
    means = np.bincount(cluster, weights=values)[used] / sizes
    normal, steps = scores(means), len(used)
    alike = _alike(values, cluster, all_sizes, used)
    found: dict[float, Interval] = {}
    for percent in percents:
        p = percent / 100
        estimate = sorted_quantile(ordered, p)
        depends = dependence(normal, least_effective(percent, confidence))
        if depends.refused:
            found[percent] = refusal(depends.refused.replace("values", "steps"), n, confidence, estimate)
            continue
        share = np.bincount(cluster[values <= estimate], minlength=len(all_sizes))[used] / sizes
        time = integrated_time(share)
        if why := _too_few(steps, time, percent, confidence, "steps"):
            found[percent] = refusal(why, n, confidence, estimate)
            continue
        # Values that came of one draw: as many as the mean over values of their cluster's size.
        together = float(sizes @ sizes) / n
        of_one = 1 + (together - 1) * float(indicator_correlation(p, np.array(alike)))
        # A few steps that hold most of the values decide by themselves, however many small ones stand beside them.
        if n / of_one / time < least_effective(percent, confidence) * (1 - 1e-9):
            why = _too_few(n, of_one * time, percent, confidence, "values in steps of unlike size")
            found[percent] = refusal(why, n, confidence, estimate)
            continue
        factor = of_one * max(indicator_factor(p, depends.used, steps), time)
        worth = min(max(n / factor, float(least_effective(percent, confidence))), float(n))
        low, high = _ends(ordered, p, worth, confidence)
        found[percent] = Interval(estimate, low, high, steps, confidence, worth)
    return found


def indicator_factor(p: float, phi: float, n: int) -> float:
    """How many values are worth one, for the share at or below the p-th percentile, where normal scores have lag-1
    autocorrelation phi: 1 + 2 sum of the autocorrelations of that indicator, each from the bivariate normal."""
    if phi <= 0:
        return 1.0
    lags = _LAGS[n > _LAGS]
    return 1 + 2 * float((indicator_correlation(p, phi**lags) * (1 - lags / n)).sum())


def indicator_correlation(p: float, r: Floats) -> Floats:
    """The correlation of "at or below the p-th percentile" of two normal values of correlation r, 0 to 1."""
    # P(X <= q, Y <= q) = p - 2 T(q, sqrt((1 - r) / (1 + r))), T being Owen's function.
    both = p - 2 * owens_t(float(ndtri(p)), np.sqrt((1 - r) / (1 + r)))
    out: Floats = np.asarray((both - p * p) / (p * (1 - p)), dtype=np.float64)
    return out


def _alike(values: Floats, cluster: Ints, sizes: Ints, used: Ints) -> float:
    """How alike the values of one cluster are, 0 (not at all) to 1 (all equal): the share of the variance of normal scores that
    lies between clusters, as a random effect. Of very many values every so manieth cluster is read."""
    n = len(values)
    stride = max(1, n // _READ)
    if stride > 1:
        kept = np.zeros(len(sizes), dtype=bool)
        kept[used[::stride]] = True
        which = kept[cluster]
        values, cluster, used = np.asarray(values[which], dtype=np.float64), cluster[which], used[::stride]
        n = len(values)
    own, k = sizes[used].astype(np.float64), len(used)
    if k < 2 or n <= k:
        return 1.0
    normal = scores(values)
    sums = np.bincount(cluster, weights=normal, minlength=len(sizes))[used]
    total, between = (
        float(normal @ normal) - float(normal.sum()) ** 2 / n,
        float((sums**2 / own).sum()) - float(normal.sum()) ** 2 / n,
    )
    inside, among = max(total - between, 0.0) / (n - k), between / (k - 1)
    usual = (n - float(own @ own) / n) / (k - 1)
    effect = (among - inside) / usual
    return min(max(effect / (effect + inside), 0.0), 1.0) if effect + inside > 0 else 1.0


def _ends(ordered: Floats, p: float, worth: float, confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    return _at(ordered, _rank(p, worth, 1 - tail), worth), _at(ordered, _rank(p, worth, tail), worth)


@lru_cache(maxsize=4096)
def _rank(p: float, n: float, target: float) -> float:
    """The real rank r with P(Beta(r, n + 1 - r) <= p) = target, within [1, n]."""
    low, high = 1.0, n
    for _ in range(40):
        middle = (low + high) / 2
        # The larger the rank, the less likely it lies at or below the percentile.
        if betainc(middle, n + 1 - middle, p) > target:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _at(ordered: Floats, rank: float, worth: float) -> float:
    """The order statistic of a real rank among `worth` values, read from all of them."""
    n = len(ordered)
    place = min(max(rank / (worth + 1) * (n + 1) - 1, 0.0), n - 1.0)
    below = int(place)
    above = min(below + 1, n - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (place - below))
