"""A failure's class is read from the whole log: the first cause wins, warnings do not count, then the exit tells."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.base import FailurePattern
from backends.failures import FAILURES, classify, death_line, exit_words
from backends.server_log import read_log, tail_lines


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("OSError: [Errno 98] Address already in use", "port_in_use"),
        ("srv  start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 80", "port_in_use"),
        ("RuntimeError: Failed to bind socket to localhost:8000: x", "port_in_use"),
        (
            "ValueError: To serve at least one request with the model's max seq len (131072), (16.00 GiB KV cache is needed, "
            "which is larger than the available KV cache memory (9.1 GiB).",
            "out_of_memory_kv_cache",
        ),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. ", "out_of_memory_kv_cache"),
        (
            "(EngineCore pid=7) ValueError: Free memory on device cuda:0 (20.1/139.7 GiB) on startup is less than desired GPU "
            "memory utilization (0.92, 128.5 GiB).",
            "out_of_memory_device",
        ),
        ("torch.AcceleratorError: CUDA error: out of memory", "out_of_memory_device"),
        ("Executor creation failed due to insufficient GPU memory.", "out_of_memory_device"),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried", "out_of_memory_host"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "out_of_memory_host"),
        ("OSError: nowhere/x is not a local folder and is not a valid model identifier listed on", "model_not_found"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/m/config.json'", "model_not_found"),
        ("ValueError: Unknown architecture for AutoModelForCausalLM: FooForCausalLM", "unsupported_model"),
        ("api_server.py: error: unrecognized arguments: --warp 9", "bad_argument"),
        ("Error: No such option: --warp", "bad_argument"),
        (
            "  Value error, User-specified max_model_len (9) is greater than the derived max_model_len (x=8)",
            "bad_argument",
        ),
        ("RuntimeError: Failed to infer device type", "no_device"),
        ("ModuleNotFoundError: No module named 'vllm'", "missing_dependency"),
        ("./server: error while loading shared libraries: libcuda.so.1: cannot open", "missing_dependency"),
        ("PermissionError: [Errno 13] Permission denied: '/models'", "permission"),
        ("OSError: [Errno 28] No space left on device", "disk_full"),
    ],
)
def test_lines_that_engines_write(line: str, failure: str) -> None:
    found = classify(f"starting\n{line}\nRuntimeError: Engine core initialization failed.\n", 1)
    assert (found.failure, found.evidence) == (failure, line.strip()[:300])
    assert found.words
    assert found.advice


@pytest.mark.parametrize(
    ("code", "failure"),
    [(-9, "killed"), (137, "killed"), (-11, "crash"), (139, "crash"), (-6, "crash"), (1, "unknown"), (-15, "unknown")],
)
def test_the_exit_tells_where_the_log_does_not(code: int, failure: str) -> None:
    assert classify("nothing to see", code).failure == failure
    assert classify("nothing to see", code).evidence == ""


def test_a_server_that_never_ended_ran_out_of_time() -> None:
    assert classify("", None).failure == "timeout"


def test_the_log_wins_over_the_exit() -> None:
    assert classify("torch.cuda.OutOfMemoryError", -6).failure == "out_of_memory_device"


@pytest.mark.parametrize(
    "line",
    [
        "WARNING 11-02 [x.py:3] No module named 'flash_attn', using another backend",
        "UserWarning: Permission denied: '/root/.cache'",
        "INFO: no CUDA-capable device is detected, CPU it is",
        "resource_tracker: There appear to be 1 leaked shared_memory objects to clean up at shutdown",
    ],
)
def test_what_an_engine_does_not_mean_as_an_error_is_no_cause(line: str) -> None:
    assert classify(f"{line}\n", 1).failure == "unknown"


def test_a_whole_life_that_ended_well_holds_no_cause() -> None:
    """Hundreds of warnings, and leaked shared memory at its end."""
    log = read_log(Path(__file__).parents[1] / "data" / "vllm_0.19_gpu_server.log")
    assert "leaked shared_memory" in log
    found = classify(log, 0)
    assert (found.failure, found.evidence) == ("unknown", "")


def test_an_adapters_pattern_may_name_a_class_of_its_own() -> None:
    found = classify("warp core breach", 1, (FailurePattern("warp", "core breach", "Eject it."),))
    assert (found.failure, found.words, found.advice) == ("warp", "warp", "Eject it.")


def test_every_row_is_complete_and_ids_are_unique() -> None:
    assert len({row.id for row in FAILURES}) == len(FAILURES)
    for row in FAILURES:
        assert row.words
        assert row.advice
        for pattern in row.patterns:
            re.compile(pattern)


@given(st.binary(max_size=400), st.one_of(st.none(), st.integers(-64, 255)))
def test_any_bytes_give_an_answer(data: bytes, code: int | None) -> None:
    assert classify(data.decode("utf-8", "replace"), code).failure


def test_exits_in_words() -> None:
    assert exit_words(3) == "exit code 3"
    assert exit_words(-signal.SIGKILL) == "signal 9 (SIGKILL)"
    assert exit_words(-250) == "signal 250"
    assert exit_words(None) == "no exit: it still ran"


def test_of_a_huge_log_both_ends_are_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.write(b"CUDA out of memory\n")
        for _ in range(80):
            file.write(b"x" * 99_999 + b"\n")
        file.write(b"the last words\n")
    text = read_log(log)
    assert len(text) < 5 << 20
    assert classify(text, 1).failure == "out_of_memory_device"
    assert tail_lines(text)[-1] == "the last words"
    assert max(map(len, tail_lines(text))) < 400


def test_no_log_is_an_empty_log(tmp_path: Path) -> None:
    assert read_log(tmp_path / "none") == ""
    assert tail_lines("") == []


def test_a_line_that_only_a_dead_engine_writes_is_the_last_resort() -> None:
    died = "ERROR 11-29 EngineCore encountered a fatal error."
    assert death_line(f"INFO fine\n{died}") == died
    assert classify(died, None).failure == "engine_died"
    assert classify(f"{died}\ntorch.OutOfMemoryError: CUDA out of memory", None).failure == "out_of_memory_device"
    assert classify(died, -11).failure == "crash"


def test_a_warning_is_no_death_unless_the_adapter_says_so() -> None:
    line = "WARNING engine core exited unexpectedly; starting cleanup"
    assert death_line(line) == ""
    pattern = FailurePattern("engine_died", "exited unexpectedly; starting cleanup", "Look above.")
    assert death_line(line, [pattern]) == line
    assert classify(line, None, [pattern]).failure == "engine_died"
