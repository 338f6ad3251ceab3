"""What a stream of server-sent events said: a pure function of its bytes and their arrival.

Bytes are cut at line ends (LF, CR LF, CR) and only whole lines are decoded, so no fragmentation changes the answer. A
chunk's time is the arrival of the read that completes its event. Both completions and chat deltas are understood.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from results.schema import ChunkKind, CountSource

MAX_EVENT_BYTES = 64 * 1024 * 1024
_NOT_JSON = object()
_TEXT, _REASONING = ChunkKind.TEXT, ChunkKind.REASONING


class Chunk(NamedTuple):
    """One event (or comment). `tokens` None: how many it carried is not known. `bytes`: its data, framing left out."""

    t: int
    lag: int | None
    kind: ChunkKind
    tokens: int | None
    bytes: int


@dataclass(slots=True)
class StreamResult:
    """All that one stream said. `terminal`: finish_reason, final usage or [DONE] was seen; `done`: [DONE] was.

    `output_tokens` comes from `count_source`; `chunks_with_tokens` counts events. `coalesced_events` are those with
    tokens that arrived in the same read as the one before: their gap of zero is no latency.
    """

    chunks: list[Chunk] = field(default_factory=list)
    first_token: int | None = None
    last_token: int | None = None
    output_tokens: int = 0
    tokens_in_first_chunk: int | None = None
    count_source: CountSource | None = None
    input_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    terminal: bool = False
    done: bool = False
    chunks_with_tokens: int = 0
    coalesced_events: int = 0
    text: str = ""  # this and the ids only when asked for
    token_ids: list[int] = field(default_factory=list)


def parse_stream(reads: Iterable[tuple[int, int | None, bytes]], *, keep_text: bool = False) -> StreamResult:
    """The whole of a stream from its reads (arrival, lag, bytes)."""
    parser = StreamParser(keep_text=keep_text)
    for t, lag, data in reads:
        parser.feed(t, lag, data)
    return parser.finish()


class StreamParser:
    """The same, bit by bit: `feed` each read, then `finish`. Holds one event's bytes at most (`MAX_EVENT_BYTES`)."""

    __slots__ = (
        "_continuous",
        "_data",
        "_event",
        "_held",
        "_ids",
        "_parts",
        "_skip_lf",
        "_texts",
        "_used",
        "result",
    )

    def __init__(self, *, keep_text: bool = False) -> None:
        self.result = StreamResult()
        self._texts: list[str] | None = [] if keep_text else None
        self._parts: list[bytes] = []  # pieces of an incomplete line
        self._held = 0  # bytes of the incomplete event
        self._data: list[bytes] = []  # complete data lines of the event
        self._event = b""
        self._skip_lf = False  # the last byte was CR: a LF that follows belongs to it
        self._ids: int | None = None  # generated ids so far; None where a chunk with tokens came without
        self._used = 0  # completion_tokens at the last usage
        self._continuous: bool | None = None  # does every chunk with tokens carry usage?

    def feed(self, t: int, lag: int | None, data: bytes) -> None:
        """Take one read: bytes that arrived at `t`."""
        # The common case: one whole event of one line, and nothing left over from before.
        if (
            not self._held
            and not self._skip_lf
            and data.startswith(b"data: ")
            and data.endswith(b"\n\n")
            and data.find(b"\n") == len(data) - 2
            and b"\r" not in data
        ):
            self._dispatch(t, lag, data[6:-2], b"")
        else:
            self._feed_lines(t, lag, data)

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
        self._held = len(rest) + sum(map(len, self._data)) + len(self._event)
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
            self.result.chunks.append(Chunk(t, lag, ChunkKind.COMMENT, None, len(line)))
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
                self.result.done = self.result.terminal = True
                return
            if not text:
                return
        try:
            message = orjson.loads(data)
        except orjson.JSONDecodeError:
            message = _lenient(data)
        if message is _NOT_JSON:
            self._fail(t, lag, f"an event that is not JSON: {shorten(data.decode('utf-8', 'replace'))}", len(data))
            return
        if not isinstance(message, dict) or event == b"error":
            self._fail(t, lag, error_text(message), len(data))
            return
        if is_error(message):
            self._fail(t, lag, error_text(message), len(data))
            return
        try:
            self._completion(t, lag, message, message.get("choices") or (), len(data))
        except (AttributeError, TypeError):
            self._fail(t, lag, f"an event of unknown shape: {shorten(data.decode('utf-8', 'replace'))}", len(data))

    def _fail(self, t: int, lag: int | None, text: str, size: int) -> None:
        if self.result.error is None:
            self.result.error = text
        self.result.chunks.append(Chunk(t, lag, ChunkKind.ERROR, None, size))

    def _completion(self, t: int, lag: int | None, message: dict[str, Any], choices: Sequence[Any], size: int) -> None:
        """A chunk of a completion or of a chat: which kind, how many tokens."""
        result = self.result
        kind, ids = ChunkKind.EMPTY, None
        for choice in choices:
            found = _channel(choice)
            if found is _TEXT or (found is _REASONING and kind is not _TEXT) or kind is ChunkKind.EMPTY:
                kind = found
            # Null and [] are no count: a server that does not give ids may still send the field.
            chosen = choice.get("token_ids")
            if chosen and isinstance(chosen, list):
                ids = (ids or 0) + len(chosen)
            if self._texts is not None:
                self._texts.append(_text(choice))
                result.token_ids.extend(chosen or ())
            if reason := choice.get("finish_reason"):
                result.finish_reason, result.terminal = str(reason), True
                if kind is ChunkKind.EMPTY or kind is ChunkKind.ROLE:
                    kind = ChunkKind.FINISH
        usage = message.get("usage")
        used = count_of(usage, "completion_tokens") if usage else None
        if used is not None:
            result.input_tokens = count_of(usage, "prompt_tokens")
            if not choices:
                kind, result.terminal = ChunkKind.USAGE, True
                self._used = used
        tokens: int | None = ids
        if choices and used is not None:
            # Usage on a chunk tells its own tokens only if every chunk with tokens before it carried usage as well;
            # else it is the final count riding on the last chunk.
            delta = used - self._used
            if self._continuous is not False:
                if delta > 0:
                    self._continuous = True
                if tokens is None:
                    tokens = max(delta, 0)
            self._used = used
        elif not choices:
            tokens = None
        if kind is _TEXT or kind is _REASONING or (tokens is not None and tokens > 0):
            if used is None:
                self._continuous = False
            if kind is not _TEXT and kind is not _REASONING:
                kind = _TEXT  # tokens without text (part of a character, a held-back stop string) are tokens
            if tokens == 0:
                tokens = None  # text whose tokens were counted before: not a known number of new ones
            self._token_chunk(t, tokens, ids)
        else:
            tokens = None
        result.chunks.append(Chunk(t, lag, kind, tokens, size))

    def _token_chunk(self, t: int, tokens: int | None, ids: int | None) -> None:
        result = self.result
        if result.first_token is None:
            result.first_token = t
            result.tokens_in_first_chunk = tokens
            self._ids = ids
        else:
            if result.last_token == t:
                result.coalesced_events += 1
            self._ids = None if ids is None or self._ids is None else self._ids + ids
        result.last_token = t
        result.chunks_with_tokens += 1

    def finish(self) -> StreamResult:
        """The stream is over: settle the counts. An event without its blank line is not an event."""
        result = self.result
        result.text = "".join(self._texts or ())
        if self._ids:
            result.output_tokens, result.count_source = self._ids, CountSource.IDS
        elif self._used and self._continuous:
            result.output_tokens, result.count_source = self._used, CountSource.CONTINUOUS_USAGE
        elif self._used:
            result.output_tokens, result.count_source = self._used, CountSource.FINAL_USAGE
        else:
            result.output_tokens = result.chunks_with_tokens
            result.count_source = CountSource.CHUNKS if result.chunks_with_tokens else None
        return result


