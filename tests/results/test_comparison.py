"""Comparisons of engines and of runs: verdicts by blocks, marks that travel, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.comparison import Comparison, Options, comparable_metrics, differing_versions, metric_id
from results.comparison_pareto import pareto
from results.comparison_runs import NotComparableError, RunFacts, compare_run, compare_runs
from results.comparison_words import how_words, needed_words, verdict_sentence
from results.errors import UnknownNameError, UsageError
from results.files import to_json
from results.report_measures import MEASURE, Value
from results.report_shapes import Point, workload_info
from tests.reports.runs import Cell, cell, flawed


def cells(
    speeds: dict[str, float], blocks: int = 6, noise: float = 0.01, batches: Sequence[int] = (1, 4), seed: int = 1
) -> list[Cell]:
    """Cells of engines of given speeds. What a block does to all of them is ten times what is each one's own."""
    draw = np.random.default_rng(seed)
    shared = draw.normal(0, 10 * noise, blocks)
    return [
        cell(engine, batch, 128, block, speed * math.exp(shared[block] + draw.normal(0, noise)))
        for block in range(blocks)
        for engine, speed in speeds.items()
        for batch in batches
    ]


def run(made: Sequence[Cell], name: str = "run", **manifest: Any) -> RunFacts:
    labels = list(dict.fromkeys(c["engine"] for c in made))
    engines = [{"label": label, "versions": {label: "1"}, "settings": {}} for label in labels]
    facts = {"host": {"cpu": "A", "cores_usable": 2, "memory_bytes": 8 * 2**30}, "model": {"name": "m"}, **manifest}
    return RunFacts(name, {"cells": list(made), "engines": engines}, facts)


def compared(made: Sequence[Cell], **options: Any) -> Comparison:
    return compare_run(run(made), Options(**options))[0]


@pytest.mark.parametrize(
    ("speed", "told"),
    [(1.2, "faster"), (0.8, "slower"), (1.0, "equivalent"), (1.01, "equivalent")],
)
def test_verdicts_follow_the_ratio(speed: float, told: str) -> None:
    found = compared(cells({"a": 1.0, "b": speed}, noise=0.005))
    assert {row.verdict for row in found.primary} == {told}
    assert found.verdict == told
    overall = found.overall
    assert overall is not None
    assert overall.n_blocks == 6
    assert overall.low is not None
    assert overall.high is not None
    assert overall.low <= speed <= overall.high


def test_noise_wider_than_the_margin_is_inconclusive_and_says_what_would_be_found() -> None:
    found = compared(cells({"a": 1.0, "b": 1.02}, noise=0.05))
    row = found.primary[0]
    assert row.verdict == "inconclusive"
    assert row.mde is not None
    assert row.mde > 0.03
    assert row.blocks_needed is not None
    assert row.blocks_needed > 6
    assert str(row.blocks_needed) in verdict_sentence(found) or "would find" in verdict_sentence(found)


def test_how_many_blocks_would_find_the_margin_is_said_as_far_as_those_there_tell() -> None:
    row = replace(compared(cells({"a": 1.0, "b": 1.0}, noise=0.05)).primary[0], verdict="inconclusive", n_blocks=6)
    assert needed_words(replace(row, blocks_needed=40)) == (
        "40 new blocks (a run of their own, without the pilot) would find 3 %, as far as 6 tell"
    )
    assert needed_words(replace(row, blocks_needed=6)) == "so many blocks would have found a slowdown of 3 %"
    assert "no number of blocks up to 1,000" in needed_words(replace(row, blocks_needed=None))
    assert needed_words(replace(row, verdict="faster", blocks_needed=None)) == ""
    assert needed_words(replace(row, low=None, high=None, blocks_needed=None)) == ""


@pytest.mark.parametrize(("blocks", "interval"), [(1, False), (2, True), (3, True), (4, True)])
def test_fewer_than_five_blocks_are_inconclusive_at_best(blocks: int, interval: bool) -> None:
    found = compared(cells({"a": 1.0, "b": 2.0}, blocks=blocks, noise=0.001))
    assert {row.verdict for row in found.primary} == {"inconclusive"}
    assert all((row.low is not None) == interval for row in found.primary)
    assert "needs" in found.primary[0].why


