"""What the device did during a cell: bandwidth, memory, power, energy, clocks; each unknown is null with its reason.

A server with several devices is summed over those it uses: the ones where its processes are listed or its memory grew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from results.clock import NS_PER_S
from results.device_facts import DeviceFacts
from results.device_reader import CLOCKS, SHARES, Reader, read_device
from results.device_series import Series, device_samples
from results.events import Samples

# More memory than at the baseline by this, and somebody uses the device.
USED_BYTES = 256 << 20
# More than a driver and a display take for themselves, and the device was not empty: bytes, or this share of its memory.
OCCUPIED_BYTES, OCCUPIED_SHARE = 2 << 30, 0.05
_IDLE_SHARE = 0.02
_SLOW = ("hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")
_SUMS = (
    "bandwidth_gb_per_s",
    "peak_gb_per_s",
    "memory_used_bytes_max",
    "power_w",
    "energy_j",
    "energy_from_power_j",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
)


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The `device` part of a cell's summary, None where nothing was sampled, and the facts for its rules."""

    numbers: dict[str, Any] | None
    facts: DeviceFacts


def device_use(
    samples: Samples,
    telemetry: Mapping[str, Any] | None,
    span: tuple[int, int],
    output_tokens: int | None,
    scope: str = "whole",
) -> DeviceUse:
    """Over [start, end] (ns) of a `scope`. `telemetry` is that of the session's record; `output_tokens` those of the span."""
    facts = DeviceFacts()
    source = str((telemetry or {}).get("source") or "none")
    devices = [d for d in (telemetry or {}).get("devices") or [] if isinstance(d, Mapping) and d.get("uuid")]
    if telemetry is None or source == "none" or not devices:
        facts.why_none = _why_none(telemetry, source)
        return DeviceUse(None, facts)
    told = device_samples(samples, source)
    readers = [Reader(told, device, *span) for device in devices]
    used, how = _in_use(readers, telemetry)
    if not used:  # whatever happens on them is no matter of this server
        facts.why_none = how
        return DeviceUse(None, facts)
    facts.sampled, facts.warnings = True, tuple(str(w) for w in telemetry.get("warnings") or ())
    _conditions(facts, used, telemetry)
    each = [read_device(reader, telemetry, output_tokens) for reader in used]
    numbers = _together(each, used, output_tokens)
    for reader, one in zip(used, each, strict=True):
        _judge_clocks(facts, one)
        facts.counter_restarted += one["energy_skipped"]
        facts.foreign = max(facts.foreign, reader.most("gpu.processes_foreign") or 0.0)
    return DeviceUse({"source": source, "scope": scope, "in_use": how, **numbers}, facts)


def _why_none(telemetry: Mapping[str, Any] | None, source: str) -> str:
    if telemetry is None:
        return "the session does not tell of any telemetry"
    why_not = telemetry.get("why_not") or {}
    if source == "none":
        return "; ".join(f"{name}: {why}" if name != "none" else str(why) for name, why in why_not.items())
    return "the server sees no device (CUDA_VISIBLE_DEVICES)"


def _in_use(readers: Sequence[Reader], telemetry: Mapping[str, Any]) -> tuple[list[Reader], str]:
    """The devices that count, and how that is known. Empty: the server uses none of them."""
    if telemetry.get("chosen"):
        return list(readers), "named in the experiment"
    baseline = telemetry.get("baseline_bytes") or {}
    listed = {id(r) for r in readers if (r.most("gpu.processes_server") or 0) > 0}
    before = {id(r): baseline.get(r.device["uuid"]) for r in readers}
    most = {id(r): r.most("gpu.memory_used_bytes") for r in readers}
    known = [r for r in readers if before[id(r)] is not None and most[id(r)] is not None]
    grown = {id(r) for r in known if (most[id(r)] or 0) - (before[id(r)] or 0) > USED_BYTES}
    if used := [r for r in readers if id(r) in listed | grown]:
        return used, "its processes are listed there, or memory grew after its launch"
    if len(known) == len(readers):
        return [], "the server uses none of the sampled devices: no memory beyond the level before its launch"
    return list(readers), "all that the server may use; which of them it does is not known"


