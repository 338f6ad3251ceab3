"""Who is asked about the device: the exporter, NVML, nvidia-smi, or nobody, and why not the others."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from backends.devices import DeviceProbe, NoDevices
from backends.http_probe import ServerURL
from harness.telemetry.dcgm import dcgm_devices
from harness.telemetry.device_child import DeviceMemory, nvml_devices
from harness.telemetry.devices import DeviceInfo, Selection, chosen_devices, visible_devices
from harness.telemetry.nvidia_smi import smi_devices
from harness.telemetry.settings import NoTelemetryError, Telemetry, TelemetrySource, TelemetryUnavailableError

ORDER = (TelemetrySource.DCGM, TelemetrySource.NVML, TelemetrySource.NVIDIA_SMI)
Look = Callable[[Telemetry], list[DeviceInfo]]


@dataclass(frozen=True, slots=True)
class Choice:
    """`source` is `none` where nobody answered; `why_not` holds the reason of each that was tried before."""

    source: TelemetrySource
    devices: tuple[DeviceInfo, ...] = ()
    why_not: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Why there is no telemetry, in one line."""
        if "none" in self.why_not:
            return self.why_not["none"]
        return "; ".join(f"{name}: {why}" for name, why in self.why_not.items())


def _nvml(telemetry: Telemetry) -> list[DeviceInfo]:
    if not _library_there():
        raise TelemetryUnavailableError("no libnvidia-ml.so.1 on this machine")
    return nvml_devices()


def _library_there() -> bool:
    """A look that costs nothing where there is no driver."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


_LOOKS: dict[TelemetrySource, Look] = {
    TelemetrySource.DCGM: lambda telemetry: dcgm_devices(telemetry.dcgm_url),
    TelemetrySource.NVML: _nvml,
    TelemetrySource.NVIDIA_SMI: lambda telemetry: smi_devices(),
}


def choose(telemetry: Telemetry, looks: Mapping[TelemetrySource, Look] = _LOOKS) -> Choice:
    """The first source that answers, of all or of the one that was asked for.

    Raises NoTelemetryError where telemetry is required and there is none.
    """
    why_not: dict[str, str] = {}
    if telemetry.off:
        why_not["none"] = "telemetry was turned off"
    else:
        wanted = ORDER if telemetry.source is TelemetrySource.AUTO else (telemetry.source,)
        for source in wanted:
            try:
                return Choice(source, tuple(looks[source](telemetry)), why_not)
            except TelemetryUnavailableError as error:
                why_not[str(source)] = str(error)
    choice = Choice(TelemetrySource.NONE, (), why_not)
    if telemetry.required:
        raise NoTelemetryError(
            f"Device telemetry is required and there is none: {choice.words}. Mend one of these, or leave --require-telemetry out."
        )
    return choice


@dataclass(frozen=True, slots=True)
class SessionTelemetry:
    """What one session samples: the devices its server sees, and their memory for the supervisor."""

    choice: Choice
    telemetry: Telemetry
    selection: Selection
    memory: DeviceMemory | None = None

    @property
    def probe(self) -> DeviceProbe:
        return self.memory or NoDevices()

    def record(self) -> dict[str, Any]:
        """As it stands in session.json."""
        return {
            "source": str(self.choice.source),
            "asked": str(self.telemetry.source),
            "why_not": dict(self.choice.why_not),
            "interval_s": self.telemetry.interval_s,
            "chosen": bool(self.telemetry.devices),
            "devices": [device.to_dict() for device in self.selection.devices],
            "warnings": list(self.selection.warnings),
            "interval_warning": self.telemetry.warning,
            "baseline_bytes": self.memory.first if self.memory else None,
        }


def session_telemetry(
    telemetry: Telemetry, env: Mapping[str, str], url: str | None = None, choice: Choice | None = None
) -> SessionTelemetry:
    """Choose again (a device may have gone since the run began), and take the devices the server sees.

    `env` is the engine's own environment beside ours; `url` is that of a server that somebody else started. Of such a one
    nothing is known: all devices of its machine are sampled, and the record says so. Raises UsageError (a device named
    twice) and NoTelemetryError.
    """
    choice = choice or (choose(telemetry) if url is None else _choose_for(telemetry, url))
    launched = url is None
    if telemetry.devices:
        selection = chosen_devices(telemetry.devices, choice.devices) if choice.devices else Selection(())
    elif launched:
        seen = {**os.environ, **env}
        selection = visible_devices(seen.get("CUDA_VISIBLE_DEVICES"), choice.devices, seen.get("CUDA_DEVICE_ORDER"))
    else:
        warning = "which devices the server uses is not known: all are sampled (telemetry.devices names some)"
        selection = visible_devices(None, choice.devices, "PCI_BUS_ID")
        selection = Selection(selection.devices, (*selection.warnings, warning)) if choice.devices else selection
    # An exporter's figures are too old for the supervisor, and nvidia-smi may be all there is.
    readable = launched and bool(selection.devices) and _library_there()
    memory = DeviceMemory(selection.uuids) if readable else None
    return SessionTelemetry(choice, telemetry, selection, memory)


def _choose_for(telemetry: Telemetry, url: str) -> Choice:
    """Devices of this machine say nothing of a server on another one; an exporter that was named there does."""
    if ServerURL.parse(url).is_loopback or telemetry.off:
        return choose(telemetry)
    exporter = telemetry.model_copy(update={"source": TelemetrySource.DCGM})
    if not ServerURL.parse(telemetry.dcgm_url).is_loopback and telemetry.source in (
        TelemetrySource.AUTO,
        TelemetrySource.DCGM,
    ):
        return choose(exporter)
    why = "the server is on another machine than the devices here (telemetry.dcgm_url may name an exporter there)"
    choice = Choice(TelemetrySource.NONE, (), {"none": why})
    if telemetry.required:
        raise NoTelemetryError(f"Device telemetry is required and there is none: {why}.")
    return choice