def test_lower_is_better_for_latencies() -> None:
    found = compared(cells({"a": 1.0, "b": 1.3}, noise=0.003), primary="ttft_ms_p50")
    row = found.primary[0]
    assert row.ratio == pytest.approx(1 / 1.3, rel=0.02)
    assert row.verdict == "faster"


def test_secondary_metrics_answer_to_holm() -> None:
    made = cells({"a": 1.0, "b": 1.05}, noise=0.03, batches=(1, 4, 16))
    found = compared(made, margin=0.001)
    rest = [row for row in found.points if not row.primary and row.p is not None]
    assert rest
    assert all(row.p_adjusted is not None and row.p_adjusted >= (row.p or 0) for row in rest)
    for row in rest:
        told = row.verdict in ("faster", "slower")
        assert not told or (row.p_adjusted or 1) < 0.05
    assert all(row.p_adjusted is None for row in found.primary)


def test_equivalence_of_secondary_metrics_answers_to_holm_as_differences_do() -> None:
    found = compared(cells({"a": 1.0, "b": 1.0}, noise=0.015, batches=(1, 4, 16)))
    rest = [row for row in found.points if not row.primary and row.p is not None]
    equal = [row for row in rest if row.verdict == "equivalent"]
    assert all(row.p_adjusted is not None and row.p_adjusted <= 0.05 for row in equal)
    # By itself a row of this spread is equivalent; among so many looks it is not, and says so.
    taken_back = [row for row in rest if row.why.startswith("equivalent, but p")]
    assert taken_back
    assert all(row.verdict == "inconclusive" and (row.p_adjusted or 0) > 0.05 for row in taken_back)
    assert all(f"after {len([r for r in found.points if not r.primary])} looks (Holm)" in row.why for row in taken_back)


def test_suspect_marks_travel_with_every_number_and_invalid_cells_are_left_out() -> None:
    made = cells({"a": 1.0, "b": 1.2}, noise=0.003)
    doubtful = [flawed("SUSPECT", "client_lag")(c) if c["engine"] == "b" and c["block"] == 0 else c for c in made]
    found = compared(doubtful)
    assert all((row.suspect, row.codes) == (1, ("client_lag",)) for row in found.primary)
    assert "SUSPECT (client_lag)" in verdict_sentence(found)
    broken = [flawed("INVALID", "server_died")(c) if c["engine"] == "b" and c["block"] == 0 else c for c in made]
    found = compared(broken)
    assert all((row.n_blocks, row.invalid) == (5, 1) for row in found.primary)
    gone = [flawed("INVALID", "server_died")(c) if c["engine"] == "b" else c for c in made]
    found = compared(gone)
    assert {row.verdict for row in found.points} == {"refused"}
    assert "INVALID" in found.primary[0].why


def test_a_gate_on_a_number_that_nobody_has_is_no_pass() -> None:
    made = [{**c, "whole": {**c["whole"], "tpot_ms": None}} for c in cells({"a": 1.0, "b": 1.0})]
    found = compared(made, primary="tpot_ms_p50")
    assert {row.verdict for row in found.primary} == {"refused"}
    assert all(row.ratio is None for row in found.primary)


def test_points_are_the_blocks_both_have() -> None:
    made = [c for c in cells({"a": 1.0, "b": 1.2}) if not (c["engine"] == "b" and c["load"]["batch"] == 4)]
    found = compared(made)
    assert [row.load for row in found.primary] == ["batch 1"]
    assert found.missing == ["batch 4, 128 in / 64 out: only in a"]


def test_the_amount_of_requests_makes_no_other_point() -> None:
    made = cells({"a": 1.0, "b": 1.2})
    longer = [{**c, "load": {**c["load"], "waves": 9}} if c["engine"] == "b" else c for c in made]
    assert len(compared(longer).primary) == 2


