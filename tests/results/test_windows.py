"""A window is the same cell with other edges: every event counts in it by its own time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.events import Chunks, Requests
from results.metrics import METRICS, measure
from results.scope import WINDOW, ScopeData, scope_data
from results.tokens import token_chunks
from results.truth import Steps
from tests.results.builders import request_row, text_chunk
from tests.results.simulation import Schedule, Simulation, chunk_rows, request_rows, simulate

LOAD = {"mode": "concurrency", "concurrency": 4, "requests": 40}
SIM = simulate(LOAD, [(64, 5 + 3 * i % 7 + 20 * (i > 3)) for i in range(40)], Schedule(), 10**9)


def steps_of(sim: Simulation) -> Steps:
    return Steps(**{name: np.array([step[name] for step in sim.steps]) for name in Steps.__slots__})


def scope_of(
    requests: list[dict[str, Any]], chunks: list[dict[str, Any]], mode: str, steps: Steps | None = None
) -> ScopeData:
    table = Requests.of(requests)
    ends = [row["end"] for row in requests]
    data = scope_data(table, token_chunks(table, Chunks.of(chunks)), steps, cell=(0, max(ends) + 1), mode=mode, width=4)
    assert data is not None
    return data


def simulated() -> ScopeData:
    return scope_of(request_rows(SIM), chunk_rows(SIM), "concurrency", steps_of(SIM))


def counts(values: Mapping[str, Any]) -> dict[str, float]:
    """What adds up over windows that lie side by side."""
    seconds = values["duration_s"]
    return {
        "input_tokens": values["input_tokens"],
        "output_tokens": values["output_tokens"],
        "requests": round((values["requests_per_s"] or 0.0) * seconds, 6),
        "completed": round((values["completed_output_tokens_per_s"] or 0.0) * seconds, 6),
        **{name: values[name]["n"] for name in ("ttft_ms", "tpot_ms", "e2e_ms", "itl_pooled_ms", "interchunk_ms")},
    }


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4))
def test_windows_side_by_side_hold_every_event_once(cuts: list[float]) -> None:
    data = simulated()
    edges = [data.start, *sorted(data.start + int(c * (data.end - data.start)) for c in cuts), data.end]
    parts = [counts(measure(data.window(a, b))[0]) for a, b in pairwise(edges) if b > a]
    whole = counts(measure(data)[0])
    assert {name: pytest.approx(sum(part[name] for part in parts)) for name in whole} == whole


def test_each_metric_counts_by_its_own_event() -> None:
    # Sent at 0, first token at 1 s, then one each second to 5 s, ended at 6 s; another all before the window.
    rows = [request_row("a", 0.0, 1.0, 5.0, 5, end=6 * 10**9), request_row("b", 0.0, 0.5, 1.0, 2, slot=1)]
    chunks = [*(text_chunk("a", t) for t in (1, 2, 3, 4, 5)), text_chunk("b", 0.5), text_chunk("b", 1.0)]
    data = scope_of(rows, chunks, "rate")

    def seen(start: float, end: float) -> tuple[float, int, int, int, float]:
        values, _ = measure(data.window(int(start * 1e9), int(end * 1e9)))
        done = (values["requests_per_s"] or 0.0) * values["duration_s"]
        return values["output_tokens"], values["input_tokens"], values["ttft_ms"]["n"], values["e2e_ms"]["n"], done

    assert seen(1.0, 3.5) == (2, 0, 0, 0, 0.0)
    assert seen(0.9, 3.5) == (4, 10, 1, 1, 1.0), "the last token of b, and its end, and the first token of a"
    assert seen(4.5, 5.5) == (1, 0, 0, 1, 0.0)
    assert seen(5.5, 6.5) == (0, 0, 0, 0, 1.0)


def test_rates_of_a_window_rest_on_what_is_inside_it() -> None:
    data = simulated()
    window = data.window(data.start + (data.end - data.start) // 4, data.start + (data.end - data.start) // 2)
    values, notes = measure(window)
    steps = steps_of(SIM).between(window.start, window.end)
    decoding = steps.decodes > 0
    time = (steps.end - steps.start)[decoding].sum() / 1e9
    assert values["decode_tokens_per_s"] == pytest.approx(steps.decodes.sum() / time)
    assert "client_phase_estimate" not in notes
    blind, _ = measure(scope_of(request_rows(SIM), chunk_rows(SIM), "concurrency").window(window.start, window.end))
    # Somebody decodes at any time here: the estimate is the tokens after first ones over the window.
    inside = [c["t"] for c in chunk_rows(SIM) if c["kind"] == "text" and window.start < c["t"] <= window.end]
    first = [r.stamps[0] for r in SIM.requests if window.start < r.stamps[0] <= window.end]
    assert blind["decode_tokens_per_s"] == pytest.approx((len(inside) - len(first)) / window.seconds, rel=0.1)


def test_a_wave_that_lies_across_an_edge_gives_a_window_no_decode_rate() -> None:
    load = {"mode": "batch", "batch": 4, "waves": 2}
    sim = simulate(load, [(64, 20)] * 8, Schedule(), 0)
    data = scope_of(request_rows(sim), chunk_rows(sim), "batch")
    second = min(r.sent for r in sim.requests[4:])
    both, first = data.window(0, sim.ended), data.window(0, second + 1)
    exact = pytest.approx(4 / Schedule().decode_step(4) * 1e9)
    assert measure(both)[0]["decode_tokens_per_s"] == measure(first)[0]["decode_tokens_per_s"] == exact
    values, notes = measure(data.window(0, second - 10**7))
    assert values["decode_tokens_per_s"] is None
    assert "no_decode_window" in notes


def test_an_answer_in_one_piece_cannot_be_shared_out_to_a_window() -> None:
    row = request_row("a", 0.0, None, None, 8, end=2 * 10**9, tokens_in_first_chunk=None)
    data = scope_of([row], [], "rate")
    assert measure(data)[0]["output_tokens"] == 8
    assert measure(data.window(0, 10**9))[0]["output_tokens"] is None


def test_a_metric_that_is_not_defined_in_a_window_is_not_measured_in_one() -> None:
    window = simulated().window(0, 10**10)
    assert set(measure(window)[0]) == {m.id for m in METRICS if WINDOW in m.scope}
