"""SGLang as a backend, against a fake that is strict about its flags."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.base import EngineSettings, LaunchContext, Source
from backends.failures import StartupError, classify
from backends.sglang import BACKEND
from harness.conformance import Outcome, check_backend
from harness.experiment import EngineSpec, Timeouts
from harness.models import open_folder
from harness.open_server import open_server
from tests.waiting import LONG_S

FAKE = (sys.executable, str(Path(__file__).parents[1] / "servers" / "sglang_fake.py"))
TIMEOUTS = Timeouts(ready_s=LONG_S, stop_s=LONG_S)


@pytest.fixture
def context(tmp_path: Path) -> LaunchContext:
    return LaunchContext(
        model=tmp_path,
        served_name="m",
        settings=EngineSettings(),
        session_dir=tmp_path,
        host="127.0.0.1",
        port=30000,
        command=FAKE,
    )


def words(context: LaunchContext, **asked: Any) -> str:
    return " ".join(BACKEND.launch_plan(replace(context, settings=EngineSettings(**asked))).argv)


def test_prompts_are_split_unless_they_are_not_to_be(context: LaunchContext) -> None:
    assert "--chunked-prefill-size 512 --max-prefill-tokens 512" in words(context, max_num_batched_tokens=512)
    whole = words(context, max_num_batched_tokens=512, chunked_prefill=False)
    assert "--chunked-prefill-size -1 --max-prefill-tokens 512" in whole
    assert "--chunked-prefill-size" not in words(context)


def test_speculation_is_said_in_its_own_words(context: LaunchContext) -> None:
    made = words(context, speculative="draft", speculative_tokens=4, speculative_model="/m")
    assert "--speculative-algorithm STANDALONE --speculative-num-draft-tokens 5 --speculative-num-steps 4" in made
    assert made.endswith("--speculative-draft-model-path /m")


def test_everything_that_can_be_asked_is_taken_and_read_back(tiny_dir: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "dtype": "bfloat16",
        "kv_dtype": "fp8_e5m2",
        "max_model_len": 512,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 256,
        "kv_cache_tokens": 4096,
        "memory_fraction": 0.7,
        "block_size": 16,
        "prefix_caching": False,
        "chunked_prefill": True,
        "cuda_graphs": False,
        "scheduler_policy": "fcfs",
        "tensor_parallel": 1,
        "quantisation": "fp8",
        "seed": 3,
        "load_format": "dummy",
    }
    engine = EngineSpec(
        label="s", backend="sglang", command=FAKE, settings=EngineSettings(**asked, speculative="ngram")
    )
    with open_server(engine, open_folder("tiny", tiny_dir), "tiny", tmp_path / "s", TIMEOUTS) as server:
        told = server.settings
        assert server.versions == {"sglang": "0.5.23"}
    assert {name: told[name].value for name in asked} == asked
    assert {told[name].source for name in asked} == {Source.ENDPOINT}
    assert told["speculative_decoding"].value is True
    assert told["sampling_source"].value == "request"


def test_it_keeps_every_promise(tiny_dir: Path, tmp_path: Path) -> None:
    engine = EngineSpec(label="s", backend="sglang", command=FAKE)
    results = check_backend(engine, open_folder("tiny", tiny_dir), tmp_path / "s", timeouts=TIMEOUTS)
    assert [r for r in results if r.outcome not in (Outcome.PASS, Outcome.NOT_CLAIMED)] == []
    assert {r.check for r in results if r.outcome is Outcome.NOT_CLAIMED} == {"token_ids", "truth_log"}


def test_a_flag_it_does_not_know_ends_it_with_the_cause(tiny_dir: Path, tmp_path: Path) -> None:
    engine = EngineSpec(label="s", backend="sglang", command=FAKE, options=("--nope",))
    with (
        pytest.raises(StartupError) as caught,
        open_server(engine, open_folder("tiny", tiny_dir), "tiny", tmp_path / "s", TIMEOUTS),
    ):
        pass
    assert caught.value.failure.failure == "bad_argument"


def test_the_log_tells_sizes_where_no_page_does() -> None:
    line = "max_total_num_tokens=1000, chunked_prefill_size=-1, max_prefill_tokens=16384, max_running_requests=7, context_len=99"
    told = BACKEND.resolved_settings(EngineSettings(), {}, line)
    assert (told["kv_cache_tokens"].value, told["max_num_seqs"].value, told["max_model_len"].value) == (1000, 7, 99)
    assert "max_num_batched_tokens" not in told


def test_too_little_memory_is_named() -> None:
    line = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.3"
    assert classify(line, 1, BACKEND.failures).failure == "out_of_memory_kv_cache"
