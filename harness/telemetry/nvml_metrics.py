"""What NVML is asked: a table of groups, each read by one or two calls, with the older forms of the call behind the new."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from harness.telemetry.devices import DeviceInfo
from harness.telemetry.nvml_calls import Calls, NvmlError, cannot
from harness.telemetry.nvml_devices import memory_used

FAST, HALF, SECOND, RARE = 0.0, 0.5, 1.0, 10.0
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_TEMPERATURE_GPU = 0
_POWER_AVERAGE, _POWER_INSTANT = 185, 186
_PIDS_END = 1 << 31  # a driver of another form than the binding's can give any number
_MEAN_S = 1.0  # what the driver's means reach back over


@dataclass(frozen=True, slots=True)
class Reading:
    """A value, or None with the reason. `over_s`: the value is a mean over so many seconds before the call."""

    value: float | None
    reason: str | None = None
    over_s: float = 0.0


Readings = Mapping[str, Reading]


@dataclass(frozen=True, slots=True)
class Target:
    """One device as it is sampled: its own handle, and that of the board it is or lies on."""

    info: DeviceInfo
    handle: Any
    board: Any
    # The tree of the server that is being measured, by pid; None where it is not known.
    server_pids: Callable[[], Collection[int] | None] = lambda: None


@dataclass(frozen=True, slots=True)
class Group:
    """`board`: belongs to the whole board, also where an instance of it is sampled. `every_s`: read no more often."""

    metrics: tuple[str, ...]
    every_s: float
    board: bool
    read: Callable[[Calls, Target], Readings]


def _memory(calls: Calls, target: Target) -> Readings:
    used, total, reserved = memory_used(calls, target.handle, target.info.uuid)
    why = None if reserved is not None else "this driver counts its reserve as used"
    return {
        "gpu.memory_used_bytes": Reading(used),
        "gpu.memory_total_bytes": Reading(total),
        "gpu.memory_reserved_bytes": Reading(reserved, why),
    }


def _power(calls: Calls, target: Target) -> Readings:
    """Instant and 1 s mean by their own fields; the plain call means one or the other, by the kind of chip."""

    def fields() -> Readings:
        values = calls("DeviceGetFieldValues", target.board, [_POWER_INSTANT, _POWER_AVERAGE])
        read = [
            None if v.nvmlReturn else v.value.uiVal / 1000 for v in (values[0], values[1])
        ]  # the call as a whole succeeds when one field did
        if read == [None, None]:
            raise NvmlError("nvmlDeviceGetFieldValues", int(values[0].nvmlReturn))
        return _powers(read[0], read[1])

    def plain() -> Readings:
        watts = calls("DeviceGetPowerUsage", target.board) / 1000
        return _powers(None, watts) if _means_power(target.info) else _powers(watts, None)

    return calls.first("power", target.info.uuid, fields, plain)


def _powers(instant: float | None, average: float | None) -> Readings:
    no_instant = None if instant is not None else "this device tells only the mean of the last second"
    no_average = None if average is not None else "this device tells only the power of the instant"
    return {
        "gpu.power_instant_w": Reading(instant, no_instant),
        "gpu.power_average_w": Reading(average, no_average, _MEAN_S),
    }


def _means_power(info: DeviceInfo) -> bool:
    """Whether the plain power call gives a mean: Ampere and newer, but for the GA100 (compute capability 8.0)."""
    try:
        capability = float(info.compute_capability or "")
    except ValueError:
        return True
    return capability > 8.0


def _energy(calls: Calls, target: Target) -> Readings:
    return {"gpu.energy_j": Reading(calls("DeviceGetTotalEnergyConsumption", target.board) / 1000)}


def _sm_clock(calls: Calls, target: Target) -> Readings:
    return {"gpu.sm_clock_mhz": Reading(float(calls("DeviceGetClockInfo", target.board, _CLOCK_SM)))}


def _memory_clock(calls: Calls, target: Target) -> Readings:
    return {"gpu.memory_clock_mhz": Reading(float(calls("DeviceGetClockInfo", target.board, _CLOCK_MEMORY)))}


def _event_reasons(calls: Calls, target: Target) -> Readings:
    bits = calls.first(
        "clock event reasons",
        target.info.uuid,
        lambda: calls("DeviceGetCurrentClocksEventReasons", target.board),
        lambda: calls("DeviceGetCurrentClocksThrottleReasons", target.board),
    )
    return {"gpu.clock_event_reasons": Reading(float(bits))}


def _temperature(calls: Calls, target: Target) -> Readings:
    degrees = calls.first(
        "temperature",
        target.info.uuid,
        lambda: calls("DeviceGetTemperatureV", target.board, _TEMPERATURE_GPU),
        lambda: calls("DeviceGetTemperature", target.board, _TEMPERATURE_GPU),
    )
    return {"gpu.temperature_c": Reading(float(degrees))}


def _busy(calls: Calls, target: Target) -> Readings:
    """Shares of time in which a kernel ran, or memory was touched at all: never a bandwidth."""
    rates = calls("DeviceGetUtilizationRates", target.handle)
    return {
        "gpu.busy": Reading(rates.gpu / 100, over_s=_MEAN_S),
        "gpu.memory_busy": Reading(rates.memory / 100, over_s=_MEAN_S),
    }


def _processes(calls: Calls, target: Target) -> Readings:
    processes = calls.first(
        "processes",
        target.info.uuid,
        lambda: calls("DeviceGetComputeRunningProcesses", target.handle),
        lambda: calls("DeviceGetComputeRunningProcesses_v2", target.handle),
    )
    listed = [int(p.pid) for p in processes]
    server, foreign, why = told_apart(listed, target.server_pids())
    return {
        "gpu.processes": Reading(float(len(listed))),
        "gpu.processes_server": Reading(server, why),
        "gpu.processes_foreign": Reading(foreign, why),
    }


def told_apart(
    listed: Collection[int], server: Collection[int] | None
) -> tuple[float | None, float | None, str | None]:
    """(the server's, foreign, why neither is known) of the listed pids. The driver lists pids of the host, which in a
    container are not ours: then none of the server's is among them, and none need exist here."""
    if server is None:
        return None, None, "the server was not started by this run, so its processes are not known"
    own = [pid for pid in listed if pid in server]
    others = [pid for pid in listed if pid not in server]
    if others and not own and not all(pid < _PIDS_END and psutil.pid_exists(pid) for pid in others):
        return None, None, "the driver lists pids of the host, which cannot be told apart inside a container"
    return float(len(own)), float(len(others)), None


# Memory before everything that may fail late; the process list is the dearest call (milliseconds).
GROUPS: tuple[Group, ...] = (
    Group(("gpu.memory_used_bytes", "gpu.memory_total_bytes", "gpu.memory_reserved_bytes"), HALF, False, _memory),
    Group(("gpu.energy_j",), FAST, True, _energy),
    Group(("gpu.power_instant_w", "gpu.power_average_w"), FAST, True, _power),
    Group(("gpu.sm_clock_mhz",), HALF, True, _sm_clock),
    Group(("gpu.memory_clock_mhz",), HALF, True, _memory_clock),
    Group(("gpu.clock_event_reasons",), HALF, True, _event_reasons),
    Group(("gpu.busy", "gpu.memory_busy"), SECOND, False, _busy),
    Group(("gpu.temperature_c",), SECOND, True, _temperature),
    Group(("gpu.processes", "gpu.processes_server", "gpu.processes_foreign"), RARE, False, _processes),
)


def refused_for_good(error: NvmlError, info: DeviceInfo) -> str | None:
    """The reason to keep for a group that will never be readable here; None for a refusal that may pass."""
    if not cannot(error):
        return None
    note = "; the driver gives it for no MIG instance" if info.parent else ""
    return error.words + note
