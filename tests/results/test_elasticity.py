"""Elasticity: how throughput follows a resource, with an interval, and when that decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.elasticity import HOLDS, NO, OPEN, YES, Elasticity, agrees, decided, elasticity, is_open, throughput


def made(name: str, value: float, half: float = 0.02, factors: tuple[str, ...] = ()) -> Elasticity:
    return Elasticity(name, factors or (name,), 10, 8, 5, value, value, value - half, value + half)


@given(
    power=st.floats(-0.5, 1.2),
    after=st.sampled_from([0.5, 0.8, 1.25, 2.0]),
    rates=st.lists(st.floats(1, 1e5), min_size=2, max_size=8),
)
def test_a_power_law_is_found_again(power: float, after: float, rates: list[float]) -> None:
    pairs = [(rate, rate * after**power * (1 + 0.001 * (-1) ** i)) for i, rate in enumerate(rates)]
    found = elasticity("r", ("f",), 1.0, after, pairs)
    assert found.value == pytest.approx(power, abs=0.01)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= power + 1e-4
    assert found.high >= power - 1e-4
    assert found.change == pytest.approx(after**power - 1, abs=0.01)


def test_one_pair_gives_no_interval_and_no_verdict() -> None:
    found = elasticity("r", ("f",), 2, 1, [(100.0, 50.0)])
    assert found.value == pytest.approx(1.0)
    assert (found.low, found.verdict) == (None, OPEN)
    assert elasticity("r", ("f",), 2, 1, []).value is None


def test_the_whole_interval_must_lie_on_one_side() -> None:
    assert made("a", 0.9).verdict == YES
    assert made("a", 0.0).verdict == NO
    assert made("a", HOLDS).verdict == OPEN
    assert made("a", 0.5, half=0.6).verdict == OPEN


def test_what_follows_most_is_decided_and_what_follows_alike_is_not() -> None:
    assert decided([made("a", 0.9), made("b", 0.0)]) == ("a", "throughput follows a")
    assert decided([made("b", 0.4), made("a", 0.9)])[0] == "a"
    holds, words = decided([made("a", 0.9, 0.2), made("b", 0.8, 0.2)])
    assert holds is None
    assert "a and b alike" in words
    holds, words = decided([made("a", 0.0), made("b", 0.1, 0.3)])
    assert holds is None
    assert "does not follow a" in words
    assert "b cannot be told yet: more --pairs" in words
    assert "b cannot be told yet: a longer life" in decided([made("b", 0.1, 0.3)], "a longer life")[1]


def test_an_answer_is_open_where_nothing_is_shown_to_hold_and_something_may() -> None:
    assert is_open([made("a", 0.0), made("b", 0.1, 0.3)])
    assert not is_open([made("a", 0.9), made("b", 0.1, 0.3)])
    assert not is_open([made("a", 0.0), made("b", 0.0)])


def test_a_factor_is_borne_out_by_the_resources_that_stand_for_it() -> None:
    found = [made("kv_cache_tokens", 0.7, factors=("kv_capacity", "kv_reservation")), made("threads", 0.0)]
    assert agrees("kv_reservation", found) is True
    assert agrees("threads", found) is False
    assert agrees("bandwidth", found) is None
    assert agrees("x", [made("x", 0.2, half=0.3)]) is None


def test_cells_that_do_not_count_have_no_throughput() -> None:
    assert throughput({"verdict": "VALID", "whole": {"output_tokens_per_s": 5.0}}) == 5.0
    assert throughput({"verdict": "INVALID", "whole": {"output_tokens_per_s": 5.0}}) is None
    assert throughput({"failure": {}}) is None
    assert throughput({"verdict": "VALID", "whole": {"output_tokens_per_s": None}}) is None
