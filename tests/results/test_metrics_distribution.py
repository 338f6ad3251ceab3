"""Percentiles only where there are enough values, intervals only where they cover."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.distribution import PERCENTILES, distribution

# Slow examples of a busy machine are no failures.
UNTIMED = settings(deadline=None, max_examples=60)
values = st.lists(st.floats(min_value=0, max_value=1e6) | st.just(float("nan")), max_size=150)


@UNTIMED
@given(values)
def test_percentiles_lie_between_the_extremes_and_in_order(drawn: list[float]) -> None:
    found = distribution(np.array(drawn, dtype=np.float64))
    assert found["n"] == sum(1 for v in drawn if v == v)
    known = [found[f"p{p}"] for p in PERCENTILES if found[f"p{p}"] is not None]
    assert known == sorted(known)
    assert all(found["min"] <= v <= found["max"] for v in known)
    for p in PERCENTILES:
        assert (found[f"p{p}"] is None) == (f"p{p}" in found["withheld"])
        if (interval := found["intervals"][f"p{p}"]) is not None:
            assert found["min"] <= interval[0] <= found[f"p{p}"] <= interval[1] <= found["max"]


@UNTIMED
@given(values, st.randoms(use_true_random=False))
def test_order_does_not_matter(drawn: list[float], shuffler: object) -> None:
    mixed = list(drawn)
    shuffler.shuffle(mixed)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    assert distribution(np.array(mixed, dtype=np.float64)) == distribution(np.array(drawn, dtype=np.float64))


@pytest.mark.parametrize(
    ("n", "shown"),
    [(0, 0), (1, 0), (2, 1), (9, 1), (10, 2), (19, 2), (20, 3), (99, 3), (100, 4)],
)
def test_a_percentile_needs_one_value_beyond_it(n: int, shown: int) -> None:
    found = distribution(np.arange(n, dtype=np.float64))
    assert [p for p in PERCENTILES if found[f"p{p}"] is not None] == list(PERCENTILES[:shown])
    hidden = PERCENTILES[shown:]
    assert all(found["withheld"][f"p{p}"].endswith(f"there are {n}") for p in hidden)


def test_of_three_values_the_median_is_the_middle_and_no_p99_is_invented() -> None:
    found = distribution(np.array([30.0, 10.0, 20.0]))
    assert (found["p50"], found["p99"], found["max"]) == (20.0, None, 30.0)


@pytest.mark.parametrize(("percent", "fewest"), [(50, 20), (90, 36), (95, 72), (99, 368)])
def test_an_interval_exists_from_the_count_on_at_which_it_can_cover(percent: int, fewest: int) -> None:
    drawn = np.random.default_rng(1).exponential(size=fewest)
    assert distribution(drawn[1:])["intervals"][f"p{percent}"] is None
    assert distribution(drawn)["intervals"][f"p{percent}"] is not None


def test_values_of_known_times_that_hang_together_get_wider_intervals_or_none() -> None:
    noise = np.random.default_rng(2).normal(size=800)
    alike, walk = np.convolve(noise, np.ones(3), "valid"), np.cumsum(noise)
    at = np.arange(len(noise))

    def width(values: np.ndarray, times: np.ndarray | None) -> float:
        low, high = distribution(values, at=times)["intervals"]["p50"]
        return float(high - low)

    assert width(alike, at[: len(alike)]) > 1.2 * width(alike, None)
    refused = distribution(walk, at=at)
    assert refused["intervals"]["p50"] is None
    assert "too alike" in refused["withheld"]["intervals"]


def test_the_times_count_and_not_the_order_in_which_values_are_given() -> None:
    draw = np.random.default_rng(3)
    values, at = draw.normal(size=200), np.arange(200)
    mixed = draw.permutation(200)
    assert distribution(values[mixed], at=at[mixed]) == distribution(values, at=at)


def test_values_that_depend_on_each_other_get_no_interval_and_a_reason() -> None:
    found = distribution(np.arange(500.0), "they share their steps")
    assert all(v is None for v in found["intervals"].values())
    assert found["withheld"]["intervals"] == "they share their steps"
    assert found["p99"] is not None
