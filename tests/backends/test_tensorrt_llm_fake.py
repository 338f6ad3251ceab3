"""The adapter against a `trtllm-serve` that is as strict, and as sly, as the version it stands for."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from backends.base import CompletionRequest, EngineSettings
from backends.failures import StartupError
from backends.http_probe import get
from backends.tensorrt_llm_reference import Era, reference
from harness.api_call import ask
from harness.conformance import Outcome, check_backend
from harness.experiment import EngineSpec, Timeouts
from harness.models import ModelRef, open_folder
from harness.open_server import OpenServer, open_server
from harness.verify.arm import ServerArm
from results.events import read_requests
from results.step_log import read_logged
from tests.harness.fake_sessions import Runs, grid
from tests.servers.trtllm_fake import FAULTS, KEEP_ALIVE_S, install
from tests.servers.trtllm_fake_config import RefusedError, effective, parse
from tests.waiting import LONG_S

TIMEOUTS = Timeouts(ready_s=LONG_S, stop_s=LONG_S)


@dataclass
class Fakes:
    """Starts fakes of any version on a tiny model."""

    folder: Path
    model: ModelRef

    def engine(self, version: str, faults: str = "", options: tuple[str, ...] = (), **asked: Any) -> EngineSpec:
        script = install(self.folder / version, version)
        env = {FAULTS: f"idle_s=0.1 step_ms=1 {faults}"}
        settings = EngineSettings(**{"max_model_len": 256, **asked})
        return EngineSpec(
            label="trt", backend="tensorrt_llm", command=(str(script),), env=env, settings=settings, options=options
        )

    @contextmanager
    def running(
        self, version: str, faults: str = "", options: tuple[str, ...] = (), **asked: Any
    ) -> Iterator[OpenServer]:
        engine = self.engine(version, faults, options, **asked)
        with open_server(engine, self.model, "the-model", self.folder / "session", TIMEOUTS) as server:
            yield server


@pytest.fixture
def fakes(tmp_path: Path, tiny_dir: Path) -> Fakes:
    return Fakes(tmp_path, open_folder("the-model", tiny_dir))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_dir: Path) -> Iterator[OpenServer]:
    """One server for all that only ask: a step of 64 tokens, whole prompts, connections closed when idle for a moment."""
    fakes = Fakes(tmp_path_factory.mktemp("trt"), open_folder("the-model", tiny_dir))
    with fakes.running("1.2.1", "keep_alive_s=0.2", max_num_batched_tokens=64, kv_cache_tokens=4096) as made:
        yield made


def body(server: OpenServer, prompt: int, tokens: int, **more: Any) -> dict[str, Any]:
    made = server.backend.completion_body(CompletionRequest(server.served_name, [5] * prompt, tokens))
    return {**made, **more}


@pytest.mark.parametrize("version", ["1.0.0", "1.2.1", "1.4.0rc1"])
def test_what_was_asked_is_what_the_server_runs_with(fakes: Fakes, version: str) -> None:
    asked = {"max_num_seqs": 6, "max_num_batched_tokens": 128, "kv_cache_tokens": 1024, "admission": "on-demand"}
    with fakes.running(version, prefix_caching=False, chunked_prefill=True, **asked) as server:
        told = {name: one.value for name, one in server.settings.items()}
        config = get(server.url, "/fake/config").json()
        assert server.versions == {"tensorrt_llm": version}
        assert server.served_name == ("the-model" if version.startswith("1.4") else fakes.model.folder.name)
    for name, value in {**asked, "prefix_caching": False, "chunked_prefill": True, "max_model_len": 256}.items():
        assert told[name] == value, name
    assert config["cuda_graph_config"] == {"enable_padding": True, "max_batch_size": 6}
    assert config["kv_cache_config"]["free_gpu_memory_fraction"] == 0.9


@pytest.mark.parametrize("version", ["1.0.0", "1.4.0rc1"])
def test_its_iteration_lines_become_the_steps_of_a_cell(fakes: Fakes, version: str) -> None:
    engine = fakes.engine(version, "step_ms=4", step_log=True, max_num_batched_tokens=256, kv_cache_tokens=8192)
    runs = Runs(fakes.folder)
    runs.model = fakes.model
    # Whole seconds place the steps the better the more of them the cell lasts.
    asked = grid(engine, batches=(4,), inputs=(16,), output=200, waves=5, ready_s=LONG_S)
    outcome = runs.run(asked)
    (cell,) = outcome.summary["cells"]
    found = {reason["code"]: reason["evidence"] for reason in cell["reasons"]}
    assert "steps_not_told" not in found, found
    assert "truth_incomplete" not in found, found
    assert cell["batch"]["running_source"] == "log"
    assert cell["phases"]["prefill"]["source"] == "log"
    seen = cell["limits"]["xray"]
    # Each wave: a step for the prompts of four, then 199 that decode; more of both where the prompts come apart.
    assert seen["steps_logged"] >= 5 * 200
    assert seen["decode_steps_logged"] >= 5 * 199
    assert 1 < cell["batch"]["decodes_per_step"] <= 4
    folder = runs.folder / "run" / "cells" / cell["id"]
    steps = read_logged(folder, read_requests(folder))
    assert steps is not None
    # Every token of a prompt is in one of them, and every token but the first of an answer.
    assert (steps.prefill_tokens.sum(), steps.decodes.sum()) == (5 * 4 * 16, 5 * 4 * 199)


def test_guesses_of_tokens_ahead_leave_its_steps_untold(fakes: Fakes) -> None:
    engine = fakes.engine("1.2.1", step_log=True, speculative="ngram", speculative_tokens=3)
    runs = Runs(fakes.folder)
    runs.model = fakes.model
    (cell,) = runs.run(grid(engine, ready_s=LONG_S)).summary["cells"]
    found = {reason["code"]: reason["evidence"] for reason in cell["reasons"]}
    assert "guesses tokens ahead" in found["steps_not_told"]
    assert cell["batch"]["decodes_per_step"] is None


def test_it_keeps_every_promise(fakes: Fakes) -> None:
    results = check_backend(fakes.engine("1.2.1"), fakes.model, fakes.folder / "check", timeouts=TIMEOUTS)
    failed = [result for result in results if result.outcome not in (Outcome.PASS, Outcome.NOT_CLAIMED)]
    assert failed == []
    assert {r.check for r in results if r.outcome is Outcome.NOT_CLAIMED} == {"token_ids", "truth_log"}


@pytest.mark.parametrize(
    ("version", "option", "words"),
    [
        ("1.2.1", ("--served_model_name", "x"), "No such option: --served_model_name"),
        ("1.0.0", ("--kv_cache_dtype", "fp8"), "No such option: --kv_cache_dtype"),
        ("1.2.1", ("--set", "nope=1"), "Extra inputs are not permitted"),
        ("1.0.0", ("--set", "kv_cache_config.tokens_per_block=64"), "Extra inputs are not permitted"),
        ("1.4.0rc1", ("--set", "speculative_config={decoding_type: Medusa}"), "speculative_config.decoding_type"),
    ],
)
def test_what_the_version_does_not_have_ends_it_with_the_cause(
    fakes: Fakes, version: str, option: tuple[str, ...], words: str
) -> None:
    with pytest.raises(StartupError, match=words) as caught, fakes.running(version, options=option):
        pass
    assert caught.value.failure.failure == "bad_argument"


def test_no_memory_is_told_as_such(fakes: Fakes) -> None:
    with pytest.raises(StartupError) as caught, fakes.running("1.2.1", "oom=1"):
        pass
    assert caught.value.failure.is_out_of_memory


def test_a_field_it_does_not_know_is_refused(server: OpenServer) -> None:
    for more in ({"return_token_ids": True}, {"stream_options": {"nope": 1}}):
        answer = ask(server.url, body(server, 8, 2, **more), timeout_s=LONG_S)
        assert answer.status == 400
        assert "Extra inputs are not permitted" in answer.trouble()


def test_a_prompt_longer_than_a_step_is_refused_unless_it_may_be_split(server: OpenServer, fakes: Fakes) -> None:
    answer = ask(server.url, body(server, 65, 2), timeout_s=LONG_S)
    assert answer.status == 400
    assert "should not exceed max_num_tokens (64)" in answer.trouble()
    assert server.settings["max_prompt_len"].value == 64
    with fakes.running("1.2.1", max_num_batched_tokens=64, chunked_prefill=True) as splitting:
        assert ask(splitting.url, body(splitting, 65, 2), timeout_s=LONG_S).ok
        assert "max_prompt_len" not in splitting.settings


def test_an_output_that_was_cut_without_a_word_is_counted_as_it_came(server: OpenServer) -> None:
    answer = ask(server.url, body(server, 60, 500), timeout_s=LONG_S)
    assert answer.ok
    assert answer.stream.output_tokens == 256 - 60
    assert "using default_max_tokens instead" in server.log.read_text()


def test_a_stream_that_breaks_is_no_whole_answer(fakes: Fakes) -> None:
    with fakes.running("1.2.1", "break_after=3") as server:
        answer = ask(server.url, body(server, 8, 9), timeout_s=LONG_S)
        assert answer.stream.output_tokens == 3
        assert not answer.stream.done
        assert not answer.whole


def test_a_lost_rank_leaves_a_server_that_lives_and_is_never_ready(fakes: Fakes) -> None:
    with fakes.running("1.2.1", "crash_after=1") as server:
        assert ask(server.url, body(server, 8, 2), timeout_s=LONG_S).ok
        deadline = time.monotonic() + LONG_S
        while get(server.url, "/health").status != 503:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        server.check_alive()


def test_statistics_are_gone_once_they_were_read(server: OpenServer) -> None:
    get(server.url, "/metrics")
    assert ask(server.url, body(server, 8, 5), timeout_s=LONG_S).ok
    first = get(server.url, "/metrics").json()
    assert sum(step["inflightBatchingStats"]["numCtxTokens"] for step in first) == 8
    assert get(server.url, "/metrics").json() == []


@pytest.mark.parametrize(("admission", "pauses"), [("reserve-oracle", False), ("on-demand", True)])
def test_reserving_admits_fewer_and_the_other_policy_pauses(fakes: Fakes, admission: str, pauses: bool) -> None:
    """Six requests of 32 + 96 tokens, room for four of them whole."""
    with fakes.running("1.2.1", "gather=6", kv_cache_tokens=512, admission=admission) as server:
        threads = [
            Thread(target=ask, args=(server.url, body(server, 32, 96)), kwargs={"timeout_s": LONG_S}) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        steps = get(server.url, "/metrics").json()
    together = max(step["inflightBatchingStats"]["numScheduledRequests"] for step in steps)
    paused = sum(step["inflightBatchingStats"]["numPausedRequests"] for step in steps)
    assert together == (6 if pauses else 4)
    assert (paused > 0) is pauses


def test_an_idle_connection_is_closed_by_the_server(server: OpenServer) -> None:
    assert KEEP_ALIVE_S == 5.0
    assert server.process is not None
    with socket.create_connection(("127.0.0.1", server.process.port or 0)) as idle:
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        idle.settimeout(LONG_S)
        data = b""
        while piece := idle.recv(4096):
            data += piece
        assert data.startswith(b"HTTP/1.1 200")


def config_of(era: Era, tmp_path: Path, words: list[str], file: dict[str, Any]) -> dict[str, Any]:
    path = tmp_path / "f.yaml"
    path.write_text(yaml.safe_dump(file))
    _, given = parse(["m", *words, "--extra_llm_api_options", str(path)], reference(era))
    return effective(given, reference(era))


def test_the_order_of_precedence_is_that_of_the_version(tmp_path: Path) -> None:
    words = ["--max_num_tokens", "100", "--kv_cache_free_gpu_memory_fraction", "0.5"]
    file = {"max_num_tokens": 200, "kv_cache_config": {"dtype": "fp8"}}
    old = config_of(Era.V1_0, tmp_path, words, file)
    assert old["max_num_tokens"] == 100  # sizes of the file are not heard
    assert old["kv_cache_config"] == {"dtype": "fp8"}  # and the fraction is lost
    middle = config_of(Era.V1_2, tmp_path, words, file)
    assert middle["max_num_tokens"] == 200
    assert middle["kv_cache_config"] == {"dtype": "fp8", "free_gpu_memory_fraction": 0.5}
    new = config_of(Era.MAIN, tmp_path, words, file)
    assert new["max_num_tokens"] == 100
    assert new["kv_cache_config"] == {"dtype": "fp8", "free_gpu_memory_fraction": 0.5}
    assert config_of(Era.MAIN, tmp_path, [*words, "--set", "max_num_tokens=300"], file)["max_num_tokens"] == 300


@pytest.mark.parametrize(
    "words", [["--max_num_tokens", "many"], ["--max_num_tokens"], ["--nope"], ["a", "b"], ["--log_level", "loud"]]
)
def test_a_wrong_command_line_ends_the_fake_with_2(words: list[str]) -> None:
    with pytest.raises(RefusedError) as caught:
        parse(["m", *words], reference(Era.V1_2))
    assert caught.value.code == 2


def test_the_file_it_was_given_is_kept_with_the_session(server: OpenServer) -> None:
    kept = yaml.safe_load((server.folder / "trtllm.yaml").read_text())
    told = get(server.url, "/fake/config").json()
    assert kept["kv_cache_config"] == told["kv_cache_config"]
    assert kept["kv_cache_config"]["max_tokens"] == 4096


def test_a_comparison_of_tokens_gets_ids_from_a_server_that_refuses_to_be_asked_for_them(server: OpenServer) -> None:
    arm = ServerArm("trt", server)
    (positions,) = arm.generate([[5] * 8], 3, together=False)
    assert [position.token for position in positions] == [7, 7, 7]
    assert arm.about["told"] == "ids in place of text"
    scores = arm.score([[5] * 8])
    assert scores.texts is not None
    assert [list(position.top) for position in scores.texts[0]] == [[7]] * 7
    assert "asked for in 7 of 7 places" in str(scores.reason)
