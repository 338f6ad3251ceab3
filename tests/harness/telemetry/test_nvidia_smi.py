"""nvidia-smi's words: missing values are null with what it said, never 0, and never the end of the rest."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from harness.telemetry.devices import DeviceInfo
from harness.telemetry.nvidia_smi import SmiSampler, info_of, parse_rows, query, read_value, samples_of, smi_devices
from harness.telemetry.settings import TelemetryUnavailableError

CAPTURE = Path(__file__).parents[2] / "data" / "nvidia_smi_h200_mig.txt"
UNIFIED = """timestamp, utilization.gpu [%], memory.used [MiB], temperature.gpu
2025/11/24 14:08:55.751, 0 %, [N/A], 38
2025/11/24 14:08:56.756, 2 %, [N/A], 38
2025/11/24 14:08:5"""


def section(name: str) -> str:
    """One section of the capture."""
    text = CAPTURE.read_text().split(f"# {name}", 1)[1].split("\n", 1)[1]
    return text.split("\n\n", 1)[0]


def test_a_board_in_mig_mode_gives_its_own_power_and_no_use() -> None:
    (row,) = parse_rows(section("load :: query-gpu"))
    found = {s.metric: s for s in samples_of(row, 5)}
    assert found["gpu.busy"].value is None
    assert found["gpu.busy"].reason == "nvidia-smi says [N/A]: the driver does not give it in MIG mode"
    assert (found["gpu.power_average_w"].value, found["gpu.power_instant_w"].value) == (295.01, 294.14)
    assert found["gpu.memory_used_bytes"].value == 16959 * 2**20
    assert found["gpu.sm_clock_mhz"].value == 1980
    assert found["gpu.memory_clock_mhz"].value == 3201
    assert found["gpu.clock_event_reasons"].value == 0
    assert {s.t1 for s in found.values()} == {5}
    info = info_of(row)
    assert (info.name, info.mig, info.power_limit_w) == ("NVIDIA H200", True, 700.0)


def test_of_an_instance_only_what_belongs_to_the_board_is_told_and_under_the_boards_name() -> None:
    (row,) = parse_rows(section("load :: query-gpu"))
    instance = DeviceInfo("MIG-1", "NVIDIA H200 MIG", 0, parent=row["uuid"])
    found = {s.metric: s for s in samples_of(row, 5, instance)}
    assert (found["gpu.power_average_w"].value, found["gpu.power_average_w"].device) == (295.01, row["uuid"])
    assert (found["gpu.memory_used_bytes"].value, found["gpu.memory_used_bytes"].device) == (None, "MIG-1")
    assert "whole board" in str(found["gpu.memory_used_bytes"].reason)


def test_unified_memory_is_null_while_the_rest_is_read_and_a_cut_line_is_left_out() -> None:
    rows = parse_rows(UNIFIED)
    assert len(rows) == 2
    found = {s.metric: s for s in samples_of(rows[1], 0)}
    assert (found["gpu.memory_used_bytes"].value, found["gpu.memory_used_bytes"].reason) == (
        None,
        "nvidia-smi says [N/A]",
    )
    assert (found["gpu.busy"].value, found["gpu.temperature_c"].value) == (0.02, 38)
    assert found["gpu.power_average_w"].reason == "this nvidia-smi has no field power.draw.average"


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("16959 MiB", "", 16959 * 2**20),
        ("16959", "MiB", 16959 * 2**20),
        ("295.01 W", "W", 295.01),
        ("97 %", "%", 0.97),
        ("0 %", "%", 0.0),
        ("0x0000000000000004", "", 4.0),
        ("[N/A]", "W", None),
        ("N/A", "W", None),
        ("[Not Supported]", "W", None),
        ("[Unknown Error]", "W", None),
        ("[GPU is lost]", "W", None),
        ("[Requested functionality has been deprecated]", "W", None),
        ("", "W", None),
        ("-", "%", None),
        ("1.2.3 W", "W", None),
        ("0xZZ", "", None),
    ],
)
def test_values_are_read_with_their_units_and_words_are_none(text: str, unit: str, value: float | None) -> None:
    found, why = read_value(text, unit)
    assert found == value
    assert (why is None) == (value is not None)


def program(folder: Path, script: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_an_old_program_is_asked_again_with_the_fields_it_knows(tmp_path: Path) -> None:
    script = (
        'case "$1" in *clocks_event_reasons*) echo "Field \\"clocks_event_reasons.active\\" is not a valid field to query."; '
        "exit 2;; esac\n"
        'echo "uuid, name, index, power.draw [W], clocks_throttle_reasons.active"\n'
        'echo "GPU-1, Tesla T4, 0, 12.50 W, 0x0000000000000001"'
    )
    asked = program(tmp_path, script)
    (device,) = smi_devices(asked)
    found = {s.metric: s.value for s in SmiSampler([device], asked).sample()}
    assert (device.uuid, found["gpu.power_average_w"], found["gpu.clock_event_reasons"]) == ("GPU-1", 12.5, 1.0)


def test_a_mismatch_of_driver_and_library_is_a_reason_in_its_own_words(tmp_path: Path) -> None:
    asked = program(tmp_path, "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    with pytest.raises(TelemetryUnavailableError, match="Driver/library version mismatch"):
        smi_devices(asked)
    samples = SmiSampler([DeviceInfo("GPU-1", "x", 0)], asked).sample()
    assert all(s.value is None and "mismatch" in str(s.reason) for s in samples)


def test_a_program_that_hangs_or_is_not_there_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(TelemetryUnavailableError, match="did not end within"):
        query(program(tmp_path, "exec sleep 30"), timeout_s=0.2)
    with pytest.raises(TelemetryUnavailableError, match="on PATH"):
        query(os.fspath(tmp_path / "none"))


def test_a_board_that_is_not_shown_any_more_is_lost(tmp_path: Path) -> None:
    asked = program(tmp_path, "echo 'uuid, name'; echo 'GPU-2, x'")
    (sample,) = SmiSampler([DeviceInfo("GPU-1", "x", 0)], asked).sample()
    assert (sample.metric, sample.value, sample.device) == ("gpu.lost", 1.0, "GPU-1")
