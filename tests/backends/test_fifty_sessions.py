"""Fifty servers in a row on one port, a fault at every stage of their lives: each is named, and nothing of any is left."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backends.base import LaunchPlan
from backends.failures import ServerDiedError, ServerError, Stage, StartupError
from backends.ports import PortInUseError, free_port, port_is_free
from backends.process import ServerProcess
from tests.backends.conftest import FAKE
from tests.waiting import LONG_S, wait_until

SESSIONS = 50
MARK = "DYNO_TEST_SESSION"
SHM = Path("/dev/shm")
GRACE_S = 0.2
# Of a server whose own end is looked at: it is to hear the SIGTERM on a busy machine too.
HEARD_S = 2.0
OUT_OF_KV = "ValueError: No available memory for the cache blocks."
HOLDING = ("--shared-memory", "--worker", "stubborn", "--worker", "session")
WORKERS = (*HOLDING, "--worker", "orphan", "--worker", "port")


class Life:
    """One server's life on a port that all lives share. Its processes carry a mark that no change of parent takes off."""

    def __init__(self, folder: Path, number: int, port: int) -> None:
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        self.log = folder / f"{number}" / "server.log"
        self.mark = f"{os.getpid()}-{number}"
        self.server: ServerProcess | None = None

    def command(self, *faults: str) -> tuple[str, ...]:
        return (sys.executable, "-S", "-E", str(FAKE), "--port", str(self.port), *faults)

    def start(self, *faults: str, command: tuple[str, ...] = (), grace_s: float = GRACE_S) -> ServerProcess:
        plan = LaunchPlan(command or self.command(*faults), {MARK: self.mark})
        self.server = ServerProcess.start(plan, self.log, grace_s, port=self.port)
        return self.server

    def ready(self, *faults: str, grace_s: float = GRACE_S) -> ServerProcess:
        server = self.start(*faults, grace_s=grace_s)
        server.wait_ready(self.url, "/health", LONG_S)
        return server

    def refused_start(self, *faults: str, **limits: float) -> ServerError:
        with self.start(*faults) as server, pytest.raises(StartupError) as caught:
            server.wait_ready(self.url, "/health", limits.pop("timeout_s", LONG_S), **limits)
        return caught.value

    @contextmanager
    def stream(self, tokens: int) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONG_S)
        connection.request("POST", "/v1/completions", json.dumps({"max_tokens": tokens}))
        try:
            yield connection.getresponse()
        finally:
            connection.close()

    def death(self, server: ServerProcess) -> ServerError:
        """The error of a server that is gone by itself."""
        wait_until(lambda: not server.alive(), "the server's end")
        with pytest.raises(ServerDiedError) as caught:
            server.check()
        server.stop()
        return caught.value

    def segments(self) -> list[str]:
        """The shared segments that this server said it holds."""
        text = self.log.read_text() if self.log.exists() else ""
        return [line.split()[1] for line in text.splitlines() if line.startswith("segment ")]

    def processes(self) -> list[int]:
        """Every process of this life, wherever in the tree of processes it hangs by now."""
        needle, found = f"{MARK}={self.mark}".encode(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if needle in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue  # gone meanwhile, or another user's
        return found


Outcome = tuple[str, Stage, int | None]


def named(error: ServerError) -> Outcome:
    return error.failure.failure, error.stage, error.server_exit


def missing_command(life: Life) -> Outcome:
    with pytest.raises(StartupError) as caught:
        life.start(command=("no-such-engine", "serve"))
    assert "No such file" in str(caught.value)
    return named(caught.value)


def refused_at_spawn(life: Life) -> Outcome:
    return named(life.refused_start("--exit-at-spawn", "2", "--message", "error: unrecognized arguments: --x"))


def dies_while_loading(life: Life) -> Outcome:
    words = ("--chatter", "2", "--exit-while-loading", "1", "--message", OUT_OF_KV)
    return named(life.refused_start("--shared-memory", *words))


def hangs_while_loading(life: Life) -> Outcome:
    return named(life.refused_start("--shared-memory", "--hang-before-bind", timeout_s=0.4))


def taken_before_launch(life: Life) -> Outcome:
    with socket.create_server(("127.0.0.1", life.port)), pytest.raises(PortInUseError, match=f"pid {os.getpid()}"):
        life.start()
    assert not life.log.exists()
    return ("port_in_use", Stage.SPAWN, None)


def taken_while_loading(life: Life) -> Outcome:
    taken = life.log.with_name("taken")
    with life.start("--shared-memory", "--bind-when", str(taken)) as server:
        # It takes connections and never answers, as a port does whose owner is busy.
        with socket.create_server(("127.0.0.1", life.port)):
            taken.touch()
            wait_until(lambda: not server.alive(), "the end of the server that finds its port taken")
        with pytest.raises(StartupError) as caught:
            server.wait_ready(life.url, "/health", LONG_S)
    return named(caught.value)


def front_leaves_workers(life: Life) -> Outcome:
    return named(life.refused_start(*WORKERS, "--exit-with-workers", "5"))


def dies_at_the_first_poll(life: Life) -> Outcome:
    return named(life.refused_start(*HOLDING, "--die-after-bind", "-11"))


def dies_at_the_first_request(life: Life) -> Outcome:
    server = life.ready(*HOLDING, "--die-after-tokens", "0")
    with life.stream(9) as answer:
        assert b"data:" not in answer.read()
    return named(life.death(server))


def dies_in_mid_stream(life: Life) -> Outcome:
    message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    server = life.ready(*HOLDING, "--die-after-tokens", "3", "--die-code", "1", "--message", message)
    with life.stream(9) as answer:
        assert answer.read().count(b"data:") == 3
    return named(life.death(server))


def killed_from_outside(life: Life) -> Outcome:
    server = life.ready(*WORKERS)
    os.kill(server.pid, signal.SIGKILL)
    return named(life.death(server))


def dies_while_draining(life: Life) -> Outcome:
    server = life.ready(*HOLDING, "--token-interval", "0.05", "--die-on-term", "-6", grace_s=HEARD_S)
    with life.stream(1000) as answer:
        assert answer.readline().startswith(b"data:")
        assert server.stop() == -signal.SIGABRT
    return named(server.failed())


def never_drains(life: Life) -> Outcome:
    server = life.ready(*HOLDING, "--token-interval", "0.05", "--ignore-term", grace_s=HEARD_S)
    with life.stream(1000) as answer:
        assert answer.readline().startswith(b"data:")
        assert server.stop() == -signal.SIGKILL
    assert "got SIGTERM" in life.log.read_text()
    return named(server.failed())


def stops_and_leaves_workers(life: Life) -> Outcome:
    server = life.ready(*WORKERS, grace_s=HEARD_S)
    code = server.stop()
    return ("none", Stage.READY, code)


def keeper_killed(life: Life) -> Outcome:
    server = life.ready(*WORKERS)
    os.kill(server._link.pid, signal.SIGKILL)
    return named(life.death(server))


def harness_killed(life: Life) -> Outcome:
    life.log.parent.mkdir()
    command = [
        sys.executable,
        "-m",
        "tests.backends.supervisor_script",
        str(life.port),
        str(life.log),
        str(GRACE_S),
        str(LONG_S),
    ]
    with subprocess.Popen(
        [*command, *life.command(*WORKERS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, MARK: life.mark},
    ) as harness:
        assert harness.stdout is not None
        assert len(json.loads(harness.stdout.readline())["pids"]) >= 5
        harness.kill()
        harness.wait()
        # Nobody waits for its keeper any more: it must do its work alone.
        wait_until(lambda: not life.processes(), "the end of the tree")
    return ("none", Stage.READY, None)


FAULTS: dict[Callable[[Life], Outcome], Outcome] = {
    missing_command: ("missing_dependency", Stage.SPAWN, None),
    refused_at_spawn: ("bad_argument", Stage.START, 2),
    dies_while_loading: ("out_of_memory_kv_cache", Stage.START, 1),
    hangs_while_loading: ("timeout", Stage.START, None),
    taken_before_launch: ("port_in_use", Stage.SPAWN, None),
    taken_while_loading: ("port_in_use", Stage.START, 1),
    front_leaves_workers: ("unknown", Stage.START, 5),
    dies_at_the_first_poll: ("crash", Stage.LISTEN, -11),
    dies_at_the_first_request: ("crash", Stage.READY, -11),
    dies_in_mid_stream: ("out_of_memory_device", Stage.READY, 1),
    killed_from_outside: ("killed", Stage.READY, -9),
    dies_while_draining: ("crash", Stage.READY, -6),
    never_drains: ("killed", Stage.READY, -9),
    stops_and_leaves_workers: ("none", Stage.READY, 0),
    keeper_killed: ("killed", Stage.READY, None),
    harness_killed: ("none", Stage.READY, None),
}


@pytest.mark.skipif(not SHM.is_dir(), reason="no /dev/shm on this system: there is nothing to look for")
def test_fifty_servers_in_a_row_with_a_fault_at_every_stage_leave_nothing(tmp_path: Path) -> None:
    port, held = free_port(), 0
    order = [fault for _ in range(SESSIONS) for fault in FAULTS][:SESSIONS]
    random.Random(3).shuffle(order)
    for number, fault in enumerate(order):
        life = Life(tmp_path, number, port)
        where = f"session {number}, {fault.__name__}"
        try:
            assert fault(life) == FAULTS[fault], where
        finally:
            if life.server is not None:
                life.server.stop()
        assert life.processes() == [], where
        assert port_is_free("127.0.0.1", port), where
        segments = life.segments()
        held += len(segments)
        assert [name for name in segments if (SHM / name).exists()] == [], where
    # Segments were there to be left, in every life that held one.
    assert held >= SESSIONS // 2
