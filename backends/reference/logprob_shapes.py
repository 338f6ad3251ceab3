"""Log probabilities in the forms of OpenAI's completions, OpenAI's chat, and vLLM's prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from backends.reference.messages import TokenLogprobs
from backends.reference.tokenizer import Tokenizer

# JSON has no infinity; what can never be said is told as vLLM tells it.
LOWEST_LOGPROB = -9999.0


class LogprobsWriter(Protocol):
    """Log probabilities of one choice, piece after piece."""

    def piece(self, entries: Sequence[TokenLogprobs], first: int | None = None) -> dict[str, list[Any]]:
        """The object for the next tokens; `first` is a prompt's first token, of which nothing is known."""
        ...


class CompletionLogprobs:
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


class ChatLogprobs:
    """The chat form: a list of tokens with their likeliest alternatives."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def piece(self, entries: Sequence[TokenLogprobs], first: int | None = None) -> dict[str, list[Any]]:
        """See LogprobsWriter; a chat's prompt is never told of."""
        return {
            "content": [
                self._token(entry.token, entry.logprob)
                | {"top_logprobs": [self._token(token, logprob) for token, logprob in entry.top]}
                for entry in entries
            ]
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = f"token_id:{token}" if self._as_ids else self._tokenizer.token_text(token)
        return {"token": text, "logprob": _finite(logprob), "bytes": list(text.encode())}


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
