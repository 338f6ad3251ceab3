"""What a report shows of the device, and of what throughput goes together with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reports.build import render_report
from reports.device import device_lines
from reports.markdown import render_markdown
from results.report_data import ReportData, load_report_data
from results.report_device import FLAT
from tests.reports.runs import Cell, grid, make_run


def device(batch: int, **changes: Any) -> dict[str, Any]:
    """A device whose numbers follow from the batch."""
    return {
        "source": "nvml",
        "scope": "whole",
        "devices": ["GPU-a"],
        "bandwidth_gb_per_s": 1000.0 + 10 * batch,
        "bandwidth_fraction": (1000.0 + 10 * batch) / 4916.7,
        "bandwidth_source": "NVML GPM, DRAM bandwidth utilisation",
        "peak_from": "3201 MHz x 2 x 6144 bit / 8",
        "power_w": 300.0 + batch,
        "power_kind": "instant",
        "energy_j": 100.0,
        "energy_j_per_output_token": 0.5 / batch,
        "sm_clock_mhz": {"mean": 1900.0, "min": 1800.0, "max": 1980.0, "spread": 0.09, "n": 9},
        "memory_used_bytes_max": 100 * 2**30,
        "event_shares": {"sw_power_cap": 0.4},
        "board_shared": False,
        "why": {},
        **changes,
    }


def shown(tmp_path: Path, batches: tuple[int, ...] = (1, 4, 8, 16, 32), **changes: Any) -> tuple[ReportData, str]:
    def with_device(cell: Cell) -> Cell:
        return {**cell, "device": device(int(cell["load"]["value"]), **changes)}

    store = make_run(tmp_path / "run", [with_device(c) for c in grid(("a", "b"), batches, (128,))])
    data = load_report_data(store)
    return data, render_report(store, data).read_text(encoding="utf-8")


def test_each_point_has_a_line_with_bandwidth_power_energy_clock_and_memory(tmp_path: Path) -> None:
    data, page = shown(tmp_path)
    lines = device_lines(data)
    assert len(lines) == 10
    first = lines[0]
    assert (first.bandwidth, first.share, first.power, first.energy) == ("1,010", "20.5 %", "301", "0.50")
    assert (first.clock, first.memory, first.events) == ("1,900", "100 GiB", "sw power cap 40%")
    assert 'id="device"' in page
    assert "3201 MHz x 2 x 6144 bit / 8" in page
    assert FLAT.split(":")[0] in page


def test_markdown_has_the_same_table(tmp_path: Path) -> None:
    data, _ = shown(tmp_path, batches=(1, 4))
    text = render_markdown(data)
    row = "| a | 128 in / 64 out | batch 4 | 1,040 | 21.2 % | 304 | 0.125 | 1,900 | 100 GiB | sw power cap 40% |"
    assert row in text
    assert FLAT.split(":")[0] in text


def test_a_bandwidth_that_was_not_counted_is_a_dash_with_its_reason(tmp_path: Path) -> None:
    why = "needs GPM, which this device does not have (Hopper or newer)"
    missing = {"bandwidth_gb_per_s": None, "bandwidth_fraction": None, "bandwidth_source": None}
    data, page = shown(tmp_path, **missing, why={"bandwidth_gb_per_s": why})
    assert {line.bandwidth for line in device_lines(data)} == {"–"}
    assert f'title="{why}"' in page
    assert f"Memory bandwidth was not counted: {why}." in page


def test_relations_with_throughput_are_listed_with_how_sure_and_what_ties_them(tmp_path: Path) -> None:
    data, page = shown(tmp_path)
    by = {(row.measure, row.stratum): row for row in data.device.together}
    power = by[("power", "a, 128 in / 64 out")]
    assert (power.n, power.strength, power.doubt) == (5, "+1.00", "p 0.017")
    assert power.said == "tied by construction"
    assert "power: both follow the work done" in page
    assert "Going together is no cause." in page


def test_few_points_show_no_relations_at_all(tmp_path: Path) -> None:
    data, page = shown(tmp_path, batches=(1, 4, 8))
    assert data.device.together == []
    assert "Going together" not in page


def test_a_run_without_a_device_has_no_section_for_it(tmp_path: Path) -> None:
    store = make_run(tmp_path / "run", grid(("a",), (1, 4), (128,)))
    assert 'id="device"' not in render_report(store).read_text(encoding="utf-8")
    assert not load_report_data(store).device
