"""Result files of load tools, as they wrote them."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from harness.certify.reported import Figures, Reported, find_result
from results.errors import UsageError

DATA = Path(__file__).parents[2] / "data" / "load_tools"


def _read(name: str) -> Reported:
    return find_result([DATA / name])[1]


@pytest.mark.parametrize(
    ("name", "tool", "version", "ttft", "tpot", "rate"),
    [
        ("vllm_0.32.json", "vllm", None, (56.59, 55.63, 63.94), (5.017, 5.012, 5.039), 1200.1),
        ("aiperf_0.13.json", "aiperf", "0.13.0", (55.50, 55.98, 66.97), (5.147, 5.124, 5.553), 1106.2),
        ("guidellm_0.8.json", "guidellm", "0.8.1", (53.90, 51.79, 67.30), (4.981, 4.982, 5.166), 1144.4),
        ("inference_perf_0.7.json", "inference-perf", None, (51.16, 50.70, 54.75), (4.998, 4.998, 5.035), 841.6),
    ],
)
def test_figures_of_each_tool(
    name: str, tool: str, version: str | None, ttft: tuple[float, ...], tpot: tuple[float, ...], rate: float
) -> None:
    found = _read(name)
    assert (found.tool, found.version) == (tool, version)
    assert (found.requests, found.output_tokens) == (32, 1024)
    assert (found.ttft_ms.mean, found.ttft_ms.p50, found.ttft_ms.p99) == pytest.approx(ttft, abs=0.01)
    assert (found.tpot_ms.mean, found.tpot_ms.p50, found.tpot_ms.p99) == pytest.approx(tpot, abs=0.001)
    assert found.output_tokens_per_s == pytest.approx(rate, abs=0.1)


def test_older_files() -> None:
    aiperf = _read("aiperf_profile_export.csv")
    assert aiperf.ttft_ms == Figures(2343.22, 2369.32, 3833.39)
    assert (aiperf.requests, aiperf.output_tokens, aiperf.output_tokens_per_s) == (89, 21624, 2320.72)
    guidellm = _read("guidellm_2025.json")
    assert guidellm.requests == 46
    assert guidellm.ttft_ms.p50 == pytest.approx(16.38, abs=0.01)
    assert guidellm.ttft_ms.p99 == pytest.approx(21.28, abs=0.01)


def test_aiperfs_units_are_read_and_one_that_is_not_known_is_refused(tmp_path: Path) -> None:
    said, plain = json.loads((DATA / "aiperf_0.13.json").read_text()), _read("aiperf_0.13.json")
    path = tmp_path / "profile_export_aiperf.json"
    ttft = {key: value / 1000 for key, value in said["time_to_first_token"].items() if key not in ("unit", "count")}
    per_minute = {"unit": "tokens/min", "avg": 60 * said["output_token_throughput"]["avg"]}
    said |= {"time_to_first_token": {"unit": "s", **ttft, "count": 32}, "output_token_throughput": per_minute}
    path.write_text(json.dumps(said))
    found = find_result([path])[1]
    assert astuple(found.ttft_ms) == pytest.approx(astuple(plain.ttft_ms))
    assert found.tpot_ms == plain.tpot_ms
    assert found.output_tokens_per_s == pytest.approx(plain.output_tokens_per_s)
    said["inter_token_latency"]["unit"] = "furlong"
    path.write_text(json.dumps(said))
    with pytest.raises(UsageError, match="inter_token_latency is in 'furlong'") as raised:
        find_result([path])
    assert str(path) in str(raised.value)


def test_guidellms_time_per_output_token_includes_the_ttft_and_is_left_alone() -> None:
    raw = json.loads((DATA / "guidellm_0.8.json").read_text())
    theirs = raw["benchmarks"][0]["metrics"]["time_per_output_token_ms"]["successful"]["mean"]
    found = _read("guidellm_0.8.json")
    assert theirs > 6.4
    assert found.tpot_ms.mean is not None
    assert found.tpot_ms.mean < 5
    assert found.note


def test_a_dyno_summary_is_read_by_its_cell(tmp_path: Path) -> None:
    spread = {"mean": 2.0, "p50": 1.9, "p99": None}
    cell = {"whole": {"ttft_ms": spread, "tpot_ms": spread, "output_tokens": 64, "output_tokens_per_s": 10.0}}
    cell |= {"requests": {"ok": 4}, "id": "abc"}  # type: ignore[dict-item]  # a cell holds values of any type
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({"engines": [], "cells": [cell]}))
    found = find_result([path])[1]
    assert (found.tool, found.requests, found.output_tokens, found.ttft_ms.p99) == ("dyno", 4, 64, None)
    assert found.id_prefix == "abc-load-"
    path.write_text(json.dumps({"engines": [], "cells": [cell, cell]}))
    with pytest.raises(UsageError, match="2 cells"):
        find_result([path])


def test_what_is_no_result_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    files = [*sorted(tmp_path.iterdir()), tmp_path / "missing.json", DATA / "vllm_0.32.json"]
    assert find_result(files)[0] == DATA / "vllm_0.32.json"
    with pytest.raises(UsageError, match="No result of a known load tool") as raised:
        find_result(files[:-1])
    assert "GuideLLM" in str(raised.value)
    assert "{out}" in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [
        {"benchmarks": [{"metrics": {"time_to_first_token_ms": {"successful": {}}}}]},
        {"benchmarks": [{"metrics": {"time_to_first_token_ms": {}}}] * 2},
        {"load_summary": {}, "successes": {"count": 3}},
        {"cells": [{}], "engines": []},
    ],
)
def test_a_known_format_of_an_unknown_version_is_said_to_be_one(tmp_path: Path, content: dict[str, Any]) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"looks like a result of .* cannot be understood"):
        find_result([path])
