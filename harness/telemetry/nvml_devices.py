"""The boards and MIG instances that NVML shows, with what stays the same over a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from harness.telemetry.devices import DeviceInfo
from harness.telemetry.nvml_calls import Calls, NvmlError, open_nvml
from harness.telemetry.settings import TelemetryUnavailableError

_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_UNCORRECTED, _VOLATILE = 1, 0


def list_devices(calls: Calls) -> list[DeviceInfo]:
    """Every board in NVML's order, each followed by its MIG instances. Raises TelemetryUnavailableError where no board can
    be opened (NVML starts without one, too)."""
    try:
        count = calls("DeviceGetCount")
    except NvmlError as error:
        raise TelemetryUnavailableError(error.words) from None
    found: list[DeviceInfo] = []
    refused: NvmlError | None = None
    for index in range(count):
        try:
            handle = calls("DeviceGetHandleByIndex", index)
            board = describe(calls, handle, index)
        except NvmlError as error:
            refused = error
            continue
        found += [board, *_instances(calls, handle, board)]
    if not found:
        raise TelemetryUnavailableError(refused.words if refused else "no GPU found (nvmlDeviceGetCount)")
    return found


def describe(calls: Calls, handle: Any, index: int) -> DeviceInfo:
    """A board's own facts; what it does not tell is None. Raises NvmlError without a UUID: it could not be named."""

    def maybe(name: str, *args: Any, of: Callable[[Any], Any] = lambda v: v) -> Any:
        try:
            return of(calls(name, *args))
        except NvmlError:
            return None

    watts = lambda milliwatts: milliwatts / 1000  # noqa: E731 - one expression, wanted twice below
    return DeviceInfo(
        uuid=calls("DeviceGetUUID", handle),
        name=maybe("DeviceGetName", handle) or "unknown",
        index=index,
        pci=maybe("DeviceGetPciInfo", handle, of=lambda p: _text(p.busId)),
        driver=maybe("SystemGetDriverVersion"),
        compute_capability=maybe("DeviceGetCudaComputeCapability", handle, of=lambda c: f"{c[0]}.{c[1]}"),
        memory_total_bytes=maybe("DeviceGetMemoryInfo", handle, of=lambda m: int(m.total)),
        memory_bus_bits=maybe("DeviceGetMemoryBusWidth", handle) or None,
        memory_clock_max_mhz=maybe("DeviceGetMaxClockInfo", handle, _CLOCK_MEMORY) or None,
        sm_clock_max_mhz=maybe("DeviceGetMaxClockInfo", handle, _CLOCK_SM) or None,
        power_limit_w=maybe("DeviceGetEnforcedPowerLimit", handle, of=watts),
        power_default_w=maybe("DeviceGetPowerManagementDefaultLimit", handle, of=watts),
        persistence=maybe("DeviceGetPersistenceMode", handle, of=bool),
        ecc=maybe("DeviceGetEccMode", handle, of=lambda modes: bool(modes[0])),
        ecc_uncorrected=maybe("DeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE),
        mig=maybe("DeviceGetMigMode", handle, of=lambda modes: bool(modes[0])),
    )


def _instances(calls: Calls, handle: Any, board: DeviceInfo) -> list[DeviceInfo]:
    if not board.mig:
        return []
    found = []
    for slot in range(_maximum(calls, handle)):
        try:
            instance = calls("DeviceGetMigDeviceHandleByIndex", handle, slot)
            uuid = calls("DeviceGetUUID", instance)
        except NvmlError:
            continue  # slots are numbered up to the maximum, and most are empty
        total = None
        with suppress(NvmlError):
            total = int(calls("DeviceGetMemoryInfo", instance).total)
        name = f"{board.name} MIG"
        found.append(replace(board, uuid=uuid, name=name, parent=board.uuid, memory_total_bytes=total))
    return found


def _maximum(calls: Calls, handle: Any) -> int:
    try:
        return int(calls("DeviceGetMaxMigDeviceCount", handle))
    except NvmlError:
        return 0


def memory_used(calls: Calls, handle: Any, uuid: str) -> tuple[float, float, float | None]:
    """(used, total, reserved) in bytes. The older call counts the driver's reserve as used: reserved is then None."""

    def newer() -> tuple[float, float, float | None]:
        info = calls("DeviceGetMemoryInfo", handle, calls.nvml.nvmlMemory_v2)
        return float(info.used), float(info.total), float(info.reserved)

    def older() -> tuple[float, float, float | None]:
        info = calls("DeviceGetMemoryInfo", handle)
        return float(info.used), float(info.total), None

    return calls.first("memory", uuid, newer, older)


def nvml_devices() -> list[DeviceInfo]:
    """Open NVML and list what it shows."""
    return list_devices(open_nvml())


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
