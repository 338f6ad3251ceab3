"""The compiled reader says what the connections themselves would have said, whatever comes and however it is cut."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.load.backlog import Backlog
from harness.load.connection import Connection
from harness.load.exchange import Exchange
from harness.load.plan import RequestPlan
from harness.load.poller import Poller
from harness.load.reader import READ_SIZE, PythonReader, Reader, reader_for
from harness.load.stamps import SLACK_NS, ReceiveClock
from results.clock import NS_PER_MS, NS_PER_S, now_ns
from tests.harness.load.conftest import needs_compiled
from tests.waiting import LONG_S

NEVER_NS = 2**62
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"text":" a","finish_reason":null}]}\n\n'
COUNTED = EVENT.replace(b"}\n\n", b',"usage":{"prompt_tokens":5,"completion_tokens":3}}\n\n')


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Owner:
    """Keeps what its connections tell; `heard` is how each exchange ended."""

    def __init__(self, compiled: bool = True) -> None:
        self.poller, self.clock = Poller(), ReceiveClock()
        self.backlog = Backlog(lambda exchange: None)
        self.pieces: deque[tuple[Exchange, int, int | None, Any]] = self.backlog.pieces
        self.reader: Reader = (
            reader_for(self.poller, self.pieces.append, SLACK_NS) if compiled else PythonReader(self.poller)
        )
        assert self.reader.name == ("compiled" if compiled else "python")
        self.heard: dict[Exchange, str] = {}
        self.reads_in_python = 0

    def opened(self, connection: Connection) -> None:
        pass

    def received(self, exchange: Exchange, t: int, lag: int | None, data: bytes) -> None:
        self.backlog.add(exchange, t, lag, data)

    def answered(self, connection: Connection, exchange: Exchange, t: int) -> None:
        exchange.end = t
        self.backlog.finish(exchange, t)
        self.heard[exchange] = "answered"
        connection.close()

    def satisfied(self, connection: Connection, exchange: Exchange, t: int) -> None:
        self.answered(connection, exchange, t)

    def lost(self, connection: Connection, why: str) -> None:
        assert connection.exchange is not None
        self.backlog.finish(connection.exchange, now_ns())
        self.heard[connection.exchange] = why

    def look(self, timeout: int = 0, **bounds: int) -> None:
        """One call of the reader, and what it leaves to the connections."""
        asked = {"rest": 0, "until": 0, "due": NEVER_NS, "most": NEVER_NS, **bounds}
        others = self.reader.gather(self.clock.offset(now_ns()), asked["rest"], timeout, *list(asked.values())[1:])
        self.reads_in_python += len(others)
        for fd, mask in others:
            if handler := self.poller.handlers.get(fd):
                handler.handle(mask)

    def look_until(self, count: int) -> None:
        """Until so many pieces have come."""
        deadline = time.monotonic() + LONG_S
        while len(self.pieces) < count:
            assert time.monotonic() < deadline
            self.look(NS_PER_MS)


class Stream:
    """One exchange on a connection of its own, and the server's end of it, which has read the request."""

    def __init__(self, owner: Owner, listener: socket.socket, **plan: Any) -> None:
        self.exchange = Exchange(0, RequestPlan("r0", 1, 4, 0, 0, **plan), 0, 0, now_ns())
        self.connection = Connection(owner, (socket.AF_INET, listener.getsockname()), None, "")
        self.connection.send(self.exchange, b"POST / HTTP/1.1\r\n\r\n", memoryview(b"{}"))
        self.connection.open()
        self.server, _ = listener.accept()
        self.server.settimeout(LONG_S)
        self.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while self.exchange.sent is None:
            owner.look(NS_PER_MS)
        self.server.recv(1000)

    def end(self, how: str) -> None:
        if how == "reset":
            self.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.server.close()


