"""The client's rests: how long, by how often streams are read and how long a request takes."""

from __future__ import annotations

import pytest

from harness.load.rest import REST_STREAMS, Rest
from results.clock import NS_PER_MS, NS_PER_S

SPAN = 200 * NS_PER_MS


def renewed(gap_ms: float, *, streams: int = 64, in_flight: int = 64, request_ms: float | None = None) -> float:
    """The rest (ms) of so many streams, each read every `gap_ms`, of requests that take so long."""
    rest = Rest()
    rest.begin(0)
    rest.reads = round(streams * 200 / gap_ms)
    rest.ended = 0 if request_ms is None else round(in_flight * 200 / request_ms)
    rest.renew(SPAN, streams, in_flight)
    return rest.length / NS_PER_MS


@pytest.mark.parametrize(("gap_ms", "rest_ms"), [(2, 0.4), (4, 0.8), (10, 2.0), (400, 2.0)])
def test_a_rest_is_a_fifth_of_what_lies_between_two_reads_of_a_stream_and_never_long(
    gap_ms: float, rest_ms: float
) -> None:
    assert renewed(gap_ms) == pytest.approx(rest_ms)


@pytest.mark.parametrize(("request_ms", "rest_ms"), [(20, 0.4), (50, 1.0), (1000, 2.0)])
def test_the_next_request_of_a_slot_is_not_late_by_more_than_a_hundredth_of_one(
    request_ms: float, rest_ms: float
) -> None:
    assert renewed(10, request_ms=request_ms) == pytest.approx(rest_ms)


def test_requests_that_wait_for_their_first_token_are_no_streams() -> None:
    assert renewed(2, streams=40, in_flight=500) == pytest.approx(0.4)
    assert renewed(2, streams=REST_STREAMS - 1, in_flight=500) == 0


def test_what_was_not_seen_teaches_nothing() -> None:
    rest = Rest()
    assert rest.length == 0
    rest.reads = 10_000
    rest.begin(0)  # what came before the load is not of it
    rest.renew(SPAN, 64, 64)
    assert rest.length == 0
    rest.reads = 64
    rest.renew(2 * SPAN, 64, 64)
    assert rest.length == 2 * NS_PER_MS
    rest.renew(NS_PER_S, 64, 64)
    assert rest.length == 2 * NS_PER_MS
    rest.begin(NS_PER_S)
    assert rest.length == 0
