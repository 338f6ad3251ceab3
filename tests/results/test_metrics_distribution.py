"""Percentiles only where there are enough values, intervals only where they cover."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.distribution import PERCENTILES, distribution, interval_ranks

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
    shuffler.shuffle(mixed)  # type: ignore[attr-defined]
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


@pytest.mark.parametrize(("percent", "fewest"), [(50, 6), (90, 36), (95, 72), (99, 368)])
def test_an_interval_exists_from_the_count_on_at_which_it_can_cover(percent: int, fewest: int) -> None:
    assert interval_ranks(fewest - 1, percent) is None
    assert interval_ranks(fewest, percent) is not None


@pytest.mark.parametrize("percent", PERCENTILES)
@pytest.mark.parametrize("n", [6, 7, 20, 36, 72, 100, 368, 500])
def test_intervals_cover_at_least_95_per_cent_and_are_the_narrowest(n: int, percent: int) -> None:
    ranks = interval_ranks(n, percent)
    if ranks is None:
        return
    p, tail = Fraction(percent, 100), Fraction(25, 1000)

    def at_most(k: int) -> Fraction:
        return sum((comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1)), Fraction(0))

    low, high = ranks[0] + 1, ranks[1] + 1  # 1-based ranks
    assert at_most(low - 1) <= tail
    assert 1 - at_most(high - 1) <= tail
    # One rank further in would leave too much outside.
    assert at_most(low) > tail
    assert 1 - at_most(high - 2) > tail


def test_values_that_depend_on_each_other_get_no_interval_and_a_reason() -> None:
    found = distribution(np.arange(500.0), "they share their steps")
    assert all(v is None for v in found["intervals"].values())
    assert found["withheld"]["intervals"] == "they share their steps"
    assert found["p99"] is not None
