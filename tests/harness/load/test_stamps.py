"""Receive stamps become monotonic time, and a stamp that cannot be true is not believed."""

from __future__ import annotations

import socket
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load import stamps
from harness.load.stamps import SO_TIMESTAMPNS, ReceiveClock
from results.clock import NS_PER_S, ClockPair
from tests.waiting import LONG_S

MS = 1_000_000


def control(wall_ns: int) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, SO_TIMESTAMPNS, struct.pack("qq", *divmod(wall_ns, NS_PER_S)))]


@given(lag=st.integers(0, 10**9))
def test_a_stamp_is_converted_and_its_lag_told(lag: int) -> None:
    clock = ReceiveClock()
    now = time.monotonic_ns()
    pair = ClockPair.read()
    arrived, told = clock.arrival(control(pair.to_wall(now - lag)), now, now - lag)
    assert told is not None
    assert arrived + told == now
    assert abs(told - lag) < MS


def test_without_a_stamp_the_read_is_the_arrival_and_the_lag_unknown() -> None:
    clock = ReceiveClock()
    assert clock.arrival([], 1000, 0) == (1000, None)
    assert clock.arrival([(socket.SOL_SOCKET, 29, b"x" * 16)], 1000, 0) == (1000, None)


@pytest.mark.parametrize("step_s", [-3600, -2, 2, 3600])
def test_a_stamp_from_before_a_step_of_the_wall_clock_is_not_believed(step_s: int) -> None:
    clock = ReceiveClock()
    now = time.monotonic_ns()
    wall = ClockPair.read().to_wall(now) + step_s * NS_PER_S
    assert clock.arrival(control(wall), now, now - MS) == (now, None)
    assert clock.disbelieved == 1


@pytest.mark.parametrize("step_s", [-2, 2])
def test_stamps_after_a_step_are_right_again(step_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ReceiveClock()
    real = time.time_ns
    monkeypatch.setattr("results.clock.time.time_ns", lambda: real() + step_s * NS_PER_S)
    now = time.monotonic_ns()
    wall = ClockPair.read().to_wall(now - 3 * MS)
    arrived, lag = clock.arrival(control(wall), now, now - 4 * MS)
    assert lag is not None
    assert abs(lag - 3 * MS) < MS
    assert arrived == now - lag
    assert clock.disbelieved == 0


def test_the_kernel_stamps_what_a_socket_receives() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        if not stamps.enable(client):
            pytest.skip("this system has no kernel receive stamps")
        client.connect(listener.getsockname())
        peer, _ = listener.accept()
        with peer:
            # The kernel begins to stamp a moment after the first socket of the machine asks: until then it stamps at the read.
            deadline = time.monotonic() + LONG_S
            while time.monotonic() < deadline:
                before = time.monotonic_ns()
                peer.sendall(b"x")
                after = time.monotonic_ns()
                time.sleep(0.05)  # the reader is late
                _, ancillary, _, _ = client.recvmsg(10, stamps.CONTROL_SIZE)
                arrived, lag = ReceiveClock().arrival(ancillary, time.monotonic_ns(), before)
                if arrived <= after + 20 * MS:
                    break
        assert before <= arrived <= after + 20 * MS
        assert lag is not None
        assert lag >= 30 * MS
