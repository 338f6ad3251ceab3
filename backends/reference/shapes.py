"""Answers in OpenAI's shapes, whole or as events of a stream. Knows no engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson

from backends.reference.api import ApiError, CompletionRequest
from backends.reference.messages import TokenLogprobs
from backends.reference.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"
# JSON has no infinity; what can never be said is told as vLLM tells it.
LOWEST_LOGPROB = -9999.0


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


class LogprobsWriter:
    """Log probabilities of one choice in the OpenAI completions form, piece after piece.

    Texts of tokens are keys of `top_logprobs`, so two tokens that read alike (parts of one character) share a place;
    with `return_tokens_as_token_ids` the key is "token_id:N" and nothing is lost.
    """

    def __init__(self, tokenizer: Tokenizer, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids
        self._offset = 0

    def text(self, token: int) -> str:
        """How a token is named."""
        return f"token_id:{token}" if self._as_ids else self._tokenizer.token_text(token)

    def piece(self, entries: Sequence[TokenLogprobs], first: int | None = None) -> dict[str, list[Any]]:
        """The object for the next tokens; `first` is a prompt's first token, of which nothing is known."""
        tokens = [] if first is None else [self.text(first)]
        unknown: list[Any] = [None] * len(tokens)
        tokens += [self.text(entry.token) for entry in entries]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "text_offset": offsets,
            "token_logprobs": unknown + [_finite(entry.logprob) for entry in entries],
            "tokens": tokens,
            "top_logprobs": unknown + [self._top(entry) for entry in entries],
        }

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens, and the token itself where it is not among them."""
        top = {self.text(token): _finite(logprob) for token, logprob in reversed(entry.top)}
        top = dict(reversed(top.items()))  # of two alike the likelier one was kept
        top.setdefault(self.text(entry.token), _finite(entry.logprob))
        return top


def prompt_logprobs(entries: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> list[dict[str, Any] | None]:
    """vLLM's form: for each prompt token the candidates by id, None for the first."""
    told: list[dict[str, Any] | None] = [None]
    for entry in entries:
        ranked = [(token, logprob, rank) for rank, (token, logprob) in enumerate(entry.top, start=1)]
        if entry.token not in dict(entry.top):
            ranked.append((entry.token, entry.logprob, entry.rank))
        told.append(
            {
                str(token): {"logprob": _finite(logprob), "rank": rank, "decoded_token": tokenizer.token_text(token)}
                for token, logprob, rank in ranked
            }
        )
    return told


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


class CompletionShape:
    """Makes the JSON of one answer; what is the same in all its events is encoded once."""

    def __init__(self, answer_id: str, model: str, request: CompletionRequest) -> None:
        self._request = request
        self._head: dict[str, Any] = {
            "id": answer_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._prefix = b"data: " + orjson.dumps(self._head)[:-1] + b',"choices":['

    def event(
        self,
        index: int,
        text: str,
        token_id: int,
        finish_reason: str | None,
        used: tuple[int, int],
        logprobs: dict[str, list[Any]] | None = None,
    ) -> bytes:
        """One SSE event with the new token of choice `index`; `used` is (prompt, completion) tokens so far."""
        choice: dict[str, Any] = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        if self._request.return_token_ids:
            choice["token_ids"] = [token_id]
        tail = b"]}\n\n"
        if self._request.continuous_usage:
            tail = b'],"usage":' + orjson.dumps(usage(*used)) + b"}\n\n"
        return self._prefix + orjson.dumps(choice) + tail

    def usage_event(self, used: tuple[int, int]) -> bytes:
        """The last event when usage was asked for: no choices."""
        return self._prefix + b'],"usage":' + orjson.dumps(usage(*used)) + b"}\n\n"

    def error_event(self, message: str) -> bytes:
        """An error inside a stream that has begun."""
        return b"data: " + ApiError(500, message).body() + b"\n\n"

    def whole(self, choices: list[dict[str, Any]], used: tuple[int, int]) -> bytes:
        """The answer of a request that does not stream."""
        return orjson.dumps({**self._head, "choices": choices, "usage": usage(*used)})
