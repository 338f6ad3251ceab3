"""Fake engines for the tests of supervision."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backends import keeper
from backends.base import LaunchPlan
from backends.installed import installed_version
from backends.ports import free_port, port_is_free
from backends.process import ServerProcess
from backends.vllm_version import find_build
from tests.waiting import LONG_S

FAKE = Path(__file__).parents[1] / "servers" / "engine_fake.py"


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    """What a process keeps of a command's version is neither that of another test's environment nor left to the next."""
    for kept in (installed_version, find_build):
        kept.cache_clear()
    yield
    for kept in (installed_version, find_build):
        kept.cache_clear()


@contextmanager
def answering(answer: Callable[[socket.socket, bytes], None]) -> Iterator[str]:
    """A server of one thread that gives each connection's head to `answer`."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                data = b""
                while b"\r\n\r\n" not in data and (piece := connection.recv(4096)):
                    data += piece
                if data:
                    answer(connection, data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(LONG_S)


class FakeEngine:
    """Starts fake engines on one free port and checks that nothing of them is left."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "logs" / "server.log"
        self.seen: set[keeper.Process] = set()
        self.servers: list[ServerProcess] = []

    def command(self, *faults: str) -> tuple[str, ...]:
        return (sys.executable, "-S", "-E", str(FAKE), "--port", str(self.port), *faults)

    def start(self, *faults: str, grace_s: float = LONG_S) -> ServerProcess:
        server = ServerProcess.start(LaunchPlan(self.command(*faults)), self.log, grace_s, port=self.port)
        self.servers.append(server)
        return server

    def ready(self, *faults: str, grace_s: float = LONG_S) -> ServerProcess:
        server = self.start(*faults, grace_s=grace_s)
        server.wait_ready(self.url, "/health", LONG_S)
        self.remember(server.pids())
        return server

    def remember(self, pids: list[int]) -> None:
        self.seen |= {process for pid in pids if (process := keeper.identify(pid))}

    def words(self) -> str:
        return self.log.read_text(errors="replace")

    def worker_pids(self) -> list[int]:
        return [int(line.split()[1]) for line in self.words().splitlines() if line.startswith("worker ")]

    def assert_nothing_left(self) -> None:
        assert [p for p in self.seen if keeper.alive(p)] == []
        assert port_is_free("127.0.0.1", self.port)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeEngine]:
    """A fake engine to start with faults."""
    engine = FakeEngine(tmp_path)
    yield engine
    for server in engine.servers:
        server.stop()
