"""Writes one answer: gathers the tokens of its prompts, or streams them as they come."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from backends.reference.api import ApiError, CompletionRequest
from backends.reference.messages import NewToken
from backends.reference.service import GenerationError, TokenStream
from backends.reference.shapes import DONE, CompletionShape, LogprobsWriter, prompt_logprobs
from backends.reference.tokenizer import Tokenizer
from backends.reference.truth import TruthLog

_SSE_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
_JSON = "application/json"


class Answer:
    """One answer being written. `prompts` are token ids, one choice each."""

    def __init__(
        self,
        request: web.Request,
        asked: CompletionRequest,
        shape: CompletionShape,
        prompts: list[list[int]],
        tokenizer: Tokenizer,
        truth: TruthLog,
    ) -> None:
        self.request, self.asked, self.shape, self.prompts = request, asked, shape, prompts
        self.tokenizer, self.truth = tokenizer, truth

    async def whole(self, streams: list[TokenStream]) -> web.StreamResponse:
        """All prompts to their end, then one JSON object."""
        choices: list[dict[str, Any]] = []
        total = 0
        try:
            for index, stream in enumerate(streams):
                tokens = [token async for tokens in stream for token in tokens]
                told = tokens[0].prompt_logprobs
                if self.asked.max_tokens == 0:
                    tokens = []  # only the prompt was wanted, but the engine always makes one
                choices.append(self._choice(index, tokens, told))
                total += len(tokens)
        except GenerationError as error:
            raise ApiError(500, str(error)) from error
        prompt_tokens = sum(len(prompt) for prompt in self.prompts)
        response = web.Response(body=self.shape.whole(choices, (prompt_tokens, total)), content_type=_JSON)
        await response.prepare(self.request)
        await response.write_eof()
        for stream in streams:
            stream.written(self.truth)
        return response

    def _choice(self, index: int, tokens: list[NewToken], told: Any) -> dict[str, Any]:
        """One finished choice; `told` are the prompt's log probabilities."""
        asked, prompt = self.asked, self.prompts[index]
        ids = [token.token for token in tokens]
        text = self.tokenizer.detokenizer(prompt).push(ids, last=True)
        entries = [token.logprobs for token in tokens if token.logprobs]
        first = None
        if asked.echo:
            text = self.tokenizer.detokenizer([]).push(prompt, last=True) + text
            entries, first = [*(told or []), *entries], prompt[0]
        choice = {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": tokens[-1].finish_reason if tokens else "length",
        }
        if asked.logprobs is not None:
            choice["logprobs"] = LogprobsWriter(self.tokenizer, asked.tokens_as_ids).piece(entries, first)
        if asked.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(told or [], self.tokenizer)
        if asked.return_token_ids:
            choice |= {"token_ids": ids, "prompt_token_ids": prompt}
        return choice

    async def streamed(self, streams: list[TokenStream]) -> web.StreamResponse:
        """Server-sent events: one for each step and prompt, then usage when asked, then [DONE]."""
        response = web.StreamResponse(headers=_SSE_HEADERS)
        await response.prepare(self.request)
        tasks = [asyncio.ensure_future(self._stream_choice(response, i, stream)) for i, stream in enumerate(streams)]
        try:
            total = sum(await asyncio.gather(*tasks))
            if self.asked.include_usage:
                used = (sum(len(prompt) for prompt in self.prompts), total)
                await response.write(self.shape.usage_event(used))
        except GenerationError as error:
            await response.write(self.shape.error_event(str(error)))
        finally:
            for task in tasks:
                task.cancel()
        await response.write(DONE)
        await response.write_eof()
        return response

    async def _stream_choice(self, response: web.StreamResponse, index: int, stream: TokenStream) -> int:
        """Write one prompt's tokens as they come; the number of tokens written."""
        detokenizer = self.tokenizer.detokenizer(self.prompts[index])
        writer = LogprobsWriter(self.tokenizer, self.asked.tokens_as_ids)
        count = 0
        async for tokens in stream:
            events = []
            for token in tokens:  # more than one only when this loop is behind the engine
                count += 1
                text = detokenizer.push([token.token], last=token.finish_reason is not None)
                used = (stream.num_prompt_tokens, count)
                logprobs = writer.piece([token.logprobs]) if token.logprobs else None
                events.append(self.shape.event(index, text, token.token, token.finish_reason, used, logprobs))
            await response.write(b"".join(events))
            stream.written(self.truth)
        return count
