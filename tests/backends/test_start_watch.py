"""A start that gets on is waited for, one that does not is given up: on a clock of the test's own."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from backends import start_watch
from backends.failure_table import STALLED
from backends.keeper import Process
from backends.start_watch import StartWatch, Trouble, cpu_seconds

SERVER = Process(1, 1)
STALL_S = 1.0
LOOK_S = 0.25


class Start:
    """A start that is looked at four times a second: its log, and the CPU time it has used."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.log, self.now, self.cpu_s = folder / "log", 100.0, 0.0
        self.log.write_text("begun\n")
        patch.setattr(start_watch, "time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(start_watch, "cpu_seconds", lambda pid: self.cpu_s)
        self.watch = StartWatch(self.log, STALL_S)

    def say(self, words: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{words}\n")

    def look(self) -> Trouble | None:
        self.now += LOOK_S
        return self.watch.look([SERVER])


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    return Start(tmp_path, monkeypatch)


def test_one_that_keeps_talking_is_not_taken_for_silent(start: Start) -> None:
    for number in range(40):
        if number % 3 == 0:
            start.say(f"loading step {number}")
        assert start.look() is None


def test_one_that_computes_without_a_word_is_not_taken_for_stalled(start: Start) -> None:
    for _ in range(40):
        start.cpu_s += 0.1
        assert start.look() is None


def test_one_that_is_silent_and_only_answers_questions_is_given_up_after_its_time(start: Start) -> None:
    start.say("waiting for the others")
    assert start.look() is None
    for _ in range(round(STALL_S / LOOK_S)):
        start.cpu_s += 0.002  # what it costs to be asked whether it is ready
        assert start.look() is None
    trouble = start.look()
    assert trouble is not None
    assert trouble.failure is STALLED
    assert "the last line is 'waiting for the others'" in trouble.words


def test_cpu_time_is_that_of_the_process() -> None:
    before, began = cpu_seconds(os.getpid()), time.process_time()
    while time.process_time() - began < 0.1:
        pass
    assert cpu_seconds(os.getpid()) - before >= 0.08  # in ticks of a hundredth
