"""One connection to the server: opening it, TLS, writing a request, reading what comes with its arrival stamp."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from enum import Enum, auto
from typing import Any, Protocol, TypeAlias

from harness.load import stamps
from harness.load.exchange import Exchange
from harness.load.http import ProtocolError, ResponseDecoder
from harness.load.poller import ERROR, READ, WRITE, Poller
from harness.load.reader import READ_SIZE, Reader
from harness.load.stamps import CONTROL_SIZE, ReceiveClock
from harness.load.tls import Tls
from results.clock import now_ns

Address = tuple[int, Any]  # family, sockaddr
# What came of one read: the bytes, control messages, and when it was read (ns).
Taken: TypeAlias = tuple[bytes, list[tuple[int, int, bytes]], int]


class Owner(Protocol):
    """What a connection tells its client."""

    poller: Poller
    reader: Reader
    clock: ReceiveClock

    def opened(self, connection: Connection) -> None: ...

    def received(self, exchange: Exchange, t: int, lag: int | None, data: bytes) -> None: ...

    def answered(self, connection: Connection, exchange: Exchange, t: int) -> None: ...

    def satisfied(self, connection: Connection, exchange: Exchange, t: int) -> None: ...

    def lost(self, connection: Connection, why: str) -> None: ...


class _State(Enum):
    CONNECTING = auto()
    HANDSHAKE = auto()
    OPEN = auto()
    CLOSED = auto()


# Looked up once: `handle` and what it calls run for every token.
_OPEN = _State.OPEN
_READ_OR_ERROR = READ | ERROR


class Connection:
    """A non-blocking socket in the client's poller. Serves one exchange at a time, which may be given before it is open.

    `reused` says that it was open before its request came; `opened_at` is when it became ready. Every way of ending is
    reported once to the owner's `lost`, except `close`, which is the owner's own doing.

    While it is armed, the reader reads for it: it moves the exchange's `last_read` and `run` on, and leaves in `taken` what it
    could not make sense of, or the error it met, and in `last` what it stamped last.
    """

    def __init__(self, owner: Owner, address: Address, tls: ssl.SSLContext | None, host: str) -> None:
        self.owner = owner
        self.exchange: Exchange | None = None
        self.reused = False
        self.opened_at: int | None = None
        self.kernel_stamps = False
        self.last = 0  # arrivals on one connection never go back
        self.taken: Taken | OSError | None = None
        self._address = address
        self._tls = Tls(tls, host) if tls is not None else None
        self._out: list[memoryview] = []
        self._decoder = ResponseDecoder()
        self._answered_before = False
        self._more = False  # the last read was full, so the next may find older data
        self._state = _State.CONNECTING
        self._mask = 0

    def open(self) -> None:
        """Begin to connect; the owner hears `opened` or `lost`."""
        family, sockaddr = self._address
        try:
            self._sock = socket.socket(family, socket.SOCK_STREAM)
            self._sock.setblocking(False)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.kernel_stamps = stamps.enable(self._sock)
            code = self._sock.connect_ex(sockaddr)
        except OSError as error:
            self._lost(_words(error))
            return
        self._recvmsg = self._sock.recvmsg
        if code not in (0, errno.EINPROGRESS):
            self._lost(os.strerror(code))
            return
        self._watch(WRITE)

    @property
    def is_open(self) -> bool:
        return self._state is _State.OPEN

    @property
    def closed(self) -> bool:
        return self._state is _State.CLOSED

    def close(self) -> None:
        """End it without a word to the owner."""
        if self._state is _State.CLOSED:
            return
        self._state = _State.CLOSED
        self.exchange = None
        self._out = []
        if hasattr(self, "_sock"):
            if self._mask:
                self.owner.reader.disarm(self._sock.fileno())
                self.owner.poller.remove(self._sock.fileno())
                self._mask = 0
            self._sock.close()

    def send(self, exchange: Exchange, head: bytes, body: memoryview) -> None:
        """Write a request: now if the connection is open, else as soon as it is."""
        self.exchange = exchange
        self.reused = self.opened_at is not None
        self._answered_before = self._decoder.done
        self._decoder = ResponseDecoder()
        self._out = [memoryview(head), body]
        if self._state is _State.OPEN:
            self._flush()

    @property
    def fully_sent(self) -> bool:
        return not self._out and (self._tls is None or not self._tls.pending)

    def handle(self, mask: int) -> None:
        """The poller says the socket is ready."""
        if self._state is _OPEN:
            if mask & _READ_OR_ERROR:
                self._read()
            if mask & WRITE and self._state is _OPEN:
                self._flush()
        elif self._state is _State.CONNECTING:
            self._finish_connect()
        elif self._state is _State.HANDSHAKE:
            self._handshake(mask)

    def _watch(self, mask: int) -> None:
        if mask == self._mask:
            return
        if self._mask:
            self.owner.poller.change(self._sock.fileno(), mask)
        else:
            self.owner.poller.add(self._sock.fileno(), mask, self)
        self._mask = mask

    def _finish_connect(self) -> None:
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._lost(os.strerror(code))
        elif self._tls is not None:
            self._state = _State.HANDSHAKE
            self._handshake(0)
        else:
            self._ready()

    def _handshake(self, mask: int) -> None:
        assert self._tls is not None
        try:
            if mask & (READ | ERROR):
                data = self._sock.recv(READ_SIZE)
                if not data:
                    self._lost("the connection was closed during the TLS handshake")
                    return
                self._tls.incoming.write(data)
            done = self._tls.handshake()
            self._send_tls()
        except BlockingIOError:
            return
        except ssl.SSLCertVerificationError as error:
            self._lost(f"TLS: the certificate was not accepted: {error.verify_message}")
        except ssl.SSLError as error:
            self._lost(f"TLS: {error.reason or error}")
        except OSError as error:
            self._lost(_words(error))
        else:
            if done:
                self._ready()

    def _ready(self) -> None:
        self._state = _State.OPEN
        self.opened_at = now_ns()
        self._watch(READ)
        self.owner.opened(self)
        if self._state is _State.OPEN and self._out:
            self._flush()

    def _flush(self) -> None:
        """Hand the request to the kernel; what does not fit waits for the socket."""
        try:
            # Stamped before the call that hands over the last byte, not after: on one machine the answer can be there
            # before that call returns, and a client that was put aside in between would swallow the server's time.
            handed = now_ns()
            if self._tls is not None:
                for view in self._out:
                    self._tls.write(view)
                self._out = []
                self._send_tls()
                if self._tls.pending:
                    return
            while self._out:
                handed = now_ns()
                count = self._sock.sendmsg(self._out)
                while self._out and count >= len(self._out[0]):
                    count -= len(self._out.pop(0))
                if self._out:
                    self._out[0] = self._out[0][count:]
        except BlockingIOError:
            self._watch(READ | WRITE)
            return
        except OSError as error:
            self._send_failed(error)
            return
        if self.exchange is not None and self.exchange.sent is None:
            self.exchange.sent = handed
        self._watch(READ)

    def _send_tls(self) -> None:
        """Move encrypted bytes to the socket."""
        assert self._tls is not None
        try:
            while self._tls.pending:
                count = self._sock.send(self._tls.pending)
                self._tls.pending = self._tls.pending[count:]
        except BlockingIOError:
            pass
        self._watch(READ | WRITE if self._tls.pending else READ)

    def _send_failed(self, error: OSError) -> None:
        """The server does not read on. It may have answered already (413, 401): read that before giving up."""
        self._watch(READ)
        self._read()
        if self._state is _State.OPEN and self.exchange is not None and self._decoder.head is None:
            self._lost(_words(error))

    def _take(self) -> Taken:
        """Read the socket, unless the reader has. Raises OSError."""
        taken = self.taken
        if taken is None:
            data, control, _, _ = self._recvmsg(READ_SIZE, CONTROL_SIZE)
            return data, control, now_ns()
        self.taken = None
        if isinstance(taken, OSError):
            raise taken
        return taken

    def _read(self) -> None:
        try:
            data, control, now = self._take()
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(_words(error))
            return
        owner = self.owner
        t, lag = owner.clock.arrival(control, now, 0 if self._more else owner.reader.looked)
        if t < self.last:
            t = self.last
        self.last = t
        self._more = len(data) == READ_SIZE
        exchange = self.exchange
        if not data:
            self._end_of_stream(t)
            return
        if self._tls is not None:
            try:
                data = self._tls.decrypt(data)
            except ssl.SSLError as error:
                self._lost(f"TLS: {error.reason or error}")
                return
            if not data:
                return
        if exchange is None:
            self._lost("the server spoke out of turn")
            return
        if exchange.first_byte is None:
            exchange.first_byte = t
        exchange.last_read = now
        decoder = self._decoder
        try:
            pieces = decoder.feed(data)
        except ProtocolError as error:
            if self._answered_before and decoder.head is None:
                exchange.first_byte = None  # the rest of the answer before: nothing of this one has come
            self._lost(str(error))
            return
        if exchange.head is None:
            exchange.head = decoder.head
        for piece in pieces:
            owner.received(exchange, t, lag, piece)
        if decoder.done:
            owner.answered(self, exchange, t)
        elif exchange.cancel_after is not None:
            if exchange.tokens_seen >= exchange.cancel_after:
                owner.satisfied(self, exchange, t)
        elif decoder.between_chunks and self._tls is None and self._mask == READ and not self._more:
            whole = bool(pieces) and pieces[-1].endswith(b"\n\n")
            owner.reader.arm(self._sock.fileno(), self, exchange, exchange.is_events, whole)

    def _end_of_stream(self, t: int) -> None:
        exchange, decoder = self.exchange, self._decoder
        decoder.end_of_stream()
        if exchange is not None and decoder.done:
            self.owner.answered(self, exchange, t)
        else:
            self._lost(f"the server closed the connection {decoder.missing}".rstrip())

    @property
    def reusable(self) -> bool:
        """After an answer: may another request follow on this connection?"""
        head = self._decoder.head
        return bool(
            self._state is _State.OPEN
            and head is not None
            and head.keep_alive
            and not self._decoder.ends_with_connection
            and not self._decoder.excess
            and self.fully_sent
        )

    @property
    def patience_s(self) -> int | None:
        """How long (s) the server will let it idle after the answer it gave, where that is known."""
        return self._decoder.head.patience_s if self._decoder.head is not None else None

    def _lost(self, why: str) -> None:
        exchange = self.exchange
        self.close()
        self.exchange = exchange
        self.owner.lost(self, why)
        self.exchange = None


def _words(error: OSError) -> str:
    return error.strerror or str(error)
