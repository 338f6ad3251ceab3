"""How sure a number is: intervals and tests, each of which refuses, with its reason, where it does not hold.

The block is the unit of a comparison: one session of each engine. Requests inside a cell share a server's life, its caches
and clocks, so thousands of them tell no more about the next session than one does.

    paired      t on the log ratios of blocks in which both sides ran
    unpaired    Welch's t on the logs of two sets of blocks: wider, since what the blocks share does not cancel
    equivalent  two one-sided tests: the interval of confidence 1 - 2 alpha lies inside the margin
    holm        p-values of the secondary metrics, adjusted for how many were looked at: of differences and of equivalence
    wilson      a share of yes-or-no outcomes

What is read from a series inside one cell (percentiles, gaps, bins) is in `statistics_series` and `statistics_percentiles`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import nctdtr, ndtr, ndtri, stdtr, stdtrit

CONFIDENCE = 0.95
POWER = 0.95
# Below this many blocks no verdict is given: with three, t is 4.3 and one odd session decides.
BLOCKS_FOR_A_VERDICT = 5
# Above this lag-1 autocorrelation no interval is given; of fewer blocks than these it cannot be read.
MOST_AUTOCORRELATION = 0.7
_BLOCKS_THAT_TELL = 20
# No more blocks than this are ever announced: beyond, the answer is "not with this spread".
MOST_BLOCKS = 1000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its two-sided interval, or why there is none.

    `n` counts what it rests on, `effective_n` what that is worth (dependence taken off), `sd` is the spread of one unit on
    the scale of the test (of units that are alike, that of as many independent ones as make the interval), `df` its degrees
    of freedom, `p` the two-sided p-value against "no difference".
    """

    estimate: float | None
    low: float | None
    high: float | None
    n: int
    confidence: float = CONFIDENCE
    effective_n: float | None = None
    sd: float | None = None
    df: float | None = None
    p: float | None = None
    refused: str = ""

    @property
    def known(self) -> bool:
        return self.low is not None and self.high is not None

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval, relative to nothing: on a ratio, 0.03 is 3 %."""
        return (self.high - self.low) / 2 if self.low is not None and self.high is not None else None

    def holds(self, value: float) -> bool:
        """Whether the interval is known and encloses a value."""
        return self.low is not None and self.high is not None and self.low <= value <= self.high


def refusal(reason: str, n: int, confidence: float = CONFIDENCE, estimate: float | None = None) -> Interval:
    """No interval, and why."""
    return Interval(estimate, None, None, n, confidence, refused=reason)


def t_quantile(probability: float, df: float) -> float:
    """The quantile of Student's t."""
    return float(stdtrit(df, probability))


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The mean of independent values by t. Refuses below two values and where any is not finite."""
    x = np.asarray(values, dtype=np.float64)
    n = len(x)
    if why := _unusable(x, "value"):
        return refusal(why, n, confidence, float(x.mean()) if n and np.isfinite(x).all() else None)
    mean, sd = float(x.mean()), float(x.std(ddof=1))
    return _around(mean, sd / math.sqrt(n), n - 1, n, sd, confidence)


def paired(base: Sequence[float], other: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """other / base over blocks that both ran: exp of a t interval of the mean log ratio. `base[i]` and `other[i]` are of one
    block. `sd` is that of a block's log ratio. Refuses below two blocks and where a value is not a positive number."""
    a, b = np.asarray(base, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if len(a) != len(b):
        return refusal(f"{len(a)} blocks of one side and {len(b)} of the other cannot be paired", 0, confidence)
    if why := _unusable_rates(a, "pair of blocks") or _unusable_rates(b, "pair of blocks"):
        return refusal(why, len(a), confidence, _ratio(a, b))
    logs = np.log(b) - np.log(a)
    return _exp(_allowing(mean_interval(logs.tolist(), confidence), logs))


def autocorrelation(values: np.ndarray) -> float:
    """Lag-1 autocorrelation about the mean, its bias of -(1 + 4 phi) / n taken out; 0 for a constant or too short series."""
    n = len(values)
    deviation = values - values.mean() if n else values
    square = float(deviation @ deviation)
    if n < 4 or square <= 0:
        return 0.0
    found = float(deviation[1:] @ deviation[:-1]) / square
    return min(max(found + (1 + 4 * found) / n, -1.0), 1.0)


def _allowing(found: Interval, values: np.ndarray) -> Interval:
    """The same where blocks that follow each other are plainly alike (one engine warms up, the other does not): wider by what
    they are worth, refused above MOST_AUTOCORRELATION. With few blocks nobody can tell."""
    n, phi = len(values), autocorrelation(values)
    if not found.known or n < _BLOCKS_THAT_TELL or phi <= 2.5 / math.sqrt(n):
        return found
    if phi > MOST_AUTOCORRELATION:
        why = f"blocks that follow each other are too alike: autocorrelation {phi:.2f}, at most {MOST_AUTOCORRELATION}"
        return refusal(why, n, found.confidence, found.estimate)
    worth = n * (1 - phi) / (1 + phi)
    # What is reckoned from the spread of a block (how many are needed) must allow for their likeness as the interval does.
    sd = (found.sd or 0.0) * math.sqrt(n / worth)
    wider = _around(found.estimate or 0.0, sd / math.sqrt(n), max(worth - 1, 1.0), n, sd, found.confidence)
    return replace(wider, effective_n=worth)


def unpaired(base: Sequence[float], other: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The same where blocks do not belong together: Welch's t on the logs. `n` is the smaller number of blocks, `sd` that of
    the difference of one block a side."""
    a, b = np.asarray(base, dtype=np.float64), np.asarray(other, dtype=np.float64)
    n = min(len(a), len(b))
    if why := _unusable_rates(a, "block of each side") or _unusable_rates(b, "block of each side"):
        return refusal(why, n, confidence, _ratio(a, b))
    x, y = np.log(a), np.log(b)
    va, vb = float(x.var(ddof=1)) / len(x), float(y.var(ddof=1)) / len(y)
    se = math.sqrt(va + vb)
    df = (va + vb) ** 2 / (va**2 / (len(x) - 1) + vb**2 / (len(y) - 1)) if se > 0 else float(n - 1)
    sd = math.sqrt(float(x.var(ddof=1)) + float(y.var(ddof=1)))
    return _exp(_around(float(y.mean() - x.mean()), se, df, n, sd, confidence))


def equivalent(ratio: Interval, margin: float) -> bool | None:
    """Whether the ratio is shown to lie within 1 - margin and 1 / (1 - margin), at level 1 - confidence; None where there is no
    interval."""
    p = equivalence_p(ratio, margin)
    return None if p is None else p <= 1 - ratio.confidence


def equivalence_p(ratio: Interval, margin: float) -> float | None:
    """The p-value of two one-sided tests (the larger of theirs) against "the ratio lies outside 1 - margin to
    1 / (1 - margin)"; None where there is no interval."""
    if not ratio.known or ratio.estimate is None or ratio.df is None or not 0 < margin < 1:
        return None
    inside = -math.log1p(-margin) - abs(math.log(ratio.estimate))
    return float(stdtr(ratio.df, -inside / standard_error(ratio)))


def standard_error(ratio: Interval) -> float:
    """That of the log of a ratio, from its interval; 0 where it has none."""
    if ratio.low is None or ratio.high is None or ratio.df is None:
        return 0.0
    return (math.log(ratio.high) - math.log(ratio.low)) / 2 / t_quantile((1 + ratio.confidence) / 2, ratio.df)


def detectable(ratio: Interval, power: float = POWER) -> float | None:
    """The smallest slowdown, as a fraction (0.05 is 5 %), that as many blocks of this spread find with this power; None
    where there is no interval."""
    se = standard_error(ratio)
    if not ratio.known or ratio.df is None:
        return None
    found = t_quantile((1 + ratio.confidence) / 2, ratio.df)
    # Solve: P(a t of that shift exceeds its critical value) = power.
    low, high = 0.0, 1.0
    while _shifted_t(ratio.df, high, found) > 1 - power:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _shifted_t(ratio.df, middle, found) > 1 - power else (low, middle)
    return -math.expm1(-high * se)


def blocks_needed(
    sd: float, effect: float, confidence: float = CONFIDENCE, power: float = POWER, df: float | None = None
) -> int | None:
    """How many blocks find a slowdown of `effect` (0.05 is 5 %) with this power, where the log ratio of a block has this sd;
    None above MOST_BLOCKS.

    `df` tells that `sd` is itself an estimate of so many degrees of freedom: then more are needed, so that the power holds on
    average over what the estimate might be worth (the power given sd, averaged over sigma, is a noncentral t of df).
    """
    if not (math.isfinite(sd) and sd >= 0 and 0 < effect < 1):
        raise ValueError(f"sd {sd!r} must not be negative, and effect {effect!r} lie between 0 and 1")
    shift = -math.log1p(-effect)

    def enough(n: int) -> bool:
        found = t_quantile((1 + confidence) / 2, n - 1)
        units = shift * math.sqrt(n) / sd
        reached = _shifted_t(df, found, units) if df is not None else 1 - _shifted_t(n - 1, units, found)
        return reached >= power

    if sd == 0 or enough(BLOCKS_FOR_A_VERDICT):
        return BLOCKS_FOR_A_VERDICT
    low, high = BLOCKS_FOR_A_VERDICT, MOST_BLOCKS
    if not enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the given order: each may be held against alpha by itself, and over all of them the chance of any
    false alarm stays below it. NaN (no test) stays NaN and is not counted."""
    p = np.asarray(p_values, dtype=np.float64)
    tested = np.flatnonzero(np.isfinite(p))
    out = np.full(len(p), np.nan)
    order = tested[np.argsort(p[tested], kind="stable")]
    scaled = p[order] * np.arange(len(order), 0, -1)
    out[order] = np.minimum(np.maximum.accumulate(scaled), 1.0) if len(order) else scaled
    return [float(v) for v in out]


def wilson(good: float, n: float, confidence: float = CONFIDENCE) -> Interval:
    """A share of `n` independent yes-or-no outcomes. `n` may be an effective number. Refuses without any outcome."""
    if not n > 0 or not 0 <= good <= n:
        return refusal(f"{good:g} of {n:g} outcomes make no share", 0, confidence)
    z, share = float(ndtri((1 + confidence) / 2)), good / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the ends rounding must not leave [0, 1], nor the share itself outside.
    low, high = min(max(middle - reach, 0.0), share), max(min(middle + reach, 1.0), share)
    return Interval(share, low, high, int(n), confidence, effective_n=float(n))


def _shifted_t(df: float, shift: float, at: float) -> float:
    """P(noncentral t of df and shift <= at); far out, where the series does not converge, by the normal it then is."""
    found = float(nctdtr(df, shift, at))
    return found if math.isfinite(found) else float(ndtr((at - shift) / math.sqrt(1 + at * at / (2 * df))))


def _unusable(values: np.ndarray, unit: str) -> str:
    if len(values) < 2:
        return f"{len(values)} {unit}{'' if len(values) == 1 else 's'}: a spread needs two"
    if not np.isfinite(values).all():
        return f"{int((~np.isfinite(values)).sum())} of {len(values)} values are not finite"
    return ""


def _unusable_rates(values: np.ndarray, unit: str) -> str:
    if len(values) < 2:
        return f"one {unit}: a spread needs two" if len(values) else f"no {unit}"
    if not (np.isfinite(values) & (values > 0)).all():
        return "a value is not a positive number, so it has no ratio"
    return ""


def _ratio(a: np.ndarray, b: np.ndarray) -> float | None:
    """The ratio of geometric means where there are any."""
    usable = len(a) and len(b) and (np.isfinite(a) & (a > 0)).all() and (np.isfinite(b) & (b > 0)).all()
    return float(np.exp(np.log(b).mean() - np.log(a).mean())) if usable else None


def _around(mean: float, se: float, df: float, n: int, sd: float, confidence: float) -> Interval:
    # Repeats that agree to the last digit of a float (counts, a simulated clock) are no evidence of a spread of 0.
    if se <= 1e-12 * max(1.0, abs(mean)):
        why = f"all {n} agree to the last digit: their spread is not known"
        return Interval(mean, None, None, n, confidence, sd=0.0, refused=why)
    reach = t_quantile((1 + confidence) / 2, df) * se
    p = 2 * float(stdtr(df, -abs(mean) / se))
    return Interval(mean, mean - reach, mean + reach, n, confidence, float(n), sd, df, p)


def _exp(log: Interval) -> Interval:
    def exp(value: float | None) -> float | None:
        return None if value is None else math.exp(min(value, 700.0))

    return Interval(
        exp(log.estimate), exp(log.low), exp(log.high), log.n, log.confidence, log.effective_n, log.sd, log.df, log.p,
        log.refused,
    )  # fmt: skip
