"""Device readings over a span: weighted by time, counters never negative, nothing claimed below a sensor's period."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.device_series import Series, counter_over, counter_total, growths, mean_over, update_period_s

MS = 1_000_000
S = 1_000_000_000


def gauge(times_ms: list[float], values: list[float]) -> Series:
    t = np.array([int(x * MS) for x in times_ms], dtype=np.int64)
    return Series(t, t, np.array(values, dtype=np.float64))


def intervals(edges_ms: list[float], values: list[float]) -> Series:
    t = np.array([int(x * MS) for x in edges_ms], dtype=np.int64)
    return Series(t[:-1], t[1:], np.array(values, dtype=np.float64))


def test_a_32_bit_counter_that_wraps_goes_on_where_its_range_is_known() -> None:
    total = counter_total([4294960000, 4294967000, 1500, 9000], wraps_at=2**32)
    assert (total.value, total.skipped, total.coverage) == (7000 + 1796 + 7500, 0, 1.0)


def test_a_wrap_of_unknown_range_is_skipped_and_flagged() -> None:
    total = counter_total([4294960000, 4294967000, 1500, 9000])
    assert (total.value, total.skipped, total.coverage) == (14500, 1, pytest.approx(2 / 3))


@pytest.mark.parametrize("wraps_at", [None, 2**64])
def test_a_64_bit_counter_that_starts_over_is_not_taken_for_a_wrap(wraps_at: float | None) -> None:
    total = counter_total([22000000000, 22000100000, 250, 100250], wraps_at)
    assert (total.value, total.skipped) == (200000, 1)


@given(st.lists(st.floats(0, 1e12), max_size=20), st.sampled_from([None, 2.0**32, 2.0**64]))
def test_growth_is_never_negative(values: list[float], wraps_at: float | None) -> None:
    steps, skipped = growths(values, wraps_at)
    assert (steps >= 0).all()
    assert 0 <= skipped <= max(len(values) - 1, 0)


def test_energy_at_the_edges_of_a_span_lies_between_the_readings_around_them() -> None:
    series = gauge([0, 1000, 2000, 3000], [0.0, 100.0, 300.0, 400.0])
    assert counter_over(series, 500 * MS, 2500 * MS) == (pytest.approx(50 + 200 + 50), 0, "")
    assert counter_over(series, 1000 * MS, 2000 * MS)[0] == pytest.approx(200)


@pytest.mark.parametrize(
    ("times", "why"),
    [
        ([500.0, 2500.0], "not read on both sides of the span"),
        ([0.0, 1500.0], "not read on both sides of the span"),
        ([0.0], "fewer than two readings"),
        ([-4000.0, 2600.0], "a gap of 6.6 s between two readings"),
    ],
)
def test_energy_is_not_known_where_an_edge_is_not_between_near_readings(times: list[float], why: str) -> None:
    value, _, said = counter_over(gauge(times, [float(i) for i in range(len(times))]), 100 * MS, 2500 * MS - 1)
    assert (value, said) == (None, why)


def test_a_counter_that_starts_over_in_the_span_is_told() -> None:
    series = gauge([0, 1000, 2000, 3000], [1000.0, 1100.0, 0.0, 50.0])
    assert counter_over(series, 0, 3000 * MS)[:2] == (pytest.approx(150), 1)


def test_means_of_intervals_count_by_their_overlap() -> None:
    series = intervals([0, 200, 500, 700], [0.1, 0.5, 0.9])
    found = mean_over(series, 100 * MS, 600 * MS)
    assert found.value == pytest.approx((0.1 * 100 + 0.5 * 300 + 0.9 * 100) / 500)
    assert (found.coverage, found.n) == (1.0, 3)


def test_readings_that_cover_too_little_are_no_mean() -> None:
    series = intervals([0, 200], [0.5])
    assert mean_over(series, 0, 401 * MS).value is None
    assert mean_over(series, 0, 400 * MS).value == 0.5
    assert mean_over(gauge([], []), 0, S).value is None
    assert mean_over(series, 5, 5).value is None


def test_between_instants_a_value_changes_evenly_and_no_instant_holds_for_ever() -> None:
    assert mean_over(gauge([0, 900], [100.0, 200.0]), 0, S).value == pytest.approx(0.9 * 150 + 0.1 * 200)
    assert mean_over(gauge([0, 800], [100.0, 200.0]), 200 * MS, 600 * MS).value == pytest.approx(150)
    gap = mean_over(gauge([0, 5000, 5500], [100.0, 200.0, 200.0]), 0, 6 * S)
    assert (gap.value, gap.coverage) == (None, pytest.approx(1 / 6))
    lonely = mean_over(gauge([0], [100.0]), 0, 10 * S)
    assert (lonely.value, lonely.coverage) == (None, pytest.approx(0.3))


def test_a_value_polled_faster_than_it_changes_has_its_own_period_and_a_mean_by_time() -> None:
    values = [15.574] * 10 + [10.961] * 10 + [15.574] * 10
    series = gauge([10.0 * i for i in range(30)], values)
    assert update_period_s(series) == pytest.approx(0.1)
    assert mean_over(series, 0, 300 * MS).value == pytest.approx((15.574 * 2 + 10.961) / 3)
    assert update_period_s(gauge([0, 10, 20], [1.0, 1.0, 2.0])) is None


@given(
    st.lists(st.tuples(st.integers(1, 400), st.floats(0, 1)), min_size=1, max_size=12),
    st.floats(0, 0.4),
    st.floats(0.6, 1),
)
def test_a_mean_lies_between_its_readings(steps: list[tuple[int, float]], low: float, high: float) -> None:
    edges = np.concatenate([[0], np.cumsum([ms for ms, _ in steps])]).tolist()
    values = [value for _, value in steps]
    found = mean_over(intervals(edges, values), int(low * edges[-1] * MS), int(high * edges[-1] * MS))
    assert found.value is not None
    assert min(values) - 1e-9 <= found.value <= max(values) + 1e-9
