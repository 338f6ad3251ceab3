"""The spread over the waves of a cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from results.summary import build_summary
from tests.results.builders import CellEdit, fail_requests, synthetic_run


def delay_last_wave(parts: CellEdit) -> None:
    """The last wave gets its first tokens, and all after them, 50 ms later."""
    batch = parts.record.load["batch"]
    last = sorted(parts.requests, key=lambda r: (r["sent"], r["request_id"]))[-batch:]
    for row in last:
        for name in ("first_token", "last_token", "end"):
            row[name] += 50_000_000
    moved = {row["request_id"] for row in last}
    for chunk in parts.chunks:
        if chunk["request_id"] in moved:
            chunk["t"] += 50_000_000


def test_equal_waves_have_no_spread(tmp_path: Path) -> None:
    (cell,) = build_summary(synthetic_run(tmp_path, ("a",), (4,)))["cells"]
    waves = cell["whole"]["waves"]
    assert waves["n"] == cell["requests"]["issued"] / 4
    for name in ("output_tokens_per_s", "ttft_ms_p50", "tpot_ms_p50"):
        assert waves[name]["min"] == pytest.approx(waves[name]["max"])
    assert waves["ttft_ms_p50"]["min"] == pytest.approx(cell["whole"]["ttft_ms"]["p50"])
    assert waves["output_tokens_per_s"]["max"] == pytest.approx(cell["whole"]["output_tokens_per_s"], rel=0.01)


def test_a_late_wave_widens_the_spread_of_ttft_and_throughput_and_not_of_tpot(tmp_path: Path) -> None:
    (even,) = build_summary(synthetic_run(tmp_path / "even", ("a",), (4,)))["cells"]
    (late,) = build_summary(synthetic_run(tmp_path / "late", ("a",), (4,), edit=delay_last_wave))["cells"]
    before, after = even["whole"]["waves"], late["whole"]["waves"]
    assert after["ttft_ms_p50"]["max"] == pytest.approx(before["ttft_ms_p50"]["max"] + 50)
    assert after["ttft_ms_p50"]["min"] == pytest.approx(before["ttft_ms_p50"]["min"])
    assert after["output_tokens_per_s"]["min"] < 0.95 * before["output_tokens_per_s"]["min"]
    assert after["output_tokens_per_s"]["max"] == pytest.approx(before["output_tokens_per_s"]["max"])
    assert after["tpot_ms_p50"] == pytest.approx(before["tpot_ms_p50"])


def test_a_closed_loop_has_no_waves(tmp_path: Path) -> None:
    cells = build_summary(synthetic_run(tmp_path, ("a",), (2,), mode="concurrency"))["cells"]
    assert [c["whole"]["waves"] for c in cells] == [None]


def test_a_wave_that_lost_a_request_is_left_out(tmp_path: Path) -> None:
    (cell,) = build_summary(synthetic_run(tmp_path, ("a",), (4,), edit=fail_requests("http_error", 1)))["cells"]
    assert cell["whole"]["waves"]["n"] == cell["requests"]["issued"] / 4 - 1
