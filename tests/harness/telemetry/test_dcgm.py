"""The DCGM exporter's page: memory bandwidth by field 1005, blanks and instances told apart from values."""

from __future__ import annotations

import pytest

from harness.telemetry.dcgm import DcgmSampler, dcgm_devices
from harness.telemetry.sample import Sample
from harness.telemetry.settings import TelemetryUnavailableError
from tests.harness.telemetry.test_sampler import metrics_server

A100 = 'gpu="0",UUID="GPU-a",pci_bus_id="00000000:07:00.0",modelName="NVIDIA A100-SXM4-80GB",DCGM_FI_DRIVER_VERSION="535.1"'
PAGE = f"""# HELP DCGM_FI_PROF_DRAM_ACTIVE Ratio of cycles the device memory interface is active
# TYPE DCGM_FI_PROF_DRAM_ACTIVE gauge
DCGM_FI_PROF_DRAM_ACTIVE{{{A100}}} 0.425
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{A100}}} 140737488355328
DCGM_FI_PROF_SM_ACTIVE{{{A100}}} NaN
DCGM_FI_DEV_FB_USED{{{A100}}} 40000
DCGM_FI_DEV_POWER_USAGE{{{A100}}} 312.5
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{A100}}} 123456789012
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{{{A100}}} 4
DCGM_FI_DEV_GPU_UTIL{{{A100}}} 98
DCGM_FI_DEV_SM_CLOCK{{gpu="1",UUID="GPU-b",modelName="NVIDIA H100"}} 1500
DCGM_FI_DEV_POWER_USAGE{{gpu="1",UUID="GPU-b",modelName="NVIDIA H100"}} 600
process_cpu_seconds_total 1
"""


def sampled(page: str, status: int = 200) -> dict[tuple[str | None, str], Sample]:
    with metrics_server(lambda: (200, page.encode())) as url:
        devices = tuple(dcgm_devices(url))
    with metrics_server(lambda: (status, page.encode())) as url:
        return {(s.device, s.metric): s for s in DcgmSampler(url, devices).sample()}


def test_values_come_in_our_units_for_each_board() -> None:
    found = sampled(PAGE)
    expected = {
        ("GPU-a", "gpu.dram_active"): 0.425,
        ("GPU-a", "gpu.memory_used_bytes"): 40000 * 2**20,
        ("GPU-a", "gpu.power_instant_w"): 312.5,
        ("GPU-a", "gpu.energy_j"): pytest.approx(123456789.012),
        ("GPU-a", "gpu.clock_event_reasons"): 4,
        ("GPU-a", "gpu.busy"): 0.98,
        ("GPU-b", "gpu.sm_clock_mhz"): 1500,
        ("GPU-b", "gpu.power_average_w"): 600,
    }
    assert {key: found[key].value for key in expected} == expected
    assert all(s.source == "dcgm" and s.t0 == s.t1 for s in found.values())


def test_blanks_and_what_is_not_on_the_page_are_null_with_the_reason() -> None:
    found = sampled(PAGE)
    assert found[("GPU-a", "gpu.tensor_active")].value is None
    assert str(found[("GPU-a", "gpu.tensor_active")].reason).startswith("the exporter gave no value")
    assert found[("GPU-a", "gpu.sm_active")].value is None
    assert found[("GPU-b", "gpu.dram_active")].reason == "not in the exporter's page (DCGM_FI_PROF_DRAM_ACTIVE)"


def test_what_is_told_of_instances_only_is_not_taken_for_the_board() -> None:
    page = PAGE.replace(
        f"DCGM_FI_PROF_DRAM_ACTIVE{{{A100}}}",
        f'DCGM_FI_PROF_DRAM_ACTIVE{{{A100},GPU_I_PROFILE="1g.10gb",GPU_I_ID="3"}}',
    )
    found = sampled(page)
    assert found[("GPU-a", "gpu.dram_active")].reason == "the exporter tells it for MIG instances only"
    assert found[("GPU-a", "gpu.power_instant_w")].value == 312.5


def test_an_exporter_that_stops_answering_gives_nulls() -> None:
    found = sampled(PAGE, status=500)
    assert found
    assert all(s.value is None and "HTTP 500" in str(s.reason) for s in found.values())


def test_a_page_of_something_else_is_no_source() -> None:
    server = metrics_server(lambda: (200, b"process_cpu_seconds_total 1\n"))
    with server as url, pytest.raises(TelemetryUnavailableError, match="tells of no GPU"):
        dcgm_devices(url)
    with pytest.raises(TelemetryUnavailableError, match="no exporter at"):
        dcgm_devices(url)
