"""Tracks over time: thinning keeps means, lowest and highest; what is not there says why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.clock import NS_PER_S
from results.events import Samples
from results.time_tracks import CellEvents, Track, cell_tracks

END = 100 * NS_PER_S


def events(
    rows: list[dict[str, Any]], tokens: list[float] | None = None, device: dict[str, Any] | None = None
) -> CellEvents:
    times = np.array([round(t * NS_PER_S) for t in tokens or [1.0]], dtype=np.int64)
    return CellEvents(times, np.ones(len(times), dtype=np.int64), Samples.of(rows), None, 0, END, device or {})


def row(metric: str, t: float, value: float | None, source: str = "server", **more: Any) -> dict[str, Any]:
    at = round(t * NS_PER_S)
    return {"source": source, "metric": metric, "t0": at, "t1": at, "value": value, **more}


def track(found: list[Track], name: str) -> Track:
    return next(t for t in found if t.id == name)


VALUES = st.lists(st.tuples(st.floats(0, 99), st.floats(0, 1000)), min_size=1, max_size=300)


@given(VALUES, st.integers(20, 60))
def test_however_many_readings_lowest_and_highest_stay_and_means_lie_between(
    readings: list[tuple[float, float]], columns: int
) -> None:
    found = track(cell_tracks(events([row("running", t, v) for t, v in readings]), columns), "batch")
    known = np.isfinite(found.mean)
    assert found.n == len(readings)
    assert known.sum() <= columns
    assert found.high[known].max() == max(v for _, v in readings)
    assert found.low[known].min() == min(v for _, v in readings)
    slack = 1e-9 * (1 + found.high[known])
    assert (found.low[known] <= found.mean[known] + slack).all()
    assert (found.mean[known] <= found.high[known] + slack).all()


@given(st.lists(st.floats(0, 100), min_size=1, max_size=400), st.integers(20, 60))
def test_tokens_over_time_add_up_to_the_tokens_that_came(times: list[float], columns: int) -> None:
    found = track(cell_tracks(events([], times), columns), "tokens")
    width = (found.t[1] - found.t[0]) if len(found.t) > 1 else 0.0
    assert (found.mean * width).sum() == pytest.approx(len(times))


def test_a_track_that_nobody_told_says_why_in_the_sampler_s_words() -> None:
    found = cell_tracks(events([row("gpu.dram_active", 1, None, "nvml", reason="needs Hopper or later")]), 40)
    assert track(found, "bandwidth").absent == "needs Hopper or later"
    assert track(found, "power").absent == "no device was sampled"
    assert track(found, "batch").absent == "the server does not tell"


def test_readings_outside_the_cell_are_not_its_own() -> None:
    found = track(cell_tracks(events([row("running", 200, 5.0)]), 40), "batch")
    assert found.absent == "no reading fell into the cell"


def test_several_devices_share_a_track_that_says_so() -> None:
    rows = [row("gpu.power_instant_w", t, w, "nvml", device=d) for t in (1, 2) for d, w in (("a", 100.0), ("b", 300.0))]
    found = track(cell_tracks(events(rows), 40), "power")
    assert (np.nanmin(found.low), np.nanmax(found.high)) == (100.0, 300.0)
    assert "2 devices" in found.source


BUSY = [row("gpu.dram_active", t, 0.5, "nvml", device="a") for t in (1, 2, 3)]
KNOWN = {
    "devices": ["a"],
    "dram_active": 0.5,
    "peak_gb_per_s": 4800.0,
    "peak_from": "datasheet of H200",
    "bandwidth_source": "NVML GPM, DRAM bandwidth utilisation",
    "why": {},
}


def test_bandwidth_is_in_bytes_where_the_peak_is_known_with_its_source() -> None:
    found = cell_tracks(events(BUSY, device=KNOWN), 40)
    bandwidth = track(found, "bandwidth")
    assert (np.nanmean(bandwidth.mean), bandwidth.peak, bandwidth.unit) == (2400.0, 4800.0, "GB/s")
    assert bandwidth.source == "NVML GPM, DRAM bandwidth utilisation, of the peak by datasheet of H200"
    assert "bandwidth_share" not in {t.id for t in found}


def test_of_several_devices_each_has_its_own_peak() -> None:
    rows = BUSY + [row("gpu.dram_active", t, 0.25, "nvml", device="b") for t in (1, 2, 3)]
    two = {**KNOWN, "devices": ["a", "b"], "peak_gb_per_s": 9600.0, "each": [{"peak_gb_per_s": 4800.0}] * 2}
    found = track(cell_tracks(events(rows, device=two), 40), "bandwidth")
    assert (np.nanmin(found.low), np.nanmax(found.high), found.peak) == (1200.0, 2400.0, 4800.0)
    unlike = {**two, "each": [{"peak_gb_per_s": 4800.0}, {"peak_gb_per_s": 4801.0}]}
    found = track(cell_tracks(events(rows, device=unlike), 40), "bandwidth")
    assert found.absent == "the devices have different peaks"


def test_without_a_peak_the_share_stands_in_and_the_bytes_say_why() -> None:
    why = "a MIG instance has a part of the board's memory bus, and the driver does not tell which"
    device = {**KNOWN, "peak_gb_per_s": None, "why": {"peak_gb_per_s": why}}
    found = cell_tracks(events(BUSY, device=device), 40)
    assert track(found, "bandwidth").absent == why
    share = track(found, "bandwidth_share")
    assert (np.nanmean(share.mean), share.peak, share.unit) == (50.0, 0.0, "%")


def test_a_counter_that_the_summary_refuses_is_not_drawn() -> None:
    why = "every reading is 0 although tokens were generated: the counter does not count here"
    zeros = [row("gpu.dram_active", t, 0.0, "nvml", device="a") for t in (1, 2, 3)]
    found = cell_tracks(events(zeros, device={**KNOWN, "dram_active": None, "why": {"dram_active": why}}), 40)
    assert track(found, "bandwidth").absent == why
    assert "bandwidth_share" not in {t.id for t in found}
