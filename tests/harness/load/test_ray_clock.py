"""The offset of another machine's clock: the truth lies within what the exchange says, and stamps come out on our clock."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load.ray_clock import NodeClock, Reading, read_offset
from harness.load.ray_worker import REQUEST_STAMPS, on_our_clock
from results.clock import NS_PER_MS, NS_PER_S
from results.schema import REQUESTS

WAYS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=20)


class Network:
    """Two clocks and what each way takes; our clock stands still but for that."""

    def __init__(self, ways: list[tuple[int, int]], node: Callable[[int], int]) -> None:
        self.ours, self._ways, self._node = 10**12, list(ways), node

    def now(self) -> int:
        return self.ours

    def ask(self) -> int:
        there, back = self._ways.pop(0)
        self.ours += there
        read = self._node(self.ours)
        self.ours += back
        return read


@given(WAYS, st.integers(-(10**15), 10**15))
def test_the_true_offset_lies_within_the_uncertainty_however_lopsided_the_ways(
    ways: list[tuple[int, int]], offset: int
) -> None:
    network = Network(ways, lambda ours: ours + offset)
    reading = read_offset(network.ask, len(ways), network.now)
    assert abs(reading.offset_ns - offset) <= reading.uncertainty_ns
    assert reading.uncertainty_ns == (min(there + back for there, back in ways) + 1) // 2
    assert reading.round_trips == len(ways)


@given(st.lists(WAYS, min_size=1, max_size=5), st.integers(-(10**15), 10**15))
def test_of_a_clock_that_does_not_drift_no_duration_changes(trips: list[list[tuple[int, int]]], offset: int) -> None:
    clock = NodeClock()
    for ways in trips:
        network = Network(ways, lambda ours: ours + offset)
        clock.add(read_offset(network.ask, len(ways), network.now))
    assert not clock.drifts
    stamps = np.array([0, 5, 10**9, 10**12], np.int64)
    ours = clock.to_ours(stamps)
    assert (np.diff(ours) == np.diff(stamps)).all()
    assert np.abs(ours - (stamps - offset)).max() <= clock.uncertainty_ns
    assert clock.to_dict()["drift_ppm"] is None


@given(st.floats(-1e-3, 1e-3), st.lists(st.integers(0, 100 * NS_PER_S), min_size=1, max_size=50))
def test_a_clock_that_drifts_is_followed_from_reading_to_reading(rate: float, instants: list[int]) -> None:
    start, offset = 10**12, 5 * NS_PER_S

    def node(ours: int) -> int:
        return ours + offset + round((ours - start) * rate)

    clock = NodeClock()
    for second in range(0, 101, 10):
        network = Network([(50_000, 150_000)], node)
        network.ours = start + second * NS_PER_S
        clock.add(read_offset(network.ask, 1, network.now))
    true = np.array([start + at for at in instants], np.int64)
    ours = clock.to_ours(np.array([node(int(at)) for at in true], np.int64))
    assert np.abs(ours - true).max() <= clock.uncertainty_ns + 1
    if abs(rate) > 1e-5:
        assert clock.to_dict()["drift_ppm"] == pytest.approx(rate * 1e6, rel=0.01)


def test_readings_that_disagree_a_little_make_the_uncertainty_larger_not_the_clock_drift() -> None:
    clock = NodeClock([Reading(0, 1000, 100), Reading(10, 1250, 200)])
    assert not clock.drifts
    assert clock.uncertainty_ns == 450
    assert clock.to_node(5000) == 6000
    assert NodeClock([Reading(0, 1000, 100), Reading(10, 1350, 200)]).drifts


def test_stamps_are_converted_and_what_is_unknown_stays_unknown() -> None:
    row = dict.fromkeys(REQUESTS.names) | {"request_id": "r0", "sent": 7 * NS_PER_S, "slot": 3}
    clock = NodeClock([Reading(0, 5 * NS_PER_S, NS_PER_MS)])
    table = on_our_clock(pa.Table.from_pylist([row, {**row, "end": 8 * NS_PER_S}], REQUESTS), REQUEST_STAMPS, clock)
    first, second = table.to_pylist()
    assert (first["sent"], first["end"], first["slot"], second["end"]) == (2 * NS_PER_S, None, 3, 3 * NS_PER_S)
    assert table.schema == REQUESTS


def test_every_stamp_of_the_schema_is_converted() -> None:
    stamps = [name for name in REQUESTS.names if REQUESTS.field(name).type == pa.int64()]
    assert sorted(REQUEST_STAMPS) == sorted(stamps)
