"""Device readings over a span of time: means weighted by time, counters that wrap or start over, how often a value changes.

A reading with t0 < t1 is a mean over that interval; one with t0 == t1 holds until the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from results.clock import NS_PER_S
from results.events import Floats, Ints, Samples

# A reading further away than this says nothing of an instant.
_FAR_NS = 3 * NS_PER_S
# Less of the span than this under readings, and a mean is not that of the span.
LEAST_COVERAGE = 0.5


@dataclass(frozen=True, slots=True)
class Series:
    """Known readings of one metric of one device, in time order."""

    t0: Ints
    t1: Ints
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    def inside(self, start: int, end: int) -> Series:
        """Readings whose time ends in [start, end]."""
        here = (self.t1 >= start) & (self.t1 <= end)
        return Series(self.t0[here], self.t1[here], self.values[here])


_EMPTY = Series(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over a span, and the share of the span that readings cover. None where that is too little."""

    value: float | None
    coverage: float
    n: int


@dataclass(frozen=True, slots=True)
class DeviceSamples:
    """What one source said of each device, told apart once: known readings, and the last reason that was given."""

    source: str
    series: Mapping[tuple[str, str], Series]
    reasons: Mapping[tuple[str, str], str]

    def of(self, device: str, metric: str) -> Series:
        """The known readings of a metric of a device; empty where there are none."""
        return self.series.get((device, metric), _EMPTY)

    def all_of(self, device: str) -> list[Series]:
        """Every metric of a device."""
        return [series for (owner, _), series in self.series.items() if owner == device]


def _numbered(names: Iterable[object]) -> tuple[list[str], Ints]:
    """The different ones in order, and the place of each among them."""
    texts = [str(name or "") for name in names]
    different = sorted(set(texts))
    place = {name: number for number, name in enumerate(different)}
    return different, np.fromiter(map(place.__getitem__, texts), np.int64, len(texts))


