"""One sample: a value over an interval, or null with the reason it is not known."""

from __future__ import annotations

from dataclasses import dataclass

from results.clock import now_ns


@dataclass(frozen=True, slots=True)
class Sample:
    """`t0` == `t1` for a gauge; an average or difference belongs to the interval behind the read. Stamps in monotonic ns."""

    source: str
    metric: str
    t0: int
    t1: int
    value: float | None
    reason: str | None = None
    device: str | None = None

    @classmethod
    def gauge(cls, source: str, metric: str, value: float | None, reason: str | None = None) -> Sample:
        t = now_ns()
        return cls(source, metric, t, t, value, reason)

    def row(self) -> list[object]:
        """In the column order of `results.schema.SAMPLES`."""
        return [self.source, self.metric, self.device, self.t0, self.t1, self.value, self.reason]
