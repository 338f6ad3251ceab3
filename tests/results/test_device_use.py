"""The device part of a cell: sums over the devices in use, reasons for every null, and what the rules say."""

from __future__ import annotations

from typing import Any

import pytest

from results.device_facts import DeviceFacts
from results.device_use import DeviceUse, device_use
from results.events import Samples
from results.reason_rules import CellFacts
from results.reasons import reasons_of

S = 1_000_000_000
GIB = 2**30
A, B = "GPU-a", "GPU-b"


def info(uuid: str = A, **changes: Any) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "name": "NVIDIA H200",
        "index": 0,
        "parent": None,
        "memory_bus_bits": 6144,
        "memory_clock_max_mhz": 3201,
        "memory_total_bytes": 141 * GIB,
        "mig": False,
        **changes,
    }


def telemetry(*devices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    listed = list(devices) or [info()]
    return {
        "source": "nvml",
        "why_not": {},
        "devices": listed,
        "chosen": False,
        "warnings": [],
        "baseline_bytes": {d["uuid"]: GIB // 2 for d in listed},
        **changes,
    }


def rows(
    uuid: str = A, memory: float | None = 100 * GIB, board: str | None = None, **changes: Any
) -> list[dict[str, Any]]:
    """Four seconds of readings every 250 ms, all constant unless changed by a function of the reading's number."""
    values: dict[str, Any] = {
        "gpu.dram_active": 0.5,
        "gpu.sm_active": 0.9,
        "gpu.tensor_active": 0.2,
        "gpu.busy": 0.97,
        "gpu.memory_used_bytes": memory,
        "gpu.power_instant_w": 400.0,
        "gpu.power_average_w": 390.0,
        "gpu.energy_j": lambda i: 1000.0 + 100.0 * i,
        "gpu.sm_clock_mhz": 1980.0,
        "gpu.memory_clock_mhz": 3201.0,
        "gpu.clock_event_reasons": 0.0,
        "gpu.temperature_c": 41.0,
        **{f"gpu.{name}": value for name, value in changes.items()},
    }
    out = []
    for metric, value in values.items():
        for i in range(17):
            t = i * S // 4
            mean = metric.endswith("active")
            known = value(i) if callable(value) else value
            of_board = metric in ("gpu.energy_j", "gpu.power_instant_w", "gpu.power_average_w", "gpu.sm_clock_mhz")
            out.append(
                {
                    "source": "nvml",
                    "metric": metric,
                    "device": board if board and of_board else uuid,
                    "t0": t - S // 4 if mean else t,
                    "t1": t,
                    "value": known if isinstance(known, float) else None if known is None else float(known),
                    "reason": None if known is not None else "not supported by this device (x)",
                }
            )
    return out


def used(found_rows: list[dict[str, Any]], told: dict[str, Any] | None, tokens: int | None = 1000) -> DeviceUse:
    return device_use(Samples.of(found_rows), told, (S // 2, 3 * S + S // 2), tokens)


def codes(facts: DeviceFacts) -> dict[str, str]:
    own = {"device_lost", "device_throttled", "clock_spread", "foreign_process_on_device", "device_not_empty"}
    own |= {"no_device_telemetry", "device_telemetry_ended", "power_capped", "mig_instance", "device_unsure"}
    own |= {"energy_counter_restarted"}
    return {r.code: str(r.severity) for r in reasons_of(CellFacts(device=facts)) if r.code in own}


def test_a_quiet_board_gives_every_number_and_no_reason() -> None:
    found = used(rows(), telemetry())
    assert found.numbers is not None
    n = found.numbers
    peak = 3201 * 2 * 6144 / 8 / 1000
    assert n["peak_gb_per_s"] == pytest.approx(peak)
    assert n["peak_from"] == "3201 MHz x 2 x 6144 bit / 8"
    assert n["bandwidth_gb_per_s"] == pytest.approx(0.5 * peak)
    assert n["bandwidth_source"] == "NVML GPM, DRAM bandwidth utilisation"
    assert n["bandwidth_fraction"] == pytest.approx(0.5)
    assert n["memory_used_bytes_max"] == 100 * GIB
    assert n["memory_over_baseline_bytes"] == 99.5 * GIB
    assert (n["power_w"], n["power_kind"]) == (pytest.approx(400), "instant")
    assert n["energy_j"] == pytest.approx(1200)
    assert n["energy_from_power_j"] == pytest.approx(1200)
    assert n["energy_j_per_output_token"] == pytest.approx(1.2)
    assert n["sm_clock_mhz"] == {"mean": 1980, "min": 1980, "max": 1980, "spread": 0, "n": 13}
    assert n["why"] == {
        "pcie_tx_bytes_per_s": "no reading fell into the cell",
        "pcie_rx_bytes_per_s": n["why"]["pcie_rx_bytes_per_s"],
    }
    assert codes(found.facts) == {}


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (None, "the session does not tell of any telemetry"),
        (
            {"source": "none", "why_not": {"nvml": "no library", "dcgm": "no exporter"}},
            "nvml: no library; dcgm: no exporter",
        ),
        ({"source": "none", "why_not": {"none": "telemetry was turned off"}}, "telemetry was turned off"),
        ({"source": "nvml", "devices": []}, "the server sees no device (CUDA_VISIBLE_DEVICES)"),
    ],
)
def test_without_telemetry_there_is_no_device_part_and_a_note_says_why(told: dict[str, Any] | None, why: str) -> None:
    found = used([], told)
    assert found.numbers is None
    reasons = {r.code: r for r in reasons_of(CellFacts(device=found.facts))}
    assert reasons["no_device_telemetry"].evidence == why


def test_what_the_device_does_not_tell_is_null_with_the_samplers_reason() -> None:
    found = used(rows(dram_active=None, energy_j=None, sm_clock_mhz=None), telemetry())
    assert found.numbers is not None
    for name in ("dram_active", "bandwidth_gb_per_s", "energy_j", "energy_j_per_output_token", "sm_clock_mhz"):
        assert found.numbers[name] is None
        assert found.numbers["why"][name] == "not supported by this device (x)"
    assert found.numbers["power_w"] == pytest.approx(400)


def test_a_counter_that_is_zero_while_tokens_come_is_not_believed() -> None:
    found = used(rows(dram_active=0.0), telemetry())
    assert found.numbers is not None
    assert found.numbers["bandwidth_gb_per_s"] is None
    assert "every reading is 0" in found.numbers["why"]["bandwidth_gb_per_s"]
    idle = used(rows(dram_active=0.0), telemetry(), tokens=0)
    assert idle.numbers is not None
    assert idle.numbers["bandwidth_gb_per_s"] == 0


def test_a_board_without_bus_width_is_set_against_its_datasheet_and_an_unknown_one_against_nothing() -> None:
    known = used(rows(), telemetry(info(memory_bus_bits=None)))
    assert known.numbers is not None
    assert known.numbers["peak_gb_per_s"] == 4800
    assert str(known.numbers["peak_from"]).startswith("datasheet of")
    unknown = used(rows(), telemetry(info(memory_bus_bits=None, name="Some Other Board")))
    assert unknown.numbers is not None
    assert (unknown.numbers["bandwidth_gb_per_s"], unknown.numbers["bandwidth_fraction"]) == (None, None)
    assert unknown.numbers["dram_active"] == pytest.approx(0.5)
    assert "datasheet" in unknown.numbers["why"]["bandwidth_gb_per_s"]


def test_devices_that_the_server_does_not_use_stay_out_of_the_sums() -> None:
    both = telemetry(info(A), info(B))
    idle_b = rows(A) + rows(B, memory=GIB // 2)
    found = used(idle_b, both)
    assert found.numbers is not None
    assert found.numbers["devices"] == [A]
    assert found.numbers["power_w"] == pytest.approx(400)
    two = used(rows(A) + rows(B, dram_active=0.25, sm_clock_mhz=1500.0), both)
    assert two.numbers is not None
    assert two.numbers["devices"] == [A, B]
    assert two.numbers["power_w"] == pytest.approx(800)
    assert two.numbers["energy_j"] == pytest.approx(2400)
    assert two.numbers["bandwidth_fraction"] == pytest.approx(0.375)
    assert two.numbers["sm_clock_mhz"]["mean"] == pytest.approx(1500)
    assert [one["uuid"] for one in two.numbers["each"]] == [A, B]


def test_a_server_that_runs_on_the_cpu_has_no_device_numbers_beside_an_idle_board() -> None:
    found = used(rows(memory=GIB // 2), telemetry())
    assert found.numbers is None
    assert "uses none of the sampled devices" in found.facts.why_none
    busy = telemetry(info(mig=True), baseline_bytes={A: 60 * GIB}, warnings=["numbered by speed"])
    assert codes(used(rows(memory=60 * GIB, clock_event_reasons=64), busy).facts) == {"no_device_telemetry": "note"}, (
        "what goes on there is no matter of this server"
    )
    named = used(rows(memory=GIB // 2), telemetry(chosen=True))
    assert named.numbers is not None
    listed = used(rows(memory=GIB // 2, processes_server=1.0), telemetry())
    assert listed.numbers is not None


def test_where_use_cannot_be_known_all_devices_count_and_it_is_said() -> None:
    found = used(rows(memory=None), telemetry(baseline_bytes=None))
    assert found.numbers is not None
    assert "not known" in found.numbers["in_use"]
    assert found.numbers["why"]["memory_used_bytes_max"] == "not supported by this device (x)"


def test_an_instance_has_the_power_of_its_board_and_a_note() -> None:
    found = used(rows("MIG-1", board=A), telemetry(info("MIG-1", parent=A, mig=True)))
    assert found.numbers is not None
    assert found.numbers["power_w"] == pytest.approx(400)
    assert found.numbers["board_shared"] is True
    assert codes(found.facts) == {"mig_instance": "note"}


def test_an_instance_is_not_given_the_bandwidth_of_the_whole_bus() -> None:
    found = used(rows("MIG-1", board=A), telemetry(info("MIG-1", parent=A, mig=True)))
    assert found.numbers is not None
    assert found.numbers["bandwidth_fraction"] is None
    assert (found.numbers["peak_gb_per_s"], found.numbers["bandwidth_gb_per_s"]) == (None, None)
    assert "part of the board's memory bus" in found.numbers["why"]["bandwidth_gb_per_s"]
    assert found.numbers["dram_active"] == pytest.approx(0.5)


def from_exporter(period: int) -> list[dict[str, Any]]:
    """Readings every 250 ms of an exporter that looks every `period` of them."""

    def held(base: float) -> Any:
        return lambda i: base + 0.01 * (i // period)

    found = rows(dram_active=held(0.5), power_instant_w=held(400.0), energy_j=held(1000.0))
    return [{**row, "source": "dcgm", "t0": row["t1"]} for row in found]


def test_an_exporter_that_looks_too_seldom_tells_nothing_of_the_span() -> None:
    found = used(from_exporter(period=100), telemetry(source="dcgm"))
    assert found.numbers is not None
    for name in ("dram_active", "bandwidth_gb_per_s", "power_w", "energy_j"):
        assert found.numbers[name] is None
        assert "--collect-interval" in found.numbers["why"][name]
    assert found.numbers["memory_used_bytes_max"] == 100 * GIB


def test_an_exporter_that_looks_often_enough_is_read() -> None:
    found = used(from_exporter(period=2), telemetry(source="dcgm"))
    assert found.numbers is not None
    assert found.numbers["dram_active"] == pytest.approx(0.54, abs=0.02)
    assert found.numbers["power_w"] == pytest.approx(400, abs=0.1)


def test_the_mean_power_is_taken_where_no_instant_is_told() -> None:
    found = used(rows(power_instant_w=None), telemetry())
    assert found.numbers is not None
    assert (found.numbers["power_w"], found.numbers["power_kind"]) == (pytest.approx(390), "average")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"clock_event_reasons": lambda i: 0x40 if i > 8 else 0}, {"device_throttled": "suspect"}),
        ({"clock_event_reasons": 0x8}, {"device_throttled": "suspect"}),
        ({"clock_event_reasons": 0x4}, {"power_capped": "note"}),
        ({"clock_event_reasons": 0x1}, {}),
        ({"clock_event_reasons": 0x200}, {}),
        ({"sm_clock_mhz": lambda i: 1980.0 if i > 8 else 1400.0}, {"clock_spread": "suspect"}),
        (
            {"sm_clock_mhz": lambda i: 1980.0 if i > 8 else 1400.0, "clock_event_reasons": 0x4},
            {"clock_spread": "note", "power_capped": "note"},
        ),
        (
            {
                "sm_clock_mhz": lambda i: 1980.0 if i > 8 else 345.0,
                "clock_event_reasons": lambda i: 0 if i > 8 else 1,
            },
            {},
        ),
        ({"processes_foreign": 1.0}, {"foreign_process_on_device": "suspect"}),
        ({"processes_foreign": 0.0}, {}),
        ({"energy_j": lambda i: 1000.0 + i if i < 8 else float(i)}, {"energy_counter_restarted": "note"}),
    ],
)
def test_what_is_said_against_a_cell_by_its_device(changes: dict[str, Any], expected: dict[str, str]) -> None:
    assert codes(used(rows(**changes), telemetry()).facts) == expected


def test_a_counter_that_started_over_gives_no_energy() -> None:
    found = used(rows(energy_j=lambda i: 1000.0 + i if i < 8 else float(i)), telemetry())
    assert found.numbers is not None
    assert found.numbers["energy_j"] is None
    assert found.numbers["why"]["energy_j"] == "the counter started over 1 times in the span"


def sample(metric: str, t0: float, t1: float, value: float | None, reason: str) -> dict[str, Any]:
    return {
        "source": "nvml",
        "metric": metric,
        "device": A,
        "value": value,
        "reason": reason,
        "t0": int(t0 * S),
        "t1": int(t1 * S),
    }


def test_a_device_that_was_lost_makes_the_cell_invalid_from_its_last_good_reading_on() -> None:
    gone = [sample("gpu.lost", 2, 2.5, 1.0, "the GPU is lost (x)")]
    assert codes(used(rows() + gone, telemetry()).facts) == {"device_lost": "invalid"}
    after = [sample("gpu.lost", 3.6, 4, 1.0, "the GPU is lost (x)")]
    assert codes(used(rows() + after, telemetry()).facts) == {}


@pytest.mark.parametrize(
    "row",
    [
        sample("gpu.telemetry_lost", 2, 2.5, 1.0, "unknown error, 5 times in a row"),
        {**sample("gpu.call_hangs", 2, 2, None, "nvmlX has not returned for 2 s"), "device": None},
        {**sample("gpu.telemetry", 2, 2, None, "no such driver"), "device": None},
    ],
)
def test_telemetry_that_fails_is_a_note(row: dict[str, Any]) -> None:
    found = used([*rows(), row], telemetry())
    assert codes(found.facts) == {"device_telemetry_ended": "note"}
    assert str(row["reason"]) in str(found.facts.telemetry_lost)


def test_memory_that_was_in_use_before_the_launch_is_told() -> None:
    found = used(rows(), telemetry(baseline_bytes={A: 30 * GIB}))
    assert codes(found.facts) == {"device_not_empty": "suspect"}
    assert found.facts.baseline == "30.0 GiB on GPU-a"


def test_doubts_about_which_device_it_is_travel_with_the_cell() -> None:
    assert codes(used(rows(), telemetry(warnings=["numbered by speed"])).facts) == {"device_unsure": "note"}


def test_ticks_that_were_missed_are_counted() -> None:
    found = used([*rows(), {**sample("gpu.missed_ticks", 1, 2, 29.0, ""), "device": None}], telemetry())
    assert found.numbers is not None
    assert found.numbers["missed_ticks"] == 29
