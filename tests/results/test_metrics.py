"""Metrics of one cell against arithmetic done by hand, and the reported faults of other tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from results.cell_summary import summarise
from results.events import Chunks, Requests, Samples
from results.metrics import METRICS
from tests.results.builders import plain_record, request_row, text_chunk
from tests.results.simulation import MODEL_CONFIG


def summary_of(
    requests: Sequence[Mapping[str, Any]],
    chunks: Sequence[Mapping[str, Any]] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    **record: Any,
) -> dict[str, Any]:
    found = summarise(
        plain_record(**record),
        {},
        MODEL_CONFIG,
        Requests.of(requests),
        Chunks.of(chunks),
        Samples.of(samples),
        None,
    )
    json.dumps(found, allow_nan=False)
    return found


def codes(summary: Mapping[str, Any]) -> dict[str, str]:
    return {r["code"]: r["severity"] for r in summary["reasons"]}


def evidence(summary: Mapping[str, Any], code: str) -> str:
    return next(str(r["evidence"]) for r in summary["reasons"] if r["code"] == code)


def test_the_table_names_every_metric_of_the_contract_once() -> None:
    ids = [m.id for m in METRICS]
    assert len(ids) == len(set(ids))
    contract = (
        "start_s duration_s input_tokens output_tokens output_tokens_per_s total_tokens_per_s requests_per_s "
        "prefill_tokens_per_s decode_tokens_per_s ttft_ms scheduled_ttft_ms tpot_ms itl_pooled_ms e2e_ms scheduled_e2e_ms"
    )
    assert set(contract.split()) <= set(ids)
    assert all(m.id.endswith("_ms") == (m.unit == "ms") for m in METRICS)
    assert all(m.id.endswith("_per_s") == m.unit.endswith("/s") for m in METRICS)


def test_ttft_counts_reasoning_and_the_first_content_is_told_beside_it() -> None:
    def thought(request_id: str, t: float) -> dict[str, Any]:
        return {**text_chunk(request_id, t), "kind": "reasoning"}

    rows = [request_row("a", 0.0, 0.1, 1.0, 3), request_row("b", 0.0, 0.1, 0.5, 5)]
    chunks = [thought("a", 0.1), thought("a", 0.55), text_chunk("a", 1.0)]
    found = summary_of(rows, [*chunks, *(thought("b", 0.1 + 0.1 * k) for k in range(5))])
    whole = found["whole"]
    assert whole["ttft_ms"]["mean"] == pytest.approx(100)
    # The second ended inside its reasoning: it has tokens, and no content.
    assert (whole["ttft_content_ms"]["n"], whole["output_tokens"]) == (1, 8)
    assert whole["ttft_content_ms"]["mean"] == pytest.approx(1000)
    assert codes(found)["reasoning_first"] == "note"
    assert evidence(found, "reasoning_first").endswith("1000.0 ms after the send (median); 1 of 2 answers held none")
    plain = summary_of(rows[:1], [text_chunk("a", t) for t in (0.1, 0.55, 1.0)])
    assert plain["whole"]["ttft_content_ms"] is None
    assert "reasoning_first" not in codes(plain)


def test_one_request_by_hand() -> None:
    row = request_row("a", 1.0, 1.2, 1.65, 10, intended=500_000_000, end=1_750_000_000)
    times = [1.2 + 0.05 * k for k in range(10)]
    whole = summary_of([row], [text_chunk("a", t) for t in times])["whole"]
    assert whole["start_s"] == 1.0
    assert whole["duration_s"] == pytest.approx(0.75)
    assert (whole["input_tokens"], whole["output_tokens"]) == (10, 10)
    assert whole["output_tokens_per_s"] == pytest.approx(10 / 0.75)
    assert whole["total_tokens_per_s"] == pytest.approx(20 / 0.75)
    assert whole["requests_per_s"] == pytest.approx(1 / 0.75)
    assert whole["ttft_ms"]["mean"] == pytest.approx(200)
    assert whole["scheduled_ttft_ms"]["mean"] == pytest.approx(700)
    assert whole["tpot_ms"]["mean"] == pytest.approx(50)
    assert whole["itl_pooled_ms"]["mean"] == pytest.approx(50)
    assert whole["itl_pooled_ms"]["n"] == 9
    assert whole["e2e_ms"]["mean"] == pytest.approx(650)
    assert whole["scheduled_e2e_ms"]["mean"] == pytest.approx(1150)
    assert whole["prefill_tokens_per_s"] == pytest.approx(50)
    assert whole["decode_tokens_per_s"] == pytest.approx(20)
    assert whole["ttft_ms"]["p50"] is None, "one value has no median"


def test_several_tokens_per_chunk_are_not_taken_for_single_ones() -> None:
    row = request_row("a", 0.0, 0.1, 0.7, 12, tokens_in_first_chunk=None, count_source="final_usage")
    found = summary_of([row], [text_chunk("a", t, None) for t in (0.1, 0.4, 0.7)])
    whole = found["whole"]
    assert whole["output_tokens"] == 12
    assert whole["tpot_ms"]["mean"] == pytest.approx(600 / 11)
    assert whole["itl_pooled_ms"] is None
    assert whole["interchunk_ms"]["mean"] == pytest.approx(300)
    assert whole["tokens_per_chunk"] == pytest.approx(4)
    assert codes(found)["first_chunk_tokens_unknown"] == "note"
    assert codes(found)["itl_not_single_token"] == "note"
    assert "token_counts_disagree" not in codes(found)


def test_tokens_of_a_first_chunk_of_known_size_are_out_of_the_tpot_denominator() -> None:
    row = request_row("a", 0.0, 0.1, 0.8, 64, tokens_in_first_chunk=8)
    found = summary_of([row], [text_chunk("a", 0.1 * k, 8) for k in range(1, 9)])
    assert found["whole"]["tpot_ms"]["mean"] == pytest.approx(700 / 56)
    assert found["whole"]["itl_pooled_ms"] is None
    assert "first_chunk_tokens_unknown" not in codes(found)


@pytest.mark.filterwarnings("error")
def test_an_answer_in_one_chunk_has_no_tpot() -> None:
    row = request_row("a", 0.0, 0.1, 0.1, 8, tokens_in_first_chunk=8)
    assert summary_of([row], [text_chunk("a", 0.1, 8)])["whole"]["tpot_ms"]["n"] == 0
    # Times that move although all tokens came first are no time per token either.
    row = request_row("a", 0.0, 0.1, 0.5, 8, tokens_in_first_chunk=8)
    assert summary_of([row])["whole"]["tpot_ms"]["n"] == 0


def test_a_failed_request_is_no_time_of_prefill_or_decode() -> None:
    good = request_row("a", 0.0, 0.1, 1.0, 10)
    broken = request_row("b", 2.0, 4.0, 8.0, 10, outcome="reset")
    whole = summary_of([good, broken])["whole"]
    assert whole["prefill_tokens_per_s"] == pytest.approx(10 / 0.1)
    assert whole["decode_tokens_per_s"] == pytest.approx(9 / 0.9)


def test_throughput_counts_what_was_delivered_not_what_was_asked() -> None:
    row = request_row("a", 0.0, 0.1, 1.0, 8, output_tokens_asked=128, outcome="short")
    found = summary_of([row], [text_chunk("a", 0.125 * k) for k in range(1, 9)])
    assert found["whole"]["output_tokens"] == 8
    assert found["whole"]["output_tokens_per_s"] == pytest.approx(8)
    assert found["requests"]["by_outcome"] == {"short": 1}
    assert evidence(found, "short_outputs").startswith("1 of 1 requests ended early: 8 of 128")


def test_an_engine_that_writes_an_eighth_of_what_was_asked_is_refused() -> None:
    a = [request_row(f"a{i}", i, i + 0.1, i + 0.9, 128) for i in range(30)]
    b = [request_row(f"b{i}", i, i + 0.1, i + 0.2, 16, output_tokens_asked=128, outcome="short") for i in range(30)]
    assert summary_of(a)["verdict"] == "VALID"
    found = summary_of(b)
    assert found["verdict"] == "INVALID"
    assert codes(found)["short_outputs"] == "invalid"


def test_the_whole_run_includes_the_straggler_and_says_that_there_is_no_window() -> None:
    rows, chunks = [], []
    for i in range(32):
        start = 10.0 * (i // 8)
        rows.append(request_row(f"r{i:02d}", start, start + 0.1, start + 10, 100, slot=i % 8))
        chunks += [text_chunk(f"r{i:02d}", start + 0.1 * (k + 1)) for k in range(100)]
    rows.append(request_row("straggler", 30.0, 30.1, 90.0, 600, slot=8))
    chunks += [text_chunk("straggler", 30 + 0.1 * (k + 1)) for k in range(600)]
    found = summary_of(rows, chunks)
    assert found["whole"]["duration_s"] == pytest.approx(90)
    assert found["whole"]["output_tokens_per_s"] == pytest.approx(3800 / 90)
    assert found["window"] is None
    assert codes(found)["no_window"] == "note"


def test_a_server_that_refuses_half_the_load_is_not_the_faster_one() -> None:
    a = [request_row(f"a{i}", 0, 5, 10, 10) for i in range(100)]
    refused = {"outcome": "http_error", "http_status": 503, "error": "503 busy", "end": 10_000_000}
    b = [request_row(f"b{i}", 0, 0.5, 1, 10) for i in range(50)]
    b += [request_row(f"b{i}", 0, None, None, None, **refused) for i in range(50, 100)]
    assert summary_of(a)["verdict"] == "VALID"
    found = summary_of(b)
    assert found["requests"] == {"issued": 100, "ok": 50, "by_outcome": {"http_error": 50, "ok": 50}}
    assert found["whole"]["e2e_ms"]["n"] == 50
    assert found["verdict"] == "INVALID"
    assert "50 of 100 requests failed (50.0%: 50 http_error)" in evidence(found, "failures")
    assert "503 busy" in evidence(found, "failures")


@pytest.mark.parametrize(("failed", "severity"), [(1, "suspect"), (10, "suspect"), (11, "invalid")])
def test_failures_are_suspect_and_refused_above_a_tenth(failed: int, severity: str) -> None:
    rows = [request_row(f"a{i}", 0, 5, 10, 10) for i in range(100 - failed)]
    rows += [request_row(f"f{i}", 0, None, None, None, outcome="reset") for i in range(failed)]
    assert codes(summary_of(rows))["failures"] == severity


def test_rates_are_ratios_of_sums_not_means_of_ratios() -> None:
    rows, now = [], 0.0
    for i, (tokens, rate) in enumerate([(72, 104), (150, 193), (946, 650), (2107, 1220)]):
        rows.append(request_row(f"r{i}", now, now + 0.01, now + tokens / rate, tokens))
        now += tokens / rate
    assert summary_of(rows)["whole"]["output_tokens_per_s"] == pytest.approx(704.0, abs=0.1)


def test_a_batch_is_not_multiplied_in_twice() -> None:
    rows = [request_row(f"r{i}", 0.0, 0.02, 2.0, 100) for i in range(4)]
    assert summary_of(rows, load={"mode": "batch", "batch": 4, "waves": 1})["whole"]["output_tokens_per_s"] == 200


def test_tpot_of_one_token_no_token_or_broken_times_is_undefined() -> None:
    broken = [(0.2, 0.2, 1), (0.2, 0.5, 1), (0.2, 0.2, 0), (0.5, 0.2, 10), (0.2, 0.65, 10)]
    rows = [request_row(f"r{i}", 0.0, first, last, n) for i, (first, last, n) in enumerate(broken)]
    found = summary_of(rows)
    tpot = found["whole"]["tpot_ms"]
    assert tpot["n"] == 1
    assert tpot["mean"] == tpot["min"] == tpot["max"] == pytest.approx(50)
    assert codes(found)["stamps_disordered"] == "invalid"
    assert evidence(found, "stamps_disordered").startswith("1 of 5 requests, e.g. r3: last_token 300.0 ms before")


def test_no_successful_request_gives_nulls_counts_and_a_verdict() -> None:
    refused = {"outcome": "refused", "error": "connection refused", "end": 5_000_000}
    rows = [request_row(f"r{i}", 0.0, None, None, None, **refused) for i in range(10)]
    found = summary_of(rows)
    assert found["requests"] == {"issued": 10, "ok": 0, "by_outcome": {"refused": 10}}
    assert found["verdict"] == "INVALID"
    assert evidence(found, "no_requests_ok") == (
        "0 of 10 requests were answered in full (10 refused); first error: refused: connection refused"
    )
    for metric in METRICS:
        value = found["whole"][metric.id]
        if metric.unit.endswith("/s"):
            assert value is None
        elif isinstance(value, dict):
            assert value["n"] == 0
            assert value["mean"] is value["p50"] is value["max"] is None


def test_no_request_at_all() -> None:
    found = summary_of([])
    assert found["whole"] is None
    assert found["requests"] == {"issued": 0, "ok": 0, "by_outcome": {}}
    assert found["verdict"] == "INVALID"
    assert evidence(found, "no_requests_ok") == "no request was issued"


def test_nothing_was_even_sent() -> None:
    row = request_row("a", 0.0, None, None, None, outcome="refused", sent=None, end=1_000)
    found = summary_of([row])
    assert found["whole"] is None
    assert found["requests"]["by_outcome"] == {"refused": 1}
    assert found["verdict"] == "INVALID"


def test_tokens_of_unfinished_requests_count_in_throughput_and_are_told_apart() -> None:
    rows = [request_row(f"a{i}", 6 * i, 6 * i + 0.1, 6 * i + 6, 100) for i in range(10)]
    rows += [
        request_row(f"u{i}", 40.0, 41.0, 60.0, None, outcome="cancelled", output_tokens_asked=100) for i in range(5)
    ]
    chunks = [text_chunk(f"a{i}", 6 * i + 0.06 * (k + 1)) for i in range(10) for k in range(100)]
    chunks += [text_chunk(f"u{i}", 40 + 0.25 * (k + 1)) for i in range(5) for k in range(80)]
    found = summary_of(rows, chunks)
    assert found["whole"]["output_tokens_per_s"] == pytest.approx(1400 / 60)
    assert found["whole"]["completed_output_tokens_per_s"] == pytest.approx(1000 / 60)
    assert evidence(found, "cancelled_requests") == "5 of 15 requests were ended by the client"
    assert "failures" not in codes(found)


def test_chunks_without_tokens_are_no_tokens() -> None:
    row = request_row("a", 0.0, 0.2, 0.4, 2)
    others = [
        {**text_chunk("a", t, None), "kind": kind} for t, kind in ((0.1, "role"), (0.45, "finish"), (0.5, "usage"))
    ]
    others += [{**text_chunk("a", 0.3, 0)}]
    whole = summary_of([row], [*others, text_chunk("a", 0.2), text_chunk("a", 0.4)])["whole"]
    assert whole["itl_pooled_ms"]["n"] == 1
    assert whole["itl_pooled_ms"]["mean"] == pytest.approx(200)
    assert whole["tokens_per_chunk"] == 1


def test_infinities_and_nan_of_the_samples_never_reach_the_summary() -> None:
    samples = [
        {"source": "server", "metric": "running", "t0": t, "t1": t, "value": value}
        for t, value in ((0, float("inf")), (10**9, float("nan")), (2 * 10**9, 4.0), (3 * 10**9, None))
    ]
    found = summary_of([request_row("a", 0.0, 0.2, 3.0, 5)], samples=samples, ended_s=3.0)
    assert found["batch"]["running"] == 4.0
    assert found["server"]["running_max"] == 4
