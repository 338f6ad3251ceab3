"""Requests in lanes: bars never overlap, there are no more lanes than requests in flight, and thinning spares the extremes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from results.clock import NS_PER_S
from results.events import Requests
from results.time_lanes import request_lanes
from tests.results.builders import request_row


def requests_of(spans: list[tuple[float, float]], **changes: Any) -> Requests:
    """Requests sent and ended at these seconds, their first token in the middle."""
    return Requests.of(
        request_row(f"r{i}", at, at + length / 2, at + length, 8, **changes) for i, (at, length) in enumerate(spans)
    )


SPANS = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 100)), min_size=1, max_size=80)


@given(SPANS)
def test_bars_of_a_lane_never_overlap_and_lanes_are_as_many_as_requests_at_once(spans: list[tuple[int, int]]) -> None:
    lanes = request_lanes(requests_of([(float(a), float(b)) for a, b in spans]), 0, 1000)
    assert lanes.drawn == lanes.total == len(spans)
    for lane in range(lanes.lanes):
        mine = np.flatnonzero(lanes.lane == lane)
        order = mine[np.argsort(lanes.due[mine])]
        assert (lanes.end[order][:-1] <= lanes.due[order][1:]).all()
    most = max(sum(a <= t < a + n for a, n in spans) for t, _ in spans)
    assert lanes.lanes == most


@given(SPANS, st.integers(1, 30))
@settings(max_examples=60)
def test_of_too_many_requests_the_extremes_stay_and_what_is_drawn_is_told(
    spans: list[tuple[int, int]], most: int
) -> None:
    lanes = request_lanes(requests_of([(float(a), float(b)) for a, b in spans]), 0, most)
    waits = lanes.first - lanes.sent
    lengths = [n / 2 for _, n in spans]
    assert np.isclose(waits.max(), max(lengths))
    assert np.isclose(waits.min(), min(lengths))
    assert lanes.total == len(spans)
    # The four that are always spared come on top.
    assert lanes.drawn <= most + 4
    assert lanes.lanes <= lanes.all_lanes
    assert lanes.drawn == lanes.total or lanes.lanes < lanes.all_lanes or lanes.every > 1


def test_the_engine_s_queue_is_told_from_prefill_where_the_engine_says_when_it_took_a_request_up() -> None:
    requests = requests_of([(1.0, 4.0), (2.0, 4.0)])
    lanes = request_lanes(requests, NS_PER_S, 10, {"r1": 3 * NS_PER_S})
    assert lanes.queue_told
    assert np.isnan(lanes.scheduled[0])
    assert (lanes.sent[1], lanes.scheduled[1], lanes.first[1]) == (1.0, 2.0, 3.0)
    assert not request_lanes(requests, NS_PER_S, 10).queue_told


def test_the_first_failure_is_never_thinned_away() -> None:
    rows = [request_row(f"r{i}", i, i + 0.5, i + 0.9, 8) for i in range(200)]
    rows[117] |= {"outcome": "timeout", "first_token": None, "last_token": None}
    lanes = request_lanes(Requests.of(rows), 0, 10)
    assert "timeout" in lanes.outcome
    assert int((~lanes.ok).sum()) == 1


def test_a_moment_that_is_not_known_is_not_a_number_and_nothing_sent_is_nothing_drawn() -> None:
    rows = [{**request_row("r", 1.0, None, None, None), "outcome": "refused", "end": 2 * NS_PER_S, "sent": None}]
    lanes = request_lanes(Requests.of(rows), NS_PER_S, 10)
    assert np.isnan(lanes.sent[0])
    assert np.isnan(lanes.first[0])
    assert (lanes.due[0], lanes.end[0]) == (0.0, 1.0)
    assert request_lanes(Requests.of([]), 0, 10).total == 0
