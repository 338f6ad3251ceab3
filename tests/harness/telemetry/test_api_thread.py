"""The thread that answers requests, told apart from the rest of its process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.telemetry.host import HostSampler
from harness.telemetry.sample import Sample
from tests.waiting import LONG_S

# 0.4 s of CPU in one thread and 0.1 s in the other, then a word, then nothing.
SPIN = (
    "import sys, threading, time\ndef spin(s):\n end = time.thread_time() + s\n while time.thread_time() < end: pass\n"
)
MAIN = (
    "t = threading.Thread(target=spin, args=(0.1,)); t.start(); spin(0.4); t.join(); print('done', flush=True); input()"
)
SIDE = (
    "t = threading.Thread(target=spin, args=(0.4,)); t.start(); spin(0.1); t.join(); print('done', flush=True); input()"
)


@pytest.mark.parametrize(("code", "low", "high"), [(MAIN, 0.38, 0.7), (SIDE, 0.08, 0.35)])
def test_only_the_main_thread_of_the_process_that_answers_is_counted(code: str, low: float, high: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", SPIN + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        server.stdout.readline()
        sample = read(HostSampler(server.pid, server.pid))
        server.stdin.close()
        server.wait(LONG_S)
        gone = read(HostSampler(server.pid, server.pid))
    assert sample.value is not None
    assert low <= sample.value <= high
    assert (gone.value, gone.reason) == (None, "the process that answers requests is gone, or not ours to look at")


def test_no_figure_where_nobody_says_which_process_answers() -> None:
    assert "server_api_thread_s" not in {sample.metric for sample in HostSampler(None).sample()}


def read(sampler: HostSampler) -> Sample:
    return next(sample for sample in sampler.sample() if sample.metric == "server_api_thread_s")
