"""What a stream of server-sent events said: a pure function of its bytes and their arrival.

Bytes are cut at line ends (LF, CR LF, CR) and only whole lines are decoded, so no fragmentation changes the answer. A
chunk's time is the arrival of the read that completes its event.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import orjson
from orjson import loads

from harness.load.completion import CompletionReader, StreamResult, error_text, is_error, shorten
from harness.load.run import NoRun, Run, new_run
from results.schema import ChunkKind

MAX_EVENT_BYTES = 64 * 1024 * 1024
_NOT_JSON = object()
_LF, _CR = 10, 13  # looked for as numbers: much cheaper than as bytes


def parse_stream(reads: Iterable[tuple[int, int | None, bytes]], *, keep_text: bool = False) -> StreamResult:
    """The whole of a stream from its reads (arrival, lag, bytes)."""
    parser = StreamParser(keep_text=keep_text)
    for t, lag, data in reads:
        parser.feed(t, lag, data)
    return parser.finish()


class StreamParser:
    """The same, bit by bit: `feed` each read, then `finish`. Holds one event's bytes at most (`MAX_EVENT_BYTES`)."""

    __slots__ = ("_data", "_event", "_held", "_parts", "_reader", "_run", "_skip_lf", "_take")

    def __init__(self, *, keep_text: bool = False) -> None:
        self._reader = CompletionReader(keep_text=keep_text)
        self._take = self._reader.take
        self._run = NoRun() if keep_text else new_run()
        self._parts: list[bytes] = []  # pieces of an incomplete line
        self._held = 0  # bytes of the incomplete event
        self._data: list[bytes] = []  # complete data lines of the event
        self._event = b""
        self._skip_lf = False  # the last byte was CR: a LF that follows belongs to it

    def feed(self, t: int, lag: int | None, data: bytes) -> None:
        """Take one read: bytes that arrived at `t`."""
        # The common case: one whole event of one line, and nothing left over from before.
        whole = not self._held and not self._skip_lf
        if whole and self._run.take(t, lag, data):
            return
        self._reader.take_run(self._run)
        if whole and data.find(_LF) == len(data) - 2 and data[-1] == _LF and data[:6] == b"data: " and _CR not in data:
            data = data[6:-2]
            try:
                message = loads(data)
                ordinary = "error" not in message and message.get("object") != "error"
            except (ValueError, AttributeError, TypeError):
                ordinary = False
            if not ordinary:
                self._dispatch(t, lag, data, b"")
                return
            try:  # `_message`, without the price of a call a token
                self._take(t, lag, message, len(data))
            except (AttributeError, TypeError):
                self._unknown_shape(t, lag, data)
        else:
            self._feed_lines(t, lag, data)

    def take_run(self, run: Run) -> None:
        """Events that were read as a run. Nothing incomplete may be left from before."""
        self._reader.take_run(self._run)
        self._reader.take_run(run)

    def _feed_lines(self, t: int, lag: int | None, data: bytes) -> None:
        if self._skip_lf and data:
            data = data.removeprefix(b"\n")
            self._skip_lf = False
        if b"\r" in data:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not data:
            return
        self._held += len(data)
        if b"\n" not in data:
            if self._held > MAX_EVENT_BYTES:
                self._too_large(t, lag)
            else:
                self._parts.append(data)
            return
        if self._parts:
            self._parts.append(data)
            data = b"".join(self._parts)
            self._parts = []
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._line(t, lag, line)
        if rest:
            self._parts.append(rest)
        # A data line counts with its end: one without a value is a part of the event as well.
        self._held = len(rest) + sum(map(len, self._data)) + len(self._data) + len(self._event)
        if self._held > MAX_EVENT_BYTES:
            self._too_large(t, lag)

    def _too_large(self, t: int, lag: int | None) -> None:
        """Keep the memory bounded: the event is given up, and the stream has failed by name."""
        self._fail(t, lag, f"one event is larger than {MAX_EVENT_BYTES // 2**20} MiB", self._held)
        self._parts, self._data, self._held = [], [], 0

    def _line(self, t: int, lag: int | None, line: bytes) -> None:
        if not line:
            if self._data:
                data, event = b"\n".join(self._data), self._event
                self._data, self._event = [], b""
                self._dispatch(t, lag, data, event)
            self._event = b""
            return
        if line[:1] == b":":
            self._reader.result.chunks.add(t, lag, ChunkKind.COMMENT, None, len(line))
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value

    def _dispatch(self, t: int, lag: int | None, data: bytes, event: bytes) -> None:
        """One complete event."""
        if data[:1] != b"{":
            text = data.strip()
            if text == b"[DONE]":
                result = self._reader.result
                result.done = result.terminal = True
                return
            if not text:
                return
        try:
            message = loads(data)
        except orjson.JSONDecodeError:
            message = _lenient(data)
        if message is _NOT_JSON:
            self._fail(t, lag, f"an event that is not JSON: {shorten(data.decode('utf-8', 'replace'))}", len(data))
        elif not isinstance(message, dict) or event == b"error" or is_error(message):
            self._fail(t, lag, error_text(message), len(data))
        else:
            self._message(t, lag, message, data)

    def _message(self, t: int, lag: int | None, message: dict[str, Any], data: bytes) -> None:
        """An event of the protocol, or one that looks like it."""
        try:
            self._take(t, lag, message, len(data))
        except (AttributeError, TypeError):
            self._unknown_shape(t, lag, data)

    def _unknown_shape(self, t: int, lag: int | None, data: bytes) -> None:
        self._fail(t, lag, f"an event of unknown shape: {shorten(data.decode('utf-8', 'replace'))}", len(data))

    def _fail(self, t: int, lag: int | None, text: str, size: int) -> None:
        result = self._reader.result
        if result.error is None:
            result.error = text
        result.chunks.add(t, lag, ChunkKind.ERROR, None, size)

    @property
    def result(self) -> StreamResult:
        """What the events that are complete said; counts only after `finish`."""
        self._reader.take_run(self._run)
        return self._reader.result

    @property
    def tokens_so_far(self) -> int:
        """Generated tokens in the events that are complete, by the best count there is."""
        self._reader.take_run(self._run)
        return self._reader.tokens_so_far

    def finish(self) -> StreamResult:
        """The stream is over. An event without its blank line is not an event."""
        self._reader.take_run(self._run)
        return self._reader.finish()


def _lenient(data: bytes) -> Any:
    """JSON that orjson refuses (half a surrogate pair, a stray byte in a text) but whose sense is clear."""
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return _NOT_JSON
