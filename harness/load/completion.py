"""What the messages of an answer mean: which chunks carry generated tokens, how many, and how the answer ended.

Completions and chat deltas alike. Counts are preferred in this order: token ids, usage on every chunk (continuous), the
final usage, the number of chunks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import orjson

from harness.load.run import Run
from results.schema import TOKEN_KINDS, ChunkKind, CountSource

_MOST_COUNTED = 2**31
UNKNOWN = -1
_TEXT, _REASONING, _ROLE, _EMPTY = ChunkKind.TEXT, ChunkKind.REASONING, ChunkKind.ROLE, ChunkKind.EMPTY


class Chunk(NamedTuple):
    """One event (or comment). `tokens` None: how many it carried is not known. `bytes`: its data, framing left out."""

    t: int
    lag: int | None
    kind: ChunkKind
    tokens: int | None
    bytes: int


@dataclass(slots=True)
class Chunks:
    """The chunks of an answer in order, as columns; -1 stands for a lag or a number of tokens that is not known."""

    t: array[int] = field(default_factory=partial(array, "q"))
    lag: array[int] = field(default_factory=partial(array, "q"))
    kind: list[ChunkKind] = field(default_factory=list)
    tokens: array[int] = field(default_factory=partial(array, "i"))
    bytes: array[int] = field(default_factory=partial(array, "i"))

    def add(self, t: int, lag: int | None, kind: ChunkKind, tokens: int | None, size: int) -> None:
        self.t.append(t)
        self.lag.append(UNKNOWN if lag is None else lag)
        self.kind.append(kind)
        self.tokens.append(UNKNOWN if tokens is None else tokens)
        self.bytes.append(size)

    def __len__(self) -> int:
        return len(self.t)

    def __iter__(self) -> Iterator[Chunk]:
        for t, lag, kind, tokens, size in zip(self.t, self.lag, self.kind, self.tokens, self.bytes, strict=True):
            yield Chunk(t, lag if lag != UNKNOWN else None, kind, tokens if tokens != UNKNOWN else None, size)


@dataclass(slots=True)
class StreamResult:
    """All that one answer said. `terminal`: finish_reason, final usage or [DONE] was seen; `done`: [DONE] was.

    `output_tokens` comes from `count_source` and means nothing where that is None; `chunks_with_tokens` counts events.
    `coalesced_events` are those with tokens that arrived in the same read as the one before: their gap of zero is no
    latency. `answers` says that something of the protocol came: a choice or usage.
    """

    chunks: Chunks = field(default_factory=Chunks)
    first_token: int | None = None
    last_token: int | None = None
    output_tokens: int = 0
    tokens_in_first_chunk: int | None = None
    count_source: CountSource | None = None
    input_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    answers: bool = False
    wrote: bool = False  # an answer in one piece that holds text
    terminal: bool = False
    done: bool = False
    chunks_with_tokens: int = 0
    coalesced_events: int = 0
    usage_disagrees: bool = False  # the ids are not as many as the usage says
    text: str = ""  # this and the ids only when asked for
    token_ids: list[int] = field(default_factory=list)


class CompletionReader:
    """Takes the messages of one stream in order; what they add up to is in `result` after `finish`."""

    __slots__ = ("_continuous", "_ids", "_texts", "_usage", "_used", "result")

    def __init__(self, *, keep_text: bool = False) -> None:
        self.result = StreamResult()
        self._texts: list[str] | None = [] if keep_text else None
        self._ids: int | None = None  # generated ids so far; None where a chunk with tokens came without
        self._usage: Any = None  # the last usage that had a count
        self._used = 0  # and its completion_tokens
        self._continuous: bool | None = None  # does every chunk with tokens carry usage?

    def take(self, t: int, lag: int | None, message: dict[str, Any], size: int) -> None:
        """One message that arrived at `t`, `size` bytes long. Raises AttributeError or TypeError for an unknown shape."""
        result = self.result
        choices = message.get("choices")
        usage = message.get("usage")
        used = usage.get("completion_tokens") if type(usage) is dict else None
        if type(used) is not int or not 0 <= used < _MOST_COUNTED:  # `count_of`, without the price of a call a token
            used = None
        if used is not None:
            self._usage = usage
        if choices or used is not None:
            result.answers = True
        if not choices:
            kind = _EMPTY
            if used is not None:  # usage by itself is the final one
                kind, result.terminal, self._used = ChunkKind.USAGE, True, used
            result.chunks.add(t, lag, kind, None, size)
            return
        kind, tokens = _EMPTY, None
        for choice in choices:
            found = _TEXT if choice.get("text") else _channel(choice)
            if kind is _EMPTY or found is _TEXT or (found is _REASONING and kind is not _TEXT):
                kind = found
            # Null and [] are no count: a server that does not give ids may still send the field.
            chosen = choice.get("token_ids")
            if chosen and isinstance(chosen, list):
                tokens = (tokens or 0) + len(chosen)
            if reason := choice.get("finish_reason"):
                result.finish_reason, result.terminal = str(reason), True
                if kind is _EMPTY or kind is _ROLE:
                    kind = ChunkKind.FINISH
            if self._texts is not None:
                self._texts.append(_text(choice))
                result.token_ids.extend(chosen or ())
        ids = tokens
        if used is not None:
            # Usage on a chunk tells its own tokens only if every chunk with tokens before it carried usage as well;
            # else it is the final count riding on the last chunk.
            if tokens is None and self._continuous is not False and used > self._used:
                tokens = used - self._used
            self._used = used
        if tokens is not None or kind is _TEXT or kind is _REASONING:
            if kind is not _REASONING:
                kind = _TEXT  # tokens without text (part of a character, a held-back stop string) are tokens
            self._count(t, tokens, ids, used is not None)
        result.chunks.add(t, lag, kind, tokens, size)

    def take_run(self, run: Run) -> None:
        """The same for the tokens of a run, which is empty afterwards."""
        count = len(run)
        if not count:
            return
        result = self.result
        first, chunks = len(result.chunks), result.chunks
        (t, lag, tokens, size), sums = run.fold(result.last_token, self._ids, self._used, self._continuous)
        chunks.t.frombytes(t)
        chunks.lag.frombytes(lag)
        chunks.kind += [_TEXT] * count
        chunks.tokens.frombytes(tokens)
        chunks.bytes.frombytes(size)
        in_first, coalesced, self._ids, self._used, self._continuous, with_usage, prompt = sums
        if with_usage:
            self._usage = {"prompt_tokens": prompt}
        if result.first_token is None:
            result.first_token, result.tokens_in_first_chunk = chunks.t[first], in_first
        result.last_token = chunks.t[-1]
        result.chunks_with_tokens += count
        result.coalesced_events += coalesced
        result.answers = True

    def _count(self, t: int, tokens: int | None, ids: int | None, with_usage: bool) -> None:
        """A chunk with generated tokens, as many as `tokens` where that is known."""
        result = self.result
        if result.first_token is None:
            result.first_token = t
            result.tokens_in_first_chunk = tokens
            self._ids, self._continuous = ids, with_usage and tokens is not None
        else:
            if result.last_token == t:
                result.coalesced_events += 1
            if self._ids is not None:
                self._ids = None if ids is None else self._ids + ids
            if not with_usage:
                self._continuous = False
        result.last_token = t
        result.chunks_with_tokens += 1

    @property
    def tokens_so_far(self) -> int:
        """By ids, else continuous usage, else chunks."""
        return self._ids or (self._continuous and self._used) or self.result.chunks_with_tokens

    def finish(self) -> StreamResult:
        """The stream is over: settle the counts."""
        result = self.result
        result.usage_disagrees = bool(self._ids and self._used and self._ids != self._used)
        result.text = "".join(self._texts or ())
        result.input_tokens = count_of(self._usage, "prompt_tokens")
        if self._ids:
            result.output_tokens, result.count_source = self._ids, CountSource.IDS
        elif self._used:
            result.output_tokens = self._used
            result.count_source = CountSource.CONTINUOUS_USAGE if self._continuous else CountSource.FINAL_USAGE
        elif result.chunks_with_tokens:
            result.output_tokens, result.count_source = result.chunks_with_tokens, CountSource.CHUNKS
        elif self._usage is not None:
            result.output_tokens, result.count_source = 0, CountSource.FINAL_USAGE
        return result


def _channel(choice: Any) -> ChunkKind:
    """What a choice without `text` carries: content or reasoning of a chat, a role, or nothing."""
    delta = choice.get("delta")
    if not delta:
        return _EMPTY
    if delta.get("content") or delta.get("tool_calls") or delta.get("function_call") or delta.get("refusal"):
        return _TEXT
    if delta.get("reasoning_content") or delta.get("reasoning"):
        return _REASONING
    return _ROLE if delta.get("role") else _EMPTY


def _text(choice: Any) -> str:
    """The answer's text in one choice; reasoning is left out."""
    text = choice.get("text") or (choice.get("delta") or {}).get("content")
    return text if isinstance(text, str) else ""


