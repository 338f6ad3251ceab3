"""The NVML sampler through the real binding, over a stand-in library that plays a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from tests.nvml.stub import BOARD, GIB, Script, Stub

# Rounds of readings, `gap` seconds apart, as rows of the samples table.
SAMPLE = """
import time
from harness.telemetry.nvml import NvmlSampler
sampler = NvmlSampler({uuids!r})
out = []
for turn in range({rounds}):
    if turn:
        time.sleep({gap})
    out.append([sample.row() for sample in sampler.sample()])
"""


@dataclass
class Row:
    source: str
    metric: str
    device: str
    t0: int
    t1: int
    value: float | None
    reason: str | None


def rounds(
    stub: Stub,
    script: Script,
    count: int = 2,
    gap: float = 0.21,
    missing: Sequence[str] = (),
    uuids: Sequence[str] = (BOARD,),
) -> list[list[Row]]:
    """The readings of each round."""
    code = SAMPLE.format(uuids=list(uuids), rounds=count, gap=gap)
    found: list[list[list[Any]]] = stub.run(script, code, missing)
    return [[Row(*row) for row in one] for one in found]


def by_metric(rows: Sequence[Row]) -> dict[str, Row]:
    return {row.metric: row for row in rows}


def everything(found: Sequence[Sequence[Row]]) -> dict[str, Row]:
    """The last row of each metric over all rounds."""
    return by_metric([row for one in found for row in one])


def test_everything_a_new_driver_tells_is_read_in_our_units(stub: Stub) -> None:
    found = everything(rounds(stub, Script().board()))
    assert {metric: row.value for metric, row in found.items()} == {
        "gpu.memory_used_bytes": 20 * GIB,
        "gpu.memory_total_bytes": 141 * GIB,
        "gpu.memory_reserved_bytes": GIB // 2,
        "gpu.energy_j": 1000.0,
        "gpu.power_instant_w": 400.0,
        "gpu.power_average_w": 390.0,
        "gpu.sm_clock_mhz": 1980.0,
        "gpu.memory_clock_mhz": 3201.0,
        "gpu.clock_event_reasons": 0.0,
        "gpu.busy": 0.97,
        "gpu.memory_busy": 0.6,
        "gpu.temperature_c": 41.0,
        "gpu.processes": 0.0,
        "gpu.processes_server": None,
        "gpu.processes_foreign": None,
        "gpu.dram_active": pytest.approx(0.5),
        "gpu.sm_active": pytest.approx(0.9),
        "gpu.sm_occupancy": pytest.approx(0.3),
        "gpu.tensor_active": pytest.approx(0.2),
        "gpu.pcie_tx_bytes_per_s": pytest.approx(100 * 2**20),
        "gpu.pcie_rx_bytes_per_s": pytest.approx(200 * 2**20),
    }
    assert {row.device for row in found.values()} == {BOARD}
    assert found["gpu.power_average_w"].t1 - found["gpu.power_average_w"].t0 == 10**9
    assert found["gpu.power_instant_w"].t1 == found["gpu.power_instant_w"].t0


def test_an_old_driver_is_asked_by_the_older_calls(stub: Stub) -> None:
    newer = [
        *("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetFieldValues", "nvmlDeviceGetTemperatureV"),
        *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetComputeRunningProcesses_v3"),
        *("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc"),
    ]
    found = everything(rounds(stub, Script().board(), missing=newer))
    assert found["gpu.memory_used_bytes"].value == 20 * GIB + GIB // 2
    assert found["gpu.memory_reserved_bytes"].reason == "this driver counts its reserve as used"
    assert (found["gpu.clock_event_reasons"].value, found["gpu.temperature_c"].value) == (0, 41)
    assert found["gpu.power_average_w"].value == 390
    assert found["gpu.processes"].value is None
    assert "too old" in str(found["gpu.dram_active"].reason)
    assert found["gpu.energy_j"].value == 1000


def test_a_struct_of_another_version_falls_back_to_the_older_call(stub: Stub) -> None:
    found = everything(rounds(stub, Script().board().say("code nvmlDeviceGetMemoryInfo_v2 25"), count=1))
    assert found["gpu.memory_used_bytes"].value == 20 * GIB + GIB // 2


def test_one_query_that_is_not_supported_ends_no_other(stub: Stub) -> None:
    script = Script().board(without=["power.instant", "power.average", "power.usage"])
    found = everything(rounds(stub, script.say("code nvmlDeviceGetClockInfo 4")))
    assert found["gpu.power_instant_w"].value is found["gpu.power_average_w"].value is None
    assert found["gpu.power_average_w"].reason == "not supported by this device (nvmlDeviceGetPowerUsage)"
    assert found["gpu.sm_clock_mhz"].reason == "no permission (nvmlDeviceGetClockInfo)"
    assert (found["gpu.temperature_c"].value, found["gpu.busy"].value) == (41, 0.97)
    assert found["gpu.energy_j"].value == 1000


def test_a_refused_query_is_asked_once_and_its_reason_is_repeated(stub: Stub) -> None:
    # Later the call would succeed; a sampler that asks at each tick would find out.
    script = Script().board().say("code nvmlDeviceGetTotalEnergyConsumption 3 for 1")
    found = rounds(stub, script, count=2, gap=1.05)
    energy = [row for one in found for row in one if row.metric == "gpu.energy_j"]
    assert len(energy) == 2, "in each second's null rows"
    assert {row.value for row in energy} == {None}


@pytest.mark.parametrize(("capability", "instant"), [(7.0, True), (8.0, True), (8.6, False), (9.0, False)])
def test_the_plain_power_call_means_the_instant_or_a_second_by_the_chip(
    stub: Stub, capability: float, instant: bool
) -> None:
    script = Script().board(without=["power.instant", "power.average"], changes={"capability": capability})
    found = everything(rounds(stub, script, count=1))
    known, unknown = "gpu.power_instant_w", "gpu.power_average_w"
    if not instant:
        known, unknown = unknown, known
    assert (found[known].value, found[unknown].value) == (390, None)
    assert found[unknown].reason


def test_gpm_means_tile_the_time_and_a_metric_has_a_code_of_its_own(stub: Stub) -> None:
    script = Script().board(without=["gpm.3"], changes={"gpm.5": "nan"}).say("gpmcode 20 4")
    found = rounds(stub, script, count=4)
    dram = [row for one in found for row in one if row.metric == "gpu.dram_active"]
    assert len(dram) == 3
    assert all(a.t1 == b.t0 for a, b in pairwise(dram))
    last = everything(found)
    assert last["gpu.tensor_active"].reason == "GPM gave no number"
    assert last["gpu.sm_occupancy"].reason == "not supported by this device (nvmlGpmMetricsGet)"
    assert last["gpu.pcie_tx_bytes_per_s"].reason == "no permission (nvmlGpmMetricsGet)"
    assert last["gpu.dram_active"].value == pytest.approx(0.5)


def test_gpm_samples_are_never_closer_than_the_counters_can_tell(stub: Stub) -> None:
    found = rounds(stub, Script().board(), count=8, gap=0.05)
    dram = [row for one in found for row in one if row.metric == "gpu.dram_active"]
    assert dram
    assert all(row.t1 - row.t0 >= 200_000_000 for row in dram)
    assert all(row.value == pytest.approx(0.5) for row in dram)


def test_without_gpm_there_is_no_bandwidth_and_the_reason_says_what_it_needs(stub: Stub) -> None:
    found = everything(rounds(stub, Script().board(without=["gpm"])))
    assert found["gpu.dram_active"].value is None
    assert found["gpu.dram_active"].reason == "needs GPM, which this device does not have (Hopper or newer)"
    assert found["gpu.power_instant_w"].value == 400


def test_a_lost_gpu_marks_everything_from_the_last_good_reading_on(stub: Stub) -> None:
    script = Script().board().say("code nvmlDeviceGetTotalEnergyConsumption 15 after 2")
    found = rounds(stub, script, count=4)
    good = [row for row in found[1] if row.value is not None]
    lost = [row for one in found[2:] for row in one]
    assert {row.metric for row in found[1]} >= {"gpu.energy_j", "gpu.power_instant_w"}
    assert [row.metric for row in found[3]] == ["gpu.lost", "gpu.alive"], "nothing is asked of it any more"
    first = next(row for row in lost if row.metric == "gpu.lost")
    assert (first.value, first.reason) == (1.0, "the GPU is lost (nvmlDeviceGetTotalEnergyConsumption)")
    assert first.t0 >= max(row.t1 for row in good)
    assert first.t1 > first.t0


def test_a_device_that_the_container_lost_is_tried_some_times_and_then_given_up(stub: Stub) -> None:
    found = rounds(stub, Script().board().say("code * 999 after 3"), count=6, gap=0.21)
    reasons = [row for one in found for row in one if row.metric == "gpu.telemetry_lost"]
    assert reasons
    assert str(reasons[0].reason).startswith("unknown error")
    assert str(reasons[0].reason).endswith("5 times in a row")
    assert [row.metric for row in found[-1]] == ["gpu.telemetry_lost", "gpu.alive"]


def test_a_code_that_passes_is_null_for_that_reading_only(stub: Stub) -> None:
    script = Script().board().say("code nvmlDeviceGetTotalEnergyConsumption 10 after 1 for 1")
    energy = [row for one in rounds(stub, script, count=3, gap=0.02) for row in one if row.metric == "gpu.energy_j"]
    assert {row.value for row in energy} == {None, 1000.0}
    assert energy[0].value == energy[-1].value == 1000.0
    assert {row.reason for row in energy if row.value is None} == {"timed out (nvmlDeviceGetTotalEnergyConsumption)"}


def test_two_boards_are_told_apart_and_one_that_is_lost_leaves_the_other(stub: Stub) -> None:
    other = f"{BOARD[:-1]}1"
    script = Script().board().board(index=1, changes={"power.instant": 111_000})
    script.say("code nvmlDeviceGetTotalEnergyConsumption 15 device 0")
    found = rounds(stub, script, uuids=[BOARD, other])
    last = {(row.device, row.metric): row.value for row in found[-1]}
    assert last[(BOARD, "gpu.lost")] == 1.0
    assert last[(other, "gpu.power_instant_w")] == 111


def test_an_instance_has_its_own_memory_and_counters_and_its_boards_power(stub: Stub) -> None:
    mig = "MIG-0a0b0c0d-0000-0000-0000-000000000003"
    script = Script().board(changes={"mig": 1}).say(f"mig 1 0 3 {mig}")
    script.series(1, "memory.total", 18 * GIB).series(1, "memory.used", 9 * GIB).series(1, "gpm.10", 25.0)
    found = everything(rounds(stub, script, uuids=[mig]))
    assert (found["gpu.memory_used_bytes"].value, found["gpu.memory_used_bytes"].device) == (9 * GIB, mig)
    assert (found["gpu.dram_active"].value, found["gpu.dram_active"].device) == (pytest.approx(0.25), mig)
    assert (found["gpu.power_instant_w"].value, found["gpu.power_instant_w"].device) == (400, BOARD)
    assert (found["gpu.busy"].value, found["gpu.busy"].device) == (None, mig)
    assert "MIG" in str(found["gpu.busy"].reason)
    listed = stub.run(
        script, "from harness.telemetry.device_child import nvml_devices\nout = [d.to_dict() for d in nvml_devices()]"
    )
    assert [(d["uuid"], d["parent"], d["mig"]) for d in listed] == [(BOARD, None, True), (mig, BOARD, True)]


PROCESSES = """
import os
from harness.telemetry.nvml import NvmlSampler
import subprocess, sys
sampler = NvmlSampler([{uuid!r}], lambda: {pids})
out = {{s.metric: [s.value, s.reason] for s in sampler.sample()}}
"""


@pytest.mark.parametrize(
    ("listed", "pids", "server", "foreign"),
    [
        (["1"], "{1}", 1, 0),
        (["1", "4194303"], "{1}", 1, 1),
        (["1"], "set()", 0, 1),
        (["4194303"], "{1}", None, None),
        (["1"], "None", None, None),
        ([], "{1}", 0, 0),
    ],
)
def test_processes_of_the_server_and_others_where_pids_can_be_told_apart(
    stub: Stub, listed: list[str], pids: str, server: int | None, foreign: int | None
) -> None:
    script = Script().board().say(*(f"process 0 {pid} unknown" for pid in listed))
    found = stub.run(script, PROCESSES.format(uuid=BOARD, pids=pids))
    assert found["gpu.processes"][0] == len(listed)
    assert found["gpu.processes_server"][0] == server
    assert found["gpu.processes_foreign"][0] == foreign
    assert (found["gpu.processes_foreign"][1] is None) == (foreign is not None)