@contextmanager
def streams(count: int, *, compiled: bool = True, **plan: Any) -> Iterator[tuple[Owner, list[Stream]]]:
    """So many exchanges of one owner."""
    owner = Owner(compiled)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = [Stream(owner, listener, **plan) for _ in range(count)]
    try:
        yield owner, made
    finally:
        for stream in made:
            stream.server.close()
            stream.connection.close()
        owner.poller.close()


@contextmanager
def armed(count: int = 1) -> Iterator[tuple[Owner, list[Stream]]]:
    """Streams of which the head and one event have come."""
    with streams(count) as (owner, made):
        for stream in made:
            stream.server.sendall(HEAD + framed(EVENT))
        owner.look_until(count)
        owner.pieces.clear()
        owner.reads_in_python = 0
        yield owner, made


# The same answers

PIECES = st.one_of(
    st.just(framed(EVENT)),
    st.just(framed(EVENT)),
    st.just(framed(EVENT)),
    st.sampled_from([framed(COUNTED), framed(EVENT) + framed(COUNTED) + framed(EVENT)]),
    st.sampled_from(
        [
            framed(EVENT + EVENT),
            framed(EVENT[:20]),
            framed(EVENT[20:]),
            framed(EVENT[:-1]),
            framed(b"\n"),
            framed(EVENT[:20]) + framed(EVENT) + framed(EVENT[20:]),
            framed(EVENT.replace(b"\n", b"\r\n")),
            framed(EVENT.replace(b"null", b'"length"')),
            framed(b"event: x\n"),
            framed(b": comment\n\n"),
            framed(b"x"),
            framed(b"data: " + b"y" * 40_000 + b"\n\n"),
            b"%X\r\n%b\r\n" % (len(EVENT), EVENT),
            b"000%x\r\n%b\r\n" % (len(EVENT), EVENT),
            b"%x;name=value\r\n%b\r\n" % (len(EVENT), EVENT),
            b"%x \r\n%b\r\n" % (len(EVENT), EVENT),
            b"%x\n%b\n" % (len(EVENT), EVENT),
            b"%x\r\n%b\r\n" % (len(EVENT) - 1, EVENT),
            b"%x\r\n%b\r\n" % (len(EVENT) + 2, EVENT),
            b"-5\r\nhello\r\n",
            b"0_5\r\nhello\r\n",
            b"000000005\r\nhello\r\n",
            b"\r\n",
            b"g\r\n",
            b"0\r\n\r\n",
            b"0\r\nTrailer: x\r\n\r\n",
            framed(b"data: [DONE]\n\n"),
        ]
    ),
    st.binary(max_size=20),
)
HEADS = st.sampled_from(
    [
        HEAD,
        HEAD,
        HEAD,
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD,
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 150\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
        HEAD.replace(b"200 OK", b"503 Busy"),
        HEAD.replace(b"text/event-stream", b"application/json"),
        HEAD.replace(b"Content-Type: text/event-stream\r\n", b""),
        HEAD.replace(b"Transfer", b"Content-Encoding: gzip\r\nTransfer"),
        b"HTTP/2 200\r\n\r\n",
    ]
)


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[bytes], str]:
    """An answer in segments, some of them cut anywhere, and how its connection ends."""
    parts = [draw(HEADS), *draw(st.lists(PIECES, max_size=8)), draw(st.sampled_from([b"", b"0\r\n\r\n"]))]
    if draw(st.booleans()):  # as servers send: a write is a segment
        return [part for part in parts if part], draw(st.sampled_from(["close", "reset"]))
    whole = b"".join(parts)
    cuts = sorted({0, len(whole), *draw(st.lists(st.integers(0, len(whole)), max_size=12))})
    segments = [whole[a:b] for a, b in itertools.pairwise(cuts)]
    return segments, draw(st.sampled_from(["close", "reset"]))


