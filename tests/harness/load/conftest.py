"""The load client with its compiled parts, and without."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from harness.load import client, sse, stamps
from harness.load.compiled import SWITCH
from harness.load.run import NoRun
from harness.load.stamps import ReceiveClock
from results.clock import NS_PER_MS, NS_PER_S, now_ns
from tests.waiting import LONG_S, wait_until

needs_compiled = pytest.mark.skipif(
    find_spec("harness.load._reader") is None, reason="the client's compiled part is not here (no C compiler)"
)


@pytest.fixture(scope="module", params=[pytest.param("compiled", marks=needs_compiled), "python"])
def either_client(request: pytest.FixtureRequest) -> Iterator[None]:
    """The tests run with each of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, request.param)
        if request.param == "python":
            patch.setattr(sse, "new_run", NoRun)
        yield


@pytest.fixture
def late_breaks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that crossed with the close of its connection is sent again, however late a busy machine sees the close."""
    monkeypatch.setattr(client, "_STALE_NS", round(LONG_S) * NS_PER_S)


@pytest.fixture
def stamping() -> Iterator[None]:
    """The kernel stamps what comes in. It begins a moment after the first socket of the machine has asked, and ends with the last."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as ours:
        if not stamps.enable(ours):
            pytest.skip("this system has no kernel receive stamps")
        ours.connect(listener.getsockname())
        peer, _ = listener.accept()

        def stamped() -> bool:
            looked = now_ns()
            peer.sendall(b"x")
            select.select([ours], [], [], LONG_S)
            time.sleep(0.005)  # the reader is late, and the stamp is not
            _, control, _, _ = ours.recvmsg(10, stamps.CONTROL_SIZE)
            _, lag = ReceiveClock().arrival(control, now_ns(), looked)
            return lag is not None and lag >= NS_PER_MS

        with peer:
            wait_until(stamped, "a stamp of the kernel's own")
            yield
