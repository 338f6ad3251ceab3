"""Several workers: they begin together, count as one, and the death of one is told and costs only its own share."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from harness.load.plan import LoadPlan
from harness.load.process import LoadProcess, LoadWorkerError
from harness.load.workers import LoadWorkers
from results.errors import UsageError
from tests.harness.load.support import make_plan
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_steps import Gate, Received, Step, Wait, full_answer, stream, text_event
from tests.waiting import LONG_S

STUCK: list[Step] = [*stream(text_event("a"), end=False), Wait(Gate())]


def until(load: LoadWorkers, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        load.poll()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pids(load: LoadWorkers) -> list[int]:
    return [worker.process.pid or 0 for worker in load._workers]


def test_two_workers_carry_out_one_plan(tmp_path: Path) -> None:
    out = tmp_path / "cell"
    gate = Gate()

    def script(request: Received) -> list[Step]:
        if request.index == 4:
            gate.open()  # both are at work
        return [Wait(gate), *full_answer(6)]

    with FakeServer(script) as server, LoadWorkers(2) as load:
        load.start(make_plan(server.url, tmp_path / "plan", requests=21, concurrency=5, tokens=6), out)
        until(load, lambda: load.finished)
        progress = load.poll()
        result = load.wait(LONG_S)
        assert server.max_in_flight == 5
    assert progress is not None
    assert (progress.done, progress.ok, progress.tokens, progress.finished) == (21, 21, 126, True)
    assert (result.issued, result.outcomes["ok"], load.faults) == (21, 21, [])
    rows = pq.read_table(out / "requests.parquet").to_pylist()
    assert sorted(row["request_id"] for row in rows) == sorted(f"r{i}" for i in range(21))
    assert {row["slot"] for row in rows} == set(range(5))
    assert {row["worker"] for row in rows} == {0, 1}
    # One instant for both: the first request of every slot is intended there.
    firsts = {row["worker"]: row["intended"] for row in sorted(rows, key=lambda r: -r["queued"])}
    assert set(firsts.values()) == {result.started}
    assert all(row["queued"] >= result.started for row in rows)
    assert result.client["max_in_flight"] == 5
    assert sorted(p.name for p in out.iterdir()) == ["chunks.parquet", "requests.parquet"]


def test_an_interrupt_while_workers_are_being_started_leaves_none_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[LoadProcess] = []
    start = LoadProcess.start

    def interrupted(self: LoadProcess, plan: LoadPlan, out_dir: Path) -> None:
        if started:
            raise KeyboardInterrupt
        start(self, plan, out_dir)
        started.append(self)

    monkeypatch.setattr(LoadProcess, "start", interrupted)
    load = LoadWorkers(2)
    with pytest.raises(KeyboardInterrupt):
        load.start(make_plan("http://127.0.0.1:9", tmp_path / "plan", requests=4, concurrency=2), tmp_path / "cell")
    (one,) = started
    assert one.pid is not None
    assert not psutil.pid_exists(one.pid)
    # What asks it to stop, or for what it measured, finds that there is nothing.
    assert (load.pid, load.finished) == (None, False)


def test_a_rate_shared_by_workers_keeps_its_times(tmp_path: Path) -> None:
    times = [i / 50 for i in range(15)]
    with FakeServer(full_answer()) as server, LoadWorkers(2) as load:
        load.start(make_plan(server.url, tmp_path / "plan", times_s=times), tmp_path / "cell")
        result = load.wait(LONG_S)
    rows = pq.read_table(tmp_path / "cell" / "requests.parquet").to_pylist()
    assert [row["request_id"] for row in sorted(rows, key=lambda r: r["intended"])] == [f"r{i}" for i in range(15)]
    assert sorted(row["intended"] - result.started for row in rows) == [round(t * 1e9) for t in times]


def test_a_worker_that_dies_is_told_and_the_rest_is_kept(tmp_path: Path) -> None:
    def script(request: Received) -> list[Step]:
        return STUCK if int(request.id[1:]) % 2 else full_answer()

    with FakeServer(script) as server, LoadWorkers(2) as load:
        load.start(make_plan(server.url, tmp_path / "plan", requests=8, concurrency=2), tmp_path / "cell")
        until(load, lambda: len(server.requests) == 5 and server.in_flight == 1)
        os.kill(pids(load)[1], signal.SIGKILL)
        result = load.wait(LONG_S)
    (fault,) = load.faults
    assert "worker 1 of 2, with 4 requests" in fault
    assert "killed by signal 9" in fault
    assert (result.issued, result.outcomes["ok"]) == (4, 4)
    kept = pq.read_table(tmp_path / "cell" / "requests.parquet")["request_id"].to_pylist()
    assert sorted(kept) == ["r0", "r2", "r4", "r6"]


def test_when_no_worker_is_left_there_is_nothing_to_keep(tmp_path: Path) -> None:
    with FakeServer(STUCK) as server, LoadWorkers(2) as load:
        load.start(make_plan(server.url, tmp_path / "plan", requests=4, concurrency=2), tmp_path / "cell")
        until(load, lambda: server.in_flight == 2)
        for pid in pids(load):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(LoadWorkerError, match="killed by signal 9"):
            load.wait(LONG_S)


@pytest.mark.parametrize("begun", [True, False])
def test_stopping_stops_all_of_them_and_keeps_what_was_measured(begun: bool, tmp_path: Path) -> None:
    with FakeServer(STUCK) as server, LoadWorkers(2) as load:
        load.start(make_plan(server.url, tmp_path / "plan", requests=4, concurrency=2), tmp_path / "cell")
        until(load, lambda: server.in_flight == 2 if begun else True)
        load.stop()
        result = load.wait(LONG_S)
    assert result.stopped
    assert result.outcomes["cancelled"] == pq.read_table(tmp_path / "cell" / "requests.parquet").num_rows
    if begun:
        assert result.outcomes["cancelled"] == 2


def test_no_worker_is_left_behind(tmp_path: Path) -> None:
    with FakeServer(STUCK) as server:
        with LoadWorkers(2) as load:
            load.start(make_plan(server.url, tmp_path / "plan", requests=4, concurrency=2), tmp_path / "cell")
            until(load, lambda: server.in_flight == 2)
            left = pids(load)
        assert not any(psutil.pid_exists(pid) for pid in left)


def test_the_users_mistake_ends_all_of_them(tmp_path: Path) -> None:
    with LoadWorkers(2) as load:
        load.start(
            make_plan("http://no-such-host.invalid:9", tmp_path / "a", requests=4, concurrency=2), tmp_path / "c"
        )
        with pytest.raises(LoadWorkerError, match="has no address"):
            load.wait(LONG_S)
    with LoadWorkers(2) as load, pytest.raises(UsageError, match="waves of a batch"):
        load.start(make_plan("http://127.0.0.1:9", tmp_path / "b", requests=4, batch=2), tmp_path / "d")