def story(compiled: bool, scripts: Sequence[tuple[list[bytes], str]], looks: Sequence[bool]) -> list[Any]:
    """What each exchange was in the end. Segments are sent in turn over the streams; `looks` says after which is read."""
    with streams(len(scripts), compiled=compiled) as (owner, made):
        steps = [
            (stream, segments[i] if i < len(segments) else None, how)
            for i in range(1 + max(len(segments) for segments, _ in scripts))
            for stream, (segments, how) in zip(made, scripts, strict=True)
            if i <= len(segments)
        ]
        for number, (stream, segment, how) in enumerate(steps):
            if segment is None:
                stream.end(how)
            elif stream.exchange not in owner.heard:
                stream.server.sendall(segment)
            if looks[number % len(looks)]:
                owner.look()
        deadline = time.monotonic() + LONG_S
        while len(owner.heard) < len(made):
            assert time.monotonic() < deadline
            owner.look(NS_PER_MS)
        return [told(owner, stream.exchange) for stream in made]


def told(owner: Owner, exchange: Exchange) -> Any:
    """An exchange without its times, and not by how its bytes were cut on the way."""
    for of, t, lag, data in owner.pieces:
        if of is not exchange or data is None:
            continue
        if isinstance(data, bytes):
            exchange.take(t, lag, data)
        else:
            exchange.take_run(data)
    assert exchange.run is None
    outcome, error, result = exchange.settle(False)
    times = result.chunks.t.tolist()
    assert times == sorted(times)
    assert all(chunk.lag is None or chunk.lag >= 0 for chunk in result.chunks)
    chunks = [(chunk.kind, chunk.tokens, chunk.bytes) for chunk in result.chunks]
    counts = (result.output_tokens, result.count_source, result.chunks_with_tokens, result.input_tokens)
    seen = (exchange.first_byte is None, exchange.last_read is None, exchange.head)
    return owner.heard[exchange], outcome, error, chunks, counts, seen


@needs_compiled
@settings(max_examples=200, deadline=None)
@given(st.lists(answers(), min_size=1, max_size=3), st.lists(st.booleans(), min_size=1, max_size=5))
def test_whatever_comes_both_readers_say_the_same(scripts: list[tuple[list[bytes], str]], looks: list[bool]) -> None:
    assert story(True, scripts, looks) == story(False, scripts, looks)


# One read

pytestmark = needs_compiled


def test_whole_chunks_are_read_without_the_connection() -> None:
    with armed(3) as (owner, made):
        before = now_ns()
        for number, stream in enumerate(made):
            stream.server.sendall(framed(b"%d" % number) + framed(b"again"))
        owner.look_until(6)
        after = now_ns()
        assert owner.reads_in_python == 0
        for number, stream in enumerate(made):
            own = [(t, lag, data) for of, t, lag, data in owner.pieces if of is stream.exchange]
            assert [data for _, _, data in own] == [b"%d" % number, b"again"]
            assert own[0][:2] == own[1][:2]
            t, lag = own[0][:2]
            assert stream.exchange.last_read is not None
            assert before <= stream.exchange.last_read <= after
            assert lag is None or t + lag == stream.exchange.last_read


def read_in_c(owner: Owner, count: int) -> None:
    """Look until the reader itself has read so many sockets that were ready."""
    deadline, reads = time.monotonic() + LONG_S, 0
    while reads < count:
        assert time.monotonic() < deadline
        owner.look(NS_PER_MS)
        reads += owner.reader.reads
    assert owner.reads_in_python == 0


def test_tokens_are_a_run_that_stands_behind_all_that_came_before_it() -> None:
    with armed() as (owner, (stream,)):
        exchange = stream.exchange
        stream.server.sendall(framed(EVENT) * 3)
        read_in_c(owner, 1)
        assert not owner.pieces
        assert exchange.run is not None
        assert len(exchange.run) == 3
        assert exchange.token_seen
        assert exchange.heard == exchange.run.read <= now_ns()
        stream.server.sendall(framed(b": comment\n\n") + framed(EVENT))
        read_in_c(owner, 1)
        assert [len(data) for *_, data in owner.pieces] == [3, len(b": comment\n\n")]
        assert len(exchange.run) == 1
        owner.backlog.finish(exchange, now_ns())
        assert exchange.run is None
        assert [data is None or len(data) for *_, data in owner.pieces][2:] == [1, True]


