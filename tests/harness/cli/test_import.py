"""Result files of other tools as runs: their numbers as they stand, beside ours, and never paired or gated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from results.comparison_runs import RunFacts
from results.definitions import TOOLS
from results.errors import UsageError
from results.imports import read_import

DATA = Path(__file__).parents[2] / "data" / "load_tools"
Dyno = Callable[..., Any]
TRTLLM = {
    "engine": {"model": "m", "version": "1.2.0", "backend": "Pytorch"},
    "world_info": {"tp_size": 2},
    "request_info": {"num_requests": 10, "avg_input_length": 128.0, "avg_output_length": 64.0},
    "performance": {
        "total_latency_ms": 2000.0,
        "avg_request_latency_ms": 900.0,
        "request_throughput_req_s": 5.0,
        "system_output_throughput_tok_s": 320.0,
        "system_total_throughput_tok_s": 960.0,
        "request_latency_percentiles_ms": {"p50": 880.0, "p99": 990.0, "average": 900.0},
    },
    "streaming_metrics": {
        "avg_ttft_ms": 50.0,
        "avg_tpot_ms": 12.0,
        "ttft_percentiles": {"p50": 48.0},
        "tpot_percentiles": {},
    },
}
THROUGHPUT = {
    "model_id": "m",
    "elapsed_time": 4.0,
    "num_requests": 20,
    "total_num_tokens": 4000,
    "requests_per_second": 5.0,
    "tokens_per_second": 1000.0,
}


def imported(dyno: Dyno, tmp_path: Path, file: Path) -> tuple[Path, dict[str, Any]]:
    run = tmp_path / f"run-{file.name}"
    result = dyno("import", str(file), "--out", str(run))
    assert result.code == 0, result.err
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    (cell,) = summary["cells"]
    assert cell["source"] == "imported"
    return run, cell


def written(tmp_path: Path, content: Any, name: str = "result.json") -> Path:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_vllm_result_keeps_its_numbers_and_definitions(dyno: Dyno, tmp_path: Path) -> None:
    said = json.loads((DATA / "vllm_0.32.json").read_text())
    run, cell = imported(dyno, tmp_path, DATA / "vllm_0.32.json")
    whole = cell["whole"]
    assert (whole["ttft_ms"]["p99"], whole["tpot_ms"]["mean"]) == (said["p99_ttft_ms"], said["mean_tpot_ms"])
    assert (whole["output_tokens_per_s"], whole["output_tokens"]) == (said["output_throughput"], 1024)
    assert (cell["load"]["mode"], cell["load"]["value"], cell["requests"]["ok"]) == ("concurrency", 8, 32)
    assert (cell["verdict"], cell["definitions"]) == ("SUSPECT", TOOLS["vllm"].words)
    assert whole["prefill_tokens_per_s"] is None
    assert "vllm (imported)" in (run / "report.html").read_text()
    assert "imported" in "".join(dyno("runs", str(tmp_path)).out.split())  # a long path wraps the table's words


def test_aiperfs_two_formats_are_read(dyno: Dyno, tmp_path: Path) -> None:
    _, cell = imported(dyno, tmp_path, DATA / "aiperf_0.13.json")
    said = json.loads((DATA / "aiperf_0.13.json").read_text())
    assert cell["whole"]["ttft_ms"]["mean"] == said["time_to_first_token"]["avg"]
    _, cell = imported(dyno, tmp_path, DATA / "aiperf_profile_export.csv")
    whole = cell["whole"]
    assert (whole["ttft_ms"]["p50"], whole["tpot_ms"]["p99"], whole["e2e_ms"]["mean"]) == (2369.32, 33.73, 9059.65)
    assert (whole["output_tokens_per_s"], whole["output_tokens"], whole["duration_s"]) == (2320.72, 21624, 9.32)
    assert cell["requests"] == {"issued": 100, "ok": 89, "by_outcome": {"ok": 89, "failed": 11}}


def test_aiperfs_units_are_read(dyno: Dyno, tmp_path: Path) -> None:
    text = (DATA / "aiperf_profile_export.csv").read_text()
    in_s = text.replace("Time to First Token (ms),2343.22", "Time to First Token (s),2.34322").replace("(sec)", "(min)")
    assert in_s != text
    _, cell = imported(dyno, tmp_path, written(tmp_path, in_s, "profile_export_aiperf.csv"))
    whole = cell["whole"]
    assert (whole["ttft_ms"]["mean"], whole["duration_s"]) == (pytest.approx(2343.22), pytest.approx(60 * 9.32))
    assert whole["e2e_ms"]["mean"] == 9059.65


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("Time to First Token (ms)", "Time to First Token (furlong)", "Time to First Token is in 'furlong'"),
        ("Inter Token Latency (ms)", "Inter Token Latency", "Inter Token Latency is in 'no unit'"),
        ("Request Latency (ms)", "Request Latency (tokens/s)", "Request Latency is in 'tokens/s'"),
        ("Throughput (tokens/sec)", "Throughput (requests/sec)", "Output Token Throughput is in 'requests/sec'"),
        ("Throughput (tokens/sec)", "Throughput (tokens/fortnight)", "is in 'tokens/fortnight'"),
        ("Throughput (tokens/sec)", "Throughput (tokens/sec/user)", "is in 'tokens/sec/user'"),
        ("Throughput (tokens/sec)", "Throughput (tokens)", "Output Token Throughput is in 'tokens'"),
    ],
)
def test_a_unit_that_is_not_known_is_refused(before: str, after: str, words: str, dyno: Dyno, tmp_path: Path) -> None:
    text = (DATA / "aiperf_profile_export.csv").read_text()
    assert before in text
    path = written(tmp_path, text.replace(before, after), "profile_export_aiperf.csv")
    result = dyno("import", str(path), "--out", str(tmp_path / "run"))
    assert result.code == 2
    assert words in " ".join(result.err.split())
    assert not (tmp_path / "run").exists()


def test_engines_without_http_are_read_and_say_so(tmp_path: Path) -> None:
    made = read_import(written(tmp_path, TRTLLM))
    assert (made.tool, made.http, made.requests, made.tool_version) == ("trtllm-bench", False, 10, "1.2.0")
    assert (made.scope["output_tokens"], made.scope["output_tokens_per_s"], made.scope["duration_s"]) == (
        640,
        320.0,
        2.0,
    )
    assert (made.scope["ttft_ms"]["p50"], made.scope["e2e_ms"]["p99"]) == (48.0, 990.0)
    made = read_import(written(tmp_path, THROUGHPUT))
    assert (made.tool, made.http) == ("vllm-throughput", False)
    assert (made.scope["total_tokens_per_s"], made.scope["output_tokens_per_s"]) == (1000.0, None)


def test_a_result_of_vllm_bench_throughput_is_read_as_it_stands(dyno: Dyno, tmp_path: Path) -> None:
    said = json.loads((DATA / "vllm_throughput_0.32.json").read_text())
    run, cell = imported(dyno, tmp_path, DATA / "vllm_throughput_0.32.json")
    whole = cell["whole"]
    assert (whole["total_tokens_per_s"], whole["requests_per_s"]) == (
        said["tokens_per_second"],
        said["requests_per_second"],
    )
    assert (whole["output_tokens_per_s"], whole["ttft_ms"], cell["requests"]["ok"]) == (None, None, 32)
    assert (cell["model"], cell["backend"]) == ("smollm2-135m", "vllm-throughput")
    assert "no HTTP" in (run / "report.html").read_text()


def test_imported_runs_are_never_paired_and_never_gated(dyno: Dyno, tmp_path: Path) -> None:
    run, _ = imported(dyno, tmp_path, DATA / "vllm_0.32.json")
    other, _ = imported(dyno, tmp_path, DATA / "aiperf_0.13.json")
    facts = RunFacts("r", json.loads((run / "summary.json").read_text()))
    with pytest.raises(UsageError, match="never paired and never gated"):
        facts.side("vllm (imported)")
    for words in (("compare", str(run), str(other), "--allow-differences"), ("regress", str(run), str(run))):
        result = dyno(*words)
        assert result.code == 2, (words, result)
        assert "never" in result.err or "imported" in result.err


def test_the_same_file_again_is_the_same_run_and_another_is_refused(dyno: Dyno, tmp_path: Path) -> None:
    run, _ = imported(dyno, tmp_path, DATA / "vllm_0.32.json")
    assert dyno("import", str(DATA / "vllm_0.32.json"), "--out", str(run)).code == 0
    assert dyno("import", str(DATA / "aiperf_0.13.json"), "--out", str(run)).code == 2


def test_imported_numbers_stand_beside_each_other_under_the_tools_names(dyno: Dyno, tmp_path: Path) -> None:
    run, _ = imported(dyno, tmp_path, DATA / "vllm_0.32.json")
    offline, _ = imported(dyno, tmp_path, written(tmp_path, THROUGHPUT))
    said = json.loads((DATA / "vllm_0.32.json").read_text())
    # The cell of an imported run has no events: by the rules it is empty, and what its tool said stands beside it.
    cells = json.loads(dyno("report", str(run), "--as", "vllm", "--beside", str(run), "--json").out)
    assert cells[-1]["source"] == "imported"
    assert cells[-1]["numbers"]["mean_ttft_ms"] == said["mean_ttft_ms"]
    rows = json.loads(dyno("report", str(run), "--beside", str(offline), "--json").out)
    assert [row["http"] for row in rows] == [True, False]
    assert [row["total_tokens_per_s"] for row in rows] == [said["total_token_throughput"], 1000.0]
    assert "no HTTP" in dyno("report", str(run), "--beside", str(offline)).out.replace("\n", " ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is neither JSON nor a CSV file"),
        ("{}", "is no result file of a known tool"),
        ({"request_info": {}, "performance": {}}, "looks like a result of trtllm-bench, but it cannot be understood"),
    ],
)
def test_what_is_no_result_is_refused(content: Any, words: str, dyno: Dyno, tmp_path: Path) -> None:
    result = dyno("import", str(written(tmp_path, content)), "--out", str(tmp_path / "run"))
    assert result.code == 2
    assert words in result.err
    assert not (tmp_path / "run").exists()
