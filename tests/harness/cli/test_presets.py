"""Presets say what they are for and what they cost; scaled down they stay valid and keep their concurrency."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli.presets import preset_fields, preset_names, read_preset, scale_factor, scaled
from results.errors import UsageError


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_says_what_it_is_for_and_what_it_costs_on_which_machine(name: str) -> None:
    preset = read_preset(name)
    assert len(preset["about"]) > 60
    assert "H200" in preset["cost"]
    assert "not measured" in preset["cost"]


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"), [("1k-1k", 1024, 1024), ("8k-1k", 8192, 1024), ("1k-8k", 1024, 8192)]
)
def test_quoted_lengths_are_spread_by_a_fifth_about_their_name(name: str, inputs: int, outputs: int) -> None:
    (workload,) = preset_fields(name)["workloads"]
    for length, about in ((workload["input_len"], inputs), (workload["output_len"], outputs)):
        assert length["low"] == pytest.approx(0.8 * about, abs=1)
        assert length["high"] == pytest.approx(1.2 * about, abs=1)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_costs_what_it_says_it_sends(name: str) -> None:
    preset = read_preset(name)
    counts = [load.get("requests") or load["batch"] * load["waves"] for load in preset["loads"]]
    assert preset["cost"].startswith(f"{sum(counts) * len(preset['workloads'])} requests")
    means = [{side: _mean(w.get(f"{side}_len")) for side in ("input", "output")} for w in preset["workloads"]]
    said = re.search(r"([\d.]+) M prompt and ([\d.]+) M output tokens", preset["cost"])
    if said is None:  # a file's lengths are its own
        assert name == "sharegpt"
        return
    prompts = [mean["input"] + w.get("prefix_len", 0) for mean, w in zip(means, preset["workloads"], strict=True)]
    assert float(said[1]) == pytest.approx(sum(counts) * sum(prompts) / 1e6, rel=0.1)
    assert float(said[2]) == pytest.approx(sum(counts) * sum(mean["output"] for mean in means) / 1e6, rel=0.1)


def _mean(length: dict[str, Any] | None) -> float:
    if length is None:
        return 0.0
    return float(length["tokens"] if length["dist"] == "fixed" else (length["low"] + length["high"]) / 2)


def test_scaled_presets_keep_their_concurrency_and_shrink_the_rest() -> None:
    small = scaled(preset_fields("8k-1k"), 1 / 64)
    assert small["workloads"][0]["input_len"] == {"dist": "uniform", "low": 102, "high": 154}
    assert [load["concurrency"] for load in small["loads"]] == [1, 8, 32]
    assert [load["requests"] for load in small["loads"]] == [2, 16, 64]


@pytest.mark.parametrize(("text", "value"), [("1/64", 1 / 64), ("0.05", 0.05), ("1", 1.0)])
def test_a_scale_is_a_share(text: str, value: float) -> None:
    assert scale_factor(text) == value


@pytest.mark.parametrize("text", ["0", "2", "1/0", "x", "-1"])
def test_other_scales_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--scale takes a share"):
        scale_factor(text)


def test_presets_are_listed_in_words_and_as_json(dyno: Callable[..., object]) -> None:
    assert "1k-1k" in dyno("presets").out  # type: ignore[attr-defined]  # the fixture's answer has `out`
    listed = json.loads(dyno("presets", "--json").out)  # type: ignore[attr-defined]  # the fixture's answer has `out`
    assert {"name", "about", "workloads", "loads"} <= set(listed[0])
    assert [preset["name"] for preset in listed] == preset_names()


def test_a_file_takes_the_place_of_a_presets_and_keeps_its_options(dyno: Callable[..., object]) -> None:
    path = str(Path(__file__).parents[2] / "data" / "workloads" / "sharegpt_fastchat.json")
    words = ("sweep", "--preset", "sharegpt", "--workload", f"{path},oversample=true", "--backend", "reference")
    plan = json.loads(dyno(*words, "--model", "llama-3.1-8b", "--dry-run", "--json").out)  # type: ignore[attr-defined]  # the fixture's answer has `out`
    workload = plan["order"][0]["workload"]
    assert (workload["path"], workload["natural_eos"], workload["max_len"]) == (path, True, 4096)
