"""Settings with several values: which engines they make, what they are called, and what is left out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.axes import expand, value_list
from harness.axis_labels import MOST_LABEL, label_of, shown_value
from harness.cli.values import engine_fields
from harness.experiment import experiment_from, load_experiment
from results.errors import UsageError

REST = {
    "model": "m",
    "workloads": [{"type": "random", "input_len": {"dist": "fixed", "tokens": 8}, "output_len": {"dist": "fixed", "tokens": 4}}],
    "loads": [{"mode": "batch", "batch": 1, "waves": 1}],
}  # fmt: skip


def entry(**settings: Any) -> dict[str, Any]:
    return {"label": "e", "backend": "reference", "settings": settings}


def test_each_combination_is_an_engine_labelled_by_what_differs() -> None:
    made = expand([entry(max_num_seqs=[4, 16], chunked_prefill=[True, False], seed=[7], threads=1)])
    assert [e["label"] for e in made.engines] == [
        "e-seqs=4-chunked=on",
        "e-seqs=4-chunked=off",
        "e-seqs=16-chunked=on",
        "e-seqs=16-chunked=off",
    ]
    assert made.engines[1]["settings"] == {"threads": 1, "max_num_seqs": 4, "chunked_prefill": False, "seed": 7}
    assert not made.left_out
    plain = entry(max_num_seqs=4)
    assert expand([plain, "no mapping"]).engines == [plain, "no mapping"]


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_range_doubles_from_its_first_value_to_its_last(low: int, high: int) -> None:
    if high < low:
        with pytest.raises(UsageError, match="is no range"):
            value_list("x", f"{low}..{high}")
        return
    values = value_list("x", f"{low}..{high}") or []
    assert values[0] == low
    assert values[-1] == high
    assert all(b == 2 * a for a, b in pairwise(values[:-1]))
    assert len(values) <= math.log2(high / low) + 2


def test_a_range_may_go_in_steps() -> None:
    assert value_list("x", "512..2048+512") == [512, 1024, 1536, 2048]
    assert value_list("x", "auto") is None
    assert value_list("x", 8) is None
    assert value_list("x", [4, 8, 4]) == [4, 8]
    assert value_list("x", f"{'0' * 5000}2..4") == [2, 4]
    assert value_list("x", f"1..{2**30 - 1}") == [*(2**n for n in range(30)), 2**30 - 1]


def test_equal_values_however_written_are_one() -> None:
    assert value_list("max_num_seqs", [16, "16", "4"]) == [16, 4]
    assert value_list("chunked_prefill", [True, "on", "off", False]) == [True, False]
    assert value_list("chunked_prefill", ["on", "maybe"]) == [True, "maybe"]
    (engine,) = expand([{**entry(max_num_seqs=[16, "16"]), "options": [["--seed", 3], "--seed 3"]}]).engines
    assert (engine["label"], engine["options"]) == ("e", ["--seed", "3"])


WORDS = st.lists(
    st.one_of(st.text(max_size=5), st.sampled_from(["--x", "x", "--", "none", "--none", "a+b", "-x", '"x"', "1"]))
)


@given(WORDS, WORDS)
def test_other_words_of_options_are_shown_otherwise(a: list[str], b: list[str]) -> None:
    assert (shown_value(a) == shown_value(b)) == (a == b)
    assert shown_value(a).isprintable()


def test_common_words_are_shown_plainly() -> None:
    shown = [
        shown_value(words) for words in ([], ["--x"], ["--x", "1"], ["--seed=3", "--y"], ["x"], ["--a+b"], ["--a", "b"])
    ]
    assert shown == ["none", "x", "x+1", "seed=3+--y", '"x"', '"--a+b"', "a+b"]


@pytest.mark.parametrize("options", [[["x"], "--y 'a"], [["x"], None]])
def test_words_that_cannot_be_read_are_refused_in_a_sentence(options: list[Any]) -> None:
    with pytest.raises(UsageError, match=r"options: (its words cannot be split as a shell would|None is neither)"):
        expand([{**entry(), "options": options}])
    with pytest.raises(UsageError, match="--engine: options: its words cannot be split"):
        engine_fields("backend=vllm,options=--x 'a")
    with pytest.raises(UsageError, match=r"--engine: container\.args: its words cannot be split"):
        engine_fields("backend=vllm,container.args=--x 'a")


@pytest.mark.parametrize(
    ("engines", "words"),
    [
        ([entry(max_num_seqs=[1, 2, 4], block_size=[8, 16, 32]), {"label": "z", "backend": 3}], "engines.1.backend"),
        ([entry(chunked_prefill=["on", "off", "maybe"])], r"engines.0.settings.chunked_prefill: .*'maybe'\)\.$"),
        ([entry(seed=10**400)], r"engines.0.settings.seed: Input should be less .*given: 10{199}\.\.\.\)\.$"),
        (
            [entry(max_num_seqs=[1, 2], block_size=0)],
            r"it is not a valid experiment: engines.0.settings.block_size: [^;]*$",
        ),
    ],
)
def test_a_mistake_is_told_of_the_entry_that_the_user_wrote(engines: list[Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        experiment_from({**REST, "engines": engines}, "it")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_num_seqs": []}, "max_num_seqs was given an empty list"),
        ({"max_num_seqs": "8..4"}, "'8..4' is no range"),
        ({"max_num_seqs": "1..9+0"}, "'1..9\\+0' is no range"),
        ({"max_num_seqs": "1..100000+1"}, "100,000 values, at most 256"),
        ({"block_size": f"1..1{'0' * 400}"}, "block_size: a number of 401 digits is beyond .*at most 1,073,741,824"),
        ({"block_size": f"1..1{'0' * 5000}"}, "a number of 5,001 digits is beyond"),
        ({"block_size": "1..99999999999999999999"}, "block_size: 99,999,999,999,999,999,999 is beyond"),
        ({"seed": f"1..9+{'9' * 30}"}, "a number of 30 digits is beyond"),
        ({"max_num_seqs": list(range(1, 20)), "block_size": list(range(1, 20))}, "361 combinations of settings"),
        ({"cuda_graphs": [True], "max_num_seqs": [1, 2]}, "No combination of engine 'e' can be had"),
    ],
)
def test_axes_that_make_no_engines_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        expand([entry(**settings)])


def test_combinations_that_the_backend_does_not_take_are_left_out_with_the_reason() -> None:
    data = {**REST, "engines": [entry(kv_cache=[True, False], chunked_prefill=[True, False])]}
    asked = experiment_from(data, "it")
    assert len(asked.engines) == 3
    assert len(asked.left_out) == 1
    assert asked.left_out[0].startswith("e-kv_cache=off-chunked=on: These switches do not go together")


def test_a_file_with_axes_is_an_experiment_that_survives_its_resolved_form(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(json.dumps({**REST, "engines": [entry(kv_cache=[True, False], chunked_prefill=[True, False])]}))
    asked = load_experiment(path)
    path.write_text(asked.to_yaml())
    assert load_experiment(path) == asked


def test_an_experiment_without_axes_is_written_as_ever() -> None:
    assert "left_out" not in experiment_from({**REST, "engines": [entry()]}, "it").to_yaml()


def test_an_engine_of_the_command_line_takes_several_values() -> None:
    engine = engine_fields(
        "label=a,backend=vllm,max_num_seqs=4/16,block_size=16..32,options=--x 1,options=,dtype=float32"
    )
    assert engine["settings"] == {"max_num_seqs": ["4", "16"], "block_size": "16..32", "dtype": "float32"}
    assert engine["options"] == [["--x", "1"], []]
    labels = [e["label"] for e in expand([engine]).engines]
    assert labels[:2] == ["a-seqs=4-block=16-options=x+1", "a-seqs=4-block=16-options=none"]
    assert len(labels) == 8
    assert engine_fields("backend=vllm,speculative_model=/a/b")["settings"] == {"speculative_model": "/a/b"}
    with pytest.raises(UsageError, match=r"max_num_seqs stands twice.*max_num_seqs=A/B"):
        engine_fields("backend=vllm,max_num_seqs=4,max_num_seqs=8")


@given(st.dictionaries(st.sampled_from(["max_num_seqs", "options", "x"]), st.text("ab", max_size=90), min_size=1))
def test_labels_fit_and_differ(values: dict[str, str]) -> None:
    label = label_of("engine", values)
    assert len(label) <= MOST_LABEL
    assert label != label_of("engine", {name: f"{value}c" for name, value in values.items()})


def test_the_plan_of_a_sweep_shows_every_combination_and_what_is_left_out(
    dyno: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = "label=ref,backend=reference,max_num_seqs=2/4,kv_cache=on/off,chunked_prefill=on/off"
    result = dyno("sweep", "--engine", engine, "--model", "random-tiny", "--batch", "1", "--dry-run")
    assert result.code == 0, result.err
    assert "ref-seqs=4-kv_cache=on-chunked=off" in result.out
    assert result.err.count("left out ref-seqs=") == 2
