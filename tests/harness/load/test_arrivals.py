"""Arrival times: in order, the same for a seed, at the rate asked for, and as even or uneven as asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.load.arrivals import Arrivals, along_ramp, arrivals_within, at_rate, unit_arrivals
from harness.loads import RampLoad, RateLoad
from results.clock import NS_PER_S

KINDS = st.sampled_from(["poisson", "constant", "gamma"])
SEEDS = st.integers(0, 2**64 - 1)
SHAPES = st.floats(0.05, 20)
RATES = st.floats(0.01, 10_000)


@given(KINDS, SEEDS, SHAPES, RATES, st.integers(1, 400))
def test_times_begin_at_the_start_and_are_in_order(
    kind: Arrivals, seed: int, shape: float, rate: float, n: int
) -> None:
    times = at_rate(unit_arrivals(kind, n, seed, shape), rate)
    assert len(times) == n
    assert times[0] == 0
    assert times == sorted(times)


@given(KINDS, SEEDS, SHAPES, st.integers(1, 300), st.integers(0, 300))
def test_a_longer_cell_of_a_seed_begins_like_a_shorter_one(
    kind: Arrivals, seed: int, shape: float, n: int, more: int
) -> None:
    assert (unit_arrivals(kind, n + more, seed, shape)[:n] == unit_arrivals(kind, n, seed, shape)).all()


@given(KINDS, SEEDS, SHAPES, st.floats(0.001, 500))
def test_a_time_holds_the_arrivals_before_its_end_and_no_others(
    kind: Arrivals, seed: int, shape: float, events: float
) -> None:
    found = arrivals_within(kind, events, seed, shape)
    assert len(found) >= 1
    assert found[-1] < events
    assert unit_arrivals(kind, len(found) + 1, seed, shape)[-1] >= events - 1e-9


def test_seeds_differ() -> None:
    assert unit_arrivals("poisson", 9, 1).tolist() != unit_arrivals("poisson", 9, 2).tolist()


@pytest.mark.parametrize(("seconds", "rate", "count"), [(10, 100, 1000), (0.1, 30, 3), (0.3, 10, 3), (1, 0.5, 1)])
def test_evenly_spaced_requests_of_a_time_are_as_many_as_fit(seconds: float, rate: float, count: int) -> None:
    times = RateLoad.of(rate, duration_s=seconds, arrival="constant").arrivals(0)
    assert times == [round(i / rate * NS_PER_S) for i in range(count)]


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_mean_and_the_variance_of_their_shape(shape: float) -> None:
    times = np.array(RateLoad.of(50, 40_000, arrival="gamma", burstiness=shape).arrivals(3))
    gaps = np.diff(times) / NS_PER_S * 50
    assert gaps.mean() == pytest.approx(1, abs=0.03)
    assert gaps.var() == pytest.approx(1 / shape, rel=0.06)


def test_poisson_gaps_are_exponential() -> None:
    from scipy.stats import kstest

    gaps = np.diff(RateLoad.of(200, 5000).arrivals(7)) / NS_PER_S * 200
    assert kstest(gaps, "expon").pvalue > 0.01


@given(st.floats(0.1, 100), st.floats(0.1, 100), st.floats(1, 60), st.floats(0.05, 1))
def test_a_ramp_has_sent_at_each_instant_what_its_rates_add_up_to(
    low: float, high: float, seconds: float, part: float
) -> None:
    count = max(2, int((low + high) / 2 * seconds))
    times = along_ramp(np.arange(count, dtype=np.float64), low, high, seconds)
    assert times == sorted(times)
    t = part * seconds
    expected = low * t + (high - low) * t * t / (2 * seconds)
    sent = sum(1 for at in times if at <= t * NS_PER_S)
    assert abs(sent - min(expected + 1, count)) <= 1 + 1e-6


def test_equal_ends_of_a_ramp_are_a_rate() -> None:
    assert RampLoad.of(8, 8, 40, arrival="constant").arrivals(0) == RateLoad.of(8, 40, arrival="constant").arrivals(0)


@settings(max_examples=30)
@given(SEEDS, st.floats(1, 50), st.floats(1, 50))
def test_random_arrivals_beyond_the_end_of_a_ramp_of_so_many_requests_keep_its_last_rate(
    seed: int, low: float, high: float
) -> None:
    times = RampLoad.of(low, high, 60, arrival="gamma", burstiness=0.2).arrivals(seed)
    assert len(times) == 60
    assert times == sorted(times)
