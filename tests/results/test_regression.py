"""The regression gate: verdicts on the margin, confirmation, counters, faults, and what blocks of known spread can show."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.errors import UnknownNameError, UsageError
from results.files import to_json
from results.regression import (
    FAILED,
    INCONCLUSIVE,
    PASS,
    REGRESSION,
    SUSPECTED,
    UNPAIRED,
    Gate,
    GateOptions,
    confirm,
    judge,
)
from results.regression_metrics import SHARED_MARGINS, chosen, gate_metric
from results.regression_runs import GateRun, paired_gate, unpaired_gate
from results.regression_words import announced_words, headline, seen
from tests.reports.runs import Cell
from tests.results.test_comparison import cells, run

DATA = Path(__file__).resolve().parents[1] / "data" / "recorded_blocks.json"
RATE = "output_tokens_per_s"


def options(*metrics: str, **margins: float) -> GateOptions:
    return GateOptions(metrics=chosen(metrics or [RATE], margins), asked=bool(metrics))


def gated(made: Sequence[Cell], given: GateOptions | None = None, **manifest: Any) -> Gate:
    return paired_gate(GateRun(run(made, **manifest)), "a", "b", given or options())


def judged(metric: str, base: Sequence[float], cand: Sequence[float], paired: bool = False, **margins: float) -> str:
    sides = [dict(enumerate(values)) for values in (base, cand)]
    return judge(chosen([metric], margins)[0], sides[0], sides[1], paired, options(metric, **margins))[2]


@pytest.mark.parametrize(
    ("speed", "told"),
    [(1.0, PASS), (0.98, PASS), (1.3, PASS), (0.9, SUSPECTED), (0.5, SUSPECTED)],
)
def test_only_what_is_worse_by_more_than_the_margin_is_suspected(speed: float, told: str) -> None:
    found = gated(cells({"a": 1.0, "b": speed}, noise=0.005))
    assert {row.verdict for row in found.points} == {told}
    row = found.points[0]
    assert row.mde is not None
    assert 0.05 < row.mde < 0.08
    assert "wall 6" in seen(found) or "wall 5" in seen(found)


def test_a_regression_is_one_only_when_new_sessions_show_it_again() -> None:
    worse, same, noisy = (
        gated(cells({"a": 1.0, "b": speed}, noise=noise, seed=seed))
        for speed, noise, seed in [(0.9, 0.005, 1), (1.0, 0.005, 2), (0.95, 0.05, 3)]
    )
    assert worse.verdict == INCONCLUSIVE
    assert "not confirmed" in headline(worse)
    again = gated(cells({"a": 1.0, "b": 0.9}, noise=0.005, seed=9))
    assert confirm(worse, again).verdict == REGRESSION
    assert confirm(worse, same).verdict == PASS
    assert confirm(worse, noisy).verdict == INCONCLUSIVE
    assert "new sessions" in confirm(worse, again).points[0].why


def test_noise_wider_than_the_margin_is_inconclusive_and_announces_the_blocks_that_would_tell() -> None:
    found = gated(cells({"a": 1.0, "b": 1.0}, noise=0.05))
    row = found.points[0]
    assert row.verdict == INCONCLUSIVE
    assert row.blocks_needed is not None
    assert row.blocks_needed > 6
    assert "would tell" in announced_words(found)


def test_rows_that_no_number_of_blocks_would_tell_are_counted_beside_the_announced_ones() -> None:
    found = gated(cells({"a": 1.0, "b": 1.0}, noise=0.05))
    row = replace(found.points[0], verdict=INCONCLUSIVE, n_blocks=6, blocks_needed=40)
    never = replace(row, blocks_needed=None)
    alone = announced_words(replace(found, points=[row]))
    assert alone.startswith("40 new blocks (a run of their own, without the pilot) would tell")
    assert "in all rows" in alone
    both = announced_words(replace(found, points=[row, never]))
    assert "in 1 of 2 rows" in both
    assert both.endswith("No number of blocks up to 1,000 would tell in the other 1 row.")
    assert "lies near the margin" in announced_words(replace(found, points=[replace(row, blocks_needed=6)]))
    assert "widen the margin" in announced_words(replace(found, points=[never]))


def test_lower_is_better_is_read_the_other_way_round() -> None:
    slower = gated(cells({"a": 1.0, "b": 0.8}, noise=0.005), options("tpot_ms.p50"))
    faster = gated(cells({"a": 1.0, "b": 1.25}, noise=0.005), options("tpot_ms.p50"))
    assert {r.verdict for r in slower.points} == {SUSPECTED}
    assert {r.verdict for r in faster.points} == {PASS}
    assert slower.points[0].ratio == pytest.approx(1.25, rel=0.02)


def test_the_gate_of_a_baseline_of_five_and_candidates_of_three() -> None:
    baseline = [100, 101, 99, 103, 97]
    assert judged(RATE, baseline, [98, 102, 100]) == PASS
    assert judged(RATE, baseline, [88, 90, 89]) == REGRESSION
    assert judged(RATE, baseline, baseline) == PASS
    assert judged(RATE, baseline, baseline, paired=True) == PASS
    assert judged(RATE, baseline, [98, 102]) == INCONCLUSIVE


def test_a_difference_below_the_floor_is_no_regression() -> None:
    base, cand = [0.40, 0.41, 0.39, 0.40, 0.42], [0.58, 0.57, 0.59, 0.58, 0.60]
    assert judged("ttft_ms_p50", base, cand) == PASS
    assert judged("ttft_ms_p50", [100 * v for v in base], [100 * v for v in cand]) == REGRESSION


def test_a_metric_without_a_number_is_inconclusive_where_it_was_asked_for() -> None:
    made = cells({"a": 1.0, "b": 1.0})
    for one in made:
        one["whole"]["tpot_ms"]["p50"] = None
    found = gated(made, options("tpot_ms.p50"))
    assert found.verdict == INCONCLUSIVE
    assert {row.n_blocks for row in found.points} == {0}
    everything = gated(made, GateOptions())
    assert "tpot_ms_p50" in everything.silent


@pytest.mark.parametrize("side", ["a", "b"])
def test_a_missing_or_invalid_cell_fails(side: str) -> None:
    made = cells({"a": 1.0, "b": 1.0}, noise=0.001)
    gone = next(i for i, c in enumerate(made) if c["engine"] == side and c["block"] == 2)
    missing = gated([c for i, c in enumerate(made) if i != gone])
    assert missing.verdict == FAILED
    assert "missing" in headline(missing)
    made[gone] = {**made[gone], "verdict": "INVALID"}
    assert gated(made).verdict == FAILED
    # A point that one side never got to.
    assert gated([c for c in made if c["engine"] != side or c["load"]["value"] != 4]).verdict == FAILED


def test_cells_that_no_engine_has_are_missed_by_what_was_planned() -> None:
    made = [c for c in cells({"a": 1.0, "b": 1.0}, noise=0.001) if c["block"] < 5]
    planned = GateRun(run(made), {"blocks": 6, "engines": [{"label": "a"}, {"label": "b"}]})
    assert paired_gate(planned, "a", "b", options()).verdict == FAILED
    budgeted = GateRun(planned.facts, {**planned.experiment, "budget_s": 60})
    assert paired_gate(budgeted, "a", "b", options()).verdict == PASS
    never = GateRun(run([c for c in made if c["engine"] == "a"]), planned.experiment)
    assert paired_gate(never, "a", never.engine("b", "candidate"), options()).verdict == FAILED


def with_counter(
    speeds: dict[str, float], name: str = "computed_tokens_per_token", blocks: int = 2, **values: float
) -> list[Cell]:
    return [{**one, "counters": {name: values[one["engine"]]}} for one in cells(speeds, noise=0.3, blocks=blocks)]


def test_a_counter_that_agrees_in_all_blocks_needs_no_clock_and_no_confirmation() -> None:
    watched = options("computed_tokens_per_token")
    worse = gated(with_counter({"a": 1.0, "b": 1.0}, a=0.99, b=1.65), watched)
    assert worse.verdict == REGRESSION
    assert worse.points[0].exact
    assert worse.points[0].low == worse.points[0].high == worse.points[0].ratio
    assert gated(with_counter({"a": 1.0, "b": 0.5}, a=0.99, b=0.99), watched).verdict == PASS


def test_steps_that_agree_in_all_blocks_may_be_chance_and_are_confirmed() -> None:
    """A request that comes a moment late costs a step: in short cells a tenth of all, and now and then in each of a few blocks."""
    steps = "steps_per_output_token"
    equal = {"a": 1.0, "b": 1.0}
    few = gated(with_counter(equal, steps, 2, a=1.0, b=1.12), options(steps))
    assert few.verdict == INCONCLUSIVE
    assert "a verdict needs 5" in few.points[0].why
    first = gated(with_counter(equal, steps, 5, a=1.0, b=1.12), options(steps))
    assert {row.verdict for row in first.points} == {SUSPECTED}
    assert confirm(first, first).verdict == REGRESSION
    assert confirm(first, gated(with_counter(equal, steps, 5, a=1.0, b=1.0), options(steps))).verdict == PASS
    assert gated(with_counter(equal, steps, 2, a=1.0, b=1.04), options(steps)).verdict == PASS, "within the margin"


def test_margins_go_by_metric_before_kind_and_are_wider_on_shared_machines() -> None:
    by_id = {m.id: m for m in chosen((), {"wall": 0.1, "ttft_ms.p50": 0.2, "counter": 0.01})}
    assert (by_id[RATE].margin, by_id["ttft_ms_p50"].margin, by_id["weight_bytes"].margin) == (0.1, 0.2, 0.01)
    shared = {m.id: m.margin for m in chosen((), {}, shared=True)}
    assert (shared[RATE], shared["weight_bytes"]) == (SHARED_MARGINS["wall"], SHARED_MARGINS["counter"])
    assert gate_metric("ttft_ms.p90").floor == 1.0
    with pytest.raises(UnknownNameError):
        chosen((), {"wal": 0.1})


def test_unlike_machines_models_and_settings_are_refused_and_named() -> None:
    made = cells({"a": 1.0})
    one, other = GateRun(run(made, "one")), GateRun(run(made, "two", host={"cpu": "B", "cores_usable": 2}))
    with pytest.raises(UsageError, match="cpu: A / B") as refused:
        unpaired_gate(one, "a", other, "a", options())
    assert refused.value.exit_code == 2
    told = unpaired_gate(one, "a", other, "a", options(), disregard=True)
    assert any("cpu" in item for item in told.unlike)
    both = run(cells({"a": 1.0, "b": 1.0}))
    for engine, dtype in zip(both.summary["engines"], ("bfloat16", "float32"), strict=True):
        engine["settings"] = {"dtype": {"value": dtype, "source": "endpoint"}}
    with pytest.raises(UsageError, match="dtype: bfloat16 / float32"):
        paired_gate(GateRun(both), "a", "b", options())


def test_two_runs_are_unpaired_and_say_so() -> None:
    one, two = (GateRun(run(cells({"a": 1.0}, noise=0.001, seed=seed), f"run-{seed}")) for seed in (1, 2))
    found = unpaired_gate(one, "a", two, "a", options())
    assert found.mode == UNPAIRED
    # What a block does to all does not cancel: of the same spread, wider.
    pair = gated(cells({"a": 1.0, "b": 1.0}, noise=0.001))
    assert width(found) > width(pair)


def width(found: Gate) -> float:
    row = found.points[0]
    assert row.low is not None
    assert row.high is not None
    return row.high - row.low


def announced(margin: float, effect: float, noise: float, seed: int) -> int:
    """What a gate of 5 pairs of equal engines announces."""
    pilot = cells({"a": 1.0, "b": 1.0}, blocks=5, noise=noise, batches=[1], seed=seed)
    (row,) = gated(pilot, GateOptions(chosen([RATE], {RATE: margin}), effect=effect)).points
    assert row.blocks_needed is not None
    return row.blocks_needed


@pytest.mark.parametrize(("margin", "effect"), [(0.05, 0.10), (0.03, 0.05), (0.15, 0.30)])
def test_the_announced_blocks_keep_the_standard_error_within_the_rule(margin: float, effect: float) -> None:
    logs = [math.log(c["whole"][RATE]) for c in cells({"a": 1.0, "b": 1.0}, blocks=5, noise=0.03, batches=[1], seed=4)]
    sd = float(np.std(np.subtract(logs[1::2], logs[::2]), ddof=1))
    allowed = (math.log1p(-margin) - math.log1p(-effect)) / 3.6
    # t, and a spread that is itself an estimate, need more than the normal's 3.6.
    assert sd / math.sqrt(announced(margin, effect, 0.03, seed=4)) <= allowed


def test_a_slowdown_is_caught_at_the_blocks_a_pilot_of_five_announces_and_equal_engines_pass() -> None:
    draw, noise, margin, effect = np.random.default_rng(5), 0.03, 0.05, 0.10
    caught = passed = 0
    for seed in range(250):
        blocks = announced(margin, effect, noise, seed)
        base = draw.normal(0, 0.2, blocks)
        logs = np.log(100) + base + draw.normal(0, noise * math.sqrt(2), blocks)
        one, equal, slower = (np.exp(v).tolist() for v in (np.log(100) + base, logs, logs + math.log1p(-effect)))
        caught += judged(RATE, one, slower, True, **{RATE: margin}) == REGRESSION
        passed += judged(RATE, one, equal, True, **{RATE: margin}) == PASS
    # Two standard errors of a share of 250 beside 95 %.
    assert caught / 250 >= 0.95 - 0.028
    assert passed / 250 >= 0.95 - 0.028


def gate_with_confirmation(pick: Callable[[], list[dict[int, float]]], margin: float) -> str:
    """The verdict of a whole gate, new sessions and all, over pairs that `pick` draws."""
    given = options(RATE, **{RATE: margin})
    base, cand = pick()
    first = judge(given.metrics[0], base, cand, True, given)[2]
    if first != REGRESSION:
        return first
    base, cand = pick()
    return judge(given.metrics[0], base, cand, True, given)[2]


@pytest.mark.parametrize("point", [0, 1])
# The blocks scatter by a quarter: 5 of them cannot tell 10 %, 20 can tell 30 %.
@pytest.mark.parametrize(("margin", "blocks", "passing"), [(0.10, 5, 0), (0.30, 20, 135)])
def test_150_gates_of_recorded_blocks_of_one_engine_give_no_false_alarm_and_pass_where_they_can_tell(
    point: int, margin: float, blocks: int, passing: int
) -> None:
    rates = np.array(json.loads(DATA.read_bytes())["points"][point][RATE])
    draw = np.random.default_rng(7)

    def pick() -> list[dict[int, float]]:
        picked = draw.permutation(len(rates))
        return [dict(enumerate(rates[picked[:blocks]])), dict(enumerate(rates[picked[blocks : 2 * blocks]]))]

    verdicts = [gate_with_confirmation(pick, margin) for _ in range(150)]
    assert verdicts.count(REGRESSION) == 0
    assert verdicts.count(PASS) >= passing


def test_200_unpaired_gates_at_5_per_cent_noise_fail_at_most_4_times() -> None:
    draw = np.random.default_rng(8)
    drawn = np.exp(draw.normal(5, 0.05, (200, 2, 5))).tolist()
    found = [judged(RATE, base, cand) for base, cand in drawn]
    assert found.count(REGRESSION) <= 4


@given(
    values=st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=8),
    factors=st.lists(st.floats(0.2, 5), min_size=8, max_size=8),
    margin=st.floats(0.005, 0.5),
    metric=st.sampled_from([RATE, "tpot_ms_p50", "weight_bytes"]),
    is_paired=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_verdict_agrees_with_its_own_interval(
    values: list[float], factors: list[float], margin: float, metric: str, is_paired: bool
) -> None:
    base, cand = dict(enumerate(values)), {i: v * factors[i] for i, v in enumerate(values)}
    given = options(metric, **{metric: margin})
    ratio, limit, verdict, why = judge(given.metrics[0], base, cand, is_paired, given)
    assert limit > 0
    assert (verdict == INCONCLUSIVE) == bool(why)
    if verdict == REGRESSION and ratio.known:
        assert not ratio.holds(1.0)
    # Turned round, what was worse is better.
    if verdict == REGRESSION:
        assert judge(given.metrics[0], cand, base, is_paired, given)[2] == PASS


def test_json_is_strict_and_holds_what_was_promised() -> None:
    found = json.loads(to_json(gated(cells({"a": 1.0, "b": 0.9}, noise=0.005)).to_dict()))
    assert {"verdict", "mode", "points"} <= found.keys()
    promised = {"engine", "workload", "load", "metric", "ratio", "low", "high", "n_blocks", "margin", "mde", "verdict"}
    assert all(promised <= point.keys() for point in found["points"])


@pytest.mark.parametrize("metric", [RATE, "tpot_ms.p50"])
def test_two_blocks_that_have_nothing_in_common_see_nothing(metric: str) -> None:
    made = cells({"a": 1.0, "b": 1.0}, blocks=2, batches=[1])
    for one, value in zip(made, (1.0, 1.0, 1.0, 1e12), strict=True):
        one["whole"]["output_tokens_per_s"] = one["whole"]["tpot_ms"]["p50"] = value
    (row,) = gated(made, options(metric)).points
    assert (row.verdict, row.mde) == (INCONCLUSIVE, None)
