"""What must hold of any cell: each law on data that keeps it, and on data that breaks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.events import Chunks, Requests, Samples
from results.invariants import (
    GAPS,
    IN_FLIGHT,
    KV,
    gaps_that_do_not_add_up,
    in_flight_at,
    in_flight_disagrees,
    kv_beyond_bounds,
    longest_context,
)
from results.schema import TRUTH_STEPS
from results.summary import build_summary
from results.tokens import token_chunks
from results.truth import Steps
from tests.results.builders import CellEdit, request_row, synthetic_run, text_chunk

NS = 1_000_000_000
NEW = {GAPS, IN_FLIGHT, KV}


def codes(tmp_path: Path, **run: Any) -> set[str]:
    store = synthetic_run(tmp_path, engines=["a"], **run)
    return {r["code"] for cell in build_summary(store)["cells"] for r in cell["reasons"]}


@pytest.mark.parametrize("mode", ["batch", "concurrency"])
@pytest.mark.parametrize("truth", [True, False])
def test_a_server_of_known_schedule_keeps_every_law(mode: str, truth: bool, tmp_path: Path) -> None:
    assert not NEW & codes(tmp_path, batches=(1, 4), mode=mode, truth=truth)


# TTFT + gaps = E2E


def cell(*shifts: float) -> tuple[Requests, Chunks]:
    """One request with tokens at 1, 2, 3 and 4 s; its chunks moved by `shifts`."""
    times = [1 + i + shift for i, shift in enumerate(shifts)]
    return (
        Requests.of([request_row("a", 0.5, 1, 4, 4)]),
        Chunks.of([text_chunk("a", t) for t in times]),
    )


@pytest.mark.parametrize(
    ("shifts", "words"),
    [
        ((0, 0, 0, 0), None),
        ((0, 0.3, -0.3, 0), None),  # inside, nothing is known of a stamp but its chunk
        ((0, 0, 0, 0.002), "end 2.000 ms after its last token"),
        ((0, 0, 0, -0.5), "500.000 ms before"),
        ((-0.001, 0, 0, 0), "1 of 1 requests, e.g. a"),
        ((0, 0, 0), "1000.000 ms before"),  # a chunk was lost
    ],
)
def test_first_token_and_gaps_lead_to_the_last_token(shifts: tuple[float, ...], words: str | None) -> None:
    requests, chunks = cell(*shifts)
    found = gaps_that_do_not_add_up(requests, token_chunks(requests, chunks))
    assert (found is None) if words is None else words in str(found)


def test_requests_that_were_not_answered_have_no_such_law() -> None:
    requests, chunks = cell(0, 0)
    requests.outcome[:] = "reset"
    assert gaps_that_do_not_add_up(requests, token_chunks(requests, chunks)) is None


def test_a_breach_makes_the_cell_invalid(tmp_path: Path) -> None:
    def lose(parts: CellEdit) -> None:
        last = max(i for i, c in enumerate(parts.chunks) if c["kind"] == "text")
        del parts.chunks[last]

    store = synthetic_run(tmp_path, engines=["a"], batches=(2,), edit=lose)
    (summary,) = build_summary(store)["cells"]
    assert summary["verdict"] == "INVALID"
    assert GAPS in {r["code"] for r in summary["reasons"]}


# In flight here and there


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=20), st.integers(0, 60), st.integers(0, 20))
def test_in_flight_is_what_counting_gives(spans: list[tuple[int, int]], low: int, length: int) -> None:
    rows = [
        request_row(f"r{i}", 0, None, None, None, queued=begin, end=begin + lasts)
        for i, (begin, lasts) in enumerate(spans)
    ]
    high = low + length
    # Both ends included: what cannot be told is counted.
    expected = sum(begin <= high and begin + lasts >= low for begin, lasts in spans)
    assert in_flight_at(Requests.of(rows), np.array([low]), np.array([high])).tolist() == [expected]


def readings(running: int, waiting: int, count: int = 20) -> Samples:
    rows = []
    for i in range(count):
        t = (1 + i) * NS
        for metric, value in (("running", running), ("waiting", waiting)):
            rows.append(
                {"source": "server", "metric": metric, "device": "", "t0": t, "t1": t + 1_000_000, "value": value}
            )
    return Samples.of(rows)


@pytest.mark.parametrize(
    ("running", "waiting", "count", "told"),
    [(3, 0, 20, False), (2, 1, 20, False), (2, 0, 20, False), (4, 0, 20, True), (3, 7, 20, True), (9, 9, 9, False)],
)
def test_a_server_with_more_requests_than_were_sent_serves_somebody_else(
    running: int, waiting: int, count: int, told: bool
) -> None:
    requests = Requests.of([request_row(f"r{i}", 0.5, 1, 30, 4) for i in range(3)])
    found = in_flight_disagrees(requests, readings(running, waiting, count), (0, 40 * NS))
    assert (found is not None) == told
    assert found is None or f"had {running + waiting} requests running or waiting" in found


@pytest.mark.parametrize(
    ("sent", "there", "told"),
    [(3, 0, True), (3, 1, True), (3, 2, False), (16, 12, True), (16, 13, False), (16, 16, False), (1, 0, False)],
)
def test_a_server_that_knows_of_plainly_fewer_requests_than_were_sent_does_not_tell_of_them(
    sent: int, there: int, told: bool
) -> None:
    requests = Requests.of([request_row(f"r{i}", 0.5, 1, 30, 4) for i in range(sent)])
    found = in_flight_disagrees(requests, readings(there, 0), (0, 40 * NS))
    assert (found is not None) == told
    assert found is None or f"the client had at least {sent} in flight" in found


def test_counts_of_before_a_long_first_step_are_no_contradiction() -> None:
    """Four prompts at once take 15 s to be computed; until then the gauges are those of before."""
    requests = Requests.of([request_row(f"r{i}", 0.5, 15.5, 21, 4) for i in range(4)])
    assert in_flight_disagrees(requests, readings(0, 0), (0, 40 * NS)) is None
    assert in_flight_disagrees(requests, readings(0, 0, 40), (0, 40 * NS)) is None
    longer = Requests.of([request_row(f"r{i}", 0.5, 15.5, 30, 4) for i in range(4)])
    assert in_flight_disagrees(longer, readings(0, 0, 40), (0, 40 * NS)) is not None


def test_requests_that_came_during_a_step_are_not_missed_while_the_first_has_its_tokens() -> None:
    """One prompt was taken alone; the other three are computed together while the gauges are those of that first step."""
    rows = [request_row("first", 0.5, 1, 30, 4), *(request_row(f"r{i}", 0.5, 25, 30, 4) for i in range(3))]
    assert in_flight_disagrees(Requests.of(rows), readings(1, 0), (0, 40 * NS)) is None


def test_requests_that_come_and_go_between_readings_or_fail_are_not_missed_at_the_server() -> None:
    # Each lasts a tenth of the time between two readings, and failed ones may never have been there.
    short = [request_row(f"r{i}", i / 10, i / 10 + 0.05, i / 10 + 0.09, 4) for i in range(400)]
    failed = [request_row(f"f{i}", 0.5, 1, 30, 4, outcome="reset") for i in range(8)]
    assert in_flight_disagrees(Requests.of(short + failed), readings(0, 0), (0, 40 * NS)) is None


def test_readings_outside_the_cell_or_of_one_gauge_only_say_nothing() -> None:
    requests = Requests.of([request_row("a", 0.5, 1, 30, 4)])
    assert in_flight_disagrees(requests, readings(9, 9), (30 * NS, 40 * NS)) is None
    one = readings(9, 9)
    one.metric[one.metric == "waiting"] = "other"
    assert in_flight_disagrees(requests, one, (0, 40 * NS)) is None


# The KV cache


def steps(**columns: list[int]) -> Steps:
    n = len(next(iter(columns.values())))
    zero = dict.fromkeys(TRUTH_STEPS.names, [0] * n)
    names = Steps.__slots__
    return Steps(**{name: np.array({**zero, **columns}[name], dtype=np.int64) for name in names})


def session(**settings: Any) -> dict[str, Any]:
    return {"settings": {name: {"value": value} for name, value in ({"block_size": 16} | settings).items()}}


@pytest.mark.parametrize(
    ("blocks", "held", "told"),
    [
        (2, 32, None),
        (2, 17, None),  # two sequences, the second block of each nearly empty
        (2, 2, None),
        (2, 33, "fewer than they hold"),
        (5, 20, "more than 52 that they can take"),
        (0, 0, "more than"),
    ],
)
def test_blocks_in_use_fit_the_tokens_held_in_them(blocks: int, held: int, told: str | None) -> None:
    if not held:
        blocks = 4
    found = kv_beyond_bounds(
        steps(step=[7], running=[2], decodes=[2], blocks_allocated=[blocks], tokens_held=[held]), session(), 0
    )
    assert (found is None) if told is None else told in str(found)
    assert found is None or "step 7" in found


def test_caches_that_reserve_have_no_upper_bound_but_still_a_lower_one() -> None:
    many = steps(step=[1], running=[1], decodes=[1], blocks_allocated=[40], tokens_held=[3])
    assert kv_beyond_bounds(many, session(), 0) is not None
    assert kv_beyond_bounds(many, session(admission="reserve-max"), 0) is None
    assert kv_beyond_bounds(many, session(kv_layout="contiguous"), 0) is None
    few = steps(step=[1], running=[1], decodes=[1], blocks_allocated=[1], tokens_held=[30])
    assert kv_beyond_bounds(few, session(admission="reserve-max"), 0) is not None
    assert kv_beyond_bounds(few, session(block_size=None), 0) is None
    assert kv_beyond_bounds(None, session(), 0) is None


def test_a_prompt_that_is_computed_in_chunks_may_hold_all_its_blocks_from_the_first() -> None:
    chunk = {"step": [1], "running": [1], "prefill_tokens": [16], "tokens_held": [16]}
    whole = steps(**chunk, blocks_allocated=[9])
    assert kv_beyond_bounds(whole, session(), longest=144) is None
    assert kv_beyond_bounds(whole, session(), longest=64) is not None  # no request of the cell needs that many
    decoding = steps(**{**chunk, "prefill_tokens": [0]}, decodes=[1], blocks_allocated=[9])
    assert kv_beyond_bounds(decoding, session(), longest=144) is not None
    rows = [
        request_row("a", 0.5, 1, 30, 4) | {"input_tokens_planned": 128, "output_tokens_asked": 16},
        request_row("b", 0.5, 1, 30, 4),
    ]
    assert longest_context(Requests.of(rows)) == 144
    assert longest_context(Requests.of([])) == 0
