"""On numbers of real cells (benchmarks/record_blocks.py): A/A pairs, a slowdown at the announced blocks, and coverage."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtri

from benchmarks.coverage import as_announced, slower_found
from results.comparison import FASTER, SLOWER, judge
from results.events import Floats
from results.statistics import MOST_AUTOCORRELATION, MOST_BLOCKS, blocks_needed, paired
from results.statistics_percentiles import percentile_interval
from results.statistics_series import dependence, scores

DATA = Path(__file__).resolve().parents[1] / "data" / "recorded_blocks.json"
METRIC = "output_tokens_per_s"
PAIRS = 2000
# The most of 2,000 that a true rate of 1 % gives in 99 of 100 cases.
MOST_ALARMS = 31


@cache
def recorded() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DATA.read_bytes())
    return document


def rates(point: int) -> Floats:
    return np.array(recorded()["points"][point][METRIC])


@pytest.mark.parametrize("point", [0, 1])
@pytest.mark.parametrize("blocks", [5, 8])
def test_a_a_pairs_at_the_1_per_cent_setting_alarm_at_most_31_times_in_2000(point: int, blocks: int) -> None:
    draw, values = np.random.default_rng(1), rates(point)
    alarms = 0
    for _ in range(PAIRS):
        picked = draw.permutation(len(values))[: 2 * blocks]
        found = paired(values[picked[:blocks]].tolist(), values[picked[blocks:]].tolist(), 0.99)
        alarms += judge(METRIC, found, 0.0001, found.p)[0] in (FASTER, SLOWER)
    assert alarms <= MOST_ALARMS


@pytest.mark.parametrize("point", [0, 1])
def test_a_slowdown_of_5_per_cent_is_found_at_the_blocks_that_the_spread_asks_for(point: int) -> None:
    draw, logs = np.random.default_rng(2), np.log(rates(point))
    blocks = blocks_needed(float(logs.std(ddof=1)) * math.sqrt(2), 0.05, 0.99)
    tried = MOST_BLOCKS if blocks is None else blocks
    found = sum(slower_found(draw, logs, tried) for _ in range(1000))
    # Two standard errors of a share of 1,000 beside 95 %. Where it is told that no number of blocks will do, the most that are
    # ever announced do not.
    if blocks is None:
        assert found / 1000 < 0.95 + 0.014
    else:
        assert found / 1000 >= 0.95 - 0.014


def normal(spread: float) -> Floats:
    """Logs of 60 rates that scatter by so much, as evenly drawn as can be."""
    return spread * ndtri((np.arange(60) + 0.5) / 60)


@pytest.mark.parametrize(
    "logs",
    [*(np.log(rates(point)) * part for point in (0, 1) for part in (1.0, 0.5, 0.25)), *map(normal, (0.01, 0.02, 0.04))],
    ids=[*(f"{point} x {part}" for point in (0, 1) for part in (1.0, 0.5, 0.25)), "1 %", "2 %", "4 %"],
)
def test_a_slowdown_of_5_per_cent_is_found_at_the_blocks_that_are_announced_and_none_where_there_is_none(
    logs: Floats,
) -> None:
    found = as_announced(np.random.default_rng(2), logs, 600)
    assert found.told >= 60, "too few to judge them"
    # Two standard errors of a share beside 95 %, three beside 1 %.
    assert found.hits / found.told >= 0.95 - 2 * math.sqrt(0.95 * 0.05 / found.told)
    assert found.alarms <= 0.01 * found.told + 3 * math.sqrt(0.01 * found.told)


def test_a_pilot_of_a_machine_too_busy_mostly_says_that_no_number_of_blocks_will_do() -> None:
    assert as_announced(np.random.default_rng(2), normal(0.3), 200).share < 0.3


@pytest.mark.parametrize("name", ["ttft_ms", "e2e_ms"])
@pytest.mark.parametrize(("run", "length"), [(1, 100), (5, 400), (10, 800)])
@pytest.mark.parametrize("percent", [50, 90])
def test_percentiles_of_recorded_requests_are_covered(name: str, run: int, length: int, percent: int) -> None:
    draw, values = np.random.default_rng(3), np.array(recorded()["requests"][name])
    truth = float(np.quantile(values, percent / 100))
    found = []
    for _ in range(300):
        # In runs as they came, so that what hangs together does.
        starts = draw.integers(0, len(values) - run, length // run)
        found.append(percentile_interval(np.concatenate([values[s : s + run] for s in starts]), percent))
    known = [interval.holds(truth) for interval in found if interval.known]
    assert len(known) > 100
    assert np.mean(known) == pytest.approx(0.95, abs=0.02 + 0.025)


def test_where_recorded_requests_hang_together_too_closely_the_interval_is_refused() -> None:
    tpot = np.array(recorded()["requests"]["tpot_ms"])
    found = dependence(scores(tpot))
    assert found.phi > MOST_AUTOCORRELATION
    assert "too alike" in percentile_interval(tpot, 50).refused
