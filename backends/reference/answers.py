"""Writes one answer: gathers the tokens of its prompts, or streams them as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import web

from backends.reference.api import GenerationRequest
from backends.reference.fields import ApiError
from backends.reference.logprob_shapes import prompt_logprobs
from backends.reference.messages import NewToken
from backends.reference.service import GenerationError, Service, TokenStream
from backends.reference.shapes import DONE, RUNNING, CompletionShape, End
from backends.reference.text import OutputText
from backends.reference.tokenizer import Tokenizer

_SSE_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
_JSON = "application/json"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Piece:
    """One token with its text."""

    token: NewToken
    text: str
    end: End


class Answer:
    """One answer being written. `prompts` are token ids, one choice each."""

    def __init__(
        self,
        request: web.Request,
        asked: GenerationRequest,
        shape: CompletionShape,
        prompts: list[list[int]],
        tokenizer: Tokenizer,
        service: Service,
    ) -> None:
        self.request, self.asked, self.shape, self.prompts = request, asked, shape, prompts
        self.tokenizer, self.service, self.truth = tokenizer, service, service.truth

    async def whole(self, streams: list[TokenStream]) -> web.StreamResponse:
        """All prompts to their end, then one JSON object."""
        try:
            made = await _all([self._gather(index, stream) for index, stream in enumerate(streams)])
        except GenerationError as error:
            raise ApiError(500, str(error)) from error
        used = (sum(len(prompt) for prompt in self.prompts), sum(count for _, count in made))
        body = self.shape.whole([choice for choice, _ in made], used)
        response = web.Response(body=body, content_type=_JSON)
        await response.prepare(self.request)
        await response.write_eof()
        for stream in streams:
            stream.written(self.truth)
        return response

    async def streamed(self, streams: list[TokenStream]) -> web.StreamResponse:
        """Server-sent events: one for each step and prompt, then usage when asked, then [DONE]."""
        response = web.StreamResponse(headers=_SSE_HEADERS)
        await response.prepare(self.request)
        try:
            counts = await _all([self._stream_choice(response, index, stream) for index, stream in enumerate(streams)])
            if self.asked.include_usage:
                used = (sum(len(prompt) for prompt in self.prompts), sum(counts))
                await response.write(self.shape.usage_event(used))
        except GenerationError as error:
            await response.write(self.shape.error_event(str(error)))
        await response.write(DONE)
        await response.write_eof()
        return response

    async def _stream_choice(self, response: web.StreamResponse, index: int, stream: TokenStream) -> int:
        """Write one prompt's tokens as they come; the number of tokens written."""
        writer = self.shape.logprobs_writer(self.tokenizer)
        events = [self.shape.opening(index, stream.num_prompt_tokens)]
        count = 0
        async for pieces in self._pieces(index, stream):
            for piece in pieces:  # more than one only when this loop is behind the engine
                count += 1
                token = piece.token
                logprobs = writer.piece([token.logprobs]) if token.logprobs else None
                used = (stream.num_prompt_tokens, count)
                events.append(self.shape.event(index, piece.text, token.token, piece.end, used, logprobs))
            await response.write(b"".join(events))
            events.clear()
            stream.written(self.truth)
        return count

    async def _gather(self, index: int, stream: TokenStream) -> tuple[dict[str, Any], int]:
        """One finished choice, and its number of tokens."""
        asked, prompt = self.asked, self.prompts[index]
        pieces = [piece async for some in self._pieces(index, stream) for piece in some]
        told = pieces[0].token.prompt_logprobs or []
        end = pieces[-1].end
        if asked.max_tokens == 0:
            pieces, end = [], End("length")  # only the prompt was wanted, but the engine always makes one
        text = "".join(piece.text for piece in pieces)
        entries = [piece.token.logprobs for piece in pieces if piece.token.logprobs]
        first = None
        if asked.echo:
            text = self.tokenizer.detokenizer([]).push(prompt, last=True) + text
            entries, first = [*told, *entries], prompt[0]
        has_logprobs = asked.sampling.logprobs is not None
        logprobs = self.shape.logprobs_writer(self.tokenizer).piece(entries, first) if has_logprobs else None
        choice = self.shape.choice(index, text, end, logprobs)
        if asked.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(told, self.tokenizer)
        if asked.return_token_ids:
            choice |= {"token_ids": [piece.token.token for piece in pieces], "prompt_token_ids": prompt}
        return choice, len(pieces)

    async def _pieces(self, index: int, stream: TokenStream) -> AsyncIterator[list[Piece]]:
        """A choice's tokens with their texts, up to its end. A stop string ends it here; the engine is told."""
        asked = self.asked
        text = OutputText(
            self.tokenizer.detokenizer(self.prompts[index]), asked.stops, asked.include_stop, asked.sampling.min_tokens
        )
        async for tokens in stream:
            pieces = []
            for token in tokens:
                end = RUNNING if token.finish_reason is None else self._end(token)
                hidden = end.reason == "stop" and not asked.include_stop
                delta = text.push(token.token, last=end.reason is not None, hidden=hidden)
                if text.stopped_by is not None:
                    pieces.append(Piece(token, delta, End("stop", text.stopped_by)))
                    self.service.finish(stream, "stop")
                    yield pieces
                    return
                pieces.append(Piece(token, delta, end))
            yield pieces

    def _end(self, token: NewToken) -> End:
        named = token.finish_reason == "stop" and token.token in self.asked.sampling.stop_ids
        return End(token.finish_reason, token.token if named else None)


async def _all(coroutines: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results; when one fails, the others end too."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
