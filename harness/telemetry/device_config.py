"""What the sampling child is told of the device, and the thread it makes of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from harness.telemetry.choose import SessionTelemetry
from harness.telemetry.device_loop import DeviceSampler, DeviceThread, Write
from harness.telemetry.devices import DeviceInfo
from harness.telemetry.settings import TelemetrySource


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """JSON both ways. `devices` in the server's order."""

    source: str
    interval_s: float
    devices: tuple[DeviceInfo, ...]
    dcgm_url: str = ""

    @classmethod
    def of(cls, session: SessionTelemetry) -> DeviceConfig | None:
        """None where nothing is to be sampled."""
        if session.choice.source is TelemetrySource.NONE or not session.selection.devices:
            return None
        telemetry = session.telemetry
        return cls(str(session.choice.source), telemetry.interval_s, session.selection.devices, telemetry.dcgm_url)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DeviceConfig:
        devices = tuple(DeviceInfo.from_dict(item) for item in data["devices"])
        return cls(**{**data, "devices": devices})


def device_thread(config: DeviceConfig, root_pid: int | None, write: Write) -> DeviceThread:
    """The thread that samples as configured, not started yet. The modules of a source load only where it is used."""

    def open_sampler() -> DeviceSampler:
        if config.source == TelemetrySource.NVML:
            from harness.telemetry.nvml import NvmlSampler

            return NvmlSampler([d.uuid for d in config.devices], tree_of(root_pid))
        if config.source == TelemetrySource.DCGM:
            from harness.telemetry.dcgm import DcgmSampler

            return DcgmSampler(config.dcgm_url, config.devices)
        from harness.telemetry.nvidia_smi import SmiSampler

        return SmiSampler(config.devices)

    interval_s = max(config.interval_s, _least_interval(config.source))
    return DeviceThread(open_sampler, config.source, interval_s, write)


def _least_interval(source: str) -> float:
    if source == TelemetrySource.NVIDIA_SMI:
        from harness.telemetry.nvidia_smi import LEAST_INTERVAL_S

        return LEAST_INTERVAL_S
    if source == TelemetrySource.DCGM:
        from harness.telemetry import dcgm

        return dcgm.LEAST_INTERVAL_S
    return 0.0


def tree_of(root_pid: int | None) -> Callable[[], Collection[int] | None]:
    """The pids of a server's tree when asked; None for a server that is not ours."""

    def pids() -> Collection[int] | None:
        if root_pid is None:
            return None
        try:
            root = psutil.Process(root_pid)
            return {root_pid, *(child.pid for child in root.children(recursive=True))}
        except psutil.Error:
            return {root_pid}

    return pids
