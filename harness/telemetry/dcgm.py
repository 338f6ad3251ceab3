"""The DCGM exporter over HTTP: the source of memory bandwidth on data-centre boards before Hopper, where it is set up.

What it shows was collected some time before the answer (every 30 s by default): how often its values change is reported
with them, and nothing finer is claimed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from backends.http_probe import ProbeError, get
from backends.prometheus import parse_prometheus
from harness.telemetry.devices import DeviceInfo
from harness.telemetry.nvml_calls import Running
from harness.telemetry.sample import Sample
from harness.telemetry.settings import TelemetryUnavailableError
from results.clock import now_ns

PATH = "/metrics"
# An exporter collects no faster than 100 ms and mostly far slower; a page a tick would only be work.
LEAST_INTERVAL_S = 0.5
_PREFIX = "DCGM_FI_"
_MIB = float(1 << 20)
# DCGM's ways to say "blank" are numbers beyond anything it measures.
_BLANK = 1e14
# Boards whose plain power reading is of the instant; on newer ones it is the mean of a second.
_INSTANT_POWER = ("A100", "A30", "A800", "V100", "T4")


@dataclass(frozen=True, slots=True)
class Field:
    """Exporter names of one thing, the newest first; `unit`: what one of theirs is in ours; `most`: no value is above it."""

    metric: str
    names: tuple[str, ...]
    unit: float = 1.0
    most: float = _BLANK


FIELDS: tuple[Field, ...] = (
    Field("gpu.dram_active", ("DCGM_FI_PROF_DRAM_ACTIVE",), most=1.5),
    Field("gpu.sm_active", ("DCGM_FI_PROF_SM_ACTIVE",), most=1.5),
    Field("gpu.sm_occupancy", ("DCGM_FI_PROF_SM_OCCUPANCY",), most=1.5),
    Field("gpu.tensor_active", ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",), most=1.5),
    Field("gpu.pcie_tx_bytes_per_s", ("DCGM_FI_PROF_PCIE_TX_BYTES",)),
    Field("gpu.pcie_rx_bytes_per_s", ("DCGM_FI_PROF_PCIE_RX_BYTES",)),
    Field("gpu.memory_used_bytes", ("DCGM_FI_DEV_FB_USED",), _MIB),
    Field("gpu.memory_reserved_bytes", ("DCGM_FI_DEV_FB_RESERVED",), _MIB),
    Field("gpu.power_w", ("DCGM_FI_DEV_POWER_USAGE",)),
    Field("gpu.energy_j", ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",), 1e-3, 1e18),
    Field("gpu.sm_clock_mhz", ("DCGM_FI_DEV_SM_CLOCK",)),
    Field("gpu.memory_clock_mhz", ("DCGM_FI_DEV_MEM_CLOCK",)),
    Field("gpu.clock_event_reasons", ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")),
    Field("gpu.temperature_c", ("DCGM_FI_DEV_GPU_TEMP",)),
    Field("gpu.busy", ("DCGM_FI_DEV_GPU_UTIL",), 0.01),
    Field("gpu.memory_busy", ("DCGM_FI_DEV_MEM_COPY_UTIL",), 0.01),
)
_NAMES = frozenset(name for field in FIELDS for name in field.names)

Values = dict[tuple[str, str], float]


def read_exporter(text: str) -> tuple[list[DeviceInfo], Values]:
    """Boards and {(UUID, exporter name): value} of an exporter's page; rows of MIG instances are left out."""
    boards: dict[str, DeviceInfo] = {}
    values: Values = {}
    for name, labels, value in parse_prometheus(text):
        uuid = labels.get("UUID") or labels.get("uuid")
        if not name.startswith(_PREFIX) or not uuid:
            continue
        gpu = labels.get("gpu", "")
        board = DeviceInfo(
            uuid=uuid,
            name=labels.get("modelName", "unknown"),
            index=int(gpu) if gpu.isdigit() else len(boards),
            pci=labels.get("pci_bus_id"),
            driver=labels.get("DCGM_FI_DRIVER_VERSION"),
            mig=True if labels.get("GPU_I_ID") else None,
        )
        if uuid not in boards or board.mig:
            boards[uuid] = board
        if name in _NAMES and not labels.get("GPU_I_ID"):
            values[(uuid, name)] = value
    return sorted(boards.values(), key=lambda b: b.index), values


def dcgm_devices(url: str, timeout_s: float = 1.0) -> list[DeviceInfo]:
    """The boards an exporter tells of. Raises TelemetryUnavailableError."""
    boards, _ = read_exporter(_page(url, timeout_s))
    if not boards:
        raise TelemetryUnavailableError(f"{url}{PATH} tells of no GPU (no {_PREFIX} metric with a UUID)")
    return boards


def _page(url: str, timeout_s: float) -> str:
    try:
        reply = get(url, PATH, timeout_s)
    except ProbeError as error:
        raise TelemetryUnavailableError(f"no exporter at {url} ({error.trouble})") from None
    if reply.status != 200:
        raise TelemetryUnavailableError(f"{url}{PATH} answered HTTP {reply.status}")
    return reply.text


class DcgmSampler:
    """Scrapes one exporter for some boards."""

    source = "dcgm"

    def __init__(self, url: str, devices: tuple[DeviceInfo, ...], timeout_s: float = 1.0) -> None:
        self._url, self._devices, self._timeout_s = url, devices, timeout_s

    @property
    def running(self) -> Running | None:
        """Every exchange has a time limit of its own."""
        return None

    def sample(self) -> list[Sample]:
        """One scrape, stamped when it was over."""
        try:
            boards, values = read_exporter(_page(self._url, self._timeout_s))
        except TelemetryUnavailableError as error:
            return self._absent(str(error))
        t = now_ns()
        divided = {board.uuid for board in boards if board.mig}
        return [sample for device in self._devices for sample in _of(device, values, divided, t)]

    def _absent(self, why: str) -> list[Sample]:
        t = now_ns()
        return [Sample(self.source, f.metric, t, t, None, why, d.board) for d in self._devices for f in FIELDS]


def _of(device: DeviceInfo, values: Values, divided: set[str], t: int) -> list[Sample]:
    out = []
    for field in FIELDS:
        metric = _power_metric(device.name) if field.metric == "gpu.power_w" else field.metric
        found = next((values[(device.board, name)] for name in field.names if (device.board, name) in values), None)
        why = None
        if found is None:
            why = f"not in the exporter's page ({field.names[0]})"
            if device.board in divided:
                why = "the exporter tells it for MIG instances only"
        elif not math.isfinite(found) or not 0 <= found < field.most:
            found, why = None, f"the exporter gave no value ({found:g})"
        out.append(Sample("dcgm", metric, t, t, None if found is None else found * field.unit, why, device.board))
    return out


def _power_metric(model: str) -> str:
    words = model.replace("-", " ").split()
    return "gpu.power_instant_w" if any(w in _INSTANT_POWER for w in words) else "gpu.power_average_w"
