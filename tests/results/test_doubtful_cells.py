"""Cells whose numbers must not be taken at face value: each says why, and writes nothing that was not measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from results.batch import lock_index
from results.cell_summary import summarise
from results.events import Chunks, Requests, Samples
from results.reason_rules import lock_bar
from results.summary import build_summary
from results.truth import Steps, read_steps
from tests.results.builders import CellEdit, plain_record, request_row, synthetic_run, text_chunk
from tests.results.simulation import MODEL_CONFIG, Schedule, chunk_rows, request_rows, simulate


def summary_of(
    requests: list[dict[str, Any]], chunks: list[dict[str, Any]], samples: Any = (), steps: Any = None, **record: Any
) -> dict[str, Any]:
    return summarise(
        plain_record(**record),
        {},
        MODEL_CONFIG,
        Requests.of(requests),
        Chunks.of(chunks),
        Samples.of(samples),
        steps,
    )


def reasons(cell: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {r["code"]: (r["severity"], r["evidence"]) for r in cell["reasons"]}


def in_one_piece(name: str, start: float, tokens: int | None) -> dict[str, Any]:
    """A request answered by one JSON object: no chunk, no first token."""
    unknown = {"first_token": None, "last_token": None, "tokens_in_first_chunk": None}
    end = round((start + 1) * 1e9)
    return request_row(name, start, None, None, tokens, **unknown, end=end, output_tokens_asked=8, count_source=None)


def test_answers_that_tell_no_count_make_no_throughput_of_zero() -> None:
    found = summary_of([in_one_piece(f"r{i}", i, None) for i in range(20)], [])
    assert found["verdict"] == "INVALID"
    assert reasons(found)["no_tokens_counted"] == ("invalid", "20 of 20 requests answered in full say of no token")
    for name in ("output_tokens", "output_tokens_per_s", "total_tokens_per_s", "completed_output_tokens_per_s"):
        assert found["whole"][name] is None
    some = [in_one_piece("a", 0, None), *(request_row(f"r{i}", i, i + 0.1, i + 0.9, 8) for i in range(20))]
    found = summary_of(some, [text_chunk(f"r{i}", i + 0.1 * k) for i in range(20) for k in range(1, 9)])
    assert reasons(found)["no_tokens_counted"][0] == "suspect"
    assert found["whole"]["output_tokens_per_s"] is None


def test_short_answers_without_any_token_are_held_against_what_was_asked() -> None:
    nothing = {"first_token": None, "last_token": None, "outcome": "short", "output_tokens_asked": 64}
    rows = [request_row(f"s{i}", i, None, None, None, **nothing, end=round((i + 1) * 1e9)) for i in range(10)]
    rows += [request_row(f"r{i}", i, i + 0.1, i + 0.9, 64) for i in range(10)]
    severity, evidence = reasons(summary_of(rows, []))["short_outputs"]
    assert severity == "invalid"
    assert evidence == "10 of 20 requests ended early: 640 of 1280 output tokens asked for"


def test_answers_in_one_piece_count_their_prompts_and_say_what_is_missing() -> None:
    rows = [in_one_piece(f"r{i}", i, 8) for i in range(20)]
    client = {"receive_stamps": "read", "not_streamed": 20}
    found = summary_of(rows, [], client=client)
    assert found["whole"]["input_tokens"] == 200
    assert found["whole"]["total_tokens_per_s"] == pytest.approx((200 + 160) / 20)
    assert found["whole"]["ttft_ms"]["n"] == 0
    assert found["verdict"] == "SUSPECT"
    assert reasons(found)["not_streamed"] == ("suspect", "20 of 20 answers came in one piece")


def test_what_the_client_counts_of_itself_is_in_the_summary() -> None:
    rows = [request_row(f"r{i}", i, i + 0.1, i + 0.9, 8) for i in range(20)]
    chunks = [text_chunk(f"r{i}", i + 0.1 * k) for i in range(20) for k in range(1, 9)]
    counts = {"retries": 1, "stamps_disbelieved": 3, "coalesced_events": 5, "not_streamed": 0, "max_in_flight": 1}
    found = summary_of(rows, chunks, client={"receive_stamps": "mixed", **counts})
    assert counts.items() <= found["client"].items()
    told = reasons(found)
    assert told["requests_sent_again"] == ("note", "1 of 20 requests")
    assert told["stamps_disbelieved"] == ("note", "3 receive stamps")
    assert told["coalesced_events"][0] == "note"
    assert told["no_kernel_stamps"] == ("note", "some chunks are stamped when the client read them")
    assert "not_streamed" not in told
    few = summary_of(rows, chunks, client={"receive_stamps": "kernel", "coalesced_events": 1})
    assert few["client"]["coalesced_events"] == 1, "too few for a reason, counted all the same"
    quiet = reasons(few)
    often = reasons(summary_of(rows, chunks, client={"receive_stamps": "kernel", **counts, "retries": 2}))
    assert often["requests_sent_again"] == ("suspect", "2 of 20 requests")
    assert not {"requests_sent_again", "stamps_disbelieved", "coalesced_events", "no_kernel_stamps"} & set(quiet)


def counters(hits: float, preempted: float = 0) -> list[dict[str, Any]]:
    ends = {"prefix_hits_total": hits, "prefix_queries_total": 200.0, "preemptions_total": preempted}
    return [
        {"source": "server", "metric": name, "t0": t, "t1": t, "value": 50.0 + (value if t else 0.0)}
        for name, value in ends.items()
        for t in (0, 10**12)
    ]


@pytest.mark.parametrize(("hits", "severity"), [(0, None), (1, "note"), (160, "suspect")])
def test_random_prompts_that_hit_the_prefix_cache_were_repeated(hits: int, severity: str | None) -> None:
    rows = [request_row(f"r{i}", i, i + 0.1, i + 0.9, 8) for i in range(20)]
    found = summary_of(rows, [], counters(hits))
    assert (found["server"]["prefix_hits"], found["server"]["prefix_queries"]) == (hits, 200)
    assert reasons(found).get("prefix_cache_hits", (None,))[0] == severity
    shared = summary_of(rows, [], counters(hits), workload={"type": "prefix"})
    assert "prefix_cache_hits" not in reasons(shared)


@pytest.mark.parametrize(("preempted", "severity"), [(0, None), (2, "note"), (3, "suspect")])
def test_preemptions_are_told_and_suspect_above_a_tenth_of_the_requests(preempted: int, severity: str | None) -> None:
    load = {"mode": "batch", "batch": 4, "waves": 5}
    sim = simulate(load, [(32, 20)] * 20, Schedule(), 0)
    found = summary_of(request_rows(sim), chunk_rows(sim), counters(0, preempted), load=load)
    assert reasons(found).get("preemptions", (None,))[0] == severity
    assert found["phases"]["decode"]["source"] == "wave"
    # A preempted request is prefilled again while the wave decodes.
    assert found["phases"]["decode"]["mixed"] == (None if preempted else 0.0)


@pytest.mark.parametrize("kept", [0.0, 0.03, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("mode", ["batch", "concurrency"])
def test_a_step_log_that_was_cut_off_is_not_believed(tmp_path: Path, kept: float, mode: str) -> None:
    def summary(name: str, share: float | None) -> dict[str, Any]:
        store = synthetic_run(tmp_path, ("a",), (4,), (128,), 64, mode=mode, truth=share is not None, name=name)
        (record,) = store.cells()
        steps = read_steps(store.session_dir(record.session))
        if steps is not None and share is not None:
            few = steps.take(np.arange(len(steps)) < share * len(steps))
            _write_steps(store.session_dir(record.session), few)
        return dict(build_summary(store)["cells"][0])

    cut, blind = summary("cut", kept), summary("blind", None)
    if kept == 1.0:
        assert "truth_incomplete" not in reasons(cut)
        assert cut["batch"]["realised_source"] == "steps"
        assert cut["phases"]["prefill"]["share"] == 1.0
        return
    assert reasons(cut)["truth_incomplete"][0] == "suspect"
    assert cut["verdict"] == "SUSPECT"
    for part in ("whole", "batch", "phases"):
        assert cut[part] == blind[part], "as if there were no log"
    assert cut["arithmetic"]["kv_engine_source"] == blind["arithmetic"]["kv_engine_source"]


def _write_steps(folder: Path, steps: Steps) -> None:
    from results.events import write_table
    from results.schema import TRUTH_STEPS

    told = {f.name: getattr(steps, f.name).tolist() for f in fields(Steps)}
    columns = {name: told.get(name, [None] * len(steps)) for name in TRUTH_STEPS.names}
    write_table(folder / "steps.parquet", TRUTH_STEPS, columns)


def test_shortened_first_requests_of_the_slots_are_not_in_e2e() -> None:
    rows = []
    for slot in range(4):
        rows.append(request_row(f"first{slot}", 0.0, 0.1, 0.2 + 0.1 * slot, 2 + slot, slot=slot))
        rows += [request_row(f"r{slot}{k}", k, k + 0.1, k + 0.9, 10, slot=slot) for k in range(1, 6)]
    found = summary_of(rows, [], load={"mode": "concurrency", "concurrency": 4, "requests": 24})
    assert found["whole"]["e2e_ms"]["n"] == found["whole"]["scheduled_e2e_ms"]["n"] == 20
    assert found["whole"]["e2e_ms"]["min"] == pytest.approx(900)
    assert found["whole"]["ttft_ms"]["n"] == 24
    assert reasons(found)["first_of_slot_left_out"] == ("note", "4 of 24 requests answered in full")
    whole = [{**row, "output_tokens_asked": 10} for row in rows]
    found = summary_of(whole, [], load={"mode": "concurrency", "concurrency": 4, "requests": 24})
    assert found["whole"]["e2e_ms"]["n"] == 24, "not shortened, not left out"


def test_time_between_steps_counts_as_nobody_running(tmp_path: Path) -> None:
    def idle(parts: CellEdit) -> None:
        # The last request ends as much later again as the cell took: the engine had nothing to do by then.
        last = max(parts.requests, key=lambda row: row["end"])
        last["end"] += parts.record.ended - parts.record.started
        parts.record.ended = last["end"] + 1

    busy = build_summary(synthetic_run(tmp_path, ("a",), (4,), name="busy"))["cells"][0]["batch"]
    found = build_summary(synthetic_run(tmp_path, ("a",), (4,), name="idle", edit=idle))["cells"][0]["batch"]
    assert found["readings"]["steps"] == pytest.approx(busy["readings"]["steps"] / 2, rel=0.01)


def test_an_engine_that_tells_all_of_its_steps_can_be_held_against_one_that_tells_less(tmp_path: Path) -> None:
    found = build_summary(synthetic_run(tmp_path, ("a",), (4,)))["cells"][0]["batch"]
    assert found["realised_source"] == "steps"
    # Less by those that run but are not in the step, more by the pauses between steps.
    assert found["readings"]["log"] == pytest.approx(found["readings"]["steps"], rel=0.15)
    assert found["readings"]["log"] <= 4


@pytest.mark.parametrize("apart", [1, 2, 3, 5])
def test_a_wave_decodes_as_fast_in_chunks_of_eight_tokens(apart: int) -> None:
    # 16 streams in 4 groups, each prefilled `apart` steps after the one before; a token each step of 10 ms, 8 in a chunk.
    rows, chunks = [], []
    for i in range(16):
        times = [0.01 * (1 + apart * (i // 4) + k) for k in range(7, 32, 8)]
        rows.append(request_row(f"r{i:02d}", 0.0, times[0], times[-1], 32, slot=i, tokens_in_first_chunk=8))
        chunks += [text_chunk(f"r{i:02d}", t, 8) for t in times]
    found = summary_of(rows, chunks, load={"mode": "batch", "batch": 16, "waves": 1})
    assert found["phases"]["decode"]["source"] == "wave"
    assert found["whole"]["decode_tokens_per_s"] == pytest.approx(1600, rel=0.001)


def independent_slots(draw: np.random.Generator, slots: int, exact: bool) -> Requests:
    """Twelve requests of each slot; a request takes 100 ms and 20 ms a token, whatever the others do."""
    rows = []
    for slot in range(slots):
        now = 0.0
        for k in range(12):
            tokens = draw.integers(1, 65) if k == 0 else 64 if exact else draw.integers(52, 77)
            rows.append(request_row(f"s{slot}k{k}", now, now + 0.1, now + 0.1 + 0.02 * tokens, int(tokens), slot=slot))
            now += 0.1 + 0.02 * tokens
    return Requests.of(rows)


@pytest.mark.parametrize(
    ("slots", "exact", "at_most"), [(2, True, 0.08), (2, False, 0.02), (3, True, 0.05), (4, True, 0.05)]
)
def test_slots_that_know_nothing_of_each_other_are_seldom_called_locked(
    slots: int, exact: bool, at_most: float
) -> None:
    draw = np.random.default_rng(slots)
    found = [lock_index(independent_slots(draw, slots, exact))[0] or 0.0 for _ in range(200)]
    assert np.mean(np.array(found) > lock_bar(slots)) <= at_most
