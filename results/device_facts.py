"""What the reason rules may know of the device a cell ran on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class DeviceFacts:
    """Shares are of the readings; `foreign` counts processes; texts are evidence, None where there is nothing to say."""

    sampled: bool = False
    why_none: str = ""
    lost: str | None = None
    telemetry_lost: str | None = None
    foreign: float = 0.0
    throttled: Mapping[str, float] = field(default_factory=dict)
    power_capped: float = 0.0
    clock_spread: float | None = None
    clock_range: tuple[float, float] | None = None
    baseline: str | None = None
    counter_restarted: int = 0
    mig: str | None = None
    warnings: tuple[str, ...] = ()
