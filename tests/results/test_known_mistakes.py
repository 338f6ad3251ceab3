"""Mistakes that public reports tell of other tools: the same inputs, with the right answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from results.cell_summary import summarise
from results.comparison import Options, compare, judge
from results.comparison_runs import RunFacts
from results.distribution import distribution
from results.events import Chunks, Requests, Samples
from results.files import read_json, to_json
from results.metrics import METRICS
from results.report_format import percent, size
from results.report_measures import MEASURES
from results.report_readings import Readings
from results.statistics import paired
from tests.results.builders import plain_record, request_row, text_chunk


def cell(rows: list[dict[str, Any]], chunks: list[dict[str, Any]] = [], mode: str = "concurrency") -> dict[str, Any]:  # noqa: B006 - never changed
    load = {"mode": mode, mode: 1, "requests": len(rows)}
    return summarise(plain_record(load), {}, None, Requests.of(rows), Chunks.of(chunks), Samples.of([]), None)


def test_a_high_percentile_of_a_handful_is_null_and_never_above_the_largest() -> None:
    few = distribution(np.array([10.0, 20.0, 30.0]))
    assert (few["p50"], few["p90"], few["p99"], few["max"], few["n"]) == (20.0, None, None, 30.0, 3)
    one, none = distribution(np.array([5.0])), distribution(np.zeros(0))
    assert (one["p50"], one["max"]) == (None, 5.0)
    assert (none["n"], none["p50"], none["max"], none["mean"]) == (0, None, None, None)
    assert distribution(np.arange(99.0))["p99"] is None
    hundred = distribution(np.arange(100.0))
    assert hundred["p99"] == pytest.approx(98.01)
    assert hundred["p99"] <= hundred["max"]


def test_throughput_is_the_ratio_of_sums_and_not_the_mean_of_rates() -> None:
    at, rows = 0.0, []
    for index, (tokens, rate) in enumerate([(72, 104), (150, 193), (946, 650), (2107, 1220)]):
        took = tokens / rate
        rows.append(request_row(f"r{index}", at, at + took / 2, at + took, tokens))
        at += took
    assert cell(rows)["whole"]["output_tokens_per_s"] == pytest.approx(704.0, abs=0.1)


def test_a_batch_is_counted_once() -> None:
    rows = [request_row(f"r{i}", 0.0, 0.02, 2.0, 100, slot=i) for i in range(4)]
    found = summarise(
        plain_record({"mode": "batch", "batch": 4, "waves": 1}),
        {},
        None,
        Requests.of(rows),
        Chunks.of([]),
        Samples.of([]),
        None,
    )
    assert found["whole"]["output_tokens_per_s"] == pytest.approx(200.0)


def test_tpot_that_is_undefined_is_null_and_broken_times_are_an_anomaly() -> None:
    rows = [
        request_row("one", 0.0, 0.2, 0.2, 1),
        request_row("one-late", 1.0, 1.2, 1.5, 1),
        request_row("none", 2.0, 2.2, 2.2, 0),
        request_row("broken", 3.0, 3.5, 3.2, 10),
        request_row("right", 4.0, 4.2, 4.65, 10),
    ]
    found = cell(rows)
    assert (found["whole"]["tpot_ms"]["n"], found["whole"]["tpot_ms"]["mean"]) == (1, pytest.approx(50.0))
    assert "stamps_disordered" in {r["code"] for r in found["reasons"]}
    assert found["verdict"] == "INVALID"
    assert cell(rows[:3])["whole"]["tpot_ms"]["mean"] is None


def test_no_successful_request_gives_nulls_counts_and_a_reason() -> None:
    rows = [
        request_row(f"r{i}", float(i), None, None, None, outcome="refused", error="connect_error", http_status=None)
        for i in range(10)
    ]
    found = cell(rows)
    assert found["requests"] == {"issued": 10, "ok": 0, "by_outcome": {"refused": 10}}
    assert found["verdict"] == "INVALID"
    for name in ("output_tokens_per_s", "requests_per_s", "prefill_tokens_per_s"):
        assert found["whole"][name] is None
    assert all(found["whole"][name]["mean"] is None for name in ("ttft_ms", "tpot_ms", "e2e_ms"))
    evidence = next(r["evidence"] for r in found["reasons"] if r["code"] == "no_requests_ok")
    assert "refused" in evidence
    assert "connect_error" in evidence


def test_nothing_that_is_no_number_reaches_a_file(tmp_path: Path) -> None:
    def forbid(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    rows = [request_row("r", 0.0, 0.1, 0.1, 1)]
    assert json.loads(to_json(cell(rows)), parse_constant=forbid)["whole"]["tpot_ms"]["mean"] is None
    old = tmp_path / "old.json"
    old.write_text('{"request_rate": Infinity, "mean_tpot_ms": NaN, "p99": -Infinity, "n": 3}', encoding="utf-8")
    again = json.loads(to_json(read_json(old)), parse_constant=forbid)
    assert again == {"request_rate": None, "mean_tpot_ms": None, "p99": None, "n": 3}
    ratio = paired([1.0, float("nan")], [1.0, 2.0])
    assert (ratio.low, ratio.high, ratio.p) == (None, None, None)


UNITS = {"ms": "_ms", "s": "_s", "tok/s": "tokens_per_s", "1/s": "requests_per_s", "B": "bytes", "tok": "tokens"}


def test_every_number_carries_its_unit_in_its_name() -> None:
    for metric in METRICS:
        assert UNITS[metric.unit] in metric.id, metric.id
    for measure in MEASURES:
        if measure.unit in UNITS:
            assert UNITS[measure.unit] in measure.id, measure.id


def test_units_are_shown_as_what_they_are() -> None:
    assert percent(0.25) == "25.0 %"
    assert size(108.16 * 2**30) == "108 GiB"
    assert size(1e9) == "954 MiB"


def test_tokens_of_requests_cut_off_by_the_end_count_and_completed_ones_are_told_apart() -> None:
    rows, chunks = [], []
    for i in range(10):
        rows.append(request_row(f"done{i}", 0.0, 1.0, 50.0, 100, slot=i))
        chunks += [text_chunk(f"done{i}", t) for t in np.linspace(1.0, 50.0, 100)]
    for i in range(5):
        cut = {"outcome": "cancelled", "end": 60 * 10**9, "output_tokens_asked": 100, "slot": 10 + i}
        rows.append(request_row(f"cut{i}", 0.0, 1.0, 59.0, 80, **cut))
        chunks += [text_chunk(f"cut{i}", t) for t in np.linspace(1.0, 59.0, 80)]
    found = cell(rows, chunks)
    assert found["whole"]["duration_s"] == pytest.approx(60.0)
    assert found["whole"]["output_tokens_per_s"] == pytest.approx(1400 / 60)
    assert found["whole"]["completed_output_tokens_per_s"] == pytest.approx(1000 / 60)
    assert found["requests"]["by_outcome"]["cancelled"] == 5


def test_a_metric_of_no_value_is_inconclusive_and_no_pass() -> None:
    verdict, why = judge("tpot_ms_p50", paired([], []), 0.03, None)
    assert verdict == "refused"
    assert "no block" in why


def test_chunks_that_all_came_together_make_no_endless_list_of_draws() -> None:
    rows, chunks = [], []
    for i in range(30):
        rows.append(request_row(f"r{i:02d}", 3600.0 * i, 3600.0 * i + 1, 3600.0 * i + 1, 50))
        chunks += [text_chunk(f"r{i:02d}", 3600.0 * i + 1)] * 50
    found = cell(rows, chunks)
    assert found["whole"]["itl_pooled_ms"]["p50"] == 0.0


def test_the_same_numbers_twice_are_no_difference() -> None:
    made = [
        {
            "id": f"c{b}",
            "engine": "e",
            "workload": {"input_len": 1, "output_len": 1},
            "block": b,
            "verdict": "VALID",
            "load": {"mode": "batch", "batch": 1, "value": 1},
            "whole": {"output_tokens_per_s": 100.0 + b},
        }
        for b in range(5)
    ]
    a = RunFacts("one", {"cells": made, "engines": [{"label": "e"}]})
    found = compare(a.side("e"), a.side("e", "two"), "whole", Readings(), Options())
    assert {row.verdict for row in found.primary} == {"equivalent"} or all(row.ratio == 1.0 for row in found.primary)
    assert not any(row.verdict in ("faster", "slower") for row in found.points)
