"""nvidia-smi as the last resort: a program a reading, so seldom, and without any bandwidth."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.telemetry.devices import DeviceInfo
from harness.telemetry.nvml_calls import Running
from harness.telemetry.sample import Sample
from harness.telemetry.settings import TelemetryUnavailableError
from results.clock import now_ns

PROGRAM = "nvidia-smi"
LEAST_INTERVAL_S = 1.0
_TIMEOUT_S = 5.0
_MIB = float(1 << 20)
_UNITS = {"": 1.0, "MiB": _MIB, "W": 1.0, "MHz": 1.0, "%": 0.01, "C": 1.0}
_NUMBER = re.compile(r"(-?[0-9.]+)(?: *(MiB|W|MHz|%|C))?$")


@dataclass(frozen=True, slots=True)
class Column:
    """A field of --query-gpu, newer name first, and the metric it is. `unit`: of bare numbers."""

    metric: str
    fields: tuple[str, ...]
    unit: str = ""


COLUMNS: tuple[Column, ...] = (
    Column("gpu.memory_used_bytes", ("memory.used",), "MiB"),
    Column("gpu.memory_total_bytes", ("memory.total",), "MiB"),
    Column("gpu.memory_reserved_bytes", ("memory.reserved",), "MiB"),
    Column("gpu.power_instant_w", ("power.draw.instant",), "W"),
    Column("gpu.power_average_w", ("power.draw.average", "power.draw"), "W"),
    Column("gpu.sm_clock_mhz", ("clocks.current.sm", "clocks.sm"), "MHz"),
    Column("gpu.memory_clock_mhz", ("clocks.current.memory", "clocks.mem"), "MHz"),
    Column("gpu.clock_event_reasons", ("clocks_event_reasons.active", "clocks_throttle_reasons.active")),
    Column("gpu.temperature_c", ("temperature.gpu",), "C"),
    Column("gpu.busy", ("utilization.gpu",), "%"),
    Column("gpu.memory_busy", ("utilization.memory",), "%"),
)
# Of the whole board, also where an instance of it is used.
_OF_BOARD = frozenset({"gpu.power_instant_w", "gpu.power_average_w", "gpu.temperature_c"})
_ABOUT = ("uuid", "name", "index", "pci.bus_id", "driver_version", "mig.mode.current", "power.limit", "memory.total")
_NEW = tuple(dict.fromkeys([*_ABOUT, *(c.fields[0] for c in COLUMNS)]))
_OLD = tuple(dict.fromkeys([*_ABOUT, *(c.fields[-1] for c in COLUMNS if c.metric != "gpu.power_instant_w")]))

Row = Mapping[str, str]


def parse_rows(text: str) -> list[dict[str, str]]:
    """The rows of `--format=csv` by field name, units in the header taken off. A last line that was cut is left out."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return []
    names = [name.strip().split(" [")[0] for name in next(csv.reader([lines[0]]))]
    rows = []
    for line in lines[1:]:
        cells = [cell.strip() for cell in next(csv.reader([line]))]
        if len(cells) == len(names):
            rows.append(dict(zip(names, cells, strict=True)))
    return rows


def read_value(text: str, unit: str = "") -> tuple[float | None, str | None]:
    """(value in our unit, why there is none). A bracketed word, `N/A` and the like are no numbers, and never 0."""
    word = text.strip()
    if word.lower().startswith("0x"):
        try:
            return float(int(word, 16)), None
        except ValueError:
            return None, f"nvidia-smi says {word!r}"
    match = _NUMBER.match(word)
    try:
        value = float(match[1]) if match else None
    except ValueError:
        value = None
    if match is None or value is None:
        return None, f"nvidia-smi says {word or 'nothing'}"
    return value * _UNITS[match[2] or unit], None


