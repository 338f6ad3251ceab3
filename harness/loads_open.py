"""Open loops: requests are sent at their times, drawn ahead from the cell's seed, whatever the server does."""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from harness.load.arrivals import Arrivals, along_ramp, arrivals_within, at_rate, unit_arrivals
from harness.loads_base import FEWEST_REQUESTS, MOST_REQUESTS, LoadBase
from results.clock import NS_PER_S

ARRIVALS: tuple[str, ...] = get_args(Arrivals)
_DEFAULT_DURATION_S = 60.0
_WARM_UP = 32


class _OpenLoop(LoadBase):
    """Requests sent at their times. With `max_in_flight` so many are out at once at most; what waits for that waits in the
    client, from its intended time on."""

    requests: int | None = Field(None, gt=0, le=MOST_REQUESTS)
    max_in_flight: int | None = Field(None, gt=0)

    def _warm_up(self, rate: float) -> int:
        return max(1, min(self.max_in_flight or _WARM_UP, math.ceil(rate), _WARM_UP))


class _Drawn(_OpenLoop):
    """Arrivals drawn from a process."""

    arrival: Arrivals = "poisson"
    burstiness: float | None = Field(None, ge=0.01, le=1000)

    def _check_drawn(self, expected: int) -> None:
        if (self.burstiness is None) == (self.arrival == "gamma"):
            raise ValueError("burstiness belongs to gamma arrivals, and they need it")
        if expected > MOST_REQUESTS:
            raise ValueError(f"{expected:,} requests are more than one cell may hold ({MOST_REQUESTS:,})")

    def _unit(self, seed: int, *, requests: int | None, events: float | None) -> NDArray[np.float64]:
        """So many arrivals, or those of a time in which `events` are expected, or the fewer of both."""
        burstiness = self.burstiness or 1.0
        if events is None:
            return unit_arrivals(self.arrival, requests or 0, seed, burstiness)
        return arrivals_within(self.arrival, events, seed, burstiness)[:requests]


class RateLoad(_Drawn):
    """`rate` requests a second in the mean: Poisson, evenly spaced, or with gamma gaps of a given burstiness."""

    mode: Literal["rate"] = "rate"
    rate: float = Field(gt=0, le=1_000_000)

    @model_validator(mode="after")
    def _whole(self) -> RateLoad:
        if self.requests is None and self.duration_s is None:
            raise ValueError("a rate needs requests or duration_s")
        self._check_drawn(self.expected_requests)
        return self

    @property
    def value(self) -> float:
        return self.rate

    @property
    def in_flight(self) -> int:
        """How many at once the warm-up sends."""
        return self._warm_up(self.rate)

    @property
    def expected_requests(self) -> int:
        """How many there will be, about."""
        by_time = math.inf if self.duration_s is None else max(1, round(self.rate * self.duration_s))
        return int(min(by_time, self.requests or math.inf))

    def arrivals(self, seed: int) -> list[int]:
        events = None if self.duration_s is None else self.rate * self.duration_s
        return at_rate(self._unit(seed, requests=self.requests, events=events), self.rate)

    @classmethod
    def of(
        cls,
        rate: float,
        requests: int | None = None,
        duration_s: float | None = None,
        **more: Any,
    ) -> RateLoad:
        """By default for a minute, and for at least 16 requests. `more`: arrival, burstiness, max_in_flight."""
        if requests is None and duration_s is None:
            duration_s = max(_DEFAULT_DURATION_S, FEWEST_REQUESTS / rate)
        return cls(rate=rate, requests=requests, duration_s=duration_s, **more)


class RampLoad(_Drawn):
    """A rate that goes evenly from `from_rate` to `to_rate` requests a second over the cell."""

    mode: Literal["ramp"] = "ramp"
    from_rate: float = Field(gt=0, le=1_000_000)
    to_rate: float = Field(gt=0, le=1_000_000)

    @model_validator(mode="after")
    def _whole(self) -> RampLoad:
        if (self.requests is None) == (self.duration_s is None):
            raise ValueError("a ramp needs either requests or duration_s: the other follows from its rates")
        self._check_drawn(self.expected_requests)
        return self

    @property
    def value(self) -> float:
        """The mean rate."""
        return (self.from_rate + self.to_rate) / 2

    @property
    def in_flight(self) -> int:
        """How many at once the warm-up sends."""
        return self._warm_up(max(self.from_rate, self.to_rate))

    @classmethod
    def of(
        cls, from_rate: float, to_rate: float, requests: int | None = None, duration_s: float | None = None, **more: Any
    ) -> RampLoad:
        """By default over a minute."""
        if requests is None and duration_s is None:
            duration_s = _DEFAULT_DURATION_S
        return cls(from_rate=from_rate, to_rate=to_rate, requests=requests, duration_s=duration_s, **more)

    @property
    def expected_requests(self) -> int:
        """How many there will be, about."""
        return self.requests or max(1, round(self.value * (self.duration_s or 0)))

    def arrivals(self, seed: int) -> list[int]:
        seconds = self.duration_s or (self.requests or 0) / self.value
        events = None if self.duration_s is None else self.value * seconds
        return along_ramp(
            self._unit(seed, requests=self.requests, events=events), self.from_rate, self.to_rate, seconds
        )


class ScheduleLoad(_OpenLoop):
    """Requests at given times (`times_s`, seconds after the start), or, without them, when the workload itself says (a trace).

    `speed` 2 plays it twice as fast. `duration_s` and `requests` cut it.
    """

    mode: Literal["schedule"] = "schedule"
    times_s: tuple[float, ...] | None = Field(None, min_length=1, max_length=MOST_REQUESTS)
    speed: float = Field(1.0, gt=0, le=1e6)

    @model_validator(mode="after")
    def _ordered(self) -> ScheduleLoad:
        for before, after in itertools.pairwise((0.0, *(self.times_s or ()))):
            if after < before:
                what = "is negative" if before == 0 else f"comes after {before}"
                raise ValueError(f"times_s: {after} {what}; times are seconds after the start, in order")
        return self

    @property
    def value(self) -> float | None:
        """The mean rate, where the times are known."""
        times = self.times_s or ()
        return (len(times) - 1) / (times[-1] - times[0]) * self.speed if times and times[-1] > times[0] else None

    @property
    def in_flight(self) -> int:
        """How many at once the warm-up sends."""
        return self._warm_up(self.value or 1.0)

    @property
    def expected_requests(self) -> int | None:
        """How many there will be; None where the workload decides."""
        times = self.arrivals(0)
        return self.requests if times is None else len(times)

    def arrivals(self, seed: int) -> list[int] | None:
        """The times of the schedule itself; None where the workload says them."""
        return None if self.times_s is None else self.cut([round(t * NS_PER_S) for t in self.times_s])

    def cut(self, times: list[int]) -> list[int]:
        """Times (ns, in order) at this load's speed, without those that its end cuts off."""
        times = [round(t / self.speed) for t in times]
        if self.duration_s is not None:
            times = [t for t in times if t < self.duration_s * NS_PER_S]
        return times[: self.requests]