def test_an_event_is_no_token_while_the_one_before_it_is_incomplete() -> None:
    with armed() as (owner, (stream,)):
        for data in (framed(EVENT), framed(b"data: x"), framed(EVENT), framed(EVENT)):
            stream.server.sendall(data)
            read_in_c(owner, 1)
        kept = [len(data) if not isinstance(data, bytes) else data for *_, data in owner.pieces]
        assert kept == [1, b"data: x", EVENT]
        assert stream.exchange.run is not None
        assert len(stream.exchange.run) == 1


def test_a_run_goes_on_over_a_read_that_was_left_to_the_connection_and_gave_nothing() -> None:
    with armed() as (owner, (stream,)):
        stream.server.sendall(framed(EVENT))
        read_in_c(owner, 1)
        run, fd = stream.exchange.run, next(iter(owner.poller.handlers))
        owner.reader.disarm(fd)
        owner.reader.arm(fd, stream.connection, stream.exchange, True, True)
        stream.server.sendall(framed(EVENT))
        read_in_c(owner, 1)
        assert stream.exchange.run is run
        assert run is not None
        assert len(run) == 2


@pytest.mark.parametrize("kind", [b"application/json", b"text/plain"])
def test_an_answer_that_is_no_event_stream_has_no_run(kind: bytes) -> None:
    with streams(1) as (owner, (stream,)):
        stream.server.sendall(HEAD.replace(b"text/event-stream", kind) + framed(EVENT))
        owner.look_until(1)
        owner.reads_in_python = 0
        stream.server.sendall(framed(EVENT))
        read_in_c(owner, 1)
        assert [data for *_, data in owner.pieces] == [EVENT, EVENT]
        assert stream.exchange.run is None


@pytest.mark.parametrize(
    "data",
    [
        framed(EVENT)[:-1],  # the rest is still to come
        framed(EVENT) + b"5",
        b"0\r\n\r\n",
        framed(EVENT) + b"0\r\n\r\n",
        b"5;x=y\r\nhello\r\n",
        b"zz\r\n",
        framed(b"x" * (READ_SIZE - 8)),  # as much as a read takes
    ],
)
def test_what_is_not_whole_chunks_is_left_to_the_connection(data: bytes) -> None:
    with armed() as (owner, (stream,)):
        stream.server.sendall(data)
        deadline = time.monotonic() + LONG_S
        while not owner.reads_in_python:
            assert time.monotonic() < deadline
            owner.look(NS_PER_MS)


def test_after_an_unusual_read_it_is_ordinary_again() -> None:
    with armed() as (owner, (stream,)):
        stream.server.sendall(framed(EVENT)[:10])
        while not owner.reads_in_python:
            owner.look(NS_PER_MS)
        stream.server.sendall(framed(EVENT)[10:])
        owner.look_until(2)
        unusual, owner.reads_in_python = owner.reads_in_python, 0
        stream.server.sendall(framed(b"x"))
        owner.look_until(3)
        assert unusual == 2
        assert owner.reads_in_python == 0
        assert b"".join(data for *_, data in owner.pieces) == EVENT + b"x"


def test_an_arrival_is_never_before_the_last_on_the_connection() -> None:
    with armed() as (owner, (stream,)):
        fd, late = next(iter(owner.poller.handlers)), now_ns() + NS_PER_S
        stream.connection.last = late
        owner.reader.arm(fd, stream.connection, stream.exchange, True, True)
        stream.server.sendall(framed(b"x"))
        owner.look_until(1)
        assert owner.reads_in_python == 0
        assert owner.pieces[0][1] == late
        stream.connection.last = 0
        stream.server.sendall(b"5")
        while not owner.reads_in_python:
            owner.look(NS_PER_MS)
        assert stream.connection.last == late, "told with what is handed back"