def test_one_engine_alone_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match="1 engine with cells: there is nothing to compare"):
        compare_run(run(cells({"a": 1.0})), Options())
    with pytest.raises(UnknownNameError, match="Known: a, b"):
        compare_run(run(cells({"a": 1.0, "b": 1.0})), Options(), "c")


def test_two_runs_are_unpaired_and_wider() -> None:
    one, two = cells({"a": 1.0, "b": 1.2}, noise=0.004), cells({"b": 1.2}, noise=0.004, seed=1)
    inside = compared(one)
    apart = compare_runs(run([c for c in one if c["engine"] == "a"]), run(two, "other"), Options(), ("a", "b"))[0]
    assert not apart.paired
    assert "unpaired" in how_words(apart)
    assert "unpaired" in verdict_sentence(apart)
    near, far = inside.primary[0], apart.primary[0]
    assert (far.high or 0) - (far.low or 0) > 2 * ((near.high or 0) - (near.low or 0))


def test_runs_of_one_engine_in_two_versions_are_compared_and_the_versions_named() -> None:
    a = run(cells({"e": 1.0}, noise=0.002), "old", git={"commit": "aaaaaaaaaaaaaaaa"})
    b = run(cells({"e": 1.5}, noise=0.002, seed=2), "new", git={"commit": "bbbbbbbbbbbbbbbb", "dirty": True})
    b.summary["engines"][0]["versions"] = {"e": "2"}
    found = compare_runs(a, b, Options())[0]
    assert (found.base_run, found.other_run) == ("old", "new")
    assert found.differs == ["e: 1 / 2", "commit: aaaaaaaaaaaa / bbbbbbbbbbbb with changes"]
    assert "e of new" in verdict_sentence(found)


def test_a_version_that_one_side_alone_has_is_no_difference_of_numbers() -> None:
    versions = {"python": "3.11.7", "torch": "2.13.0"}, {"python": "3.11.7", "torch": "2.12.1", "vllm": "0.32.0"}
    assert differing_versions(*versions, ("ref", "vllm-default")) == [
        "torch: 2.13.0 / 2.12.1",
        "vllm: 0.32.0 (vllm-default alone)",
    ]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"host": {"cpu": "B", "cores_usable": 2, "memory_bytes": 8 * 2**30}}, "CPU A / B"),
        ({"host": {"cpu": "A", "cores_usable": 4, "memory_bytes": 8 * 2**30}}, "usable cores 2 / 4"),
        ({"device": {"name": "H200", "driver": "590"}}, "device not known / H200"),
        ({"model": {"name": "n"}}, "model m / n"),
    ],
)
def test_runs_of_unlike_machine_device_or_model_are_refused_unless_told(change: dict[str, Any], word: str) -> None:
    a, b = run(cells({"e": 1.0})), run(cells({"e": 1.1}, seed=2), "other", **change)
    with pytest.raises(NotComparableError) as refused:
        compare_runs(a, b, Options())
    assert word in str(refused.value)
    assert refused.value.exit_code == 2
    found = compare_runs(a, b, Options(), disregard=True)[0]
    assert any(word in item for item in found.unlike), "an override is labelled"


def test_runs_that_differ_in_the_driver_alone_are_refused_unless_told() -> None:
    a = run(cells({"e": 1.0}), device={"name": "H200", "driver": "580"})
    b = run(cells({"e": 1.1}, seed=2), "other", device={"name": "H200", "driver": "590"})
    with pytest.raises(NotComparableError, match=r"are not comparable: driver 580 / 590\.") as refused:
        compare_runs(a, b, Options())
    assert refused.value.exit_code == 2
    assert compare_runs(a, b, Options(), disregard=True)[0].unlike == ["driver 580 / 590"]


