"""A series in time order inside one cell: how far its values depend on each other, what they are worth, whether they drift.

Neighbours in time are alike (a queue, a stall, a clock), so n values are worth fewer. Their dependence is read as the
lag-1 autocorrelation phi, corrected for its bias, and the effective n is n (1 - phi) / (1 + phi). Above phi 0.7, or below an
effective n of 20, no interval is given: a lag-1 estimate does not carry that far. Near those limits the estimate that
passes is the one that happened to be low, so there its own uncertainty is added to it. Stalls and slow wandering hang
together for longer than lag 1 tells: the integrated autocorrelation time is read as well, and the larger of both counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri, ndtri, stdtr

from results.events import Floats
from results.statistics import CONFIDENCE, MOST_AUTOCORRELATION, Interval, autocorrelation, refusal, t_quantile

LEAST_EFFECTIVE = 20
# How much of phi's standard error is added: far from the limits, and at them; and over how many of it that grows.
_ADDED_FAR, _ADDED_NEAR, _NEAR = 0.2, 1.5, 2.0
_BATCHES = 10
_WINDOW, _ADDED_TIME = 2.0, 0.4
# A chance of 0.1 % that a series without longer dependence is refused for it.
_LONGER = 0.001


@dataclass(frozen=True, slots=True)
class Dependence:
    """`phi`: lag-1 autocorrelation, bias-corrected, not below 0; `used`: what intervals reckon with; `effective_n` by phi;
    `refused` says why no interval can be made."""

    n: int
    phi: float
    used: float
    effective_n: float
    refused: str = ""


def dependence(values: Floats, least: float = LEAST_EFFECTIVE) -> Dependence:
    """How far the values of a series, in time order, depend on each other, and whether intervals hold for it. `least` is the
    effective n that is needed."""
    n = len(values)
    if n < least:
        return Dependence(n, 0.0, 0.0, float(n), f"{n} values, an interval needs {least:.0f}")
    if not np.isfinite(values).all():
        return Dependence(n, 0.0, 0.0, 0.0, f"{int((~np.isfinite(values)).sum())} of {n} values are not finite")
    phi = max(autocorrelation(values), 0.0)
    effective = n * (1 - phi) / (1 + phi)
    se = math.sqrt(max(1 - phi * phi, 0.1) / n)
    limit = min(MOST_AUTOCORRELATION, (n - least) / (n + least))
    near = min(max(1 - (limit - phi) / (_NEAR * se), 0.0), 1.0)
    # What is within its own error of 0 is mostly chance, and counts less.
    added = (_ADDED_FAR + (_ADDED_NEAR - _ADDED_FAR) * near) * se
    used = min((phi + added) * min(phi / se, 1.0), 0.95)
    refused = ""
    if phi > MOST_AUTOCORRELATION:
        refused = f"neighbouring values are too alike: autocorrelation {phi:.2f}, at most {MOST_AUTOCORRELATION}"
    elif effective < least:
        refused = f"{n} values are worth {effective:.0f} independent ones, an interval needs {least:.0f}"
    elif excess := _longer_dependence(values, used):
        refused = f"values drift: batches of them differ {excess:.1f} times as much as neighbours tell"
    return Dependence(n, phi, used, effective, refused)


def integrated_time(values: Floats) -> float:
    """How many values are worth one for a mean, by their autocorrelations: 1 + 2 x their sum up to the lag of twice that many
    (a window that is as long as the dependence needs), 0.4 standard errors of itself added. At least 1."""
    n = len(values)
    deviation = values - values.mean() if n else values
    square = float(deviation @ deviation)
    if n < 8 or square <= 0:
        return 1.0
    length = 1 << (2 * n - 1).bit_length()
    transformed = np.fft.rfft(deviation, length)
    along = np.fft.irfft(transformed * transformed.conj(), length)[: n // 4] / square
    # About the own mean each reads low by about 1 / n.
    sums = 1 + 2 * np.cumsum(along[1:] + 1 / n)
    enough = np.flatnonzero(np.arange(1, len(sums) + 1) >= _WINDOW * sums)
    last = int(enough[0]) if len(enough) else len(sums) - 1
    time = max(float(sums[last]), 1.0)
    error = math.sqrt(2 * (2 * (last + 1) + 1) / n)
    # What lies within its own error of 1 is mostly chance.
    return time * (1 + _ADDED_TIME * error * min(time - 1, 1.0)) if time > 1 + error else 1.0


def scores(values: Floats) -> Floats:
    """Normal scores: ranks through the normal quantile, so that a long tail does not decide the autocorrelation. Equal values
    get equal scores."""
    n = len(values)
    if not n:
        return values.astype(np.float64)
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - counts / 2
    out: Floats = ndtri(middle[inverse] / n)
    return out


def variance_factor(phi: float) -> float:
    """How many dependent values are worth one independent one, for a mean."""
    return (1 + phi) / (1 - phi)


def series_mean(values: Floats, confidence: float = CONFIDENCE) -> Interval:
    """The mean of a series in time order (tokens/s by second, say), by t on its effective n."""
    found = dependence(values)
    n = found.n
    mean = float(values.mean()) if n and np.isfinite(values).all() else None
    if found.refused or mean is None:
        return refusal(found.refused, n, confidence, mean)
    time = integrated_time(values)
    if n / time < LEAST_EFFECTIVE:
        return refusal(
            f"{n} values are worth {n / time:.0f} independent ones, an interval needs {LEAST_EFFECTIVE}",
            n,
            confidence,
            mean,
        )
    worth = n / max(variance_factor(found.used), time)
    sd = float(values.std(ddof=1))
    if sd <= 0:
        return refusal(f"all {n} are equal: their spread is not known", n, confidence, mean)
    # The variance about the own mean reads low where values hang together; where they do not, it is n - 1 that counts.
    se = sd / math.sqrt(worth * (1 - 1 / worth + 1 / n))
    reach = t_quantile((1 + confidence) / 2, worth - 1) * se
    p = 2 * float(stdtr(worth - 1, -abs(mean) / se))
    return Interval(mean, mean - reach, mean + reach, n, confidence, worth, sd, worth - 1, p)


def trend(values: Floats, confidence: float = CONFIDENCE) -> Interval:
    """The change from the first to the last value of an evenly spaced series, by its least-squares line; the dependence is
    that of what the line leaves over."""
    n = len(values)
    if n < LEAST_EFFECTIVE or not np.isfinite(values).all():
        return refusal(dependence(values).refused, n, confidence)
    at = np.linspace(-0.5, 0.5, n)
    slope = float(at @ values) / float(at @ at)
    left = values - values.mean() - slope * at
    found = dependence(left)
    if found.refused:
        return refusal(found.refused, n, confidence, slope)
    factor = max(variance_factor(found.used), integrated_time(left))
    if n / factor < LEAST_EFFECTIVE / 2:
        return refusal(f"{n} values are worth {n / factor:.0f} independent ones", n, confidence, slope)
    df = n / factor - 2
    se = math.sqrt(float(left @ left) / max(df, 1.0) / float(at @ at))
    if se <= 0:
        return refusal(f"all {n} lie on one line: their spread is not known", n, confidence, slope)
    reach = t_quantile((1 + confidence) / 2, df) * se
    p = 2 * float(stdtr(df, -abs(slope) / se))
    return Interval(slope, slope - reach, slope + reach, n, confidence, found.effective_n, se, df, p)


def growth(values: Floats, confidence: float = CONFIDENCE) -> Interval:
    """The growth of a level (a queue) from the first to the last value of an evenly spaced series, by its steps.

    A growing queue is a walk: what a line leaves over of it is as dependent as can be, so its steps are tested, which are
    not. Those of a queue that returns to where it was cancel, so for one in balance the interval is too wide, not too narrow.
    """
    if len(values) < 2:
        return refusal("fewer than two values", len(values), confidence)
    steps = np.diff(values)
    found = series_mean(steps, confidence)
    if not found.known or found.estimate is None or found.low is None or found.high is None:
        return refusal(found.refused, len(values), confidence, float(values[-1] - values[0]))
    k = len(steps)
    return Interval(
        found.estimate * k, found.low * k, found.high * k, len(values), confidence, found.effective_n, found.sd, found.df,
        found.p,
    )  # fmt: skip


def _longer_dependence(values: Floats, phi: float) -> float | None:
    """How many times as much the means of batches vary as lag-1 tells, where that is more than chance; else None."""
    length = len(values) // _BATCHES
    if length < 4:
        return None
    batches = values[: length * _BATCHES].reshape(_BATCHES, length).mean(axis=1)
    # The variance of a mean of `length` values of an AR(1) series, exactly.
    lags = np.arange(1, length)
    factor = 1 + 2 * float(((1 - lags / length) * phi**lags).sum())
    told = float(values.var(ddof=1)) * factor / length
    excess = float(batches.var(ddof=1)) / told if told > 0 else 0.0
    return excess if excess > float(chdtri(_BATCHES - 1, _LONGER)) / (_BATCHES - 1) else None
