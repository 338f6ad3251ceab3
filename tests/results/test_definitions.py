"""The same events by other tools' rules: where their first token, last token and tokens per second are others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from results.definitions import TOOLS, aiperf_numbers, by_tool, vllm_numbers
from results.errors import UnknownNameError
from results.events import MISSING, Chunks, Requests
from tests.results.recorded_stream import events

CARD = Path(__file__).parents[1] / "data" / "definitions" / "aiperf_0.13.json"


def test_vllm_takes_a_role_chunk_for_a_token_and_the_finish_chunk_for_the_end() -> None:
    numbers = vllm_numbers(*events())
    assert numbers["mean_ttft_ms"] == pytest.approx(np.mean([20, 15, 80, 60]))
    assert numbers["mean_e2el_ms"] == pytest.approx(np.mean([161, 140, 81, 110.25]))
    # One token has no TPOT; the others count from the role chunk.
    assert numbers["mean_tpot_ms"] == pytest.approx(np.mean([141 / 4, 125 / 1, 50.25 / 7]))
    gaps = [100, 15, 25, 1, 75, 11, 39, 1, 35.5, 14.75]
    assert numbers["median_itl_ms"] == pytest.approx(np.median(gaps))
    assert numbers["p99_itl_ms"] == pytest.approx(np.percentile(gaps, 99))
    assert (numbers["completed"], numbers["failed"], numbers["total_output_tokens"]) == (4, 0, 16)
    assert numbers["output_throughput"] == pytest.approx(16 / 0.164)
    assert numbers["total_token_throughput"] == pytest.approx((16 + 44) / 0.164)


def test_aiperf_counts_content_alone() -> None:
    numbers = aiperf_numbers(*events())
    assert numbers["time_to_first_token"]["avg"] == pytest.approx(np.mean([120, 90, 80, 95.5]))
    assert numbers["request_latency"]["avg"] == pytest.approx(np.mean([160, 140, 80, 110.25]))
    assert numbers["inter_token_latency"]["avg"] == pytest.approx(np.mean([40 / 4, 50 / 1, 14.75 / 7]))
    assert numbers["benchmark_duration"]["avg"] == pytest.approx(0.160)
    assert numbers["output_token_throughput"]["avg"] == pytest.approx(16 / 0.160)


def test_aiperfs_own_metrics_of_the_recorded_stream_are_ours() -> None:
    card = json.loads(CARD.read_text())
    assert card["aiperf"].startswith(TOOLS["aiperf"].version)
    ours = aiperf_numbers(*events())
    compared = 0
    for name, points in card["numbers"].items():
        for point, value in points.items():
            assert ours[name][point] == pytest.approx(value, rel=1e-9), (name, point)
            compared += 1
    assert compared == 35


def test_the_clock_starts_with_the_connection_where_one_was_opened() -> None:
    requests, chunks = events()
    opened = requests.connect_start.copy()
    opened[0] = -5_000_000
    later = replace(requests, connect_start=opened)
    before, after = (vllm_numbers(r, chunks)["mean_ttft_ms"] for r in (requests, later))
    assert after - before == pytest.approx(5 / 4)
    assert (requests.connect_start == MISSING).all()


def test_failed_requests_are_no_part_of_latencies_and_are_counted() -> None:
    requests, chunks = events()
    outcome = requests.outcome.copy()
    outcome[0], outcome[1] = "timeout", "truncated"
    failed = replace(requests, outcome=outcome)
    assert (vllm_numbers(failed, chunks)["completed"], vllm_numbers(failed, chunks)["failed"]) == (3, 1)
    assert aiperf_numbers(failed, chunks)["request_count"] == {"avg": 2}


def test_no_answer_at_all_gives_no_number() -> None:
    empty = Requests.of([]), Chunks.of([])
    assert vllm_numbers(*empty)["mean_ttft_ms"] is None
    assert aiperf_numbers(*empty)["output_token_throughput"] == {"avg": None}


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_a_tool_brings_its_definitions_and_version(tool: str) -> None:
    found = by_tool(tool, *events())
    assert "(latency - TTFT) / (n - 1)" in found["definitions"]
    assert found["version"]
    assert found["tokens_from"] == ["final_usage"]


def test_an_unknown_tool_names_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="aiperf, vllm"):
        by_tool("wrk", *events())