def device_samples(samples: Samples, source: str) -> DeviceSamples:
    """Everything that `source` said, by (device, metric); what it said of itself stands under the device ""."""
    here = np.flatnonzero(samples.source == source)
    here = here[np.argsort(samples.t1[here], kind="stable")]
    devices, device = _numbered(samples.device[here])
    metrics, metric = _numbered(samples.metric[here])
    # Readings of one metric of one device stand together, still in the order of their time.
    pair = device * max(len(metrics), 1) + metric
    order = np.argsort(pair, kind="stable")
    pairs, begin = np.unique(pair[order], return_index=True)
    series: dict[tuple[str, str], Series] = {}
    reasons: dict[tuple[str, str], str] = {}
    for code, group in zip(pairs.tolist(), np.split(here[order], begin[1:]), strict=True):
        key = (devices[code // len(metrics)], metrics[code % len(metrics)])
        known = group[np.isfinite(samples.value[group])]
        if len(known):
            series[key] = Series(samples.t0[known], samples.t1[known], samples.value[known])
        if told := [str(reason) for reason in samples.reason[group] if reason]:
            reasons[key] = told[-1]
    return DeviceSamples(source, series, reasons)


def mean_over(series: Series, start: int, end: int) -> Mean:
    """The time-weighted mean over [start, end]: intervals by their overlap, between two instants a straight line (a value that
    held from each reading to the next would lag behind by half the interval)."""
    if end <= start or not len(series):
        return Mean(None, 0.0, 0)
    low, high, at_low, at_high = _pieces(series)
    a, b = np.maximum(low, start), np.minimum(high, end)
    weight = np.clip(b - a, 0, None).astype(np.float64)
    length = np.maximum(high - low, 1).astype(np.float64)
    middle = at_low + (at_high - at_low) * ((a + b) / 2 - low) / length
    covered, used = float(weight.sum()) / (end - start), int((weight > 0).sum())
    if covered < LEAST_COVERAGE:
        return Mean(None, covered, used)
    return Mean(float((weight @ np.where(weight > 0, middle, 0.0)) / weight.sum()), min(covered, 1.0), used)


def _pieces(series: Series) -> tuple[Ints, Ints, Floats, Floats]:
    """Stretches of time and the values at their ends. Before the first instant and after the last one its value holds for a
    while; across a long gap nothing is known."""
    if (series.t1 > series.t0).any():
        return series.t0, series.t1, series.values, series.values
    t, v = series.t1, series.values
    low = np.concatenate([[t[0] - _FAR_NS], t])
    high = np.concatenate([t, [t[-1] + _FAR_NS]])
    at_low, at_high = np.concatenate([[v[0]], v]), np.concatenate([v, [v[-1]]])
    near = high - low <= _FAR_NS
    return low[near], high[near], at_low[near], at_high[near]


def renewals(series: Sequence[Series], start: int, end: int) -> int:
    """How often a source that is asked more often than it looks has looked anew in [start, end]: the instants at which the
    value of any of its metrics differs from the one before."""
    times = [one.t1[1:][np.diff(one.values) != 0] for one in series if len(one) > 1]
    found = np.unique(np.concatenate(times)) if times else np.zeros(0, dtype=np.int64)
    return int(((found > start) & (found <= end)).sum())


@dataclass(frozen=True, slots=True)
class Total:
    """What a counter grew by. `skipped` steps were not usable, `coverage` is the share of the steps that were."""

    value: float
    skipped: int
    coverage: float


def growths(values: Sequence[float] | Floats, wraps_at: float | None = None) -> tuple[Floats, int]:
    """The growth of a counter from reading to reading, never negative, and how many steps were not usable (those are 0).

    A counter that falls has wrapped where `wraps_at` is known and the fall is that of a counter near its end; else it was
    started over, and what it counted in between is not known.
    """
    steps = np.diff(np.asarray(values, dtype=np.float64))
    fell = steps < 0
    if wraps_at is not None:
        # After a wrap the counter is near 0 and was near its end; a restart from the middle is no wrap.
        around = steps + wraps_at
        wrapped = fell & (around >= 0) & (around < wraps_at / 2)
        steps = np.where(wrapped, around, steps)
        fell &= ~wrapped
    return np.where(fell, 0.0, steps), int(fell.sum())


def counter_total(values: Sequence[float] | Floats, wraps_at: float | None = None) -> Total:
    """What a counter grew by over all its readings."""
    steps, skipped = growths(values, wraps_at)
    return Total(float(steps.sum()), skipped, 1 - skipped / len(steps) if len(steps) else 0.0)


def counter_over(series: Series, start: int, end: int) -> tuple[float | None, int, str]:
    """(growth over [start, end], steps that could not be used, why there is none). Between two readings a counter grows evenly.

    Both edges must lie between readings: an edge beyond them is not known.
    """
    if len(series) < 2 or end <= start:
        return None, 0, "fewer than two readings"
    if series.t1[0] > start or series.t1[-1] < end:
        return None, 0, "not read on both sides of the span"
    first = int(np.searchsorted(series.t1, start, side="right")) - 1
    last = min(int(np.searchsorted(series.t1, end, side="left")), len(series) - 1)
    times, values = series.t1[first : last + 1], series.values[first : last + 1]
    if np.diff(times).max(initial=0) > _FAR_NS:
        return None, 0, f"a gap of {np.diff(times).max() / NS_PER_S:.1f} s between two readings"
    steps, skipped = growths(values)
    grown = np.concatenate([[0.0], np.cumsum(steps)])
    low, high = np.interp([start, end], times.astype(np.float64), grown)
    return float(high - low), skipped, ""


def update_period_s(series: Series) -> float | None:
    """The median time between two changes of a value: nothing is known below it. None for fewer than two changes."""
    changed = np.flatnonzero(np.diff(series.values) != 0) + 1
    if len(changed) < 2:
        return None
    return float(np.median(np.diff(series.t1[changed]))) / NS_PER_S
