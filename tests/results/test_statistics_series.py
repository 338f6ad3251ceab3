"""Series inside a cell: intervals cover where their conditions hold, and are refused outside them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from results.distribution import distribution
from results.events import Floats
from results.statistics import autocorrelation
from results.statistics_percentiles import (
    clustered_intervals,
    independent_interval,
    least_effective,
    percentile_interval,
    sorted_quantile,
)
from results.statistics_series import dependence, growth, scores, series_mean, trend

UNTIMED = settings(deadline=None, max_examples=50)
DRAWS = 600
# Two points, and two standard errors of a share of so many draws beside.
TWO_POINTS = 0.02 + 0.018


def autoregressive(phi: float, n: int, count: int, seed: int) -> Floats:
    """`count` series of n normal values with unit variance and lag-1 autocorrelation phi."""
    noise = np.random.default_rng(seed).normal(size=(count, n))
    out = np.empty_like(noise)
    out[:, 0] = noise[:, 0]
    for i in range(1, n):
        out[:, i] = phi * out[:, i - 1] + np.sqrt(1 - phi * phi) * noise[:, i]
    return out


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30), st.floats(0, 1))
def test_a_quantile_of_sorted_values_is_numpys(values: list[float], p: float) -> None:
    ordered = np.sort(values)
    assert sorted_quantile(ordered, p) == np.quantile(ordered, p)


def covered(inside: list[bool]) -> float:
    assert len(inside) > DRAWS / 4, "too few intervals were given to judge them"
    return float(np.mean(inside))


@pytest.mark.parametrize(("phi", "n"), [(0.0, 25), (0.0, 200), (0.4, 60), (0.4, 400), (0.6, 120), (0.6, 500)])
def test_means_of_series_cover_what_they_claim(phi: float, n: int) -> None:
    found = [series_mean(x) for x in autoregressive(phi, n, DRAWS, 1)]
    assert covered([i.holds(0.0) for i in found if i.known]) == pytest.approx(0.95, abs=TWO_POINTS)


@pytest.mark.parametrize(
    ("phi", "n", "percent"),
    [(0.0, 40, 50), (0.0, 60, 90), (0.0, 150, 95), (0.3, 150, 90), (0.3, 60, 50), (0.6, 150, 50), (0.6, 300, 90)],
)
def test_percentiles_of_series_cover_what_they_claim(phi: float, n: int, percent: int) -> None:
    # Whatever the distribution: only ranks count.
    truth = float(np.exp(ndtri(percent / 100)))
    found = [percentile_interval(np.exp(x), percent) for x in autoregressive(phi, n, DRAWS, 2)]
    assert covered([i.holds(truth) for i in found if i.known]) == pytest.approx(0.95, abs=TWO_POINTS)


@pytest.mark.parametrize("percent", [50, 90, 95])
def test_percentiles_of_independent_values_cover_what_they_claim_from_the_fewest_on(percent: int) -> None:
    draw = np.random.default_rng(3)
    for n in (least_effective(percent), least_effective(percent) + 7, 3 * least_effective(percent)):
        values = np.sort(draw.exponential(size=(1500, n)), axis=1)
        truth = -np.log1p(-percent / 100)
        inside = [independent_interval(row, percent).holds(truth) for row in values]
        assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("streams", [1, 8])
@pytest.mark.parametrize("percent", [50, 90])
def test_gaps_that_streams_share_are_one_value_a_step(streams: int, percent: int) -> None:
    draw = np.random.default_rng(4)
    steps = 120
    truth = -np.log1p(-percent / 100)
    inside, wrong = [], []
    for _ in range(400):
        gaps = np.repeat(draw.exponential(size=steps), streams) * (1 + 1e-6 * draw.normal(size=steps * streams))
        found = clustered_intervals(gaps, np.repeat(np.arange(steps), streams), [percent])[percent]
        inside.append(found.holds(truth))
        wrong.append(independent_interval(np.sort(gaps), percent).holds(truth))
    assert np.mean(inside) == pytest.approx(0.95, abs=0.03)
    if streams > 1:
        assert np.mean(wrong) < 0.7, "as if every stream had drawn its own: that is what clusters are for"


def test_clusters_may_be_numbered_far_apart() -> None:
    values = np.random.default_rng(1).exponential(size=200)
    near, far = (clustered_intervals(values, np.arange(200) // 2 * apart, [50])[50] for apart in (1, 10**12))
    assert (near.low, near.high) == (far.low, far.high)


def test_steps_that_hold_most_of_the_values_are_not_outvoted_by_many_small_ones() -> None:
    draw = np.random.default_rng(2)
    sizes = np.where(np.arange(400) % 100 == 50, 2000, 1)
    cluster = np.repeat(np.arange(400), sizes)
    gaps = draw.exponential(size=400)[cluster]
    for percent, found in clustered_intervals(gaps, cluster, [50, 90]).items():
        assert not found.known, f"p{percent} rests on four steps"
        assert "unlike size" in found.refused


def test_effective_n_and_autocorrelation_are_those_of_the_series() -> None:
    for phi in (0.0, 0.4, 0.7):
        series = autoregressive(phi, 400, 300, 5)
        assert np.mean([autocorrelation(x) for x in series]) == pytest.approx(phi, abs=0.02)
        worth = float(np.median([dependence(x).effective_n for x in series]))
        assert worth == pytest.approx(400 * (1 - phi) / (1 + phi), rel=0.12)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (np.zeros(0), "0 values, an interval needs 20"),
        (np.array([1.0]), "1 values"),
        (np.arange(19.0), "19 values"),
        (np.full(50, np.nan), "not finite"),
        (autoregressive(0.9, 400, 1, 1)[0], "too alike: autocorrelation"),
        (autoregressive(0.5, 40, 1, 8)[0], "are worth"),
        (autoregressive(0.0, 400, 1, 1)[0] + np.repeat([0.0, 1.5], 200), "drift|too alike"),
    ],
)
def test_outside_its_conditions_an_interval_is_refused_with_the_numbers(values: Floats, why: str) -> None:
    for found in (series_mean(values), percentile_interval(values, 50)):
        assert (found.low, found.high) == (None, None)

    assert re.search(why, series_mean(values).refused)


@pytest.mark.parametrize(("phi", "n"), [(0.75, 300), (0.8, 200), (0.5, 36), (0.5, 48), (0.3, 24)])
def test_what_slips_through_outside_is_wrong_less_often_than_an_interval_may_be_inside(phi: float, n: int) -> None:
    series = autoregressive(phi, n, DRAWS, 12)
    for found in ([series_mean(x) for x in series], [percentile_interval(x, 50) for x in series]):
        assert np.mean([i.known for i in found]) < 0.35
        assert np.mean([i.known and not i.holds(0.0) for i in found]) < 0.05


def test_a_high_percentile_needs_its_own_number_of_effective_values() -> None:
    series = autoregressive(0.3, 400, 1, 1)[0]
    assert percentile_interval(series, 95).known
    assert "an interval needs 368" in percentile_interval(series, 99).refused


@UNTIMED
@given(
    # A power of two scales without rounding, which would make values equal that are not.
    st.lists(st.integers(-(10**6), 10**6), min_size=20, max_size=120),
    st.sampled_from([0.125, 2.0, 1024.0]),
    st.sampled_from([50, 90]),
)
def test_units_do_not_matter_and_intervals_lie_inside_the_values(drawn: list[int], unit: float, percent: int) -> None:
    values = np.array(drawn, dtype=np.float64)
    found, scaled = percentile_interval(values, percent), percentile_interval(values * unit, percent)
    assert found.known == scaled.known
    if found.low is not None and found.high is not None and found.estimate is not None:
        assert values.min() <= found.low <= found.high <= values.max() + 1e-6
        assert [scaled.low, scaled.high] == pytest.approx([found.low * unit, found.high * unit], rel=1e-9, abs=1e-9)


@UNTIMED
@given(st.lists(st.floats(0, 100), max_size=80), st.integers(1, 5))
def test_any_values_and_clusters_give_an_interval_or_a_reason(drawn: list[float], size: int) -> None:
    values = np.array(drawn)
    cluster = np.arange(len(values)) // size
    for found in clustered_intervals(values, cluster, [50, 90, 99]).values():
        assert found.known != bool(found.refused)
    shown = distribution(values, cluster=cluster)
    assert all(v is None or v[0] <= v[1] for v in shown["intervals"].values())


@UNTIMED
@given(st.lists(st.floats(-1e3, 1e3), max_size=60))
def test_scores_keep_the_order_and_equal_values(drawn: list[float]) -> None:
    found = scores(np.array(drawn))
    order = np.argsort(drawn, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    assert len(np.unique(found)) == len(np.unique(drawn))


@pytest.mark.parametrize("phi", [0.0, 0.5])
def test_a_trend_is_found_where_there_is_one_and_seldom_where_there_is_none(phi: float) -> None:
    series = autoregressive(phi, 120, DRAWS, 9)
    flat = [trend(x) for x in series]
    assert covered([i.holds(0.0) for i in flat if i.known]) == pytest.approx(0.95, abs=TWO_POINTS)
    rising = [trend(x + np.linspace(0, 3, 120)) for x in series[:300]]
    assert np.mean([(i.low or -1) > 0 for i in rising if i.known]) > 0.95


def test_a_naive_trend_test_would_see_drift_in_half_of_all_slow_series() -> None:
    # What the allowance is for: the same slopes, held against independent noise.
    alarms = []
    for x in autoregressive(0.7, 120, 400, 10):
        at = np.linspace(-0.5, 0.5, len(x))
        slope = at @ x / (at @ at)
        left = x - x.mean() - slope * at
        alarms.append(abs(slope) > 1.98 * np.sqrt(left @ left / (len(x) - 2) / (at @ at)))
    assert np.mean(alarms) > 0.3


def test_a_queue_that_grows_is_told_from_one_in_balance() -> None:
    draw = np.random.default_rng(11)
    steps = draw.poisson(14, (400, 40)) - draw.poisson(10, (400, 40))
    growing = np.cumsum(steps, axis=1).astype(float)
    assert np.mean([(growth(q, 0.99).low or -1) > 0 for q in growing]) > 0.7
    queue, queues = np.zeros(400), []
    for _ in range(40):
        queue = np.maximum(queue + draw.poisson(8, 400) - draw.poisson(10, 400), 0)
        queues.append(queue.copy())
    balanced = np.array(queues).T
    assert np.mean([(growth(q, 0.99).low or -1) > 0 for q in balanced[:, 10:]]) <= 0.02
