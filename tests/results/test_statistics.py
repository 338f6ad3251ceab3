"""Intervals and tests over blocks: they cover what they claim, and refuse where they do not hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from results.statistics import (
    MOST_BLOCKS,
    blocks_needed,
    detectable,
    equivalence_p,
    equivalent,
    holm,
    mean_interval,
    paired,
    unpaired,
    wilson,
)

UNTIMED = settings(deadline=None, max_examples=40)
rates = st.lists(st.floats(0.1, 1e5), min_size=2, max_size=12)
draws = 2000


@UNTIMED
@given(rates, rates)
def test_intervals_are_those_of_the_textbook(a: list[float], b: list[float]) -> None:
    n = min(len(a), len(b))
    x, y = np.log(a), np.log(b)
    assume(np.std(y[:n] - x[:n]) > 1e-6 and np.std(x) > 1e-6 and np.std(y) > 1e-6)
    found = paired(a[:n], b[:n])
    told = stats.ttest_1samp(y[:n] - x[:n], 0.0)
    assert found.p == pytest.approx(told.pvalue, abs=1e-9)
    assert [found.low, found.high] == pytest.approx(np.exp(told.confidence_interval(0.95)), rel=1e-9)
    welch = stats.ttest_ind(y, x, equal_var=False)
    assert unpaired(a, b).p == pytest.approx(welch.pvalue, abs=1e-9)
    assert [unpaired(a, b).low, unpaired(a, b).high] == pytest.approx(np.exp(welch.confidence_interval(0.95)), rel=1e-9)


@UNTIMED
@given(rates, rates, st.floats(1e-3, 1e3), st.randoms(use_true_random=False))
def test_units_and_the_order_of_blocks_do_not_matter(a: list[float], b: list[float], unit: float, mix: object) -> None:
    n = min(len(a), len(b))
    pairs = list(zip(a[:n], b[:n], strict=True))
    assume(np.std([math.log(y / x) for x, y in pairs]) > 1e-6)
    found = paired([x for x, _ in pairs], [y for _, y in pairs])
    mix.shuffle(pairs)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    again = paired([x * unit for x, _ in pairs], [y * unit for _, y in pairs])
    turned = paired([y for _, y in pairs], [x for x, _ in pairs])
    assert [again.low, again.estimate, again.high] == pytest.approx([found.low, found.estimate, found.high], rel=1e-6)
    assert turned.estimate == pytest.approx(1 / (found.estimate or math.nan))


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        ([], [], "no pair of blocks"),
        ([1.0], [2.0], "a spread needs two"),
        ([1.0, 2.0], [1.0, math.nan], "not a positive number"),
        ([1.0, 0.0], [1.0, 2.0], "not a positive number"),
        ([1.0, math.inf], [1.0, 2.0], "not a positive number"),
        ([1.0, 2.0], [2.0, 4.0], "agree to the last digit"),
        ([1.0, 2.0], [2.0], "cannot be paired"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_a_reason(a: list[float], b: list[float], why: str) -> None:
    found = paired(a, b)
    assert not found.known
    assert found.p is None
    assert why in found.refused
    assert detectable(found) is None
    assert equivalent(found, 0.03) is None


@pytest.mark.parametrize("n", [2, 3, 5, 6, 10, 20])
@pytest.mark.parametrize("shape", ["normal", "skewed", "long tails"])
def test_paired_intervals_cover_what_they_claim(n: int, shape: str) -> None:
    draw = np.random.default_rng(n)
    noise = {
        "normal": lambda: draw.normal(size=(draws, n)),
        # Throughput of a session is a mean over many steps: its log is skewed at most a little.
        "skewed": lambda: (draw.gamma(16, size=(draws, n)) - 16) / 4,
        "long tails": lambda: draw.standard_t(5, size=(draws, n)),
    }[shape]()
    shared = draw.normal(0, 0.3, size=(draws, n))
    inside = [
        paired(np.exp(s).tolist(), np.exp(s + 0.1 + 0.02 * e).tolist()).holds(math.exp(0.1))
        for s, e in zip(shared, noise, strict=True)
    ]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(("n", "m", "ratio"), [(5, 5, 1.0), (5, 10, 1.0), (6, 6, 3.0), (20, 5, 2.0)])
def test_unpaired_intervals_cover_what_they_claim(n: int, m: int, ratio: float) -> None:
    draw = np.random.default_rng(n * m)
    a, b = draw.normal(0, 0.02, (draws, n)), draw.normal(0.05, 0.02 * ratio, (draws, m))
    inside = [unpaired(np.exp(x).tolist(), np.exp(y).tolist()).holds(math.exp(0.05)) for x, y in zip(a, b, strict=True)]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


def test_blocks_that_share_their_noise_are_wider_apart_unpaired() -> None:
    draw = np.random.default_rng(7)
    shared, own = draw.normal(0, 0.1, 8), draw.normal(0, 0.01, (2, 8))
    a, b = np.exp(shared + own[0]).tolist(), np.exp(shared + own[1] + 0.02).tolist()
    near, far = paired(a, b), unpaired(a, b)
    assert (far.half_width or 0) > 3 * (near.half_width or math.inf)


@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_what_the_tool_announces_is_found_as_often_as_it_says(confidence: float) -> None:
    sd, effect = 0.03, 0.05
    n = blocks_needed(sd, effect, confidence)
    assert n is not None
    draw = np.random.default_rng(11)
    logs = draw.normal(math.log1p(-effect), sd, (draws, n))
    found = [paired([1.0] * n, np.exp(row).tolist(), confidence) for row in logs]
    assert np.mean([(i.high or 2) < 1 for i in found]) >= 0.94
    # And so many are needed: with one fewer, the power is not there.
    fewer = [paired([1.0] * (n - 1), np.exp(row[:-1]).tolist(), confidence) for row in logs]
    assert np.mean([(i.high or 2) < 1 for i in fewer]) < 0.96


def test_blocks_announced_from_a_pilot_find_the_effect_on_average_over_what_the_pilot_says() -> None:
    sd, effect, pilot = 0.03, 0.05, 5
    draw = np.random.default_rng(13)
    power = []
    for _ in range(400):
        told = float(draw.normal(0, sd, pilot).std(ddof=1))
        n = blocks_needed(told, effect, df=pilot - 1) or MOST_BLOCKS
        z = draw.normal(math.log1p(-effect), sd, (20, n))
        t = z.mean(axis=1) / (z.std(axis=1, ddof=1) / math.sqrt(n))
        power.append(np.mean(t < stats.t.ppf(0.025, n - 1)))
    assert np.mean(power) >= 0.93


@UNTIMED
@given(st.floats(0.001, 0.5), st.floats(0.01, 0.5))
def test_more_spread_needs_more_blocks_and_a_larger_effect_fewer(sd: float, effect: float) -> None:
    n = blocks_needed(sd, effect)
    assert n is None or n >= 5
    more, larger = blocks_needed(sd * 1.5, effect), blocks_needed(sd, min(effect * 1.5, 0.9))
    assert n is None or more is None or more >= n
    assert larger is None or n is None or larger <= n
    unsure = blocks_needed(sd, effect, df=4)
    assert unsure is None or (n is not None and unsure >= n)


def test_the_detectable_slowdown_is_what_so_many_blocks_find() -> None:
    draw = np.random.default_rng(5)
    a, b = draw.normal(0, 0.02, (2, 8))
    found = paired(np.exp(a).tolist(), np.exp(b).tolist())
    smallest = detectable(found)
    assert smallest is not None
    assert blocks_needed(found.sd or 0, smallest) == pytest.approx(8, abs=1)


def test_equivalence_is_shown_by_narrow_intervals_inside_the_margin_only() -> None:
    draw = np.random.default_rng(6)
    narrow = paired([1.0] * 6, np.exp(draw.normal(0.005, 0.005, 6)).tolist())
    wide = paired([1.0] * 6, np.exp(draw.normal(0.005, 0.1, 6)).tolist())
    apart = paired([1.0] * 6, np.exp(draw.normal(0.2, 0.005, 6)).tolist())
    assert [equivalent(i, 0.03) for i in (narrow, wide, apart)] == [True, False, False]
    assert equivalent(narrow, 0.0001) is False


def test_two_one_sided_tests_give_one_p_value_that_decides_as_the_interval_does() -> None:
    draw = np.random.default_rng(9)
    for row in draw.normal(0.01, 0.015, (200, 6)):
        found = paired([1.0] * 6, np.exp(row).tolist(), 0.90)
        p = equivalence_p(paired([1.0] * 6, np.exp(row).tolist()), 0.03)
        assert p is not None
        # The interval of 90 % inside the margin is the same as both one-sided tests at 5 %.
        inside = (found.low or 0) >= 0.97 and (found.high or 9) <= 1 / 0.97
        assert (p <= 0.05) == inside
    assert equivalence_p(paired([1.0], [1.0]), 0.03) is None


def test_blocks_that_are_alike_announce_more_blocks_and_a_larger_slowdown_that_they_would_find() -> None:
    draw = np.random.default_rng(10)
    own = draw.normal(0, 0.02, 60)
    walk = own.copy()
    for i in range(1, 60):
        walk[i] = 0.4 * walk[i - 1] + math.sqrt(1 - 0.4**2) * own[i]
    alike = paired([1.0] * 60, np.exp(walk).tolist())
    mixed = paired([1.0] * 60, np.exp(draw.permutation(walk)).tolist())
    assert 20 < (alike.effective_n or 0) < 30 < (mixed.effective_n or 0)
    plain, wider = (blocks_needed(i.sd or 0, 0.01) or 0 for i in (mixed, alike))
    # As many more as an independent block is worth of these.
    assert wider == pytest.approx(plain * 60 / (alike.effective_n or 1), rel=0.1)
    assert (detectable(alike) or 0) > (detectable(mixed) or 1)


def test_a_true_difference_at_the_margin_is_called_equivalent_at_most_so_often_as_claimed() -> None:
    draw = np.random.default_rng(8)
    logs = draw.normal(math.log1p(-0.03), 0.01, (draws, 6))
    wrong = np.mean([bool(equivalent(paired([1.0] * 6, np.exp(row).tolist()), 0.03)) for row in logs])
    assert wrong == pytest.approx(0.05, abs=0.015)


@UNTIMED
@given(st.lists(st.floats(0, 1) | st.just(math.nan), max_size=15))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p: list[float]) -> None:
    found = holm(p)
    known = [(a, b) for a, b in zip(p, found, strict=True) if not math.isnan(a)]
    assert [math.isnan(v) for v in found] == [math.isnan(v) for v in p]
    assert all(a <= b <= 1 for a, b in known)
    ordered = [b for _, b in sorted(known)]
    assert ordered == sorted(ordered)


def test_holm_is_holms() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_keeps_false_alarms_of_many_looks_below_alpha() -> None:
    draw = np.random.default_rng(9)
    alarms = np.mean([min(holm(row.tolist())) < 0.05 for row in draw.random((2000, 10))])
    assert alarms <= 0.065


@UNTIMED
@given(st.integers(0, 500), st.integers(1, 500))
def test_wilson_is_wilsons(good: int, n: int) -> None:
    assume(good <= n)
    found = wilson(good, n)
    told = stats.binomtest(good, n).proportion_ci(0.95, method="wilson")
    assert [found.low, found.high] == pytest.approx([told.low, told.high], abs=1e-9)
    assert found.holds(good / n)


@pytest.mark.parametrize(("good", "n"), [(0, 0), (1, 0), (2, 1), (-1, 5), (math.nan, 5)])
def test_no_share_is_made_of_nothing(good: float, n: float) -> None:
    assert not wilson(good, n).known


def test_a_mean_of_one_value_or_of_none_has_no_interval() -> None:
    assert "needs two" in mean_interval([]).refused
    assert "needs two" in mean_interval([3.0]).refused
    assert mean_interval([3.0]).estimate == 3.0
    assert "not finite" in mean_interval([1.0, math.nan, 2.0]).refused


def test_blocks_that_follow_each_other_alike_are_worth_fewer_or_refused() -> None:
    draw = np.random.default_rng(21)
    inside, given = [], 0
    for _ in range(600):
        logs = np.zeros(60)
        for i in range(1, 60):
            logs[i] = 0.45 * logs[i - 1] + draw.normal(0, 0.02)
        found = paired([1.0] * 60, np.exp(logs).tolist())
        given += found.known
        if found.known:
            inside.append(found.holds(1.0))
    assert given > 550
    assert np.mean(inside) == pytest.approx(0.95, abs=0.035), "taken as independent, 80 % would be"
    walk = paired([1.0] * 40, np.exp(np.cumsum(draw.normal(0, 0.02, 40))).tolist())
    assert "blocks that follow each other are too alike" in walk.refused
    # With nineteen blocks nobody can tell.
    assert paired([1.0] * 19, np.exp(np.linspace(0, 0.1, 19)).tolist()).known
