"""Datasheet ceilings of devices, and the memory bandwidth that a clock and a bus width make.

The datasheet and the formula differ by up to a few per cent, and neither is what a kernel reaches: a percentage names which
of them (or which measurement) it is of.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from results.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device's published peaks: dense TFLOP/s (int8: TOPS), GB/s; None where it has none or it is not known."""

    name: str
    words: str
    match: tuple[str, ...]
    memory_gb: float
    bf16: float
    fp8: float | None
    int8: float | None
    bandwidth: float
    memory_clock_mhz: float | None
    bus_bits: int | None
    source: str

    @property
    def flops(self) -> dict[str, float]:
        """FLOP/s by dtype, as `step_cost.peaks_for` reads them."""
        found = {"bf16": self.bf16 * 1e12, "fp8": (self.fp8 or 0.0) * 1e12}
        return {name: rate for name, rate in found.items() if rate}

    @property
    def bytes_per_s(self) -> float:
        return self.bandwidth * 1e9

    @property
    def memory_bytes(self) -> int:
        """Nominal capacity; makers' GB of device memory are GiB."""
        return int(self.memory_gb * 2**30)

    @property
    def formula_bandwidth(self) -> float | None:
        """GB/s from the memory clock and the bus width; None where they are not known."""
        if self.memory_clock_mhz is None or self.bus_bits is None:
            return None
        return bandwidth_of_clock(self.memory_clock_mhz, self.bus_bits)

    @property
    def ridge(self) -> float:
        """FLOP a byte at which 16-bit work turns from bandwidth-bound to compute-bound."""
        return self.bf16 * 1e3 / self.bandwidth


def bandwidth_of_clock(memory_clock_mhz: float, bus_bits: int) -> float:
    """GB/s: clock x 2 x bits / 8. Twice, since NVML tells half the rate of a pin, for HBM and GDDR alike."""
    return memory_clock_mhz * 2 * bus_bits / 8 / 1000


@cache
def _table() -> dict[str, DeviceSpec]:
    text = resources.files("results").joinpath("devices.json").read_text(encoding="utf-8")
    rows = json.loads(text)["devices"]
    return {name: DeviceSpec(name=name, **{**row, "match": tuple(row["match"])}) for name, row in rows.items()}


def device_names() -> list[str]:
    """The devices of the table, sorted."""
    return sorted(_table())


def device_spec(name: str) -> DeviceSpec:
    """A device by its name in the table (any case, `_` or space for `-`). Raises UnknownNameError."""
    key = "-".join(name.strip().lower().replace("_", " ").split())
    if key not in _table():
        raise UnknownNameError("device", name, device_names())
    return _table()[key]


def spec_of_device(nvml_name: str) -> DeviceSpec | None:
    """The table's row for a name as the driver tells it. Exact: a near name is another product with other peaks."""
    return next((spec for spec in _table().values() if nvml_name.strip() in spec.match), None)