def samples_of(row: Row, t: int, device: DeviceInfo | None = None) -> list[Sample]:
    """The samples in one row. A board divided by MIG gives its power as the whole board's, and no use."""
    uuid = row.get("uuid")
    instance = device.uuid if device is not None and device.parent else None
    out = []
    for column in COLUMNS:
        name = next((n for n in column.fields if n in row), None)
        value: float | None = None
        why: str | None = f"this nvidia-smi has no field {column.fields[0]}"
        if name is not None:
            value, why = read_value(row[name], column.unit)
        if value is None and row.get("mig.mode.current") == "Enabled":
            why = f"{why}: the driver does not give it in MIG mode"
        owner = uuid
        if instance is not None and column.metric not in _OF_BOARD:
            owner = instance
            if value is not None:
                value, why = None, "nvidia-smi tells it of the whole board, not of a MIG instance"
        out.append(Sample("nvidia-smi", column.metric, t, t, value, why, owner))
    return out


def query(program: str = PROGRAM, timeout_s: float = _TIMEOUT_S) -> list[dict[str, str]]:
    """One run of nvidia-smi; an older one that does not know the newer fields is asked again for the older.

    Raises TelemetryUnavailableError: not there, does not end, ends with an error.
    """
    if shutil.which(program) is None:
        raise TelemetryUnavailableError(f"no {program} on PATH")
    said = ""
    for fields in (_NEW, _OLD):
        try:
            done = subprocess.run(
                [program, f"--query-gpu={','.join(fields)}", "--format=csv"],
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TelemetryUnavailableError(f"{program} did not end within {timeout_s:g} s") from None
        except OSError as error:
            raise TelemetryUnavailableError(f"{program} cannot be executed: {error.strerror or error}") from None
        if done.returncode == 0:
            return parse_rows(done.stdout)
        said = (done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}").splitlines()[0]
        if "not a valid field" not in done.stdout + done.stderr:
            break
    raise TelemetryUnavailableError(f"{program}: {said}")


def smi_devices(program: str = PROGRAM, timeout_s: float = _TIMEOUT_S) -> list[DeviceInfo]:
    """The boards that nvidia-smi shows. Raises TelemetryUnavailableError."""
    found = [info_of(row) for row in query(program, timeout_s) if row.get("uuid", "").startswith("GPU-")]
    if not found:
        raise TelemetryUnavailableError(f"{program} shows no GPU")
    return found


def info_of(row: Row) -> DeviceInfo:
    """A board's facts from its row."""
    total, _ = read_value(row.get("memory.total", ""), "MiB")
    limit, _ = read_value(row.get("power.limit", ""), "W")
    index = row.get("index", "")
    return DeviceInfo(
        uuid=row.get("uuid", ""),
        name=row.get("name", "unknown"),
        index=int(index) if index.isdigit() else 0,
        pci=row.get("pci.bus_id"),
        driver=row.get("driver_version"),
        memory_total_bytes=None if total is None else int(total),
        power_limit_w=limit,
        mig={"Enabled": True, "Disabled": False}.get(row.get("mig.mode.current", "")),
    )


class SmiSampler:
    """Runs nvidia-smi once a reading for some devices."""

    source = "nvidia-smi"

    def __init__(self, devices: Sequence[DeviceInfo], program: str = PROGRAM) -> None:
        self._devices, self._program = devices, program

    @property
    def running(self) -> Running | None:
        """Every run has a time limit of its own."""
        return None

    def sample(self) -> list[Sample]:
        """One run, stamped when it was over."""
        try:
            rows = {row.get("uuid"): row for row in query(self._program)}
        except TelemetryUnavailableError as error:
            return self._absent(str(error))
        t = now_ns()
        out = []
        for device in self._devices:
            row = rows.get(device.board)
            if row is None:
                out += [Sample(self.source, "gpu.lost", t, t, 1.0, "nvidia-smi does not show it any more", device.uuid)]
            else:
                out += samples_of(row, t, device)
        return out

    def _absent(self, why: str) -> list[Sample]:
        t = now_ns()
        return [Sample(self.source, c.metric, t, t, None, why, d.board) for d in self._devices for c in COLUMNS]
