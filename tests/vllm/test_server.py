"""What the adapter says of vLLM holds for the real one: requests, usage, metrics, settings and where they were read."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from backends.base import Resolved, Source
from backends.http_probe import get
from backends.prometheus import parse_prometheus
from backends.server_log import read_log
from backends.vllm_metrics import CACHE_CONFIG
from backends.vllm_version import find_build
from harness.conformance import CHECKS, Bench, Check, Outcome, run_check
from harness.experiment import Timeouts
from harness.load.build import PlannedBody, build_plan
from harness.load.process import LoadProcess
from harness.loads import ConcurrencyLoad
from harness.session_checks import told_phases
from results.events import read_chunks, read_requests
from tests.vllm.conftest import ASKED, DTYPE
from tests.waiting import LONG_S

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
PROMPT = [504, 3575, 282, 4649, 314]  # The capital of France is
PARIS = 7042


@pytest.mark.parametrize("check", [c for c in CHECKS if c.id not in ("clean_stop", "truth_log")], ids=lambda c: c.id)
def test_keeps_what_every_adapter_promises(bench: Bench, check: Check) -> None:
    result = run_check(check, bench)
    assert result.outcome is not Outcome.FAIL, result.evidence
    if result.outcome is Outcome.NOT_CLAIMED:
        assert check.id == "redaction", result.evidence  # No key was planted here.


def test_answers_token_ids_with_the_models_own_word(bench: Bench) -> None:
    answer = bench.complete(PROMPT, 6)
    assert answer.stream.output_tokens == 6
    assert answer.stream.input_tokens == len(PROMPT)
    ids = bench.send(bench.body(PROMPT, 1, stream=False, return_token_ids=True))
    assert orjson.loads(ids.body)["choices"][0]["token_ids"] == [PARIS]


class TestSettings:
    def test_that_were_asked_are_read_back_from_an_endpoint(self, bench: Bench) -> None:
        for name, value in ASKED.asked().items():
            if name != "threads":
                assert bench.server.settings[name] == Resolved(value, Source.ENDPOINT), name

    def test_that_no_endpoint_tells_are_read_from_the_log(self, bench: Bench) -> None:
        assert bench.server.settings["threads"] == Resolved(1, Source.LOG)
        assert bench.server.settings["compilation"] == Resolved("none", Source.LOG)

    def test_that_were_left_open_are_known_too(self, bench: Bench) -> None:
        told = {
            "dtype": DTYPE,
            "kv_dtype": DTYPE,
            "quantisation": "none",
            "block_size": 128,
            "prefix_caching": True,
            "chunked_prefill": True,
            "scheduler_policy": "fcfs",
            "tensor_parallel": 1,
            "speculative_decoding": False,
            "sampling_source": "request",
            "device": "cpu",
        }
        found = bench.server.settings
        assert {name: found[name] for name in told} == {n: Resolved(v, Source.ENDPOINT) for n, v in told.items()}
        assert found["cuda_graphs"] == Resolved(False, Source.FIXED)
        assert bench.server.versions["torch"].startswith("2.")

    def test_the_kv_capacity_is_the_label_of_the_engine(self, bench: Bench) -> None:
        page = get(bench.server.url, "/metrics").text
        labels = [labels for name, labels, _ in parse_prometheus(page) if name == CACHE_CONFIG]
        assert [label["kv_cache_size_tokens"] for label in labels] == ["4096"]
        assert bench.server.settings["kv_cache_tokens"].value == 4096

    def test_the_version_found_beforehand_is_the_one_that_runs(self, bench: Bench) -> None:
        build = find_build(bench.backend.command(None))
        assert build.text.partition("+")[0] == bench.server.versions["vllm"].partition("+")[0]
        assert build.is_cpu

    def test_the_phases_of_its_start_lie_between_launch_and_ready(self, bench: Bench) -> None:
        phases = told_phases(bench.backend, read_log(bench.server.log))
        assert bench.server.process is not None
        timeline = bench.server.process.timeline
        second = 1_000_000_000  # The log's stamps are whole seconds, rounded down.
        order = ["log_first_line", "engine_config", "weights_loaded", "kv_allocated", "engine_ready", "http_ready"]
        stamps = [phases[name] for name in order]
        assert stamps == sorted(stamps)
        assert timeline["spawn"] - second <= stamps[0]
        assert stamps[-1] <= timeline["ready"]


def test_several_tokens_in_a_chunk_are_all_counted(bench: Bench, tmp_path: Path) -> None:
    """Chunks of four tokens, as vLLM makes them when its stream is read late, from eight streams at once."""
    bodies = []
    for index in range(16):
        body: dict[str, Any] = bench.body(bench.prompt(24), 21, stream_interval=4)
        bodies.append(PlannedBody(id=f"r{index}", body=orjson.dumps(body), input_tokens=24, output_tokens=21))
    load = ConcurrencyLoad(concurrency=8, requests=16)
    plan = build_plan(
        load, bodies, url=bench.server.url, folder=tmp_path / "load", timeouts=Timeouts(), ignore_eos=True
    )
    with LoadProcess() as worker:
        worker.start(plan, tmp_path)
        result = worker.wait(300)
    assert result.outcomes["ok"] == 16, result.outcomes
    requests, chunks = read_requests(tmp_path), read_chunks(tmp_path)
    assert requests.output_tokens.tolist() == [21] * 16
    assert requests.input_tokens_counted.tolist() == [24] * 16
    assert chunks.tokens.max() > 1
    assert chunks.tokens[chunks.tokens > 0].sum() == 16 * 21
    assert (requests.tokens_in_first_chunk > 0).all()


def test_a_prompt_sent_again_moves_the_prefix_counters(bench: Bench) -> None:
    prompt = bench.prompt(400)
    bench.complete(prompt, 2)
    before = bench.metrics() or {}
    bench.complete(prompt, 2)
    bench.wait_for(lambda: (bench.metrics() or {})["prefix_queries_total"] > before["prefix_queries_total"], LONG_S)
    after = bench.metrics() or {}
    moved = {
        name: after[name] - before[name] for name in ("prefix_queries_total", "prefix_hits_total", "preemptions_total")
    }
    assert moved == {"prefix_queries_total": 400, "prefix_hits_total": 384, "preemptions_total": 0}


def test_more_than_fits_at_once_waits_and_fills_the_cache(bench: Bench) -> None:
    """Requests that need half as much again as the cache holds: some wait, its use nears one, and all are answered."""
    count, input_len, output_len = 12, 400, 32  # 4 blocks of 128 each, of which 32 are there; no more than max_num_seqs
    before = bench.metrics() or {}
    answers: list[int | None] = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(bench.complete(bench.prompt(input_len), output_len).stream.output_tokens)
        )
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    seen: list[dict[str, float]] = []
    while any(thread.is_alive() for thread in threads):
        seen.append(bench.metrics() or {})
        threads[0].join(0.05)
    assert answers == [output_len] * count
    assert max(m["waiting"] for m in seen) >= 1
    assert max(m["running"] for m in seen) > 1
    assert max(m["kv_usage"] for m in seen) > 0.5
    after = bench.metrics() or {}
    assert after["requests_finished_total"] - before["requests_finished_total"] == count
    assert after["steps_total"] - before["steps_total"] >= output_len