def plain_result(message: Any) -> StreamResult:
    """What an answer in one JSON object said: counts from its usage, no chunks and so no first token."""
    result = StreamResult()
    if not isinstance(message, dict) or is_error(message):
        result.error = error_text(message)
        return result
    usage = message.get("usage")
    if isinstance(usage, dict):
        result.answers = result.terminal = True
        result.input_tokens = count_of(usage, "prompt_tokens")
        if (count := count_of(usage, "completion_tokens")) is not None:
            result.output_tokens, result.count_source = count, CountSource.FINAL_USAGE
    choices = message.get("choices")
    if isinstance(choices, list):
        found = [c for c in choices if isinstance(c, dict)]
        result.answers = result.answers or bool(found)
        result.wrote = any(c.get("text") or _channel({"delta": c.get("message")}) in TOKEN_KINDS for c in found)
        reasons = [c["finish_reason"] for c in found if c.get("finish_reason")]
        if reasons:
            result.finish_reason, result.terminal = str(reasons[-1]), True
    return result


def count_of(usage: Any, name: str) -> int | None:
    """A count in a usage object, or None where there is none that can be one."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < _MOST_COUNTED else None


def is_error(message: dict[str, Any]) -> bool:
    """Is this object an error report? `"error": null` is not."""
    return bool(message.get("error")) or message.get("object") == "error"


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
    """One line of at most `limit` characters, without those by which a server could move a terminal's cursor."""
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))
    return text if len(text) <= limit else text[: limit - 1] + "…"
