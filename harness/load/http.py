"""HTTP/1.1 framing: the head of a request, the head of an answer, and where the body of an answer ends.

Only framing happens while a run is measured. The decoder is incremental: it accepts any fragmentation, keeps no more
than a line of its own, and hands the body on in pieces of what was read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache

from harness.load.plan import LoadPlan, RequestPlan
from results.schema import REQUEST_ID_HEADER

MAX_HEAD_BYTES = 64 * 1024
_MAX_SIZE_LINE = 4096
_MAX_LENGTH_DIGITS = 18
_STATUS = re.compile(r"[0-9]{3}")
_match_size = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n").match
_KEEP_TIMEOUT = re.compile(r"(?:^|[\s,;])timeout\s*=\s*([0-9]{1,6})", re.IGNORECASE)
# Servers that do not say how long they let a connection idle, and how long they do (s) unless told otherwise.
_PATIENCE_S = {"uvicorn": 5}
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


@lru_cache(maxsize=4096)
def _size_line(length: int) -> bytes:
    """The line before a chunk that fills a read of `length` bytes, as most servers write it; for a length that cannot be one,
    what no size line begins with."""
    for digits in range(1, 9):
        size = length - digits - 4
        if size > 0 and len(f"{size:x}") == digits:
            return b"%x\r\n" % size
    return b"\n"


class ProtocolError(Exception):
    """What came is not HTTP/1.x as this client understands it."""


def request_head(plan: LoadPlan, request: RequestPlan, key: str | None) -> bytes:
    """The head of one POST. No compression: it would hold tokens back and cost the client time."""
    lines = [
        f"POST {plan.target.base}{plan.path} HTTP/1.1",
        f"Host: {plan.target.authority}",
        "User-Agent: llm-dyno",
        f"Accept: {'text/event-stream' if plan.stream else 'application/json'}",
        "Accept-Encoding: identity",
        "Content-Type: application/json",
        f"Content-Length: {request.length}",
        f"{REQUEST_ID_HEADER}: {request.id}",
    ]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


@dataclass(slots=True)
class Head:
    """Status line and headers (names in lower case; repeated ones joined by a comma)."""

    status: int
    minor: int
    headers: dict[str, str] = field(default_factory=dict)

    def tokens(self, name: str) -> list[str]:
        """A comma-separated header as lower-case words."""
        return [word.strip().lower() for word in self.headers.get(name, "").split(",") if word.strip()]

    @property
    def keep_alive(self) -> bool:
        connection = self.tokens("connection")
        if self.minor == 0:
            return "keep-alive" in connection
        return "close" not in connection

    @property
    def patience_s(self) -> int | None:
        """How long (s) the server lets a connection idle, where that is known."""
        told = _KEEP_TIMEOUT.search(self.headers.get("keep-alive", ""))
        return int(told[1]) if told else _PATIENCE_S.get(self.headers.get("server", "").lower())


def parse_head(block: bytes) -> Head:
    """Parse a head without its final blank line. Raises ProtocolError."""
    lines = block.decode("latin-1").split("\n")
    words = lines[0].rstrip("\r").split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not _STATUS.fullmatch(words[1]):
        raise ProtocolError(f"the answer does not begin with an HTTP/1.x status line: {lines[0][:80]!r}")
    head = Head(int(words[1]), 0 if words[0] == "HTTP/1.0" else 1)
    for line in lines[1:]:
        name, colon, value = line.rstrip("\r").partition(":")
        if not colon or not name or name != name.strip():
            raise ProtocolError(f"a header line without a name: {line[:80]!r}")
        name, value = name.lower(), value.strip()
        head.headers[name] = f"{head.headers[name]}, {value}" if name in head.headers else value
    return head


class _State(Enum):
    HEAD = auto()
    LENGTH = auto()  # `_left` bytes of a body of known length
    CLOSE = auto()  # a body that ends with the connection
    SIZE = auto()  # the size line of a chunk
    DATA = auto()  # `_left` bytes of a chunk
    DATA_END = auto()  # the line end after a chunk
    TRAILER = auto()  # after the last chunk, up to a blank line
    DONE = auto()


class ResponseDecoder:
    """One answer. `feed` gives the body pieces of a read; `done` says the answer has ended; `head` comes first.

    `excess` holds bytes that came after the end (a server that speaks out of turn: do not reuse the connection).
    """

    __slots__ = ("_buffer", "_left", "_searched", "_state", "ends_with_connection", "excess", "head")

    def __init__(self) -> None:
        self.head: Head | None = None
        self.excess = b""
        self.ends_with_connection = False
        self._state = _State.HEAD
        self._buffer = b""
        self._searched = 0
        self._left = 0

    @property
    def done(self) -> bool:
        return self._state is _State.DONE

    @property
    def missing(self) -> str:
        """What was still to come, in words, when the connection ends now; empty when nothing was."""
        if self._state in (_State.DONE, _State.CLOSE):
            return ""
        if self._state is _State.HEAD:
            return "before the head of the answer was complete"
        if self._state is _State.LENGTH:
            return f"with {self._left} bytes of the body still to come"
        return "before the last chunk of the body"

    @property
    def between_chunks(self) -> bool:
        """What comes next begins with the size line of a chunk, or ends the body."""
        return self._state is _State.SIZE and not self._buffer

    def end_of_stream(self) -> None:
        """The connection was closed properly: the end of a body without a length of its own."""
        if self._state is _State.CLOSE:
            self._state = _State.DONE

    def feed(self, data: bytes) -> list[bytes]:
        """Take what was read; the pieces of body in it. Raises ProtocolError."""
        # The common case by far: between two chunks, and the read is exactly one chunk (one event of a stream).
        if self.between_chunks:
            line = _size_line(len(data))
            if data.startswith(line) and data.endswith(b"\r\n"):
                return [data[len(line) : -2]]
            return self._feed_chunks(data)
        return self._feed(data)

    def _feed_chunks(self, data: bytes) -> list[bytes]:
        """A read that begins with a chunk: the whole ones in a quick way, what follows them with care."""
        pieces, position, length = [], 0, len(data)
        while (found := _match_size(data, position)) is not None:
            start = found.end()
            end = start + int(found[1], 16)
            if end == start or end + 2 > length or data[end : end + 2] != b"\r\n":
                break
            pieces.append(data[start:end])
            position = end + 2
        if position < length:
            pieces += self._feed(data[position:] if position else data)
        return pieces

    def _feed(self, data: bytes) -> list[bytes]:
        pieces: list[bytes] = []
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        position, size = 0, len(data)
        while position < size or self._state is _State.DONE:
            state = self._state
            if state is _State.DONE:
                self.excess += data[position:]
                break
            if state in (_State.LENGTH, _State.DATA):
                piece = data[position : position + self._left]
                pieces.append(piece)
                position += len(piece)
                self._left -= len(piece)
                if self._left == 0:
                    self._state = _State.DONE if state is _State.LENGTH else _State.DATA_END
            elif state is _State.CLOSE:
                pieces.append(data[position:])
                break
            else:
                after = self._line(data, position)
                if after is None:
                    break
                position = after
        return pieces

    def _line(self, data: bytes, position: int) -> int | None:
        """Take the head, a size line, a chunk's end or a trailer line at `position`; where it ends, or None when more
        bytes are needed (they are kept)."""
        if self._state is _State.HEAD:
            return self._take_head(data, position)
        line_end = data.find(b"\n", position)
        if line_end < 0:
            if len(data) - position > _MAX_SIZE_LINE:
                raise ProtocolError(f"a line of the chunked framing is longer than {_MAX_SIZE_LINE} bytes")
            self._buffer = data[position:]
            return None
        line = data[position:line_end].rstrip(b"\r")
        if self._state is _State.SIZE:
            self._left = _chunk_size(line)
            self._state = _State.DATA if self._left else _State.TRAILER
        elif self._state is _State.DATA_END:
            if line:
                raise ProtocolError("a chunk is longer than its size said")
            self._state = _State.SIZE
        elif not line:  # the blank line after the trailers
            self._state = _State.DONE
        return line_end + 1

    def _take_head(self, data: bytes, position: int) -> int | None:
        start = position
        # A blank line before the status line is tolerated, as the standard asks of a careful reader.
        while data.startswith(b"\r\n", start):
            start += 2
        found = _BLANK_LINE.search(data, max(start, self._searched))
        if found is None:
            if len(data) - start > MAX_HEAD_BYTES:
                raise ProtocolError(f"the head of the answer is longer than {MAX_HEAD_BYTES} bytes")
            self._buffer = data[start:]
            self._searched = max(0, len(self._buffer) - 3)
            return None
        self._searched = 0
        self._begin_body(parse_head(data[start : found.start()]))
        return found.end()

    def _begin_body(self, head: Head) -> None:
        if head.status == 101:
            raise ProtocolError("the server switched protocols without being asked")
        if head.status < 200:  # an interim answer: the real one follows
            return
        self.head = head
        codings = head.tokens("transfer-encoding")
        length = head.headers.get("content-length")
        if head.status in (204, 304):
            self._state = _State.DONE
        elif codings:
            if codings != ["chunked"]:
                raise ProtocolError(f"transfer-encoding {', '.join(codings)!r} is not understood")
            self._state = _State.SIZE
        elif length is not None:
            values = {value.strip() for value in length.split(",")}
            text = values.pop()
            if values or not (text.isascii() and text.isdigit()) or len(text) > _MAX_LENGTH_DIGITS:
                raise ProtocolError(f"content-length {length[:40]!r} is not a number of bytes")
            self._left = int(text)
            self._state = _State.LENGTH if self._left else _State.DONE
        else:
            self._state = _State.CLOSE
            self.ends_with_connection = True


def _chunk_size(line: bytes) -> int:
    """The size in a chunk's first line, extensions ignored. Raises ProtocolError."""
    digits = line.partition(b";")[0].strip()
    try:
        if digits[:1] in (b"+", b"-") or b"_" in digits:
            raise ValueError
        return int(digits, 16)
    except ValueError:
        raise ProtocolError(f"{line[:40]!r} is not the size of a chunk") from None
