"""What of the device is to be sampled, how often, and whether the run may go on without it."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from results.errors import EnvironmentProblemError

DEFAULT_INTERVAL_S = 0.25
# Below this no counter of a GPU has anything new to say; the driver is only kept busy.
SENSOR_S = 0.02


class TelemetrySource(StrEnum):
    """Who is asked about the device. `auto` takes the first of the others that answers."""

    AUTO = "auto"
    DCGM = "dcgm"
    NVML = "nvml"
    NVIDIA_SMI = "nvidia-smi"
    NONE = "none"


class NoTelemetryError(EnvironmentProblemError):
    """Device telemetry was required and there is none."""


class TelemetryUnavailableError(EnvironmentProblemError):
    """One source cannot be used here; the message says why."""


def _seconds(value: Any) -> float:
    """NaN compares false with everything, so it is refused by name and not by a bound."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number of seconds (0: off)")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"must be a finite number of seconds, 0 or more, not {value!r} (0: off)")
    return float(value)


class Telemetry(BaseModel):
    """`interval_s` 0 turns it off. `devices`: UUIDs (or beginnings of them) to sample instead of what
    CUDA_VISIBLE_DEVICES says. `required`: without telemetry the run stops before any load."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    source: TelemetrySource = TelemetrySource.AUTO
    interval_s: Annotated[float, BeforeValidator(_seconds)] = DEFAULT_INTERVAL_S
    required: bool = False
    devices: tuple[str, ...] = ()
    dcgm_url: str = Field("http://127.0.0.1:9400", min_length=1)

    @model_validator(mode="after")
    def _not_none_and_required(self) -> Telemetry:
        if self.required and self.off:
            given = "source is none" if self.source is TelemetrySource.NONE else "interval_s is 0"
            raise ValueError(
                f"{given}, and telemetry is required (--require-telemetry): leave one of the two out, or name who is to tell of the "
                "device (--telemetry nvml)"
            )
        return self

    @property
    def off(self) -> bool:
        return self.source is TelemetrySource.NONE or self.interval_s == 0

    @property
    def warning(self) -> str | None:
        """What a too short interval does not bring."""
        if 0 < self.interval_s < SENSOR_S:
            return (
                f"telemetry every {self.interval_s * 1000:g} ms is faster than any sensor of a GPU changes "
                f"({SENSOR_S * 1000:g} ms at the best): values repeat, and the driver is kept busy"
            )
        return None
