"""`dyno doctor --gpu`: whether the GPU is in a state to be measured, and the command that mends what is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.doctor import Row
from harness.telemetry.choose import Choice, choose
from harness.telemetry.device_child import nvml_readings
from harness.telemetry.devices import DeviceInfo
from harness.telemetry.sample import Sample
from harness.telemetry.settings import Telemetry, TelemetrySource, TelemetryUnavailableError
from results.device_reader import EVENT_BITS
from results.device_use import OCCUPIED_BYTES
from results.report_format import size

GROUP = "gpu"
_SLOW = {"hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"}
_IDLE_BUSY = 0.05
# Data-centre boards rest at 25 to 45 C and work at 50 to 80.
_SOAKED_C, _HOT_C = 50, 75

Readings = Mapping[str, Sample]
Check = Callable[[DeviceInfo, Readings], Row | None]


def examine_gpu(telemetry: Telemetry | None = None, choice: Choice | None = None) -> list[Row]:
    """Rows for the source of telemetry and for each board, or for what keeps it from being read. Never raises."""
    telemetry = telemetry or Telemetry()
    choice = choice or choose(telemetry)
    if not choice.devices:
        return [Row(GROUP, "telemetry", False, f"no GPU is told of ({choice.words})")]
    words = f"by {choice.source}"
    if choice.why_not:
        words += " (" + "; ".join(f"{name}: {why}" for name, why in choice.why_not.items()) + ")"
    rows = [Row(GROUP, "telemetry", True, words)]
    try:
        samples = _samples(telemetry, choice)
    except TelemetryUnavailableError as error:
        return [*rows, Row(GROUP, "readings", False, str(error), "see the driver's log (dmesg)")]
    for device in choice.devices:
        own = {s.metric: s for s in samples if s.device in (device.uuid, device.board)}
        found = [row for check in CHECKS if (row := check(device, own)) is not None]
        many = len(choice.devices) > 1
        rows += [
            Row(r.group, f"{r.name} {device.index}" if many else r.name, r.found, r.words, r.brings) for r in found
        ]
    return rows


def readable(rows: list[Row]) -> bool:
    """Whether there is a GPU, and its telemetry can be read."""
    return all(row.found for row in rows if row.name in ("telemetry", "readings"))


def _samples(telemetry: Telemetry, choice: Choice) -> list[Sample]:
    if choice.source is TelemetrySource.NVML:
        return nvml_readings([d.uuid for d in choice.devices])
    if choice.source is TelemetrySource.DCGM:
        from harness.telemetry.dcgm import DcgmSampler

        return DcgmSampler(telemetry.dcgm_url, choice.devices).sample()
    from harness.telemetry.nvidia_smi import SmiSampler

    return SmiSampler(choice.devices).sample()


def _value(readings: Readings, metric: str) -> float | None:
    found = readings.get(metric)
    return found.value if found is not None else None


def _name(device: DeviceInfo, readings: Readings) -> Row:
    driver = f", driver {device.driver}" if device.driver else ""
    mig = ", MIG" if device.parent or device.mig else ""
    return Row(GROUP, "board", True, f"{device.name}{mig}, {device.uuid}{driver}")


def _bandwidth(device: DeviceInfo, readings: Readings) -> Row:
    found = readings.get("gpu.dram_active")
    if found is not None and found.value is not None:
        return Row(GROUP, "bandwidth", True, "memory bandwidth is counted")
    why = found.reason if found is not None and found.reason else "no source tells it"
    words = f"memory bandwidth is not counted: {why}; it is estimated from the model instead"
    return Row(GROUP, "bandwidth", False, words, "Hopper or newer tells it by itself; before it, run the DCGM exporter")


def _persistence(device: DeviceInfo, readings: Readings) -> Row | None:
    if device.persistence is None:
        return None
    if device.persistence:
        return Row(GROUP, "persistence", True, "the driver stays loaded")
    words = "off: the driver is loaded anew for each process, which slows starts and loses settings"
    return Row(GROUP, "persistence", False, words, f"sudo nvidia-smi -i {device.board} -pm 1")


def _clocks(device: DeviceInfo, readings: Readings) -> Row | None:
    sm, memory = _value(readings, "gpu.sm_clock_mhz"), _value(readings, "gpu.memory_clock_mhz")
    if sm is None or memory is None:
        return None
    words = f"SM {sm:.0f} of {device.sm_clock_max_mhz or '?'} MHz, memory {memory:.0f} of {device.memory_clock_max_mhz or '?'} MHz"
    bits = int(_value(readings, "gpu.clock_event_reasons") or 0)
    held = [name for bit, name in EVENT_BITS if bits & bit]
    if held:
        words += f" ({', '.join(held)})"
    slow = bool(_SLOW & set(held))
    return Row(
        GROUP,
        "clocks",
        not slow,
        words,
        "look at cooling and power supply: nvidia-smi -q -d PERFORMANCE" if slow else None,
    )


def _power(device: DeviceInfo, readings: Readings) -> Row | None:
    limit, default = device.power_limit_w, device.power_default_w
    if limit is None:
        return None
    low = default is not None and limit < default
    words = f"limit {limit:.0f} W" + (f", by default {default:.0f} W" if default is not None else "")
    return Row(
        GROUP, "power limit", not low, words, f"sudo nvidia-smi -i {device.board} -pl {default:.0f}" if low else None
    )


def _ecc(device: DeviceInfo, readings: Readings) -> Row | None:
    if device.ecc is None:
        return None
    errors = device.ecc_uncorrected or 0
    words = f"{'on' if device.ecc else 'off'}, {errors} uncorrected errors since the driver was loaded"
    return Row(
        GROUP,
        "ECC",
        not errors,
        words,
        f"sudo nvidia-smi -i {device.board} -r (resets the GPU), or replace it" if errors else None,
    )


def _others(device: DeviceInfo, readings: Readings) -> Row | None:
    used, n = _value(readings, "gpu.memory_used_bytes"), _value(readings, "gpu.processes")
    if used is None and n is None:
        return None
    busy = _value(readings, "gpu.busy")
    parts = [f"{n:.0f} processes"] if n is not None else []
    parts += [f"{size(int(used))} of memory in use"] if used is not None else []
    parts += [f"busy {busy:.0%}"] if busy is not None else []
    empty = not n and (used or 0) <= OCCUPIED_BYTES and (busy or 0) <= _IDLE_BUSY
    brings = None if empty else "stop what uses it: nvidia-smi shows the processes"
    return Row(GROUP, "in use", empty, ", ".join(parts), brings)


def _temperature(device: DeviceInfo, readings: Readings) -> Row | None:
    """A cold board is no fault, but its first minutes are not like the rest: it has to soak before what counts."""
    degrees = _value(readings, "gpu.temperature_c")
    if degrees is None:
        return None
    if degrees >= _HOT_C:
        words = f"{degrees:.0f} C at rest: under load heat will hold the clocks down"
        return Row(GROUP, "temperature", False, words, "let it cool, and look at fans, airflow and the room")
    if degrees >= _SOAKED_C:
        return Row(GROUP, "temperature", True, f"{degrees:.0f} C: warm, as it will be under load")
    words = f"{degrees:.0f} C: cold, so the first minutes of load run at higher clocks than the rest"
    soak = "let it soak under load before what counts (the first block, or a sweep to throw away), or lock the SM clock at what it holds"
    return Row(GROUP, "temperature", None, words, f"{soak}: sudo nvidia-smi -i {device.board} -lgc MHZ")


CHECKS: tuple[Check, ...] = (_name, _bandwidth, _persistence, _clocks, _power, _ecc, _others, _temperature)