@pytest.mark.usefixtures("stamping")
@pytest.mark.parametrize("step", [-3600 * NS_PER_S, 3600 * NS_PER_S])
def test_a_stamp_that_cannot_be_true_is_left_to_the_clock(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with armed() as (owner, (stream,)):
        before = now_ns()
        monkeypatch.setattr(owner.clock, "_offset", owner.clock.offset(before) + step)
        monkeypatch.setattr(owner.clock, "_renewed", before + round(LONG_S) * NS_PER_S)
        stream.server.sendall(framed(b"x"))
        owner.look_until(1)
        assert owner.reads_in_python == 1
        assert before - NS_PER_MS <= owner.pieces[0][1] <= now_ns()


def test_an_error_of_a_read_is_the_connections_to_tell() -> None:
    class Told:
        last, last_read, run = 0, None, None
        taken: OSError | None = None

    owner, told = Owner(), Told()
    ours, theirs = os.pipe()  # ready, but nothing that recvmsg can read
    owner.poller.add(ours, 1, Connection(owner, (0, None), None, ""))
    owner.reader.arm(ours, told, told, True, True)
    os.write(theirs, b"x")
    assert owner.reader.gather(0, 0, 0, 0, NEVER_NS, NEVER_NS) == [(ours, 1)]
    assert isinstance(told.taken, OSError)
    assert "socket" in str(told.taken)
    owner.poller.close()
    os.close(ours)
    os.close(theirs)


def test_a_closed_connections_descriptor_may_be_used_again() -> None:
    with armed() as (owner, (old,)), socket.create_server(("127.0.0.1", 0)) as listener:
        fd = next(iter(owner.poller.handlers))
        held = sys.getrefcount(old.exchange)
        old.connection.close()
        left = sys.getrefcount(old.exchange)
        assert left == held - 2  # neither the connection nor the reader has it
        new = Stream(owner, listener)
        assert list(owner.poller.handlers) == [fd]
        new.server.sendall(framed(EVENT))  # ordinary only for the old one
        while new.exchange not in owner.heard:
            owner.look(NS_PER_MS)
        assert "status line" in owner.heard[new.exchange]
        assert [data for *_, data in owner.pieces] == [None]
        new.server.close()


def test_a_request_that_counts_its_tokens_as_they_come_is_never_armed() -> None:
    with streams(1, cancel_after_tokens=3) as (owner, (stream,)):
        stream.server.sendall(HEAD + framed(EVENT))
        owner.look_until(1)
        before = owner.reads_in_python
        stream.server.sendall(framed(EVENT))
        owner.look_until(2)
        assert owner.reads_in_python == before + 1


# Rounds


def wait_for_data(made: Sequence[Stream]) -> None:
    """The kernel has what was sent."""
    for stream in made:
        stream.connection._sock.settimeout(LONG_S)
        stream.connection._sock.recv(1, socket.MSG_PEEK)
        stream.connection._sock.settimeout(0)


def test_a_round_ends_early_when_a_request_is_due_and_what_it_left_has_not_been_looked_at() -> None:
    with armed(40) as (owner, made):
        for stream in made:
            stream.server.sendall(framed(b"x"))
        wait_for_data(made)
        owner.look(due=0)
        looked = owner.reader.looked
        assert owner.reader.reads == len(owner.pieces) == 16
        owner.look(due=0)
        assert owner.reader.looked == looked
        owner.look(due=0)
        owner.look(due=0)
        assert len(owner.pieces) == 40
        assert owner.reader.idle
        assert owner.reader.looked > looked


def test_rounds_go_on_until_nothing_comes_or_enough_has() -> None:
    with armed(2) as (owner, (one, two)):
        one.server.sendall(framed(b"x"))
        wait_for_data([one])
        owner.look(until=NEVER_NS)  # a second look found nothing
        assert owner.reader.idle
        assert (owner.reader.reads, owner.reader.size, len(owner.pieces)) == (1, 1, 1)
        one.server.sendall(framed(b"x"))
        two.server.sendall(framed(b"y"))
        wait_for_data([one, two])
        owner.look(until=NEVER_NS, most=2)
        assert not owner.reader.idle
        assert owner.reader.reads == 2


def test_no_round_waits_beyond_the_time_until_which_rounds_go_on() -> None:
    with armed() as (owner, (stream,)):
        stream.server.sendall(framed(EVENT))
        wait_for_data([stream])
        # The first round reads at once; were the next to wait as long as the first might have, it would be for LONG_S.
        began = now_ns()
        owner.look(round(LONG_S * NS_PER_S), until=began + 50 * NS_PER_MS)
        assert now_ns() - began < LONG_S * NS_PER_S
        assert stream.exchange.run is not None


def test_pieces_count_as_reads_do() -> None:
    with armed() as (owner, (stream,)):
        stream.server.sendall(framed(b"x") * 9)
        wait_for_data([stream])
        owner.look(until=NEVER_NS, most=5)
        assert (len(owner.pieces), owner.reader.idle) == (9, False), "no further round was begun"


@pytest.mark.parametrize("how", ["close", "reset"])
def test_what_was_stamped_last_is_told_also_with_the_end_of_a_connection(how: str) -> None:
    with armed() as (owner, (stream,)):
        fd, late = next(iter(owner.poller.handlers)), now_ns() + NS_PER_S
        stream.connection.last = late
        owner.reader.arm(fd, stream.connection, stream.exchange, True, True)
        stream.connection.last = 0
        stream.server.sendall(framed(EVENT))
        stream.end(how)
        while stream.exchange not in owner.heard:
            owner.look(NS_PER_MS)
        assert stream.connection.last == late


def test_a_signal_is_heard_while_nothing_comes() -> None:
    def hear(*_: Any) -> None:
        raise InterruptedError

    def look_and_be_called(owner: Owner, **asked: int) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        owner.look(**asked)

    before = signal.signal(signal.SIGALRM, hear)
    try:
        with armed() as (owner, _):
            for asked in ({"timeout": int(LONG_S * NS_PER_S)}, {"rest": int(LONG_S * NS_PER_S)}):
                with pytest.raises(InterruptedError):
                    look_and_be_called(owner, **asked)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_connections_that_are_closed_under_a_round_are_not_read() -> None:
    with armed(3) as (owner, made):
        told: list[Any] = []

        def close_all(entry: Any) -> None:
            told.append(entry)
            for stream in made:
                stream.connection.close()

        owner.reader = reader_for(owner.poller, close_all, SLACK_NS)
        streams_by_connection = {stream.connection: stream for stream in made}
        for fd, connection in owner.poller.handlers.items():
            assert isinstance(connection, Connection)
            owner.reader.arm(fd, connection, streams_by_connection[connection].exchange, True, True)
        for stream in made:
            stream.server.sendall(framed(b"x") + framed(b"y"))
        wait_for_data(made)
        owner.look()
        assert [data for *_, data in told] == [b"x", b"y"]
        assert owner.reads_in_python == 2
        assert not owner.poller.handlers


def test_nothing_is_held_that_was_given_on() -> None:
    with armed() as (owner, (stream,)):
        before = sys.getrefcount(stream.exchange), sys.getrefcount(stream.connection)
        for number in range(1, 51):
            stream.server.sendall(framed(b"x" * number))
            owner.look_until(1)
            owner.pieces.clear()
        after = sys.getrefcount(stream.exchange), sys.getrefcount(stream.connection)
        assert after == before
