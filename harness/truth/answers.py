"""What a truth server says, encoded beforehand: one bytes object a chunk, shared by all requests of the same form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from harness.truth.words import MODEL_NAME, count_words, words
from results.errors import UsageError

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
BODY_END = b"0\r\n\r\n"
_DONE = b"data: [DONE]\n\n"
_WORDS = words()


def framed(data: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(message: dict[str, Any]) -> bytes:
    """One server-sent event, framed."""
    return framed(b"data: " + orjson.dumps(message) + b"\n\n")


def plain(message: dict[str, Any] | bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    """A whole answer that is no stream."""
    body = message if isinstance(message, bytes) else orjson.dumps(message)
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def error(text: str, status: str) -> bytes:
    """An error answer in the API's form."""
    return plain({"error": {"message": text, "type": "invalid_request_error", "code": int(status[:3])}}, status)


@dataclass(frozen=True, slots=True)
class Form:
    """Everything that the bytes of an answer depend on. `usage`: at the end; `continuous`: on every chunk."""

    chat: bool
    stream: bool
    usage: bool
    continuous: bool
    ids: bool
    prompt_tokens: int
    tokens: int
    per_chunk: int

    @classmethod
    def of(cls, body: dict[str, Any], chat: bool, per_chunk: int, max_tokens: int) -> Form:
        """What a request's body asks for. Raises UsageError."""
        tokens = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        if isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 < tokens <= max_tokens:
            raise UsageError(f"max_tokens is a whole number from 1 to {max_tokens}, not {tokens!r}")
        options = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise UsageError("stream_options is an object")
        stream = bool(body.get("stream"))
        return cls(
            chat=chat,
            stream=stream,
            usage=bool(options.get("include_usage")) or not stream,
            continuous=stream and bool(options.get("continuous_usage_stats")),
            ids=bool(body.get("return_token_ids")),
            prompt_tokens=_prompt_tokens(body, chat),
            tokens=tokens,
            per_chunk=per_chunk,
        )

    def tokens_of(self, chunk: int) -> int:
        """How many tokens chunk number `chunk` holds."""
        return min(self.per_chunk, self.tokens - chunk * self.per_chunk) if self.stream else self.tokens


class Answer:
    """The bytes of one form of answer, made when first wanted. `end` is what follows the last chunk in the same write."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self._chunks: list[bytes] = []
        self.opening = STREAM_HEAD
        if form.chat:
            self.opening += event(self._message({"delta": {"role": "assistant", "content": ""}}, None, 0))
        final = event(self._message(None, None, form.tokens, always=True)) if form.usage else b""
        self.end = final + framed(_DONE) + BODY_END

    def chunk(self, index: int) -> bytes:
        """Chunk number `index`, framed."""
        chunks = self._chunks
        while len(chunks) <= index:
            chunks.append(self._make(len(chunks)))
        return chunks[index]

    def whole(self) -> bytes:
        """The answer in one piece."""
        form = self.form
        text = _text(0, form.tokens)
        choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if form.chat else {"text": text}
        if form.ids:
            choice["token_ids"] = _ids(0, form.tokens)
        message = self._message({**choice, "finish_reason": "length"}, None, form.tokens, always=True)
        return plain({**message, "object": "chat.completion" if form.chat else "text_completion"})

    def _make(self, index: int) -> bytes:
        form = self.form
        first = index * form.per_chunk
        after = first + form.tokens_of(index)
        text = _text(first, after)
        choice: dict[str, Any] = {"delta": {"content": text}} if form.chat else {"text": text}
        if form.ids:
            choice["token_ids"] = _ids(first, after)
        return event(self._message(choice, "length" if after == form.tokens else None, after))

    def _message(
        self, choice: dict[str, Any] | None, finish: str | None, tokens: int, *, always: bool = False
    ) -> dict[str, Any]:
        form = self.form
        choices = [] if choice is None else [{"index": 0, "logprobs": None, "finish_reason": finish, **choice}]
        message: dict[str, Any] = {
            "id": "cmpl-5f3a9c21d07e4b68",
            "object": "chat.completion.chunk" if form.chat else "text_completion",
            "created": 1_750_000_000,
            "model": MODEL_NAME,
            "choices": choices,
        }
        if always or form.continuous:
            message["usage"] = {
                "prompt_tokens": form.prompt_tokens,
                "completion_tokens": tokens,
                "total_tokens": form.prompt_tokens + tokens,
            }
        return message


def _text(first: int, after: int) -> str:
    return "".join(f" {_WORDS[i % len(_WORDS)]}" for i in range(first, after))


def _ids(first: int, after: int) -> list[int]:
    return [i % len(_WORDS) for i in range(first, after)]


def _prompt_tokens(body: dict[str, Any], chat: bool) -> int:
    """Ids are counted, texts by their words. Raises UsageError for what is neither."""
    if not chat:
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return count_words(prompt)
        if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
            return len(prompt)
        raise UsageError("prompt is a text or a list of token ids")
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise UsageError("messages is a list of objects")
    total = 0
    for message in messages:
        content = message.get("content") or ""
        parts = content if isinstance(content, list) else [{"text": content}]
        total += sum(count_words(str(part.get("text", ""))) for part in parts if isinstance(part, dict))
    return total
