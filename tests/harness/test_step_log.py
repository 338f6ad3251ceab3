"""Which lines of a server's log belong to a cell, and what is said where they tell no steps."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from backends.base import get_backend
from backends.vllm import VLLMBackend
from harness.step_log import StepLog
from results.clock import NS_PER_MS, now_ns
from results.events import Requests
from results.logged_steps import LoggedSteps
from results.records import SessionRecord
from results.step_log import FILE, read_logged


def line(at: float, number: int, decodes: int = 2) -> str:
    return (
        f"{at:.6f} (APIServer pid=7) INFO 11-30 05:05:06 [loggers.py:203] Engine 000: Iteration({number}): 0 context requests, "
        f"0 context tokens, {decodes} generation requests, {decodes} generation tokens, iteration elapsed time: 0.03 ms, CPU KV "
        "cache usage: 0.3%\n"
    )


def watched(log: Path, backend: str = "vllm", **record: Any) -> StepLog:
    told = SessionRecord(id="s", engine="e", backend=backend, block=0, model="m", url="", **record)
    return StepLog(get_backend(backend), told, log)


def test_only_what_was_written_since_the_load_began_is_its_own(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("starting\n" + line(time.time() - 9, 1))
    steps = watched(log)
    steps.begin()
    before, now, after = now_ns(), time.time(), now_ns()
    with log.open("a") as file:
        file.write(line(now, 2) + "something else\n" + line(now + 0.01, 3, decodes=1))
    assert steps.keep(tmp_path) == []
    found = read_logged(tmp_path, Requests.of([]))
    assert found is not None
    assert (found.step.tolist(), found.decodes.tolist()) == ([2, 3], [2, 1])
    assert before - NS_PER_MS <= int(found.end[0]) <= after + NS_PER_MS, "on the monotonic clock"
    assert not found.tells("waiting")


def test_the_last_line_may_come_a_moment_after_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "server.log"
    log.write_text("")
    steps = watched(log)
    steps.begin()
    now = time.time()
    late = [line(now + 0.01, 3), line(now + 0.02, 4)]
    log.write_text(line(now, 2))

    def a_moment(seconds: float) -> None:
        with log.open("a") as file:
            file.write(late.pop(0) if late else "")

    monkeypatch.setattr("harness.step_log.time.sleep", a_moment)
    assert steps.keep(tmp_path) == []
    found = read_logged(tmp_path, Requests.of([]))
    assert found is not None
    assert found.step.tolist() == [2, 3, 4]


def test_a_server_that_never_stops_writing_does_not_hold_up_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, waits = tmp_path / "server.log", list[float]()
    log.write_text(line(time.time(), 1))

    def chatter(seconds: float) -> None:
        waits.append(seconds)
        with log.open("a") as file:
            file.write("a warning\n")

    monkeypatch.setattr("harness.step_log.time.sleep", chatter)
    assert watched(log).keep(tmp_path) == []
    assert 0 < sum(waits) <= 1.0


def test_a_log_without_steps_is_worth_a_word_only_where_they_were_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("no step here\n")
    assert watched(log).keep(tmp_path) == []
    (fault,) = watched(log, asked={"step_log": True}).keep(tmp_path)
    assert (fault.code, fault.evidence) == ("steps_not_told", "the server's log holds no line of a step of this cell")
    assert watched(tmp_path / "none", "reference").keep(tmp_path) == []
    assert not (tmp_path / FILE).exists()


def test_lines_that_are_stamped_outside_of_the_cell_are_told_of_and_none_is_kept(tmp_path: Path) -> None:
    log, now = tmp_path / "server.log", time.time()
    log.write_text("")
    steps = watched(log)
    steps.begin()
    log.write_text(line(now - 3600, 1) + line(now + 250 * 365 * 86400, 2))
    (fault,) = steps.keep(tmp_path)
    assert (fault.code, fault.evidence[-1]) == ("steps_not_told", "2")
    assert not (tmp_path / FILE).exists()


class Stumbles(VLLMBackend):
    def logged_steps(self, lines: Iterable[str], now_wall_ns: int) -> LoggedSteps | str:
        raise KeyError("a part that no line has")


def test_an_adapter_that_stumbles_over_its_lines_costs_the_steps_and_not_the_cell(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(line(time.time(), 1))
    told = SessionRecord(id="s", engine="e", backend="vllm", block=0, model="m", url="")
    (fault,) = StepLog(Stumbles(), told, log).keep(tmp_path)
    assert fault.code == "steps_not_told"
    assert "KeyError: 'a part that no line has'" in fault.evidence


def test_lines_that_cannot_be_used_leave_their_reason(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(line(time.time(), 1).partition(" ")[2])
    (fault,) = watched(log).keep(tmp_path)
    assert "VLLM_LOGGING_PREFIX" in fault.evidence
    log.write_text(line(time.time(), 1))
    guessing = {"speculative_decoding": {"value": True, "source": "endpoint"}}
    (fault,) = watched(log, settings=guessing).keep(tmp_path)
    assert "guesses tokens ahead" in fault.evidence
    assert not (tmp_path / FILE).exists()
