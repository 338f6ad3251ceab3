"""The numbers of one device over one span of a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from results.clock import NS_PER_S
from results.device_series import DeviceSamples, Series, counter_over, mean_over, renewals, update_period_s
from results.device_specs import bandwidth_of_clock, spec_of_device

# Of the clock event reasons: bit, name, and whether it lowers the clocks.
EVENT_BITS: tuple[tuple[int, str], ...] = (
    (0x1, "idle"),
    (0x2, "clocks_setting"),
    (0x4, "sw_power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal"),
    (0x40, "hw_thermal"),
    (0x80, "hw_power_brake"),
    (0x100, "display_clocks"),
)
_MEANS = (
    ("dram_active", "gpu.dram_active"),
    ("sm_active", "gpu.sm_active"),
    ("tensor_active", "gpu.tensor_active"),
    ("busy", "gpu.busy"),
    ("pcie_tx_bytes_per_s", "gpu.pcie_tx_bytes_per_s"),
    ("pcie_rx_bytes_per_s", "gpu.pcie_rx_bytes_per_s"),
)
SHARES = ("dram_active", "sm_active", "tensor_active", "busy")
CLOCKS = (("sm_clock_mhz", "gpu.sm_clock_mhz"), ("memory_clock_mhz", "gpu.memory_clock_mhz"))
# An exporter that looked less often than this within a span tells nothing of it.
LEAST_RENEWALS = 3
# Measured on the whole board also where an instance of it is used.
_OF_BOARD = frozenset(
    {
        "gpu.energy_j",
        "gpu.power_instant_w",
        "gpu.power_average_w",
        "gpu.sm_clock_mhz",
        "gpu.memory_clock_mhz",
        "gpu.clock_event_reasons",
        "gpu.temperature_c",
    }
)


@dataclass(slots=True)
class Reader:
    """Readings of one device over one span, and the reasons for what there is none of."""

    samples: DeviceSamples
    device: Mapping[str, Any]
    start: int
    end: int
    why: dict[str, str] = field(default_factory=dict)

    def owner(self, metric: str) -> str:
        board = self.device.get("parent") if metric in _OF_BOARD else None
        return str(board or self.device["uuid"])

    def series(self, metric: str) -> Series:
        return self.samples.of(self.owner(metric), metric)

    def no(self, name: str, reason: str) -> None:
        self.why.setdefault(name, reason)

    def because(self, metric: str) -> str:
        """Why a metric has no reading here, in the sampler's words where it gave any."""
        told = self.samples.reasons
        for key in ((self.owner(metric), metric), ("", "gpu.call_hangs"), ("", "gpu.telemetry")):
            if key in told:
                return told[key]
        return "no reading fell into the cell"

    def stale(self) -> str:
        """Why readings of this source are not of this span, "" where they are. An exporter repeats its last look until the next,
        every 30 s unless it is told otherwise: asking it more often makes no news."""
        if self.samples.source != "dcgm":
            return ""
        looks = renewals(self.samples.all_of(str(self.device["uuid"])), self.start, self.end)
        seconds = (self.end - self.start) / NS_PER_S
        if looks >= LEAST_RENEWALS:
            return ""
        return (
            f"the exporter's values changed {looks} times in {seconds:.0f} s, so they are not of this span: start it with a "
            "shorter --collect-interval (1000 for one second), or measure for longer"
        )

    def mean(self, name: str, metric: str) -> float | None:
        series = self.series(metric)
        if len(series) and (why := self.stale()):
            self.no(name, why)
            return None
        found = mean_over(series, self.start, self.end)
        if found.value is None:
            reason = f"readings cover only {found.coverage:.0%} of the span" if len(series) else self.because(metric)
            self.no(name, reason)
        return found.value

    def most(self, metric: str) -> float | None:
        """The largest reading in the span; a rare one (the process list) may lie before it."""
        series = self.series(metric)
        before = series.values[series.t1 <= self.end]
        inside = series.inside(self.start, self.end).values
        values = inside if len(inside) else before[-1:] if len(before) else series.values
        return float(values.max()) if len(values) else None


def read_device(reader: Reader, telemetry: Mapping[str, Any], output_tokens: int | None) -> dict[str, Any]:
    """Every number of one device over the reader's span; the reasons for nulls are left in `reader.why`."""
    out: dict[str, Any] = {"uuid": reader.device["uuid"], "name": reader.device.get("name")}
    for name, metric in _MEANS:
        out[name] = reader.mean(name, metric)
    _refuse_constant_zero(reader, out, output_tokens)
    for name, metric in CLOCKS:
        out[name] = _spread(reader, name, metric)
    out |= _bandwidth(reader, out)
    out |= _memory(reader, telemetry)
    out |= _power(reader)
    out |= _energy(reader, out["power_w"])
    hottest = reader.series("gpu.temperature_c").inside(reader.start, reader.end).values
    out["temperature_c_max"] = float(hottest.max()) if len(hottest) else None
    if not len(hottest):
        reader.no("temperature_c_max", reader.because("gpu.temperature_c"))
    out["event_shares"] = _event_shares(reader)
    return out