def _together(each: Sequence[dict[str, Any]], readers: Sequence[Reader], output_tokens: int | None) -> dict[str, Any]:
    """One set of numbers: sums of what adds up, means of shares, the slowest clock; each device beside it."""
    first = each[0]
    out: dict[str, Any] = {"devices": [one["uuid"] for one in each]}
    for name in _SUMS:
        values = [one[name] for one in each]
        out[name] = None if None in values else float(sum(values))
    for name in SHARES:
        values = [one[name] for one in each]
        out[name] = None if None in values else float(np.mean(values))
    for name, _ in CLOCKS:
        clocks = [one[name] for one in each if one[name] is not None]
        out[name] = min(clocks, key=lambda c: c["mean"]) if len(clocks) == len(each) else None
    bandwidth, peak = out["bandwidth_gb_per_s"], out["peak_gb_per_s"]
    out["bandwidth_fraction"] = bandwidth / peak if bandwidth is not None and peak else None
    out["bandwidth_source"] = _source_words(readers[0].samples.source) if bandwidth is not None else None
    shares = [one["event_shares"] for one in each]
    names = dict.fromkeys(name for share in shares if share for name in share)
    out["event_shares"] = (
        None if None in shares else {name: max(share.get(name, 0.0) for share in shares) for name in names}
    )
    for name in ("power_w_max", "temperature_c_max"):
        values = [one[name] for one in each]
        out[name] = None if None in values else max(values)
    out |= {name: first[name] for name in ("peak_from", "power_kind", "power_period_s")}
    over = [one["memory_over_baseline_bytes"] for one in each]
    out["memory_over_baseline_bytes"] = None if None in over else float(sum(over))
    energy = out["energy_j"]
    out["energy_j_per_output_token"] = energy / output_tokens if energy is not None and output_tokens else None
    out["duration_s"] = (readers[0].end - readers[0].start) / NS_PER_S
    out["board_shared"] = any(reader.device.get("parent") for reader in readers)
    out["missed_ticks"] = _missed(readers[0])
    out["each"] = [dict(one) for one in each] if len(each) > 1 else None
    out["why"] = {name: reason for reader in reversed(readers) for name, reason in reader.why.items()}
    if energy is not None and not output_tokens:
        out["why"]["energy_j_per_output_token"] = "no output token was counted in the span"
    elif energy is None:
        out["why"]["energy_j_per_output_token"] = out["why"].get("energy_j", "the energy is not known")
    return out


def _source_words(source: str) -> str:
    words = {"nvml": "NVML GPM, DRAM bandwidth utilisation", "dcgm": "DCGM field 1005, DRAM active"}
    return words.get(source, source)


def _missed(reader: Reader) -> int:
    """Readings that a slow driver call ran over."""
    return int(_touching(reader, "", "gpu.missed_ticks").values.sum())


def _touching(reader: Reader, device: str, metric: str) -> Series:
    """Readings whose interval touches the span."""
    series = reader.samples.of(device, metric)
    here = (series.t1 >= reader.start) & (series.t0 <= reader.end)
    return Series(series.t0[here], series.t1[here], series.values[here])


def _conditions(facts: DeviceFacts, readers: Sequence[Reader], telemetry: Mapping[str, Any]) -> None:
    """What ended telemetry or the device itself, and how the devices were found before the launch."""
    told = readers[0].samples.reasons
    for reader in readers:
        uuid = str(reader.device["uuid"])
        if len(_touching(reader, uuid, "gpu.lost")):
            facts.lost = f"{uuid}: {told.get((uuid, 'gpu.lost'), 'lost')}"
        if len(_touching(reader, uuid, "gpu.telemetry_lost")):
            facts.telemetry_lost = f"{uuid}: {told.get((uuid, 'gpu.telemetry_lost'), 'lost')}"
        if reader.device.get("parent") or reader.device.get("mig"):
            facts.mig = f"{uuid} on {reader.device.get('parent') or 'a board in MIG mode'}"
    ended = told.get(("", "gpu.telemetry")) if facts.lost is None else None
    facts.telemetry_lost = facts.telemetry_lost or ended or told.get(("", "gpu.call_hangs"))
    baseline, used = telemetry.get("baseline_bytes") or {}, []
    for reader in readers:
        before = baseline.get(reader.device["uuid"])
        if before is not None and before > _occupied(reader.device.get("memory_total_bytes")):
            used.append(f"{before / 2**30:.1f} GiB on {reader.device['uuid']}")
    facts.baseline = ", ".join(used) or None


def _occupied(total: Any) -> float:
    return max(OCCUPIED_BYTES, OCCUPIED_SHARE * total if isinstance(total, int | float) else 0)


def _judge_clocks(facts: DeviceFacts, one: Mapping[str, Any]) -> None:
    shares = one["event_shares"] or {}
    facts.throttled = {
        name: max(share, facts.throttled.get(name, 0.0))
        for name, share in {**facts.throttled, **shares}.items()
        if name in _SLOW
    }
    facts.power_capped = max(facts.power_capped, shares.get("sw_power_cap", 0.0))
    clock = one["sm_clock_mhz"]
    if shares.get("idle", 0.0) > _IDLE_SHARE:
        return  # a board that idles between requests lowers its clock by right
    if clock and clock["spread"] is not None and clock["spread"] >= (facts.clock_spread or 0.0):
        facts.clock_spread, facts.clock_range = clock["spread"], (clock["min"], clock["max"])
