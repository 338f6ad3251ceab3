"""A device is sampled on its own grid: a call that hangs is told, counted, and never waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.telemetry.device_config import DeviceConfig, device_thread, tree_of
from harness.telemetry.device_loop import HANGS, MISSED, DeviceThread
from harness.telemetry.devices import DeviceInfo
from harness.telemetry.nvml_calls import Running
from harness.telemetry.sample import Sample
from results.clock import now_ns
from tests.harness.telemetry.test_sampler import metrics_server
from tests.nvml.stub import no_driver
from tests.waiting import LONG_S, wait_until


class Scripted:
    """A sampler whose reading number `at` does not return before it is let go."""

    source = "nvml"

    def __init__(self, at: int = 0, error: Exception | None = None) -> None:
        self.at, self.error = at, error
        self.calls, self.running = 0, None
        self.let_go, self.blocked = threading.Event(), threading.Event()
        self.running: Running | None

    def sample(self) -> list[Sample]:
        self.calls += 1
        if self.error is not None:
            raise self.error
        if self.calls == self.at:
            self.running = Running("nvmlDeviceGetPowerUsage", now_ns())
            self.blocked.set()
            self.let_go.wait(2 * LONG_S)
            self.running = None
        t = now_ns()
        return [Sample(self.source, "gpu.power_instant_w", t, t, float(self.calls), None, "GPU-a")]


def run(sampler: Scripted, interval_s: float = 0.02) -> tuple[DeviceThread, list[Sample]]:
    written: list[Sample] = []
    thread = DeviceThread(lambda: sampler, "nvml", interval_s, written.extend)
    thread.start()
    return thread, written


def values(written: list[Sample]) -> list[Sample]:
    return [s for s in list(written) if s.metric == "gpu.power_instant_w"]


def test_ticks_that_a_call_ran_over_are_counted_and_not_caught_up_with() -> None:
    sampler = Scripted(at=5)
    thread, written = run(sampler)
    assert sampler.blocked.wait(LONG_S)
    held = now_ns()
    # At least 30 ticks of the grid go by; how many exactly the machine decides, so the count is held against the clock.
    wait_until(lambda: now_ns() - held > 30 * 20_000_000, "30 ticks of time")
    sampler.let_go.set()
    wait_until(lambda: len(values(written)) > 10, "readings after the call that hung")
    thread.stop()
    longest = max((s for s in written if s.metric == MISSED), key=lambda s: s.value or 0)
    ticks = (longest.t1 - longest.t0) / 20_000_000
    assert longest.value is not None
    assert ticks - 1 <= longest.value <= ticks
    assert longest.value >= 29
    stamps = [s.t1 for s in values(written)]
    late = stamps[4]
    assert late - held > 30 * 20_000_000, "a stamp is taken after the call"
    assert len(stamps) - 5 <= (stamps[-1] - late) / 20_000_000 + 2, "no burst of readings that were missed"


def test_the_end_does_not_wait_for_a_call_that_hangs() -> None:
    sampler = Scripted(at=1)
    thread, _ = run(sampler)
    assert sampler.blocked.wait(LONG_S)
    thread.stop()
    assert sampler.running is not None, "it still hangs"
    sampler.let_go.set()


def test_a_call_that_hangs_is_told_while_it_hangs() -> None:
    sampler = Scripted(at=1)
    thread, written = run(sampler)
    wait_until(lambda: any(s.metric == HANGS for s in list(written)), "the watchdog's word")
    told = next(s for s in written if s.metric == HANGS)
    assert told.value is None
    assert str(told.reason).startswith("nvmlDeviceGetPowerUsage has not returned for")
    sampler.let_go.set()
    thread.stop()


def stopped(open_sampler: Callable[[], Scripted]) -> list[Sample]:
    written: list[Sample] = []
    thread = DeviceThread(open_sampler, "nvml", 0.02, written.extend)
    thread.start()
    wait_until(lambda: bool(written), "a first row")
    thread.stop()
    return written


def test_a_sampler_that_cannot_be_opened_or_fails_later_is_a_reason_in_the_samples() -> None:
    def refuse() -> Scripted:
        raise OSError("no such driver")

    assert {(s.metric, s.value, s.reason) for s in stopped(refuse)} == {("gpu.telemetry", None, "no such driver")}
    failing = stopped(lambda: Scripted(error=ValueError("odd")))
    assert {(s.value, s.reason) for s in failing} == {(None, "odd")}


def test_the_last_reading_is_taken_at_the_end() -> None:
    sampler = Scripted()
    thread, written = run(sampler, interval_s=60)
    wait_until(lambda: len(values(written)) == 1, "the first reading")
    thread.stop()
    assert len(values(written)) == 2


def test_what_the_child_is_told_survives_json() -> None:
    config = DeviceConfig("nvml", 0.25, (DeviceInfo("GPU-a", "x", 0), DeviceInfo("MIG-b", "y", 0, parent="GPU-a")))
    assert DeviceConfig.from_dict(config.to_dict()) == config


def test_the_tree_of_a_server_that_is_not_ours_is_not_known() -> None:
    assert tree_of(None)() is None


def first_rows(config: DeviceConfig) -> dict[str, Sample]:
    """What the thread made of a configuration writes first."""
    written: list[Sample] = []
    thread = device_thread(config, None, written.extend)
    thread.start()
    wait_until(lambda: bool(written), "a first reading")
    thread.stop()
    return {s.metric: s for s in written}


def test_the_exporter_is_sampled_as_configured() -> None:
    page = b'DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-a",modelName="NVIDIA A100"} 0.5\n'
    with metrics_server(lambda: (200, page)) as url:
        found = first_rows(DeviceConfig("dcgm", 0.25, (DeviceInfo("GPU-a", "NVIDIA A100", 0),), url))
    assert (found["gpu.dram_active"].source, found["gpu.dram_active"].value) == ("dcgm", 0.5)


def test_the_program_is_run_as_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'uuid, temperature.gpu'\necho 'GPU-a, 41'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = first_rows(DeviceConfig("nvidia-smi", 0.25, (DeviceInfo("GPU-a", "x", 0),)))
    assert (found["gpu.temperature_c"].source, found["gpu.temperature_c"].value) == ("nvidia-smi", 41)


@no_driver
def test_a_binding_that_finds_no_library_is_a_reason_in_the_samples() -> None:
    found = first_rows(DeviceConfig("nvml", 0.25, (DeviceInfo("GPU-a", "x", 0),)))
    assert found["gpu.telemetry"].reason == "no libnvidia-ml.so.1 on this machine (nvmlInit)"
