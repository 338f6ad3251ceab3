"""Metrics of a simulated server of known schedule: every number follows from the schedule alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from results.batch import gauge_mean, lock_index
from results.cell_summary import summarise
from results.events import Chunks, Requests, Samples
from results.phases import union_ns
from results.server_use import counter_growth
from results.summary import build_summary
from results.truth import read_steps
from tests.results.builders import plain_record, request_row, synthetic_run, text_chunk
from tests.results.simulation import (
    BLOCK_SIZE,
    KV_BYTES_PER_TOKEN,
    MODEL_CONFIG,
    Schedule,
    chunk_rows,
    request_rows,
    simulate,
)

SCHEDULE = Schedule()


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("truth", [True, False])
def test_a_locked_batch(tmp_path: Path, batch: int, truth: bool) -> None:
    inputs, outputs, waves = 128, 16, max(3, -(-8 // batch))
    store = synthetic_run(tmp_path, ("a",), (batch,), (inputs,), outputs, truth=truth)
    (cell,) = build_summary(store)["cells"]
    whole = cell["whole"]
    prefill, step = SCHEDULE.prefill_step(inputs) / 1e6, SCHEDULE.decode_step(batch) / 1e6
    wave_ms = batch * prefill + (outputs - 1) * step
    assert cell["verdict"] == "VALID"
    assert whole["duration_s"] == pytest.approx(waves * wave_ms / 1e3)
    assert whole["output_tokens_per_s"] == pytest.approx(batch * outputs / wave_ms * 1e3)
    assert whole["total_tokens_per_s"] == pytest.approx(batch * (inputs + outputs) / wave_ms * 1e3)
    # The k-th of a wave waits for the prefills of k - 1 others.
    assert whole["ttft_ms"]["mean"] == pytest.approx(prefill * (batch + 1) / 2)
    assert whole["ttft_ms"]["max"] == pytest.approx(prefill * batch)
    assert whole["e2e_ms"]["mean"] == pytest.approx(wave_ms)
    assert whole["tpot_ms"]["min"] == pytest.approx(step)
    assert whole["itl_pooled_ms"]["p50"] == pytest.approx(step)
    assert whole["decode_tokens_per_s"] == pytest.approx(batch / step * 1e3)
    assert whole["prefill_tokens_per_s"] == pytest.approx(inputs / prefill * 1e3)
    decode = cell["phases"]["decode"]
    assert (decode["source"], decode["mixed"]) == ("wave", 0)
    assert decode["share"] == pytest.approx((outputs - 1) / outputs)
    # The client's estimate holds the prefills of the others.
    assert decode["at_client"] == pytest.approx(
        batch * (outputs - 1) / ((batch - 1) * prefill + (outputs - 1) * step) * 1e3
    )
    assert cell["phases"]["prefill"]["at_client"] == pytest.approx(inputs / prefill * 1e3)
    assert cell["phases"]["prefill"]["source"] == ("steps" if truth else "client")
    assert cell["batch"]["in_flight"] == pytest.approx(batch)
    assert cell["batch"]["offered"] == batch
    assert cell["batch"]["decodes_per_step"] == (pytest.approx(batch) if truth else None)
    # The k-th prefill runs beside k - 1 that are in already; then all of them decode together.
    ramp = prefill * batch * (batch + 1) / 2 + batch * (outputs - 1) * step
    running = ramp / (batch * prefill + (outputs - 1) * step)
    assert cell["batch"]["realised"] == pytest.approx(running if truth else batch)
    assert cell["batch"]["realised_source"] == ("steps" if truth else "in_flight")
    # Eight values are too few for one, and those of a wave are one value however many.
    assert whole["ttft_ms"]["intervals"]["p50"] is None
    assert ("needs 20" if batch == 1 else "share their steps") in whole["ttft_ms"]["withheld"]["intervals"]


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_kv_bytes_predicted_are_those_the_engine_holds(tmp_path: Path, batch: int) -> None:
    inputs, outputs = 100, 20
    store = synthetic_run(tmp_path, ("a",), (batch,), (inputs,), outputs)
    kv = build_summary(store)["cells"][0]["arithmetic"]
    context = inputs + outputs - 1
    assert kv["kv_bytes_per_token"] == KV_BYTES_PER_TOKEN
    assert kv["kv_bytes_predicted"] == batch * context * KV_BYTES_PER_TOKEN
    assert kv["kv_bytes_predicted_blocks"] == batch * -(-context // BLOCK_SIZE) * BLOCK_SIZE * KV_BYTES_PER_TOKEN
    assert kv["kv_ratio"] == 1.0
    assert kv["kv_engine_source"] == "steps"
    # Both from the steps: a gauge read between two of them can be lower than what they hold.
    assert kv["kv_allocated_bytes"] == kv["kv_bytes_predicted_blocks"] >= kv["kv_bytes_engine"]


def test_kv_use_of_an_engine_that_tells_its_capacity_as_a_setting_only() -> None:
    rows = [request_row("r", 0.0, 0.1, 1.0, 11, input_tokens_counted=30)]
    samples = [{"source": "server", "metric": "kv_usage", "t0": 500_000_000, "t1": 500_000_000, "value": 0.25}]
    session = {"settings": {"kv_cache_tokens": {"value": 256, "source": "endpoint"}}}
    found = summarise(
        plain_record(), session, MODEL_CONFIG, Requests.of(rows), Chunks.of([]), Samples.of(samples), None
    )["arithmetic"]
    assert found["kv_bytes_engine"] == 64 * KV_BYTES_PER_TOKEN
    assert found["kv_engine_source"] == "kv_usage x kv_cache_tokens"


def test_a_sliding_window_caps_what_a_long_context_keeps() -> None:
    config = {**MODEL_CONFIG, "model_type": "mistral", "sliding_window": 64}
    rows = [request_row(f"r{i}", 0.0, 0.1, 1.0, 11, input_tokens_counted=n) for i, n in enumerate((30, 90, 200))]
    found = summarise(plain_record(), {}, config, Requests.of(rows), Chunks.of([]), Samples.of([]), None)
    assert found["arithmetic"]["kv_tokens_predicted"] == 40 + 100 + 210
    assert found["arithmetic"]["kv_bytes_predicted"] == (40 + 64 + 64) * KV_BYTES_PER_TOKEN


def test_kv_of_requests_that_never_overlap_does_not_add_up() -> None:
    rows = [request_row(f"r{i}", i, i + 0.1, i + 0.9, 11, input_tokens_counted=100) for i in range(5)]
    rows.append(request_row("long", 2.0, 2.5, 4.5, 21, input_tokens_counted=50))
    kv = summarise(plain_record(), {}, MODEL_CONFIG, Requests.of(rows), Chunks.of([]), Samples.of([]), None)[
        "arithmetic"
    ]
    # Worst when the long one ends at 4.5: its own 50 + 20, and 100 + 10 x 0.4 / 0.8 of r4. (At 3.9, with r3: 110 + 64.)
    assert kv["kv_tokens_predicted"] == 70 + 105


def test_a_closed_loop_reads_its_phases_from_the_steps(tmp_path: Path) -> None:
    store = synthetic_run(tmp_path, ("a",), (4,), (128,), 32, mode="concurrency")
    (cell,) = build_summary(store)["cells"]
    steps = read_steps(store.session_dir(cell["session"]))
    assert steps is not None
    doing = steps.decodes > 0
    time = (steps.end - steps.start)[doing]
    assert cell["whole"]["decode_tokens_per_s"] == pytest.approx(steps.decodes.sum() / time.sum() * 1e9)
    assert cell["phases"]["decode"]["source"] == "steps"
    assert cell["batch"]["decodes_per_step"] == pytest.approx(float(np.average(steps.decodes[doing], weights=time)))
    assert cell["batch"]["lock_index"] < 0.7
    assert "phase_lock" not in [r["code"] for r in cell["reasons"]]


def test_server_counters_agree_with_the_client(tmp_path: Path) -> None:
    for cell in build_summary(synthetic_run(tmp_path))["cells"]:
        assert cell["client"]["cpu_us_per_token"] == pytest.approx(10)
        assert cell["client"]["cpu_share"] == pytest.approx(
            1e-5 * cell["whole"]["output_tokens"] / cell["server"]["counter_span_s"]
        )
        assert cell["server"]["generation_tokens"] == cell["whole"]["output_tokens"]
        assert cell["server"]["prompt_tokens"] == cell["whole"]["input_tokens"]
        assert cell["server"]["preemptions"] == 0
        assert cell["server"]["rss_bytes_max"] == 400 * 2**20


def test_the_burst_of_a_step_counts_whole_whatever_its_spread() -> None:
    load = {"mode": "batch", "batch": 8, "waves": 3}
    sim = simulate(load, [(64, 40)] * 24, SCHEDULE, 0)
    chunks = chunk_rows(sim)
    # Tokens of one step reach the client over a third of the step, in the order of the requests.
    late = {
        r.request_id: 1_400_000 * (i % 8) * SCHEDULE.decode_step(8) // 42_000_000 for i, r in enumerate(sim.requests)
    }
    for chunk in chunks:
        chunk["t"] += late[chunk["request_id"]]
    rows = request_rows(sim)
    for row in rows:
        for name in ("first_byte", "first_token", "last_token", "end"):
            row[name] += late[row["request_id"]]
    record = plain_record(load, ended_s=(sim.ended + 10**8) / 1e9)
    found = summarise(record, {}, None, Requests.of(rows), Chunks.of(chunks), Samples.of([]), None)
    exact = 8 / (SCHEDULE.decode_step(8) / 1e9)
    assert found["whole"]["decode_tokens_per_s"] == pytest.approx(exact, rel=0.01)


def test_a_token_of_the_step_that_ends_the_last_prefill_is_not_counted() -> None:
    # Every 100 ms a step; b's prompt is prefilled in the step of a's second token, which arrives 1 ms after b's first.
    a, b = [0.1 * k + 0.001 for k in range(11)], [0.1 * k for k in range(1, 11)]
    found = summarise(
        plain_record({"mode": "batch", "batch": 2, "waves": 1}),
        {},
        None,
        Requests.of([request_row("a", 0.0, a[0], a[-1], 11), request_row("b", 0.0, b[0], b[-1], 10)]),
        Chunks.of([text_chunk(name, t) for name, times in (("a", a), ("b", b)) for t in times]),
        Samples.of([]),
        None,
    )
    assert found["whole"]["decode_tokens_per_s"] == pytest.approx(2 / 0.1)


def test_a_second_token_that_comes_early_is_counted() -> None:
    times = [1.0, 1.01, 1.1, 1.2, 1.3, 1.4]
    found = summarise(
        plain_record({"mode": "batch", "batch": 1, "waves": 1}),
        {},
        None,
        Requests.of([request_row("a", 0.0, 1.0, 1.4, 6)]),
        Chunks.of([text_chunk("a", t) for t in times]),
        Samples.of([]),
        None,
    )
    assert found["whole"]["decode_tokens_per_s"] == pytest.approx(5 / 0.4)
    assert found["whole"]["tpot_ms"]["mean"] == pytest.approx(400 / 5)


def test_a_wave_with_a_failed_request_gives_no_decode_rate() -> None:
    load = {"mode": "batch", "batch": 4, "waves": 2}
    sim = simulate(load, [(64, 20)] * 8, SCHEDULE, 0)
    rows = request_rows(sim)
    rows[1] |= {"outcome": "reset"}
    found = summarise(plain_record(load), {}, None, Requests.of(rows), Chunks.of(chunk_rows(sim)), Samples.of([]), None)
    assert found["whole"]["decode_tokens_per_s"] == pytest.approx(4 / SCHEDULE.decode_step(4) * 1e9)
    rows[5] |= {"outcome": "reset"}
    found = summarise(plain_record(load), {}, None, Requests.of(rows), Chunks.of(chunk_rows(sim)), Samples.of([]), None)
    assert found["whole"]["decode_tokens_per_s"] is None
    assert "no_decode_window" in [r["code"] for r in found["reasons"]]


@pytest.mark.parametrize(
    ("intervals", "length"),
    [([], 0), ([(0, 5)], 5), ([(0, 5), (3, 8)], 8), ([(6, 8), (0, 5), (1, 2)], 7), ([(2, 2)], 0)],
)
def test_the_union_of_intervals(intervals: list[tuple[int, int]], length: int) -> None:
    low, high = np.array(intervals, dtype=np.int64).reshape(-1, 2).T
    assert union_ns(low, high) == length


def test_a_gauge_holds_until_its_next_reading() -> None:
    times, values = np.array([0, 10, 20]), np.array([1.0, 3.0, 5.0])
    assert gauge_mean(times, values, 0, 20) == pytest.approx(2.0)
    assert gauge_mean(times, values, 5, 15) == pytest.approx(2.0)
    assert gauge_mean(times, values, 20, 30) == pytest.approx(5.0)
    assert gauge_mean(times, values, -10, 10) == pytest.approx(1.0)
    assert gauge_mean(times[:0], values[:0], 0, 20) is None


def test_a_counter_grows_from_before_the_start_to_after_the_end() -> None:
    t0, t1, values = np.array([0, 10, 20, 30]), np.array([1, 11, 21, 31]), np.array([5.0, 7.0, 9.0, 20.0])

    def growth(start: int, end: int, readings: Any = values) -> tuple[float | None, bool, bool]:
        found = counter_growth(t0, t1, readings, start, end)
        return found.value, found.covers, found.fell

    assert growth(11, 20) == (2.0, True, False)
    assert growth(12, 18) == (2.0, True, False)
    # A reading under way when the cell began or ended may hold some of it, or not all.
    assert growth(10, 21) == (15.0, True, False)
    assert growth(0, 30) == (15.0, False, False)
    assert growth(1, 31) == (15.0, False, False)
    assert growth(1, 30, np.array([5.0, 7.0, 1.0, 2.0])) == (None, False, True)
    assert counter_growth(t0[:1], t1[:1], values[:1], 0, 30).value is None


def closed_loop(offsets: list[float], cycles: int = 10) -> Requests:
    rows: list[dict[str, Any]] = []
    for slot, offset in enumerate(offsets):
        for k in range(cycles):
            sent = 0.0 if k == 0 else k + offset
            rows.append(request_row(f"s{slot}k{k}", sent, sent + 0.1, sent + 0.9, 5, slot=slot))
    return Requests.of(rows)


def test_slots_that_always_start_together_are_locked_and_spread_ones_are_not() -> None:
    locked, n = lock_index(closed_loop([0.0, 0.0, 0.01, 0.0]))
    assert locked is not None
    assert locked > 0.99
    assert n > 50
    spread, _ = lock_index(closed_loop([0.0, 0.25, 0.5, 0.75]))
    assert spread == 0.0
    assert lock_index(closed_loop([0.0])) == (None, 0)


def test_a_locked_closed_loop_is_suspect() -> None:
    load = {"mode": "concurrency", "concurrency": 4, "requests": 40}
    for offsets, expected in (([0.0] * 4, True), ([0.0, 0.25, 0.5, 0.75], False)):
        requests = closed_loop(offsets)
        found = summarise(plain_record(load), {}, None, requests, Chunks.of([]), Samples.of([]), None)
        assert ("phase_lock" in [r["code"] for r in found["reasons"]]) is expected
        assert (found["verdict"] == "SUSPECT") is expected