def _channel(choice: Any) -> ChunkKind:
    """What one choice carries: text, reasoning, a role, or nothing."""
    if choice.get("text"):
        return _TEXT
    delta = choice.get("delta")
    if not delta:
        return ChunkKind.EMPTY
    if delta.get("content") or delta.get("tool_calls") or delta.get("function_call") or delta.get("refusal"):
        return _TEXT
    if delta.get("reasoning_content") or delta.get("reasoning"):
        return _REASONING
    return ChunkKind.ROLE if delta.get("role") else ChunkKind.EMPTY


def _text(choice: Any) -> str:
    """The answer's text in one choice; reasoning is left out."""
    text = choice.get("text") or (choice.get("delta") or {}).get("content")
    return text if isinstance(text, str) else ""


def count_of(usage: Any, name: str) -> int | None:
    """A count in a usage object, or None where there is none that can be one."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and 0 <= count < 2**31 else None


def _lenient(data: bytes) -> Any:
    """JSON that orjson refuses (half a surrogate pair, a stray byte in a text) but whose sense is clear."""
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return _NOT_JSON


def is_error(message: dict[str, Any]) -> bool:
    """Is this object an error report? `"error": null` is not."""
    return message.get("object") == "error" or bool(message.get("error"))


def error_text(message: Any) -> str:
    """The message of an error in any of its shapes: object, nested object, plain string."""
    found = message
    for _ in range(3):
        if not isinstance(found, dict):
            break
        inner = found.get("error") or found.get("message")
        if not inner:
            break
        found = inner
    text = found if isinstance(found, str) else orjson.dumps(found).decode()
    return shorten(text)


def shorten(text: str, limit: int = 500) -> str:
    """One line of at most `limit` characters."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
