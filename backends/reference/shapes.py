"""Answers in OpenAI's shapes, whole or as events of a stream. Knows no engine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from backends.reference.api import GenerationRequest
from backends.reference.fields import ApiError
from backends.reference.logprob_shapes import ChatLogprobs, CompletionLogprobs, LogprobsWriter
from backends.reference.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


@dataclass(frozen=True, slots=True)
class End:
    """Why a choice ended; `stopped_by` is the stop string or token id behind "stop", where the request named one."""

    reason: str | None = None
    stopped_by: str | int | None = None


RUNNING = End()


class CompletionShape:
    """Makes the JSON of one answer; what is the same in all its events is encoded once."""

    prefix: ClassVar[str] = "cmpl"
    whole_object: ClassVar[str] = "text_completion"
    event_object: ClassVar[str] = "text_completion"

    def __init__(self, request_id: str, model: str, request: GenerationRequest) -> None:
        self._request = request
        head = {"id": f"{self.prefix}-{request_id}", "created": int(time.time()), "model": model}
        self._head: dict[str, Any] = {**head, "object": self.whole_object}
        self._prefix = b"data: " + orjson.dumps({**head, "object": self.event_object})[:-1] + b',"choices":['

    def logprobs_writer(self, tokenizer: Tokenizer) -> LogprobsWriter:
        """For one choice."""
        return CompletionLogprobs(tokenizer, self._request.tokens_as_ids)

    def opening(self, index: int, num_prompt_tokens: int) -> bytes:
        """What precedes the first token of a choice: nothing."""
        return b""

    def event(
        self, index: int, text: str, token_id: int, end: End, used: tuple[int, int], logprobs: dict[str, Any] | None
    ) -> bytes:
        """One SSE event with the new token of choice `index`; `used` is (prompt, completion) tokens so far."""
        choice = {"index": index, **self._delta(text), "logprobs": logprobs, "finish_reason": end.reason}
        if end.stopped_by is not None:
            choice["stop_reason"] = end.stopped_by
        if self._request.return_token_ids:
            choice["token_ids"] = [token_id]
        return self._event(choice, used)

    def usage_event(self, used: tuple[int, int]) -> bytes:
        """The last event when usage was asked for: no choices."""
        return self._prefix + b'],"usage":' + orjson.dumps(usage(*used)) + b"}\n\n"

    def error_event(self, message: str) -> bytes:
        """An error inside a stream that has begun."""
        return b"data: " + ApiError(500, message).body() + b"\n\n"

    def choice(self, index: int, text: str, end: End, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        """One finished choice of a request that does not stream."""
        choice = {"index": index, **self._message(text), "logprobs": logprobs, "finish_reason": end.reason}
        return choice | {"stop_reason": end.stopped_by}

    def whole(self, choices: list[dict[str, Any]], used: tuple[int, int]) -> bytes:
        """The answer of a request that does not stream."""
        return orjson.dumps({**self._head, "choices": choices, "usage": usage(*used)})

    def _event(self, choice: dict[str, Any], used: tuple[int, int]) -> bytes:
        tail = b"]}\n\n"
        if self._request.continuous_usage:
            tail = b'],"usage":' + orjson.dumps(usage(*used)) + b"}\n\n"
        return self._prefix + orjson.dumps(choice) + tail

    def _delta(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _message(self, text: str) -> dict[str, Any]:
        return {"text": text}


class ChatShape(CompletionShape):
    """The same for chat: a role comes before the first token."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    event_object = "chat.completion.chunk"

    def logprobs_writer(self, tokenizer: Tokenizer) -> LogprobsWriter:
        """For one choice."""
        return ChatLogprobs(tokenizer, self._request.tokens_as_ids)

    def opening(self, index: int, num_prompt_tokens: int) -> bytes:
        """The event with the role and no token."""
        delta = {"role": "assistant", "content": ""}
        return self._event(
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}, (num_prompt_tokens, 0)
        )

    def _delta(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}

    def _message(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}
