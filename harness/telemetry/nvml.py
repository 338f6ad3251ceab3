"""The NVML sampler: every group of metrics probed once a device, then read at its own pace; what cannot be read is null
with the reason, and never stops the rest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from harness.telemetry.devices import DeviceInfo
from harness.telemetry.nvml_calls import LOST, SHAKY, Calls, NvmlError, Running, open_nvml
from harness.telemetry.nvml_devices import list_devices
from harness.telemetry.nvml_gpm import METRIC_NAMES, Gpm
from harness.telemetry.nvml_metrics import GROUPS, SECOND, Group, Target, refused_for_good
from harness.telemetry.sample import Sample
from harness.telemetry.settings import TelemetryUnavailableError
from results.clock import NS_PER_S, now_ns

# So many refusals in a row that may pass, and the device is given up.
_SHAKY_TRIES = 5


@dataclass(slots=True)
class _Device:
    target: Target
    gpm: Gpm
    # The reason for each group that will never answer here.
    refused: dict[int, str] = field(default_factory=dict)
    due: dict[int, int] = field(default_factory=dict)
    absent_due: int = 0
    last_good: int = 0
    shaky: int = 0
    # (metric, reason): the device is gone, or its telemetry is.
    ended: tuple[str, str] | None = None


class NvmlSampler:
    """Samples some devices. Not for several threads; `running` may be read by any."""

    source = "nvml"

    def __init__(
        self,
        uuids: Sequence[str],
        server_pids: Callable[[], Collection[int] | None] = lambda: None,
        calls: Calls | None = None,
    ) -> None:
        """Raises TelemetryUnavailableError when NVML does not start or a device is not there."""
        self._calls = calls or open_nvml()
        known = {info.uuid: info for info in list_devices(self._calls)}
        if missing := [uuid for uuid in uuids if uuid not in known]:
            raise TelemetryUnavailableError(f"NVML does not show {', '.join(missing)}")
        self._devices = [self._open(known[uuid], server_pids) for uuid in uuids]

    def _open(self, info: DeviceInfo, server_pids: Callable[[], Collection[int] | None]) -> _Device:
        try:
            handle = self._calls("DeviceGetHandleByUUID", info.uuid)
            board = handle if info.parent is None else self._calls("DeviceGetHandleByUUID", info.parent)
        except NvmlError as error:
            raise TelemetryUnavailableError(error.words) from None
        target = Target(info, handle, board, server_pids)
        return _Device(target, Gpm(self._calls, target), last_good=now_ns())

    @property
    def running(self) -> Running | None:
        """The call that is under way, for a watchdog."""
        return self._calls.running

    @property
    def uuids(self) -> list[str]:
        return [device.target.info.uuid for device in self._devices]

    def sample(self) -> list[Sample]:
        """What is due now of every device. Stamps are taken after each call."""
        return [sample for device in self._devices for sample in self._one(device)]

    def _one(self, device: _Device) -> list[Sample]:
        out: list[Sample] = []
        try:
            for index, group in enumerate(GROUPS):
                if device.ended is None and index not in device.refused and now_ns() >= device.due.get(index, 0):
                    device.due[index] = now_ns() + int(group.every_s * NS_PER_S)
                    out += self._group(device, index, group)
            if device.ended is None and device.gpm.absent is None:
                out += self._gpm(device)
        except _EndedError as end:
            device.ended = (end.metric, end.reason)
        if device.ended is not None:
            metric, reason = device.ended
            # From the last good reading on, nothing is known of the device.
            uuid, t = device.target.info.uuid, now_ns()
            out.append(Sample(self.source, metric, device.last_good, t, 1.0, reason, uuid))
            # A reading that began now: who waits for one must not wait for the device that is gone.
            out.append(Sample(self.source, "gpu.alive", t, t, None, reason, uuid))
            return out
        if now_ns() >= device.absent_due:
            device.absent_due = now_ns() + int(SECOND * NS_PER_S)
            out += self._absent(device)
        return out

    def _group(self, device: _Device, index: int, group: Group) -> list[Sample]:
        uuid = _owner(device, group)
        try:
            readings = group.read(self._calls, device.target)
        except NvmlError as error:
            self._judge(device, error)
            if why := refused_for_good(error, device.target.info):
                device.refused[index] = why
                device.absent_due = 0
                return []
            t = now_ns()
            return [Sample(self.source, metric, t, t, None, error.words, uuid) for metric in group.metrics]
        t = device.last_good = now_ns()
        device.shaky = 0
        return [
            Sample(self.source, metric, t - int(r.over_s * NS_PER_S), t, r.value, r.reason, uuid)
            for metric, r in readings.items()
        ]

    def _gpm(self, device: _Device) -> list[Sample]:
        try:
            found = device.gpm.sample(self.source)
            if found:
                device.last_good, device.shaky = now_ns(), 0
            return found
        except NvmlError as error:
            self._judge(device, error)
            if why := refused_for_good(error, device.target.info):
                device.gpm.absent, device.absent_due = why, 0
                return []
            t = now_ns()
            return [Sample(self.source, m, t, t, None, error.words, device.target.info.uuid) for m in METRIC_NAMES]

    def _judge(self, device: _Device, error: NvmlError) -> None:
        """End the device where the error says that it is gone."""
        if error.code in LOST:
            raise _EndedError("gpu.lost", error.words)
        if error.code in SHAKY:
            device.shaky += 1
            if device.shaky >= _SHAKY_TRIES:
                raise _EndedError("gpu.telemetry_lost", f"{error.words}, {device.shaky} times in a row")

    def _absent(self, device: _Device) -> list[Sample]:
        """A null for everything that is never read here, so that each cell has the reason in its samples."""
        t = now_ns()
        out = [
            Sample(self.source, metric, t, t, None, why, _owner(device, GROUPS[index]))
            for index, why in device.refused.items()
            for metric in GROUPS[index].metrics
        ]
        if device.gpm.absent is not None:
            uuid = device.target.info.uuid
            out += [Sample(self.source, metric, t, t, None, device.gpm.absent, uuid) for metric in METRIC_NAMES]
        return out


class _EndedError(Exception):
    def __init__(self, metric: str, reason: str) -> None:
        self.metric, self.reason = metric, reason


def _owner(device: _Device, group: Group) -> str:
    """Whose value it is: what belongs to a whole board is not an instance's."""
    info = device.target.info
    return info.board if group.board else info.uuid
