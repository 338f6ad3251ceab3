"""Between the event loop and the engine's thread: one stream of tokens for each running prompt."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import replace

from backends.reference.engine import Engine, EngineThread
from backends.reference.messages import Abort, EngineStats, Failed, NewToken, Sampling, StepOutput, Submit
from backends.reference.owner import OwnerThread
from backends.reference.truth import TruthLog


class GenerationError(RuntimeError):
    """The engine could not finish a request."""


class TokenStream:
    """The tokens of one prompt, as the engine makes them. Iterate for lists of tokens that arrived since."""

    def __init__(self, key: int, request_id: str, num_prompt_tokens: int) -> None:
        self.key = key
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self._arrived: deque[NewToken | Failed] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._unwritten: deque[NewToken] = deque()

    def put(self, item: NewToken | Failed) -> None:
        """From the event loop: something arrived."""
        self._arrived.append(item)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def __aiter__(self) -> AsyncIterator[list[NewToken]]:
        """Lists of new tokens, each once, up to the one with a finish reason. GenerationError when it failed."""
        while True:
            while not self._arrived:
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake
            tokens = []
            while self._arrived:
                item = self._arrived.popleft()
                if isinstance(item, Failed):
                    raise GenerationError(item.message)
                tokens.append(item)
            self._unwritten.extend(tokens)
            yield tokens
            if tokens[-1].finish_reason is not None:
                return

    def written(self, truth: TruthLog) -> None:
        """All tokens given out so far have been handed to the transport."""
        self._record(truth, time.monotonic_ns())

    def close(self, truth: TruthLog) -> None:
        """The client is gone: what was not written never will be."""
        self._unwritten.extend(item for item in self._arrived if isinstance(item, NewToken))
        self._record(truth, None)

    def _record(self, truth: TruthLog, written: int | None) -> None:
        while self._unwritten:
            token = self._unwritten.popleft()
            truth.token(self.request_id, token.index, token.step, token.sampled, written)


class Service:
    """Submits prompts to the engine's thread and routes what it makes. Lives on one event loop."""

    def __init__(self, engine: Engine, owner: OwnerThread, truth: TruthLog) -> None:
        self.engine = engine
        self.truth = truth
        self.finished: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0, "error": 0})
        self.died = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._keys = itertools.count()
        self._streams: dict[int, TokenStream] = {}
        self._thread = EngineThread(engine, owner, self._deliver, self._on_death)

    @property
    def stats(self) -> EngineStats:
        """The engine's counts as of now."""
        return self._thread.stats

    def submit(
        self,
        request_id: str,
        prompt: list[int],
        max_tokens: int,
        sampling: Sampling,
        own_seed: bool,
    ) -> TokenStream:
        """Start a prompt; with `own_seed` its draws differ from those of every other request.

        Give the stream back to `release` when done with it, whatever happened.
        """
        key = next(self._keys)
        stream = TokenStream(key, request_id, len(prompt))
        self._streams[key] = stream
        if own_seed:
            sampling = replace(sampling, seed=key)
        self._thread.send(Submit(key, request_id, prompt, max_tokens, sampling))
        return stream

    def finish(self, stream: TokenStream, reason: str) -> None:
        """End a stream for `reason`; what still runs for it is aborted."""
        if self._streams.pop(stream.key, None) is not None:
            self._thread.send(Abort(stream.key))
            self.finished[reason] += 1

    def release(self, stream: TokenStream) -> None:
        """Forget a stream, which is an abort when it has not ended."""
        self.finish(stream, "abort")
        stream.close(self.truth)

    def stop(self, timeout_s: float) -> bool:
        """Fail what is in flight and end the engine's thread; False when it did not end in time."""
        for key in list(self._streams):
            self._route(Failed(key, "The server is shutting down."))
        return self._thread.stop(timeout_s)

    def _deliver(self, output: StepOutput) -> None:
        """On the engine's thread: one wake-up of the loop for the whole step."""
        self._loop.call_soon_threadsafe(self._route_all, output)

    def _on_death(self, error: Exception) -> None:
        self._loop.call_soon_threadsafe(self.died.set)

    def _route_all(self, output: StepOutput) -> None:
        for token in output.tokens:
            self._route(token)
        for failed in output.failed:
            self._route(failed)

    def _route(self, item: NewToken | Failed) -> None:
        over = isinstance(item, Failed) or item.finish_reason is not None
        stream = self._streams.pop(item.key, None) if over else self._streams.get(item.key)
        if stream is None:
            return  # aborted meanwhile
        if over:
            reason = "error" if isinstance(item, Failed) else item.finish_reason
            self.finished[reason or "error"] += 1
        stream.put(item)
