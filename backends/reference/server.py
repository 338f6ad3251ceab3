"""The HTTP server: OpenAI completions and chat, models, health, metrics, settings."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import orjson
from aiohttp import web

from backends.reference.admission import RefusedError
from backends.reference.answers import Answer
from backends.reference.api import Conversation, GenerationRequest, check_vocabulary, parse_chat, parse_completion
from backends.reference.chat import ChatTemplate
from backends.reference.config import ModelConfig
from backends.reference.fields import ApiError
from backends.reference.metrics import exposition
from backends.reference.service import Service, TokenStream
from backends.reference.shapes import ChatShape, CompletionShape
from backends.reference.tokenizer import Tokenizer
from results.errors import UsageError
from results.schema import REQUEST_ID_HEADER

log = logging.getLogger(__name__)

_MAX_BODY_BYTES = 64 * 1024 * 1024
_JSON = "application/json"
DEFAULT_MAX_TOKENS = 16  # of a completion, as in OpenAI's protocol


class Server:
    """Handlers over one service. `settings` is what /v1/dyno/settings answers."""

    def __init__(
        self,
        service: Service,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        config: ModelConfig,
        name: str,
        settings: dict[str, Any],
        begin_profile: Callable[[], bool] = lambda: False,
    ) -> None:
        self.service = service
        self.tokenizer = tokenizer
        self.template = template
        self.config = config
        self.name = name
        self.settings = settings
        self.begin_profile = begin_profile
        self.created = int(time.time())

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_errors_as_json])
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/v1/dyno/settings", self.read_settings)
        app.router.add_post("/start_profile", self.start_profile)
        return app

    async def health(self, request: web.Request) -> web.Response:
        """200 while the engine lives."""
        return web.Response(status=503 if self.service.died.is_set() else 200)

    async def models(self, request: web.Request) -> web.Response:
        """The one model, with the longest context it is served with."""
        model = {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "dyno",
            "max_model_len": self.settings["max_model_len"],
        }
        return _json({"object": "list", "data": [model]})

    async def read_settings(self, request: web.Request) -> web.Response:
        """The settings as used."""
        return _json(self.settings)

    async def start_profile(self, request: web.Request) -> web.Response:
        """Have the profiler watch from the next step on."""
        if not self.begin_profile():
            raise ApiError(409, "There is no profiler, or it runs already. Start the server with --profile-dir.")
        return web.Response()

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text."""
        blocks = self.service.engine.scheduler.blocks
        text = exposition(
            self.service.stats,
            self.name,
            blocks.block_size,
            blocks.num_blocks,
            self.settings["kv_bytes_per_token"],
            self.settings["weight_bytes"],
            self.service.finished,
        )
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Continue the prompts of one request; streamed or whole."""
        asked = parse_completion(await request.read(), self.name, self.config.vocab_size)
        return await self._answer(request, asked, CompletionShape, DEFAULT_MAX_TOKENS)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """The next message of a conversation; streamed or whole. Without max_tokens it may fill the model's length."""
        asked = parse_chat(await request.read(), self.name, self.config.vocab_size)
        return await self._answer(request, asked, ChatShape, self.settings["max_model_len"])

    async def _answer(
        self, request: web.Request, asked: GenerationRequest, shape: type[CompletionShape], default_max_tokens: int
    ) -> web.StreamResponse:
        prompts = [await self._encode(prompt) for prompt in asked.prompts]
        limits = [self._checked_max_tokens(len(prompt), asked.max_tokens, default_max_tokens) for prompt in prompts]
        request_id = request.headers.get(REQUEST_ID_HEADER) or uuid.uuid4().hex
        sampling = asked.sampling
        if not asked.ignore_eos:
            sampling = replace(sampling, stop_ids=sampling.stop_ids | frozenset(self.config.eos_token_ids))
        streams: list[TokenStream] = []
        try:
            for number, (prompt, max_tokens) in enumerate(zip(prompts, limits, strict=True)):
                own_id = request_id if len(prompts) == 1 else f"{request_id}-{number}"
                streams.append(self.service.submit(own_id, prompt, max_tokens, sampling, own_seed=not asked.has_seed))
            made = shape(request_id, self.name, asked)
            answer = Answer(request, asked, made, prompts, self.tokenizer, self.service)
            return await (answer.streamed(streams) if asked.stream else answer.whole(streams))
        finally:
            for stream in streams:
                self.service.release(stream)

    async def _encode(self, prompt: str | list[int] | Conversation) -> list[int]:
        """A prompt as ids; text is rendered and encoded off the loop, which must stay quick."""
        if isinstance(prompt, list):
            return prompt
        param = "prompt" if isinstance(prompt, str) else "messages"
        try:
            if isinstance(prompt, str):
                ids = await asyncio.to_thread(self.tokenizer.encode, prompt)
            else:
                text = await asyncio.to_thread(self.template.render, prompt)
                ids = await asyncio.to_thread(self.tokenizer.encode, text, special=False)
        except UsageError as error:
            raise ApiError(400, str(error), param) from error
        # A tokenizer with more tokens than the model: the kernels would read past the embedding.
        check_vocabulary(ids, self.config.vocab_size, param)
        return ids

    def _checked_max_tokens(self, num_prompt_tokens: int, asked: int | None, default: int) -> int:
        """What was asked, or the default as far as there is room; ApiError 400 with the arithmetic."""
        room = max(self.settings["max_model_len"] - num_prompt_tokens, 1)
        max_tokens = min(default, room) if asked is None else max(asked, 1)
        try:
            self.service.engine.scheduler.check_admission(num_prompt_tokens, max_tokens)
        except RefusedError as error:
            raise ApiError(400, str(error), "max_tokens" if asked else "prompt") from error
        return max_tokens


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every error in OpenAI's shape."""
    try:
        return await handler(request)
    except ApiError as error:
        return web.Response(status=error.status, body=error.body(), content_type=_JSON)
    except web.HTTPException as error:
        body = ApiError(error.status, f"{request.method} {request.path}: {error.reason}.").body()
        return web.Response(status=error.status, body=body, content_type=_JSON)


def _json(data: dict[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(data), content_type=_JSON)
