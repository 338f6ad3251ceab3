"""The confirmation: who takes part, in which order, when it ends, and what is concluded; engines are made up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.base import EngineSettings
from harness.experiment import Cell, EngineSpec, SloAsked
from harness.tune.confirm import ConfirmPlanner, Equal, entrants, equal_settings, equalised, refusal_of
from harness.tune.measure import Measurement, whole_session_s
from harness.tune.space import with_values
from harness.tune.verdict import (
    BEATEN,
    NOT_BEATEN,
    NOTHING,
    OPEN,
    TOO_SHORT,
    Number,
    judge_arm,
    ratio_of,
    ratios_of,
    three_arms,
    too_short,
)
from results.audit import EQUALISED, OWN_DEFAULTS, TUNED
from results.precision import LOOKED_AT
from results.records import CellRecord
from results.statistics import paired, t_quantile
from tests.harness.tune.made_up import Bench, died, entry, experiment

REFERENCE = EngineSpec(label="ref", backend="reference")
VLLM = EngineSpec(label="vllm", backend="vllm")
TOLD: dict[str, dict[str, Any]] = {
    "ref": {"max_num_seqs": 64, "max_num_batched_tokens": 512, "dtype": "bfloat16", "prefix_caching": False},
    "vllm": {"max_num_seqs": 256, "max_num_batched_tokens": 4096, "dtype": "bfloat16", "prefix_caching": True},
}
ENGINES = [REFERENCE.model_copy(update={"label": label}) for label in ("a", "b", "c")]


def run(bench: Bench, blocks: int, budget_s: float | None = None, expected_s: float = 0.0, **changes: Any) -> Bench:
    measurement = Measurement(experiment(1, **changes))
    return bench.run(ConfirmPlanner(ENGINES, measurement, blocks, budget_s, expected_s, bench.clock))


def test_two_engines_are_there_three_times_each() -> None:
    best = {"ref": with_values(REFERENCE, {"max_num_seqs": 16}), "vllm": None}
    found = entrants({"ref": REFERENCE, "vllm": VLLM}, best, equalised({"ref": REFERENCE, "vllm": VLLM}, TOLD))
    assert [(e.arm, e.kind, e.engine.label) for e in found] == [
        ("ref", OWN_DEFAULTS, "ref"),
        ("ref", TUNED, "ref-seqs=16"),
        ("ref", EQUALISED, "ref-equal"),
        ("vllm", OWN_DEFAULTS, "vllm"),
        ("vllm", EQUALISED, "vllm-equal"),
    ]
    equal = [e.engine.settings.asked() for e in found if e.kind == EQUALISED]
    assert (
        equal[0]
        == equal[1]
        == {
            "max_num_seqs": 64,
            "max_num_batched_tokens": 512,
            "dtype": "bfloat16",
            "prefix_caching": False,
        }
    )
    assert equalised({"ref": REFERENCE}, TOLD) is None
    assert [e.kind for e in entrants({"ref": REFERENCE}, best, None)] == [OWN_DEFAULTS, TUNED]


BOTH = {"ref": REFERENCE, "vllm": VLLM.model_copy(update={"settings": EngineSettings(memory_fraction=0.5)})}
# What they told on a machine of two cores: the one its tokens and what each takes, the other both sizes.
KV_TOLD = {
    "ref": {**TOLD["ref"], "kv_cache_tokens": 46_592, "kv_bytes_per_token": 23_040},
    "vllm": {**TOLD["vllm"], "kv_cache_tokens": 186_368, "kv_cache_bytes": 4 << 30},
}


def test_the_kv_cache_gets_the_smallest_size_and_is_told_it_once() -> None:
    found = equalised(BOTH, KV_TOLD)
    assert found is not None
    assert found.settings["kv_cache_bytes"] == 46_592 * 23_040
    assert found.unequal == ""
    for base in BOTH.values():
        asked = found.engine(base).settings.asked()
        assert {"kv_cache_bytes", "kv_cache_tokens", "memory_fraction"} & asked.keys() == {"kv_cache_bytes"}


def test_where_bytes_are_refused_or_not_told_the_kv_cache_is_made_equal_in_tokens() -> None:
    def refuse(engine: EngineSpec) -> str | None:
        return "no such flag" if engine.settings.kv_cache_bytes else None

    refused = equalised(BOTH, KV_TOLD, refuse)
    untold = equalised(BOTH, {**KV_TOLD, "vllm": {**TOLD["vllm"], "kv_cache_tokens": 186_368}})
    for found in (refused, untold):
        assert found is not None
        assert found.settings["kv_cache_tokens"] == 46_592
        assert "kv_cache_bytes" not in found.settings


def test_without_chunks_a_step_of_all_takes_the_longest_request() -> None:
    """One engine has chunks and small steps, the other neither: the smallest of each alone would start no engine."""
    told = {
        "ref": {"max_model_len": 8192, "max_num_batched_tokens": 2048, "chunked_prefill": True},
        "vllm": {"max_model_len": 8192, "max_num_batched_tokens": 8192, "chunked_prefill": False},
    }
    found = equal_settings(BOTH, told)
    assert found == {"max_model_len": 8192, "max_num_batched_tokens": 8192, "chunked_prefill": False}


def test_a_size_of_the_kv_cache_that_is_refused_is_told_with_the_reason() -> None:
    def refuse(engine: EngineSpec) -> str | None:
        return "too many" if engine.settings.kv_cache_bytes or engine.settings.kv_cache_tokens else None

    found = equalised(BOTH, KV_TOLD, refuse)
    assert found is not None
    assert found.unequal == "but for the KV cache (ref: too many)"
    assert refusal_of(found, BOTH, refuse) == ""
    assert refusal_of(found, BOTH, lambda engine: f"not {engine.label}") == "ref: not ref-equal"


def test_a_kv_cache_that_cannot_be_made_equal_is_a_label_of_that_arm() -> None:
    other = EngineSpec(label="l", backend="llamacpp")
    told = {"ref": KV_TOLD["ref"], "l": {"max_num_seqs": 8, "kv_cache_tokens": 8192}}
    found = equalised({"ref": REFERENCE, "l": other}, told)
    assert found is not None
    assert found == Equal({"max_num_seqs": 8}, found.unequal)
    assert "(ref 46,592 tokens, l 8,192 tokens)" in found.unequal
    labels = [{EQUALISED: "ref-equal"}, {EQUALISED: "l-equal"}]
    (arm,) = three_arms(labels, {"ref-equal": {0: Number(1.0)}, "l-equal": {0: Number(2.0)}}, None, found.unequal)
    assert arm.words.startswith("equalised (but for the KV cache, whose size not every engine can be told (ref 46,592")
    assert arm.to_dict()["remark"] == found.unequal


def test_what_an_engine_does_not_tell_or_cannot_be_told_is_not_made_equal() -> None:
    other = EngineSpec(label="l", backend="llamacpp")
    told = {"ref": TOLD["ref"], "l": {"max_num_seqs": 8, "dtype": "float16", "chunked_prefill": True}}
    assert equal_settings({"ref": REFERENCE, "l": other}, told) == {"max_num_seqs": 8}
    told["ref"] = {**TOLD["ref"], "chunked_prefill": False}
    fixed = equal_settings({"ref": REFERENCE, "l": other}, told)
    assert fixed["chunked_prefill"] is True, "it is the only value that one of them knows"


def test_engines_take_turns_at_going_first() -> None:
    bench = run(Bench(lambda cell: entry(cell, 100.0)), blocks=4)
    order = [(cell.block, cell.engine.label) for cell in bench.order]
    assert order == [(b, "abc"[(b + i) % 3]) for b in range(4) for i in range(3)]
    assert all(cell.load.model_dump()["requests"] == 1024 for cell in bench.order), "cells of the whole length"


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.floats(0, 300), st.floats(0, 60))
def test_a_block_is_begun_only_where_it_fits_and_no_cell_after_the_budget(
    blocks: int, budget: float, expected: float
) -> None:
    bench = run(Bench(lambda cell: entry(cell, 100.0), seconds=10), blocks, budget, expected)
    whole, rest = divmod(len(bench.order), 3)
    assert whole <= blocks
    assert bench.now / 1e9 <= budget + 10
    assert rest == 0 or expected < 30, "only an estimate that was too low lets the budget end within a block"
    if budget > 30 * blocks + expected:
        assert (whole, rest) == (blocks, 0)


def test_what_was_expected_of_a_block_is_forgotten_once_one_was_seen() -> None:
    # Blocks of 30 s where 60 were expected: the fifth fits into the 50 s that are left.
    bench = run(Bench(lambda cell: entry(cell, 100.0), seconds=10), blocks=5, budget_s=170, expected_s=60)
    assert len(bench.order) == 15


def test_a_confirmation_without_room_for_a_block_is_known_beforehand() -> None:
    rooms = [ConfirmPlanner(ENGINES, Measurement(experiment(1)), 5, b, 60.0).has_room for b in (None, 61.0, 60.0, -1.0)]
    assert rooms == [True, True, False, False]


def test_an_engine_that_fails_leaves_the_others_their_blocks() -> None:
    bench = run(Bench(lambda cell: died() if cell.engine.label == "b" else entry(cell, 100.0)), blocks=3)
    measured = [cell.engine.label for cell in bench.order if cell.engine.label != "b"]
    assert sorted(measured) == ["a"] * 3 + ["c"] * 3


def test_an_interrupted_confirmation_is_completed() -> None:
    whole = run(Bench(lambda cell: entry(cell, 100.0)), blocks=3)
    cut = Bench(lambda cell: entry(cell, 100.0))
    cut.results = {cell.id: entry(cell, 100.0) for cell in whole.order[:4]}
    assert [cell.id for cell in run(cut, blocks=3).order] == [cell.id for cell in whole.order[4:]]


def test_what_is_planned_is_what_is_run() -> None:
    planner = ConfirmPlanner(ENGINES, Measurement(experiment(1)), 2)
    bench = Bench(lambda cell: entry(cell, 100.0)).run(ConfirmPlanner(ENGINES, Measurement(experiment(1)), 2))
    assert planner.planned() == bench.order
    slo = experiment(1, slo=SloAsked(objectives=("ttft_ms.p95<=1",)))
    assert len(ConfirmPlanner(ENGINES, Measurement(slo), 2).planned()) == 6, "the first question of each"


def blocks_of(ratio: float, n: int, noise: float = 0.01, seed: int = 3) -> dict[str, dict[int, Number]]:
    draw = np.random.default_rng(seed)
    base = {block: 100 * math.exp(draw.normal(0, 0.05)) for block in range(n)}
    other = {block: ratio * value * math.exp(draw.normal(0, noise)) for block, value in base.items()}
    return {"d": numbers(base), "t": numbers(other)}


def numbers(values: Mapping[int, float]) -> dict[int, Number]:
    return {block: Number(value) for block, value in values.items()}


@pytest.mark.parametrize(
    ("values", "verdict", "run_label", "words"),
    [
        (blocks_of(1.2, 5), BEATEN, "t", "t: 1.2.* times the defaults' output tokens/s over 5 blocks"),
        (blocks_of(0.8, 5), NOT_BEATEN, "d", "the defaults were not beaten. The best other, t, is slower"),
        (blocks_of(1.0, 8, 0.005), NOT_BEATEN, "d", "the defaults were not beaten. .*is within 3 %"),
        (blocks_of(1.2, 3), OPEN, "d", "d: inconclusive.*3 blocks, a verdict needs 5; about 2 blocks more"),
        (blocks_of(1.03, 5, 0.1), OPEN, "d", "wider than the margin of 3 %; about [0-9]+ blocks more would tell"),
        (blocks_of(1.0, 5, 2.0), OPEN, "d", "no number of blocks that could be run would tell"),
        (blocks_of(1.0, 1), OPEN, "d", "one pair of blocks.*about 4 blocks more"),
        ({}, OPEN, "d", "no block in which both sides.*about 5 blocks more"),
        ({"t": {0: Number(5.0)}}, OPEN, "t", "t: a number in 1 block, in none of which the defaults have one"),
    ],
)
def test_the_verdict_is_that_of_paired_blocks(
    values: Mapping[str, dict[int, Number]], verdict: str, run_label: str, words: str
) -> None:
    import re

    found = judge_arm("d", "t", values)
    assert found.verdict == verdict
    assert found.run == run_label
    assert re.search(words, found.words), found.words


def test_doubts_travel_with_the_ratio() -> None:
    values = blocks_of(1.2, 5)
    values["t"] = {block: Number(found.value, suspect=block < 2) for block, found in values["t"].items()}
    assert "over 5 blocks (2 of 10 sessions SUSPECT)" in judge_arm("d", "t", values).words


def test_arms_that_are_looked_at_together_are_judged_by_holm() -> None:
    pairs = [("d", "t"), ("d", "same"), ("d", "near")]
    little, much = (0.065, 0.005, 0.055, 0.015, 0.035, 0.035), (0.3, -0.3, 0.1, -0.1, 0.2, -0.2)
    logs = {"d": (0.0,) * 6, "t": little, "same": much, "near": much}
    values = {name: numbers(dict(enumerate(100 * np.exp(found)))) for name, found in logs.items()}
    alone, together = ratio_of("d", "t", values), ratios_of(pairs, values)[0]
    assert alone.verdict == "faster"
    assert (together.ratio, together.low, together.high) == (alone.ratio, alone.low, alone.high)
    assert together.verdict == "inconclusive"
    assert "faster by itself, but not beside the other 2 comparisons (Holm)" in together.why
    assert ratios_of(pairs[:1], values) == [alone]


def test_intervals_are_made_for_a_second_look() -> None:
    values = blocks_of(1.2, 5)
    at_95 = paired([n.value for n in values["d"].values()], [n.value for n in values["t"].values()], 0.95)
    found = ratio_of("d", "t", values)
    assert found.low is not None
    assert at_95.low is not None
    assert found.low < at_95.low


def test_a_second_look_after_more_blocks_keeps_false_alarms_near_5_percent() -> None:
    logs = np.random.default_rng(0).normal(size=(20_000, 10))

    def alarms(n: int, confidence: float) -> Any:
        seen = logs[:, :n]
        reach = t_quantile((1 + confidence) / 2, n - 1) * seen.std(axis=1, ddof=1) / math.sqrt(n)
        return abs(seen.mean(axis=1)) > reach

    assert np.mean(alarms(5, LOOKED_AT) | alarms(10, LOOKED_AT)) < 0.06
    assert np.mean(alarms(5, 0.95) | alarms(10, 0.95)) > 0.08, "what it would be without"


def test_a_budget_without_room_for_a_trial_says_how_much_it_would_take() -> None:
    assert "ended before the defaults were measured" in too_short("ref", 1.0, None, 0.0).words
    assert "the defaults took" not in too_short("ref", 1.0, 0.0, 60.0).words, "an earlier start measured them"
    found = too_short("ref", 180.0, 52.0, 301.0)
    assert found.verdict == TOO_SHORT
    assert "the budget of 3 min 00 s is too short: the defaults took 52.0 s" in found.words
    assert (
        "It would take about 5 min 01 s, the blocks that confirm included: the same command with --budget 6m"
        in found.words
    )


def test_a_search_that_found_nothing_says_so() -> None:
    found = judge_arm("d", None, {})
    assert (found.verdict, found.run, found.against) == (NOTHING, "d", None)


def test_only_blocks_of_both_count() -> None:
    values = blocks_of(1.2, 6)
    del values["d"][2]
    assert ratio_of("d", "t", values).n_blocks == 5


def test_engines_are_compared_in_three_arms_under_the_audits_name() -> None:
    labels = [
        {OWN_DEFAULTS: "ref", EQUALISED: "ref-equal", TUNED: "ref-seqs=16"},
        {OWN_DEFAULTS: "vllm", EQUALISED: "vllm-equal", TUNED: "vllm"},
    ]
    rates = {"ref": 100.0, "ref-equal": 100.0, "ref-seqs=16": 120.0, "vllm": 80.0, "vllm-equal": 70.0}
    draw = np.random.default_rng(1)
    values = {k: numbers({b: v * math.exp(draw.normal(0, 0.005)) for b in range(5)}) for k, v in rates.items()}
    audit = {"pairs": [{"a": "vllm-equal", "b": "ref-equal", "label": "equalised"}]}
    arms = three_arms(labels, values, audit)
    assert [(arm.kind, arm.ratio.base, arm.ratio.other, arm.ratio.verdict, arm.audit) for arm in arms] == [
        (OWN_DEFAULTS, "ref", "vllm", "slower", None),
        (EQUALISED, "ref-equal", "vllm-equal", "slower", "equalised"),
        (TUNED, "ref-seqs=16", "vllm", "slower", None),
    ]
    assert arms[2].ratio.ratio == pytest.approx(80 / 120, rel=0.02)
    assert arms[2].remark == "picked by these same blocks, which flatters it"
    counted = three_arms(labels, values, audit, "", "trials: ref 8, vllm 2")
    assert "tuned (trials: ref 8, vllm 2; picked by these same blocks" in counted[2].words
    plain = [{**engine, TUNED: engine[OWN_DEFAULTS]} for engine in labels]
    assert three_arms(plain, values, audit)[2].remark == "", "nothing was picked where all stay at their defaults"
    assert three_arms(labels[:1], values, audit) == []
    assert three_arms(labels, {}, audit) == [], "nothing was measured"
    few = {label: {0: found[0]} for label, found in values.items()}
    assert "own defaults: vllm, 0.8" in three_arms(labels, few, audit)[0].words
    assert "about 4 blocks more would tell" in three_arms(labels, few, audit)[0].words


def test_a_cell_without_a_number_makes_a_measurement_without_one() -> None:
    measurement = Measurement(experiment(1, loads=[{"mode": "batch", "batch": b, "waves": 4} for b in (1, 4)]))
    engine = measurement.experiment.engines[0]
    results: dict[str, Mapping[str, Any]] = {}
    rates = {1: 50.0, 4: 200.0}

    def cells() -> list[Cell]:
        found = []
        while (cell := measurement.look(engine, 2, results).missing) is not None:
            results[cell.id] = entry(cell, rates[int(cell.load.value or 0)])
            found.append(cell)
        return found

    asked = cells()
    assert {cell.block for cell in asked} == {2}
    assert measurement.value(measurement.look(engine, 2, results))[0] == pytest.approx(100.0), "the geometric mean"
    broken = entry(asked[0], None, reasons=[{"severity": "invalid", "words": "no", "evidence": "4 of 4 failed"}])
    results[asked[0].id] = broken
    assert measurement.value(measurement.look(engine, 2, results)) == (None, "no: 4 of 4 failed")
    short = measurement.at_rung(0).experiment.loads
    assert [load.model_dump()["waves"] for load in short] == [1, 1]


def test_a_load_that_cannot_be_quartered_is_told_at_its_real_length() -> None:
    assert Measurement(experiment(1, loads=[{"mode": "batch", "batch": 2, "waves": 8}])).share(0) == 0.25
    short = Measurement(experiment(1, loads=[{"mode": "concurrency", "concurrency": 8, "requests": 32}]))
    assert [short.share(rung) for rung in (0, 1, 2, 3)] == [0.5, 0.5, 1.0, 1.0], "two requests a slot are the fewest"
    timed = Measurement(experiment(1, loads=[{"mode": "rate", "rate": 4, "duration_s": 2.0}]))
    assert timed.share(0) == 0.5, "a second is the shortest"


def test_what_a_whole_session_takes_is_its_start_and_its_loads_in_proportion() -> None:
    """A start of 10 s and a load of 2 s, a quarter of a whole one; the longer session of two counts, one without a cell does not."""
    measurement = Measurement(experiment(1, loads=[{"mode": "batch", "batch": 2, "waves": 8}]))
    s = 1_000_000_000

    def session(name: str, block: int, took_s: int) -> dict[str, Any]:
        return {"id": name, "backend": "ref", "block": block, "timeline": {"spawn": s}, "ended": (1 + took_s) * s}

    def cell(session_id: str, took_s: int) -> CellRecord:
        return CellRecord("c", "a", "ref", "m", session_id, 0, 0, {}, {}, 5 * s, (5 + took_s) * s)

    sessions = [session("s0", 0, 12), session("s1", 2, 13), session("s2", 0, 99)]
    assert whole_session_s(measurement, [cell("s0", 2)], sessions[:1]) == {"ref": 18.0}
    assert whole_session_s(measurement, [cell("s0", 2), cell("s1", 4)], sessions) == {"ref": 18.0}
    assert whole_session_s(measurement, [cell("s1", 4)], sessions[1:]) == {"ref": 13.0}
