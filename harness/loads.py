"""How requests are sent: loads as a tagged union, an experiment file names one by its `mode`.

Closed loops (batch, concurrency) send when an answer has come; open loops (rate, ramp, schedule) send at their times. Each
ends after so many requests or after a time, whichever is first.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from harness.loads_base import MOST_REQUESTS
from harness.loads_closed import BatchLoad, ConcurrencyLoad
from harness.loads_open import ARRIVALS, RampLoad, RateLoad, ScheduleLoad

__all__ = [
    "ARRIVALS",
    "MOST_REQUESTS",
    "BatchLoad",
    "ClosedLoop",
    "ConcurrencyLoad",
    "Load",
    "RampLoad",
    "RateLoad",
    "ScheduleLoad",
    "smaller_load",
]

ClosedLoop = BatchLoad | ConcurrencyLoad
Load = Annotated[BatchLoad | ConcurrencyLoad | RateLoad | RampLoad | ScheduleLoad, Field(discriminator="mode")]


def smaller_load(load: dict[str, Any], factor: float) -> dict[str, Any]:
    """The same load for `factor` of its requests or time (both at least what it needs); its concurrency or rate stays."""
    out = dict(load)
    if isinstance(requests := out.get("requests"), int):
        out["requests"] = max(2 * int(out.get("concurrency", 1)), round(requests * factor))
    if isinstance(waves := out.get("waves"), int):
        out["waves"] = max(1, round(waves * factor))
    if isinstance(duration := out.get("duration_s"), int | float):
        out["duration_s"] = max(1.0, duration * factor)
    return out
