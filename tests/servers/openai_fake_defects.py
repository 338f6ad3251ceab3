"""Fakes that break one promise each: `DEFECTS` maps the check that must catch it to servers that do it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.servers.openai_fake_steps import DONE, Received, chunk, event, json_answer
from tests.servers.openai_fake_tokens import TokenSchedule


class _Wire:
    """A transport whose writes a defect may change."""

    def __init__(self, transport: asyncio.Transport, change: Any) -> None:
        self._transport, self._change = transport, change

    def write(self, data: bytes) -> None:
        changed = self._change(data)
        if changed and not self._transport.is_closing():
            self._transport.write(changed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Conforming(TokenSchedule):
    """No defect; the base of those that have one. Quick, with a short context."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"interval_s": 0.002, "max_model_len": 600, **more})

    def change(self, data: bytes) -> bytes:
        return data

    def changed_body(self, body: dict[str, Any]) -> dict[str, Any]:
        return body

    async def generate(self, request: Received, transport: asyncio.Transport) -> None:
        request.json = self.changed_body(dict(request.json))
        await super().generate(request, _Wire(transport, self.change))  # type: ignore[arg-type]  # a stand-in with the methods that are used


class NotReady(Conforming):
    def page(self, request: Received) -> list[Any] | None:
        if request.path == "/v1/completions":
            return json_answer({"error": {"message": "still loading", "code": 503}}, 503)
        return super().page(request)


class OtherModel(Conforming):
    """Says that it is another model which answers."""

    def page(self, request: Received) -> list[Any] | None:
        if request.path == "/v1/completions" and not request.json.get("stream"):
            usage = self._usage(len(request.json["prompt"]), request.json["max_tokens"])
            choices = [{"index": 0, "text": " t", "finish_reason": "length"}]
            return json_answer({"model": "another", "choices": choices, "usage": usage})
        return super().page(request)


class AddsBeginOfText(Conforming):
    @staticmethod
    def _usage(prompt: int, completion: int) -> dict[str, int]:
        return TokenSchedule._usage(prompt + 1, completion)


class IgnoresIgnoreEos(Conforming):
    def __init__(self) -> None:
        super().__init__(natural=100)

    def changed_body(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "ignore_eos": False}


class OneTokenMore(Conforming):
    def changed_body(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "max_tokens": body["max_tokens"] + 1}


class NoFinalUsage(Conforming):
    def changed_body(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "stream_options": {}}


class UsageAtOddsWithItself(Conforming):
    """Counts the prompt otherwise when it streams."""

    streaming = False

    def changed_body(self, body: dict[str, Any]) -> dict[str, Any]:
        self.streaming = bool(body.get("stream"))
        return body

    def _usage(self, prompt: int, completion: int) -> dict[str, int]:  # type: ignore[override]  # this fake counts by the instance
        return TokenSchedule._usage(prompt + self.streaming, completion)


class FinalUsageOnly(Conforming):
    def changed_body(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "stream_options": {"include_usage": True}}


class NoIds(Conforming):
    """Does not tell ids, whoever asks."""

    def changed_body(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "return_token_ids": False}


class EmptyChunkFirst(Conforming):
    def change(self, data: bytes) -> bytes:
        if data.startswith(b"HTTP/1.1 200") and b"event-stream" in data:
            return data + chunk(event({"choices": [{"index": 0, "text": "", "finish_reason": None}]}))
        return data


class NoDone(Conforming):
    def change(self, data: bytes) -> bytes:
        return data.replace(chunk(DONE), b"")


class SecondReason(Conforming):
    def change(self, data: bytes) -> bytes:
        again = chunk(event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}))
        return data.replace(chunk(DONE), again + chunk(DONE))


class FrozenCounters(Conforming):
    def _metrics(self) -> str:
        lines = super()._metrics().splitlines()
        return "\n".join(line if "total{" not in line else line.rpartition(" ")[0] + " 5" for line in lines) + "\n"


class MetricsOfAnotherKind(Conforming):
    def _metrics(self) -> str:
        return "# TYPE python_info gauge\npython_info 1\n"


class NeverRunning(Conforming):
    def _metrics(self) -> str:
        return super()._metrics().replace(f'running{{model_name="{self.model}"}} {self.running}', "running 0")


class OneByOne(Conforming):
    def __init__(self) -> None:
        super().__init__()
        self.turn = asyncio.Lock()

    async def generate(self, request: Received, transport: asyncio.Transport) -> None:
        async with self.turn:
            await super().generate(request, transport)


class TakesAnyLength(Conforming):
    def page(self, request: Received) -> list[Any] | None:
        found = super().page(request)
        return None if found and request.path == "/v1/completions" else found


class FailsOnTooLong(Conforming):
    def page(self, request: Received) -> list[Any] | None:
        if request.path == "/v1/completions" and len(request.json["prompt"]) > self.max_model_len:
            return json_answer({"error": {"message": "index out of range"}}, 500)
        return super().page(request)


class GoesOnForNobody(Conforming):
    """Generates to the end although the client has left."""

    def __init__(self) -> None:
        super().__init__(max_model_len=200)

    async def generate(self, request: Received, transport: asyncio.Transport) -> None:
        await asyncio.shield(asyncio.ensure_future(super().generate(request, transport)))


class DeafPlace(Conforming):
    """Keeps a request as running for ever when its client leaves."""

    async def generate(self, request: Received, transport: asyncio.Transport) -> None:
        try:
            await super().generate(request, transport)
        except asyncio.CancelledError:
            self.running += 1
            raise


class TellsTheKey(Conforming):
    """Shows the key it was called with among what it tells of itself."""

    key = ""

    def page(self, request: Received) -> list[Any] | None:
        self.key = request.headers.get("authorization", self.key)
        if request.path == "/version":
            return json_answer(json.dumps({"version": f"1.0 {self.key}"}))
        return super().page(request)


DEFECTS: list[tuple[str, type[Conforming]]] = [
    ("ready", NotReady),
    ("served_name", OtherModel),
    ("prompt_ids", AddsBeginOfText),
    ("exact_length", IgnoresIgnoreEos),
    ("exact_length", OneTokenMore),
    ("final_usage", NoFinalUsage),
    ("final_usage", UsageAtOddsWithItself),
    ("continuous_usage", FinalUsageOnly),
    ("token_ids", NoIds),
    ("first_chunk", EmptyChunkFirst),
    ("stream_end", NoDone),
    ("stream_end", SecondReason),
    ("metrics", FrozenCounters),
    ("metrics", MetricsOfAnotherKind),
    ("running_gauge", NeverRunning),
    ("two_at_once", OneByOne),
    ("oversize", TakesAnyLength),
    ("oversize", FailsOnTooLong),
    ("disconnect", GoesOnForNobody),
    ("disconnect", DeafPlace),
    ("redaction", TellsTheKey),
]
