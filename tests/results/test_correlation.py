"""Correlation: exact where points are few, refused where it would say nothing, and never fooled by mixing engines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from results.correlation import LEAST_POINTS, Correlation, across_points, over_time, ranks, within_strata
from results.correlation_cells import across_cells, inside_cell
from results.events import Chunks, Requests, Samples
from results.scope import scope_data
from results.tokens import token_chunks

S = 1_000_000_000


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_ranks_share_ties(values: list[int]) -> None:
    assert ranks(np.array(values, dtype=np.float64)) == pytest.approx(rankdata(values))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=12))
def test_rho_is_spearmans_and_a_series_that_does_not_vary_has_none(pairs: list[tuple[int, int]]) -> None:
    x, y = [a for a, _ in pairs], [b for _, b in pairs]
    found = across_points("batch", "s", x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert found.rho is None
        assert found.refused.endswith("does not vary")
    else:
        assert found.rho == pytest.approx(spearmanr(x, y).statistic)
        assert (found.p is None) == (len(x) < LEAST_POINTS)


@pytest.mark.parametrize(("n", "p"), [(5, 0.0167), (6, 0.0028)])
def test_the_least_p_of_few_points_is_that_of_all_their_orders(n: int, p: float) -> None:
    assert across_points("batch", "s", list(range(n)), list(range(n))).p == pytest.approx(p, rel=0.02)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
def test_four_points_and_fewer_show_nothing(n: int) -> None:
    found = across_points("batch", "s", list(range(n)), list(range(n)))
    assert found.p is None
    assert found.refused
    assert (found.rho is not None) == (n >= 3)


def test_points_in_perfect_order_are_never_certain() -> None:
    up = list(range(9))
    assert across_points("batch", "s", up, up).p == pytest.approx(2 / math.factorial(9))
    # Two levels of five and four: every order within a level is as good.
    levels = [0] * 5 + [1] * 4
    assert across_points("batch", "s", levels, levels).p == pytest.approx(2 * 120 * 24 / math.factorial(9))


def test_p_of_more_points_is_students() -> None:
    x = list(range(12))
    y = [3, 1, 2, 6, 4, 9, 5, 8, 7, 11, 12, 10]
    assert across_points("batch", "s", x, y).p == pytest.approx(spearmanr(x, y).pvalue)


def test_mixing_engines_can_turn_a_relation_round_and_both_are_told() -> None:
    # Each engine: the more power, the more tokens; the engine with less power is the faster one.
    strata = {
        "a": ([1.0, 2.0, 3.0, 4.0, 5.0], [101.0, 102.0, 103.0, 104.0, 105.0]),
        "b": ([11.0, 12.0, 13.0, 14.0, 15.0], [1.0, 2.0, 3.0, 4.0, 5.0]),
    }
    by = {c.stratum: c for c in within_strata("power_w", strata)}
    assert by["a"].rho == by["b"].rho == pytest.approx(1)
    assert by["all, each around its own level"].rho == pytest.approx(1)
    mixed = by["all mixed together"]
    assert mixed.rho is not None
    assert mixed.rho < 0
    assert "sign turns" in mixed.refused


def test_strata_that_agree_need_no_mixed_figure() -> None:
    strata = {"a": ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]), "b": ([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])}
    found = within_strata("batch", strata)
    assert [c.stratum for c in found] == ["a", "b", "all, each around its own level"]


def ar1(phi: float, n: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    noise = np.random.default_rng(seed).normal(size=n + 50)
    out = np.zeros(n + 50)
    for i in range(1, n + 50):
        out[i] = phi * out[i - 1] + noise[i]
    return out[50:]


@pytest.mark.parametrize("phi", [0.0, 0.5])
def test_unrelated_series_are_seldom_called_related(phi: float) -> None:
    found = [over_time("power_w", ar1(phi, 120, 2 * i), ar1(phi, 120, 2 * i + 1)) for i in range(400)]
    told = [c for c in found if c.low is not None and c.high is not None]
    wrong = sum(1 for c in told if not c.low <= 0 <= c.high)  # type: ignore[operator]  # both ends are known, by the line above
    assert len(told) > 300
    assert wrong / len(told) < 0.09, "5 % is nominal"


def test_series_whose_neighbours_are_too_alike_get_no_interval() -> None:
    found = over_time("power_w", ar1(0.95, 300, 1), ar1(0.95, 300, 2))
    assert found.rho is not None
    assert found.low is None
    assert "too alike" in found.refused


@pytest.mark.parametrize(
    ("x", "why"),
    [
        (np.arange(5.0), "5 instants, 20 are needed"),
        (np.full(40, 3.0), "power does not vary"),
    ],
)
def test_short_or_constant_series_say_why_there_is_nothing(x: Any, why: str) -> None:
    found = over_time("power_w", x, np.arange(float(len(x))))
    assert (found.rho, found.refused) == (None, why)


def cell(
    engine: str, batch: float, speed: float, block: int = 0, verdict: str = "VALID", **device: Any
) -> dict[str, Any]:
    return {
        "engine": engine,
        "verdict": verdict,
        "block": block,
        "workload": {
            "type": "random",
            "input_len": {"dist": "fixed", "tokens": 8},
            "output_len": {"dist": "fixed", "tokens": 8},
        },
        "load": {"mode": "batch", "value": batch},
        "whole": {"output_tokens_per_s": speed},
        "window": None,
        "batch": {"realised": batch},
        "device": device or None,
    }


def test_across_cells_blocks_are_one_point_and_invalid_ones_are_none() -> None:
    cells = [cell("a", b, 10.0 * b + block, block) for b in (1, 2, 4, 8, 16) for block in (0, 1)]
    cells += [cell("a", 32, 1.0, verdict="INVALID")]
    found = across_cells(cells)
    (batch,) = [c for c in found if c.x == "batch"]
    assert (batch.n, batch.rho, batch.stratum) == (5, pytest.approx(1), "a, 8 in / 8 out")
    assert batch.mechanical == "throughput is batch over step time"
    assert {c.x for c in found} == {"batch"}, "what no cell has is left out"


def test_what_is_no_number_or_not_there_is_no_point() -> None:
    cells = [cell("a", b, 10.0 * b, power_w=None if b == 4 else 100.0 + b) for b in (1, 2, 4)]
    power = [c for c in across_cells(cells) if c.x == "power_w"]
    assert [(c.n, c.rho) for c in power] == [(2, None)]


def inside(power: Any, tokens_per_bin: Any, poll_ms: int = 250) -> dict[str, Correlation]:
    """One stream of 30 s whose tokens per quarter of a second are given, beside power readings."""
    start = 100 * S
    chunks = [
        {"request_id": "r", "t": start + int((i + (j + 0.5) / n) * S / 4), "kind": "text", "tokens": 1}
        for i, n in enumerate(tokens_per_bin)
        for j in range(int(n))
    ]
    requests = Requests.of(
        [
            {
                "request_id": "r",
                "slot": 0,
                "sent": start,
                "first_token": chunks[0]["t"],
                "last_token": chunks[-1]["t"],
                "end": start + len(tokens_per_bin) * S // 4,
                "outcome": "ok",
                "output_tokens": len(chunks),
                "output_tokens_asked": len(chunks),
                "tokens_in_first_chunk": 1,
            }
        ]
    )
    samples = Samples.of(
        [
            {
                "source": "nvml",
                "metric": "gpu.power_instant_w",
                "device": "GPU-a",
                "t0": start + i * poll_ms * 1_000_000,
                "t1": start + i * poll_ms * 1_000_000,
                "value": float(v),
            }
            for i, v in enumerate(power)
        ]
    )
    data = scope_data(
        requests, token_chunks(requests, Chunks.of(chunks)), None, cell=(start, start + 60 * S), mode="batch", width=1
    )
    assert data is not None
    return {c.x: c for c in inside_cell(data, samples, {"source": "nvml", "devices": ["GPU-a"]})}


def test_inside_a_cell_throughput_that_follows_power_is_found() -> None:
    draw = np.random.default_rng(3).integers(2, 9, size=120)
    power = np.append(100 + 10 * draw, 150)
    # A reading tells of the time around it, so what is played holds for two readings.
    found = inside(power, draw)["power_w"]
    assert found.rho is not None
    assert found.rho > 0.5
    assert found.low is not None
    assert found.low > 0


def test_a_value_polled_faster_than_it_changes_counts_once_a_change() -> None:
    draw = np.repeat(np.random.default_rng(4).integers(2, 9, size=24), 5)
    power = np.repeat(np.random.default_rng(5).normal(300, 20, size=24), 5)
    found = inside(power, draw)["power_w"]
    assert found.n <= 24
