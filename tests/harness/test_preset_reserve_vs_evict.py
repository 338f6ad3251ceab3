"""The preset that shows what reserving memory costs: its engines differ in that alone, and its answers end far below it."""

from __future__ import annotations

from harness.cli.presets import preset_fields
from harness.experiment import Experiment, experiment_from


def preset() -> Experiment:
    return experiment_from(preset_fields("reserve-vs-evict") | {"model": "random-tiny"}, "the preset")


def test_the_engines_differ_in_what_they_promise_and_in_nothing_else() -> None:
    reserve, on_demand = preset().engines
    assert reserve.settings.admission == "reserve-oracle", "prompt and max_tokens, as TensorRT-LLM promises them"
    assert on_demand.settings.admission == "on-demand"
    same = {"admission": None}
    assert reserve.settings.model_copy(update=same) == on_demand.settings.model_copy(update=same)


def test_what_is_promised_is_far_more_than_what_is_generated_and_is_scarce() -> None:
    made = preset()
    (workload,), (load,) = made.workloads, made.loads
    tokens = made.engines[0].settings.kv_cache_tokens
    assert tokens is not None
    assert workload.longest_output >= 10 * workload.expected_output
    assert tokens // workload.longest < load.in_flight // 2  # reserving makes most of them wait
    assert tokens > load.in_flight * (
        workload.longest_input + 2 * workload.expected_output
    )  # and without it nobody would
