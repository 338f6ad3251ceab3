"""The truth server as a program of its own: its URL, its stamps at the end, its refusals."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.truth.stamps import read_truth
from tests.harness.truth.test_server import post
from tests.waiting import LONG_S

MODULE = ("-m", "harness.truth")
# The signal comes while the answer is being handed to the kernel, where every error is that of a client gone.
SIGNALLED_IN_MID_WRITE = """
import os, signal
from harness.truth.__main__ import main
from harness.truth.connection import Connection
write = Connection.write
def signalled(self, data):
    os.kill(os.getpid(), signal.SIGTERM)
    return write(self, data)
Connection.write = signalled
raise SystemExit(main())
"""

Start = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a server of those words; it and its URL. None outlives the test."""
    with ExitStack() as leaving:

        def started(*words: str) -> tuple[subprocess.Popen[str], str]:
            server = leaving.enter_context(
                subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
            )
            leaving.callback(server.kill)
            assert server.stdout is not None
            return server, server.stdout.readline().strip()

        yield started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stamps_are_written_when_it_is_ended(number: signal.Signals, start: Start, tmp_path: Path) -> None:
    server, url = start(*MODULE, "--ttft-ms", "3", "--gap-ms", "1", "--stamps", str(tmp_path / "stamps"))
    assert post(url, {"prompt": [1, 2], "max_tokens": 3}, name="one")[0] == 200
    server.send_signal(number)
    assert server.wait(LONG_S) == 0
    truth = read_truth(tmp_path / "stamps")
    assert list(truth.request_id) == ["one"]
    assert list(truth.output_tokens) == [3]
    assert truth.ttft_ms()[0] >= 5  # the whole answer at the time of its last token


def test_a_signal_while_it_sends_costs_no_answer_and_ends_it(start: Start, tmp_path: Path) -> None:
    server, url = start("-c", SIGNALLED_IN_MID_WRITE, "--stamps", str(tmp_path / "stamps"))
    assert post(url, {"prompt": [1, 2], "max_tokens": 3}, name="one")[0] == 200
    assert server.wait(LONG_S) == 0
    truth = read_truth(tmp_path / "stamps")
    assert (list(truth.request_id), list(truth.outcome)) == (["one"], ["done"])


@pytest.mark.parametrize(
    ("options", "words"), [(["--jitter", "2"], "jitter is a share"), (["--port", "PORT"], "cannot listen on 127.0.0.1")]
)
def test_what_cannot_be_is_refused_in_words(options: list[str], words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, *MODULE, *(port if word == "PORT" else word for word in options)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode in (2, 4)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
