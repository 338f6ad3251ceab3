"""Axes: from values to pixels, and where the ticks go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from results.report_format import count, size


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis means. `log` is the base of its scale, 0 for linear from zero; `binary` shows bytes as KiB, MiB, GiB; `ends`
    is where a linear axis ends whatever its values (0: after the largest)."""

    label: str
    log: int = 0
    binary: bool = False
    ends: float = 0.0


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps `low..high` to `start..stop` pixels. Ticks lie inside the domain."""

    axis: Axis
    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        low, high, v = (self._warp(x) for x in (self.low, self.high, value))
        return self.start + (v - low) / (high - low) * (self.stop - self.start)

    def _warp(self, value: float) -> float:
        return math.log(max(value, 1e-12)) if self.axis.log else value

    def ticks(self, most: int) -> list[float]:
        """Round values, `most` at the most: powers of two (every other one where they crowd, with one between each where there are
        only two), 1-2-5 steps, or decades."""
        if self.axis.log == 2:
            first, last = math.ceil(math.log2(self.low) - 1e-9), math.floor(math.log2(self.high) + 1e-9)
            every = max(1, math.ceil((last - first + 1) / most))
            powers = [2.0**e for e in range(first, last + 1, every)]
            if len(powers) > 2:
                return powers
            between = [1.5 * 2.0**e for e in range(first - 1, last + 1)]
            return sorted([*powers, *(v for v in between if self.low <= v <= self.high)])
        if self.axis.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for steps in ((1, 2, 5), (1, 3), (1,)):
                found = [s * 10.0**d for d in decades for s in steps if self.low <= s * 10.0**d <= self.high]
                if len(found) <= most:
                    break
            return found
        step = nice_step(self.high / most)
        return [i * step for i in range(int(self.high / step + 1e-9) + 1)]

    def text(self, tick: float) -> str:
        """A tick in as few characters as its meaning needs."""
        if self.axis.binary:
            return size(tick).replace(".0 ", " ").replace(".00 ", " ")
        if tick >= 1e6:
            return f"{count(tick / 1e6)} M"
        return count(tick) if tick >= 1 or tick == 0 else f"{tick:.3g}"


def fit(axis: Axis, values: Sequence[float], start: float, stop: float) -> Scale:
    """A scale over `values` with some air; a single value gets a domain around itself."""
    positive = [v for v in values if v > 0] or [1.0]
    low, high = min(positive), max(positive)
    if axis.log:
        air = max((high / low) ** 0.06, 1.12) if high > low else 2.0
        return Scale(axis, low / air, high * air, start, stop)
    if axis.ends:
        return Scale(axis, 0.0, axis.ends, start, stop)
    step = nice_step(high * 1.04 / 5)
    return Scale(axis, 0.0, step * math.ceil(high * 1.04 / step), start, stop)


def nice_step(rough: float) -> float:
    """The smallest of 1, 2, 2.5, 5 x 10^k that is not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
