"""The client's rests: how long, by how often streams are read."""

from __future__ import annotations

import pytest

from harness.load.rest import Rest
from results.clock import NS_PER_MS, NS_PER_S


@pytest.mark.parametrize(("gap_ms", "rest_ms"), [(2, 0.4), (4, 0.8), (10, 2.0), (400, 2.0)])
def test_a_rest_is_a_fifth_of_what_lies_between_two_reads_of_a_stream_and_never_long(
    gap_ms: float, rest_ms: float
) -> None:
    rest = Rest()
    rest.begin(0)
    rest.reads = round(64 * 200 / gap_ms)
    assert rest.length <= 2 * NS_PER_MS
    rest.renew(200 * NS_PER_MS, in_flight=64)
    assert rest.length == pytest.approx(rest_ms * NS_PER_MS)
    # Nothing was read: nothing is learned.
    rest.renew(NS_PER_S, in_flight=64)
    assert rest.length == pytest.approx(rest_ms * NS_PER_MS)