def _refuse_constant_zero(reader: Reader, out: dict[str, Any], output_tokens: int | None) -> None:
    """A counter that says 0 throughout while tokens come is not counting: some drivers answer so without an error."""
    if not output_tokens:
        return
    for name in ("dram_active", "sm_active", "busy"):
        if out[name] == 0:
            out[name] = None
            reader.why[name] = "every reading is 0 although tokens were generated: the counter does not count here"


def _bandwidth(reader: Reader, out: Mapping[str, Any]) -> dict[str, Any]:
    """GB/s from the share of the peak that belongs to the memory clock of the moment, never from busy time."""
    clock = (out["memory_clock_mhz"] or {}).get("mean") or reader.device.get("memory_clock_max_mhz")
    bits, spec = reader.device.get("memory_bus_bits"), spec_of_device(str(reader.device.get("name")))
    peak, origin = None, None
    if reader.device.get("parent"):
        reader.no(
            "peak_gb_per_s", "a MIG instance has a part of the board's memory bus, and the driver does not tell which"
        )
    elif clock and bits:
        peak, origin = bandwidth_of_clock(clock, bits), f"{clock:.0f} MHz x 2 x {bits} bit / 8"
    elif spec is not None:
        peak, origin = spec.bandwidth, f"datasheet of {spec.words}"
    else:
        reader.no("peak_gb_per_s", "neither memory clock and bus width nor a datasheet of this device is known")
    share = out["dram_active"]
    if share is None:
        reader.no("bandwidth_gb_per_s", reader.why.get("dram_active", "not known"))
    elif peak is None:
        reader.no("bandwidth_gb_per_s", reader.why["peak_gb_per_s"])
    return {
        "bandwidth_gb_per_s": share * peak if share is not None and peak is not None else None,
        "bandwidth_fraction": share,
        "peak_gb_per_s": peak,
        "peak_from": origin,
    }


def _memory(reader: Reader, telemetry: Mapping[str, Any]) -> dict[str, Any]:
    most = reader.most("gpu.memory_used_bytes")
    before = (telemetry.get("baseline_bytes") or {}).get(reader.device["uuid"])
    if most is None:
        reader.no("memory_used_bytes_max", reader.because("gpu.memory_used_bytes"))
    if before is None:
        reader.no("memory_over_baseline_bytes", "memory before the launch is not known")
    return {
        "memory_used_bytes_max": most,
        "memory_total_bytes": reader.device.get("memory_total_bytes"),
        "memory_over_baseline_bytes": most - before if most is not None and before is not None else None,
    }


def _power(reader: Reader) -> dict[str, Any]:
    stale = reader.stale()
    for kind in ("instant", "average"):
        series = reader.series(f"gpu.power_{kind}_w")
        if not len(series) or stale:
            continue
        if kind == "average":  # means of one second that overlap: each stands for the time since the one before
            series = Series(series.t1, series.t1, series.values)
        found = mean_over(series, reader.start, reader.end)
        if found.value is not None:
            inside = series.inside(reader.start, reader.end)
            return {
                "power_w": found.value,
                "power_w_max": float(inside.values.max()) if len(inside) else None,
                "power_kind": kind,
                "power_period_s": update_period_s(series),
            }
    reader.no("power_w", stale or reader.because("gpu.power_instant_w"))
    return {"power_w": None, "power_w_max": None, "power_kind": None, "power_period_s": None}


def _energy(reader: Reader, power_w: float | None) -> dict[str, Any]:
    """By the counter, and by power times time: the two are known to disagree on some boards, so both are shown."""
    series = reader.series("gpu.energy_j")
    energy, skipped, why = counter_over(series, reader.start, reader.end)
    if skipped:
        energy, why = None, f"the counter started over {skipped} times in the span"
    if stale := reader.stale():
        energy, why = None, stale
    if energy is None:
        reader.no("energy_j", why if len(series) else reader.because("gpu.energy_j"))
    seconds = (reader.end - reader.start) / NS_PER_S
    return {
        "energy_j": energy,
        "energy_from_power_j": power_w * seconds if power_w is not None else None,
        "energy_skipped": skipped,
    }


def _spread(reader: Reader, name: str, metric: str) -> dict[str, Any] | None:
    mean = reader.mean(name, metric)
    values = reader.series(metric).inside(reader.start, reader.end).values
    if mean is None or not len(values):
        reader.no(name, reader.because(metric))
        return None
    low, high = float(values.min()), float(values.max())
    return {"mean": mean, "min": low, "max": high, "spread": (high - low) / mean if mean else None, "n": len(values)}


def _event_shares(reader: Reader) -> dict[str, float] | None:
    """For each reason the share of the readings in which it held."""
    values = reader.series("gpu.clock_event_reasons").inside(reader.start, reader.end).values
    if not len(values):
        reader.no("event_shares", reader.because("gpu.clock_event_reasons"))
        return None
    bits = values.astype(np.int64)
    return {name: float(((bits & bit) > 0).mean()) for bit, name in EVENT_BITS if ((bits & bit) > 0).any()}
