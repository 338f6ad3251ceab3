"""One client's connection at the truth server: its requests in order, and what is still to be written to it."""

from __future__ import annotations

import select
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.load import stamps
from harness.load.stamps import CONTROL_SIZE, ReceiveClock
from results.clock import now_ns
from results.schema import REQUEST_ID_HEADER

if TYPE_CHECKING:
    from harness.truth.stream import Stream

_READ_SIZE = 256 * 1024
_MAX_HEAD = 64 * 1024
_ID = REQUEST_ID_HEADER.encode()


class BadRequestError(Exception):
    """What came is no HTTP request that can be answered."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, and when its last byte came in (by the kernel's stamp where there is one)."""

    method: bytes
    path: str
    id: str | None
    body: bytes
    received: int


class Connection:
    """A non-blocking socket. `stream` is the answer being sent; a request behind it waits in the buffer."""

    __slots__ = (
        "_buffer",
        "_clock",
        "_epoll",
        "_pending",
        "_received",
        "fd",
        "looked",
        "open",
        "sock",
        "stream",
        "used",
    )

    def __init__(self, sock: socket.socket, epoll: select.epoll, clock: ReceiveClock) -> None:
        self.sock, self._epoll, self._clock = sock, epoll, clock
        self.fd = sock.fileno()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stamps.enable(sock)
        epoll.register(self.fd, select.EPOLLIN)
        self._buffer = b""
        self._pending = b""
        self._received = 0
        self.stream: Stream | None = None
        self.open = True
        self.used = self.looked = now_ns()

    def read(self) -> bool:
        """Take what came; False when the client is gone."""
        try:
            data, control, _, _ = self.sock.recvmsg(_READ_SIZE, CONTROL_SIZE)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        now = now_ns()
        # A stamp from before this connection was there cannot be; more than that a server that is late cannot say.
        self._received = max(self._received, self._clock.arrival(control, now, self.looked)[0])
        self._buffer += data
        self.used = now
        return True

    def next_request(self) -> Request | None:
        """The next whole request, or None. Raises BadRequestError."""
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(buffer) > _MAX_HEAD:
                raise BadRequestError("the head of the request is too long")
            return None
        first, *lines = buffer[:end].split(b"\r\n")
        words = first.split(b" ")
        if len(words) != 3:
            raise BadRequestError("the first line is not that of a request")
        length, name = 0, None
        for line in lines:
            key, _, value = line.partition(b":")
            key = key.strip().lower()
            if key == b"content-length":
                if not value.strip().isdigit():
                    raise BadRequestError("content-length is not a number")
                length = int(value)
            elif key == b"transfer-encoding":
                raise BadRequestError("a request's body needs a content-length here")
            elif key == _ID:
                name = value.strip().decode("latin-1")
        if len(buffer) < end + 4 + length:
            return None
        body = buffer[end + 4 : end + 4 + length]
        self._buffer = buffer[end + 4 + length :]
        return Request(words[0], words[1].decode("latin-1").partition("?")[0], name, body, self._received)

    def write(self, data: bytes) -> bool:
        """Hand over `data`; what the kernel does not take waits. False when it took all at once. Raises OSError."""
        if self._pending:
            self._pending += data
            return True
        try:
            count = self.sock.send(data)
        except BlockingIOError:
            count = 0
        if count == len(data):
            return False
        self._pending = data[count:]
        self._epoll.modify(self.fd, select.EPOLLIN | select.EPOLLOUT)
        return True

    def flush(self) -> None:
        """The socket takes data again. Raises OSError."""
        try:
            self._pending = self._pending[self.sock.send(self._pending) :]
        except BlockingIOError:
            return
        if not self._pending:
            self._epoll.modify(self.fd, select.EPOLLIN)

    def close(self, *, reset: bool = False) -> None:
        """End it, with a reset if that is wanted."""
        if self.open:
            self.open = False
            if reset:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._epoll.unregister(self.fd)
            self.sock.close()
