"""The worker as a child process: what it writes, how it is stopped, and how its end is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from harness.load.process import LoadProcess, LoadWorkerError, Progress
from harness.load.reader import reader_name
from harness.load.worker import receive_stamps
from results.errors import EXIT_ENVIRONMENT, EXIT_USAGE, UsageError
from results.schema import CHUNKS, REQUESTS
from tests.harness.load.support import make_plan
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_steps import Gate, Received, Step, Wait, full_answer, stream, text_event
from tests.waiting import LONG_S

STUCK = [*stream(text_event("a"), end=False), Wait(Gate())]


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise TimeoutError(what)


def out_dir(tmp_path: Path) -> Path:
    out = tmp_path / "cell"
    out.mkdir()
    return out


@pytest.mark.parametrize(
    ("chunks", "lags", "promised", "words"),
    [
        (0, 0, True, "kernel"),
        (0, 0, False, "read"),
        (1000, 0, True, "read"),
        (1000, 1, True, "mixed"),
        (1000, 989, True, "mixed"),
        (1000, 990, True, "kernel"),
        (1000, 1000, False, "kernel"),
    ],
)
def test_one_stamped_chunk_does_not_make_a_cell_of_kernel_stamps(
    chunks: int, lags: int, promised: bool, words: str
) -> None:
    assert receive_stamps(chunks, lags, promised) == words


def test_a_whole_run_writes_events_and_result(tmp_path: Path) -> None:
    out = out_dir(tmp_path)
    gate = Gate()

    def script(request: Received) -> list[Step]:
        return full_answer(8) if request.index < 2 else [Wait(gate), *full_answer(8)]

    with FakeServer(script) as server, LoadProcess() as process:
        before = time.monotonic_ns()
        process.start(make_plan(server.url, tmp_path / "plan", requests=6, batch=2, tokens=8), out)
        seen: list[Progress] = []

        def follow() -> bool:
            if progress := process.poll():
                seen.append(progress)
                if progress.done == 2:
                    gate.open()
            return process.finished

        wait_for(follow, "the end")
        result = process.wait(LONG_S)
        after = time.monotonic_ns()
    requests, chunks = pq.read_table(out / "requests.parquet"), pq.read_table(out / "chunks.parquet")
    assert requests.schema.equals(REQUESTS, check_metadata=True)
    assert chunks.schema.equals(CHUNKS, check_metadata=True)
    assert requests["outcome"].to_pylist() == ["ok"] * 6
    assert result.outcomes["ok"] == result.issued == 6
    assert not result.stopped
    assert before < result.started < result.ended < after
    for row in requests.to_pylist():
        assert result.started <= row["intended"]
        assert row["end"] <= result.ended
    client = result.client
    assert client["reader"] == reader_name()
    assert client["parts_not_loaded"] == {}
    assert client["receive_stamps"] in ("kernel", "read", "mixed")
    assert client["cpu_s"] > 0
    assert client["wall_s"] >= (result.ended - result.started) / 1e9
    assert seen[-1] == Progress(6, 6, 6, 0, 0, 48, seen[-1].elapsed_s, finished=True)
    assert {progress.done for progress in seen} >= {2, 6}
    assert sorted(p.name for p in out.iterdir()) == ["chunks.parquet", "load.json", "requests.parquet"]


def test_stop_keeps_what_was_measured(tmp_path: Path) -> None:
    out = out_dir(tmp_path)
    with (
        FakeServer(lambda request: full_answer() if request.index < 4 else STUCK) as server,
        LoadProcess() as process,
    ):
        process.start(make_plan(server.url, tmp_path / "plan", requests=100, concurrency=2), out)
        wait_for(lambda: (p := process.poll()) and p.done >= 4, "four answers")
        server.wait_until(lambda s: len(s.requests) == 6)
        process.stop()
        result = process.wait(LONG_S)
    assert result.stopped
    assert result.outcomes["ok"] == 4
    assert result.outcomes["cancelled"] == 2
    assert sorted(pq.read_table(out / "requests.parquet")["outcome"].to_pylist()) == ["cancelled"] * 2 + ["ok"] * 4


def test_the_keyboard_interrupt_is_the_parents_to_handle(tmp_path: Path) -> None:
    gate = Gate()
    with FakeServer([Wait(gate), *full_answer()]) as server, LoadProcess() as process:
        process.start(make_plan(server.url, tmp_path / "plan"), out_dir(tmp_path))
        server.wait_until(lambda s: s.in_flight == 1)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        gate.open()
        assert process.wait(LONG_S).outcomes["ok"] == 1


def test_a_killed_worker_is_a_typed_error(tmp_path: Path) -> None:
    with FakeServer(STUCK) as server, LoadProcess() as process:
        process.start(make_plan(server.url, tmp_path / "plan"), out_dir(tmp_path))
        server.wait_until(lambda s: s.in_flight == 1)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(LoadWorkerError, match="killed by signal 9"):
            wait_for(lambda: process.poll() and False, "the end")


def test_a_worker_that_fails_inside_shows_the_end_of_its_stderr(tmp_path: Path) -> None:
    plan = make_plan("http://127.0.0.1:9", tmp_path / "plan", requests=3)
    with plan.bodies_path.open("wb") as file:
        file.truncate(0)
    broken = tmp_path / "plan"
    with LoadProcess() as process:
        real, sys.executable = sys.executable, str(_crashing_python(broken))
        try:
            process.start(plan, out_dir(tmp_path))
        finally:
            sys.executable = real
        with pytest.raises(LoadWorkerError, match=r"ended with status 7.*it all went wrong") as raised:
            process.wait(LONG_S)
    assert "it all went wrong" in raised.value.stderr


def _crashing_python(folder: Path, stdout: str = "", status: int = 7) -> Path:
    """A stand-in for the interpreter that prints and ends."""
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{stdout}\necho it all went wrong >&2\nexit {status}\n")
    script.chmod(0o755)
    return script


@pytest.mark.parametrize("line", ["echo hello", "echo '{}'", "echo '[1]'", """echo '{"issued": 1}'"""])
def test_a_worker_that_speaks_nonsense_is_a_typed_error(line: str, tmp_path: Path) -> None:
    plan = make_plan("http://127.0.0.1:9", tmp_path / "plan")
    with LoadProcess() as process:
        real, sys.executable = sys.executable, str(_crashing_python(tmp_path / "plan", line, 0))
        try:
            process.start(plan, out_dir(tmp_path))
        finally:
            sys.executable = real
        with pytest.raises(LoadWorkerError, match="not progress"):
            process.wait(LONG_S)


def test_a_worker_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with FakeServer(STUCK) as server, LoadProcess() as process:
        process.start(make_plan(server.url, tmp_path / "plan"), out_dir(tmp_path))
        server.wait_until(lambda s: s.in_flight == 1)
        pid = process.pid
        with pytest.raises(LoadWorkerError, match="did not end within"):
            process.wait(0.2)
    assert pid is not None
    assert not psutil.pid_exists(pid)


def test_the_users_mistakes_keep_their_words_and_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = out_dir(tmp_path)
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with LoadProcess() as process, pytest.raises(UsageError, match="NO_SUCH_KEY"):
        process.start(make_plan("http://127.0.0.1:9", tmp_path / "a", api_key_env="NO_SUCH_KEY"), out)
    with LoadProcess() as process:
        process.start(make_plan("http://no-such-host.invalid:9", tmp_path / "b"), out)
        with pytest.raises(LoadWorkerError, match=r"no-such-host\.invalid.*no address") as raised:
            process.wait(LONG_S)
    assert raised.value.exit_code == EXIT_ENVIRONMENT
    with LoadProcess() as process:
        process.start(make_plan("http://127.0.0.1:9", tmp_path / "c"), tmp_path / "missing")
        with pytest.raises(LoadWorkerError, match="Cannot write"):
            process.wait(LONG_S)
    with LoadProcess() as process:
        plan = make_plan("http://127.0.0.1:9", tmp_path / "d")
        plan.bodies_path.unlink()
        process.start(plan, out)
        with pytest.raises(LoadWorkerError, match="request bodies") as raised:
            process.wait(LONG_S)
    assert raised.value.exit_code == EXIT_USAGE


def test_a_worker_dies_with_its_parent_however_that_dies(tmp_path: Path) -> None:
    parent = """