def test_runs_of_unlike_precision_are_refused() -> None:
    a, b = run(cells({"e": 1.0})), run(cells({"e": 1.1}, seed=2), "other")
    a.summary["engines"][0]["settings"] = {"dtype": {"value": "bfloat16", "source": "endpoint"}}
    b.summary["engines"][0]["settings"] = {"dtype": {"value": "float32", "source": "endpoint"}}
    with pytest.raises(NotComparableError, match="dtype bfloat16 / float32"):
        compare_runs(a, b, Options())


def test_runs_without_a_common_point_name_what_each_has() -> None:
    # Another concurrency and other lengths are other points.
    a = run([cell("e", 8, 1024, k) for k in range(5)])
    b = run([cell("e", 16, 1024, k) for k in range(5)], "other")
    with pytest.raises(NotComparableError, match="batch 8, 1,024 in / 64 out: only in run"):
        compare_runs(a, b, Options())


def test_of_two_runs_the_common_points_are_compared_and_the_rest_is_listed() -> None:
    a = run(cells({"e": 1.0}, batches=(1, 2, 4, 8)))
    b = run(cells({"e": 1.1}, batches=(2, 8), seed=2), "other")
    found = compare_runs(a, b, Options())[0]
    assert [row.load for row in found.primary] == ["batch 2", "batch 8"]
    assert [m.split(",")[0] for m in found.missing] == ["batch 1", "batch 4"]


@settings(deadline=None, max_examples=25)
@given(st.randoms(use_true_random=False), st.integers(1, 7))
def test_the_order_of_cells_does_not_matter_and_sides_turn_round(mix: Any, blocks: int) -> None:
    made = cells({"a": 1.0, "b": 1.1}, blocks=blocks)
    plain = compare_run(run(made), Options(), "a")[0]
    shuffled = list(made)
    mix.shuffle(shuffled)
    again = compare_run(run(shuffled), Options(), "a")[0]
    assert to_json(again.to_dict()) == to_json(plain.to_dict())
    turned = compare_run(run(made), Options(), "b")[0]
    for row, back in zip(plain.primary, turned.primary, strict=True):
        assert row.ratio == pytest.approx(1 / (back.ratio or math.nan))


def test_a_a_of_many_points_alarms_as_seldom_as_it_says() -> None:
    alarms = [
        row.verdict in ("faster", "slower")
        for seed in range(150)
        for row in compared(cells({"a": 1.0, "b": 1.0}, noise=0.05, seed=seed), margin=0.001, secondary=()).primary
    ]
    assert np.mean(alarms) <= 0.09


def test_metrics_are_named_either_way_and_only_those_with_a_better_and_a_worse() -> None:
    assert metric_id("ttft_ms.p50") == "ttft_ms_p50"
    assert "duration_s" not in comparable_metrics()
    with pytest.raises(UnknownNameError):
        metric_id("vibes")


def _point(engine: str, output: float | None, user: float | None, verdict: str = "VALID") -> Point:
    values = {name: Value(None) for name in MEASURE}
    if output is not None and user is not None:
        values |= {"output_tokens_per_s": Value.of(output), "user_tokens_per_s": Value.of(user)}
    return Point(
        engine, workload_info({"input_len": 1, "output_len": 1}), "batch", output or 0, verdict, 1, 0, [], values
    )


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), max_size=20))
def test_the_front_holds_what_no_point_beats_in_both(pairs: list[tuple[int, int]]) -> None:
    found = pareto([_point("e", float(o), float(u)) for o, u in pairs])
    assert len(found) == len(pairs)
    for p in found:
        beaten = any(
            q.output_tokens_per_s >= p.output_tokens_per_s
            and q.user_tokens_per_s >= p.user_tokens_per_s
            and (q.output_tokens_per_s, q.user_tokens_per_s) != (p.output_tokens_per_s, p.user_tokens_per_s)
            for q in found
        )
        assert p.front != beaten


def test_invalid_and_unknown_points_are_in_no_front() -> None:
    found = pareto([_point("a", 10.0, 10.0, "INVALID"), _point("b", None, None), _point("c", 5.0, 5.0, "SUSPECT")])
    assert [(p.engine, p.front, p.suspect) for p in found] == [("c", True, True)]
