"""The sampling child beside a stand-in that plays a known series: what comes out of the cell's numbers is what was played."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.telemetry.device_child import nvml_devices
from harness.telemetry.device_config import DeviceConfig
from harness.telemetry.device_loop import MISSED
from harness.telemetry.devices import DeviceInfo
from harness.telemetry.process import Mark, SamplerProcess
from harness.telemetry.sampler import SamplerConfig
from results.clock import NS_PER_S, now_ns
from results.device_use import device_use
from results.events import Samples
from tests.nvml.stub import BOARD, GIB, Script, Stub
from tests.waiting import LONG_S, wait_until

CHANGE = 1.25
WINDOW = (0.5, 2.0)


@pytest.fixture
def sampled(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Starts a sampling child for a script."""
    children: list[SamplerProcess] = []

    def start(script: Script) -> SamplerProcess:
        plain = Script(lines=[line for line in script.lines if not line.startswith("hang")])
        for name, value in stub.environment(plain).items():
            monkeypatch.setenv(name, value)
        device = DeviceConfig("nvml", 0.25, tuple(nvml_devices()))
        for name, value in stub.environment(script).items():
            monkeypatch.setenv(name, value)
        config = SamplerConfig(
            out=str(tmp_path / f"samples-{len(children)}.jsonl"), interval_s=0.25, root_pid=None, device=device
        )
        children.append(SamplerProcess(config, tmp_path / "sampler.log"))
        return children[-1]

    yield start
    for child in children:
        child.stop()


def table(child: SamplerProcess) -> Samples:
    columns = child.since(Mark(), now_ns())
    names = list(columns)
    return Samples.of([dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)])


def played(sampled: Any, script: Script) -> tuple[Samples, int, int]:
    """A script's readings, and its window in monotonic ns."""
    child = sampled(script)
    told_epoch = Path(os.environ["NVML_STUB_SCRIPT"] + ".epoch")
    wait_until(lambda: told_epoch.exists() and told_epoch.read_text().endswith("\n"), "the first call of the child")
    epoch = int(told_epoch.read_text())
    start, stop = (epoch + int(s * NS_PER_S) for s in WINDOW)
    end = stop + int(0.6 * NS_PER_S)
    wait_until(
        lambda: now_ns() > end and any(s > end for s in child.since(Mark(), now_ns())["t0"]),
        "readings after the window",
    )
    return table(child), start, stop


def test_bandwidth_memory_and_energy_of_a_known_series_are_right_within_a_hundredth(sampled: Any) -> None:
    script = Script(epoch="+0.3")
    script.board(
        without=["energy"],
        changes={
            "gpm.10": [(0, 40.0), (CHANGE, 70.0)],
            "power.instant": [(0, 300_000), (CHANGE, 600_000)],
            "memory.used": [(0, 60 * GIB), (CHANGE, 90 * GIB)],
            "clock.sm": [(0, 1980), (CHANGE, 1500)],
        },
    ).say("integrate 0 7000000")
    # A reading that comes late blurs the series: on a busy machine it is played until the sampler says that none did.
    for _ in range(30):
        samples, start, stop = played(sampled, script)
        if not len(samples.series("nvml", MISSED)[0]):
            break
    info = DeviceInfo(BOARD, "NVIDIA H200", 0, memory_bus_bits=6144, memory_clock_max_mhz=3201).to_dict()
    told = {"source": "nvml", "devices": [info], "chosen": False, "baseline_bytes": {BOARD: 1 * GIB}, "warnings": []}
    n = device_use(samples, told, (start, stop), 900).numbers
    assert n is not None
    before, after = CHANGE - WINDOW[0], WINDOW[1] - CHANGE
    share = (0.40 * before + 0.70 * after) / (before + after)
    energy = 300 * before + 600 * after
    assert n["bandwidth_fraction"] == pytest.approx(share, rel=0.01)
    assert n["bandwidth_gb_per_s"] == pytest.approx(share * 4916.736, rel=0.01)
    assert n["memory_used_bytes_max"] == 90 * GIB
    assert n["memory_over_baseline_bytes"] == 89 * GIB
    assert n["energy_j"] == pytest.approx(energy, rel=0.01)
    assert n["energy_j_per_output_token"] == pytest.approx(energy / 900, rel=0.01)
    # Power is read at instants, so the step between two of them is blurred by up to one interval.
    assert n["power_w"] == pytest.approx(energy / (before + after), rel=0.1)
    assert (n["sm_clock_mhz"]["min"], n["sm_clock_mhz"]["max"]) == (1500, 1980)


def test_the_child_ends_at_once_while_a_driver_call_hangs(sampled: Any) -> None:
    script = Script().board().say(f"hang nvmlDeviceGetTotalEnergyConsumption {2 * LONG_S:.0f} at 3")
    child = sampled(script)
    wait_until(lambda: "gpu.call_hangs" in child.since(Mark(), now_ns())["metric"], "the watchdog's word")
    columns = child.since(Mark(), now_ns())
    assert "host_busy_s" in columns["metric"], "the host's series has no hole"
    hung = next(r for m, r in zip(columns["metric"], columns["reason"], strict=True) if m == "gpu.call_hangs")
    assert hung.startswith("nvmlDeviceGetTotalEnergyConsumption has not returned")
    mark = child.settle()
    child.stop(LONG_S)
    assert child._process.returncode == 0, "by itself, though the call has not returned"
    assert mark.t <= now_ns()