import sys
from pathlib import Path
from harness.load.process import LoadProcess
from tests.harness.load.support import make_plan
process = LoadProcess()
process.start(make_plan(sys.argv[1], Path(sys.argv[2]) / "plan"), Path(sys.argv[2]))
print(process.pid, flush=True)
sys.stdin.read()
"""
    root = Path(__file__).parents[3]
    with FakeServer(STUCK) as server:
        child = subprocess.Popen(
            [sys.executable, "-c", parent, server.url, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        with child:
            assert child.stdout is not None
            worker = psutil.Process(int(child.stdout.readline()))
            server.wait_until(lambda s: s.in_flight == 1)
            child.kill()
        wait_for(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, "the worker's end")


def test_the_end_of_stdin_ends_the_worker_even_without_the_kernels_help(tmp_path: Path) -> None:
    out = out_dir(tmp_path)
    with FakeServer(STUCK) as server:
        path = make_plan(server.url, tmp_path / "plan").save(out)
        worker = subprocess.Popen(
            [sys.executable, "-m", "harness.load.worker", str(path)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        server.wait_until(lambda s: s.in_flight == 1)
        assert worker.stdin is not None
        worker.stdin.close()
        assert worker.wait(LONG_S) == 1
    assert not (out / "load.json").exists()


def test_the_worker_says_how_it_is_used() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness.load.worker"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.startswith("usage:")) == (2, True)


def test_the_fake_server_as_a_program(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.openai_fake", "--port", "0", "--tokens-interval-ms", "1"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        with LoadProcess() as process:
            process.start(make_plan(url, tmp_path / "plan", requests=3, concurrency=2), out_dir(tmp_path))
            assert process.wait(LONG_S).outcomes["ok"] == 3
        from urllib.request import urlopen

        assert json.load(urlopen(f"{url}/v1/models"))["data"][0]["id"] == "fake-model"
        assert urlopen(f"{url}/health").status == 200
        assert 'generation_tokens_total{model_name="fake-model"} 12' in urlopen(f"{url}/metrics").read().decode()
    finally:
        server.kill()
        server.communicate()
