"""The well-behaved mode of the fake: so many tokens, each at its time on an absolute schedule, its own stamps kept."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from tests.servers.openai_fake_steps import DONE, Received, chunk, head, json_answer


@dataclass
class TokenSchedule:
    """First token after `ttft_s`, then one every `interval_s`, `per_chunk` to an event. `natural` is the length of an
    answer that may end by itself (without ignore_eos). With `seen_ttft_s` there is a prefix cache: a prompt that came before
    has its first token after so long, and the counters tell of it."""

    ttft_s: float = 0.0
    interval_s: float = 0.005
    per_chunk: int = 1
    natural: int | None = None
    model: str = "fake-model"
    max_model_len: int = 131_072
    running: int = 0
    prompt_tokens: int = 0
    generated: int = 0
    seen_ttft_s: float | None = None
    prompts: set[str] = field(default_factory=set)
    hits: int = 0
    # Request id -> [received, then the instant before each token's write], monotonic ns.
    stamps: dict[str, list[int]] = field(default_factory=dict)

    def page(self, request: Received) -> list[Any] | None:
        """Answers that are no generation; None for a completion."""
        if request.path == "/health":
            return json_answer("{}")
        if request.path == "/v1/models":
            model = {"id": self.model, "object": "model", "owned_by": "fake", "max_model_len": self.max_model_len}
            return json_answer({"object": "list", "data": [model]})
        if request.path == "/metrics":
            return json_answer(self._metrics(), content_type="text/plain; version=0.0.4")
        if request.path == "/stamps":
            return json_answer(self.stamps)
        if request.path not in ("/v1/completions", "/v1/chat/completions"):
            return json_answer({"error": {"message": f"no such path: {request.path}", "code": 404}}, 404)
        if not isinstance(request.json, dict) or request.method != "POST":
            return json_answer({"error": {"message": "a JSON object is to be posted", "code": 400}}, 400)
        prompt = request.json.get("prompt")
        length = len(prompt) if isinstance(prompt, list) else 0
        if length + int(request.json.get("max_tokens") or 1) > self.max_model_len:
            message = f"{length} tokens and what is to follow are more than {self.max_model_len}"
            return json_answer({"error": {"message": message, "code": 400}}, 400)
        return None

    def _metrics(self) -> str:
        labels = f'{{model_name="{self.model}"}}'
        rows = [
            ("vllm:num_requests_running", "gauge", self.running),
            ("vllm:num_requests_waiting", "gauge", 0),
            ("vllm:kv_cache_usage_perc", "gauge", 0.0),
            ("vllm:prompt_tokens_total", "counter", self.prompt_tokens),
            ("vllm:generation_tokens_total", "counter", self.generated),
        ]
        if self.seen_ttft_s is not None:
            rows += [
                ("vllm:prefix_cache_queries_total", "counter", self.prompt_tokens),
                ("vllm:prefix_cache_hits_total", "counter", self.hits),
            ]
        return "".join(f"# TYPE {name} {kind}\n{name}{labels} {value}\n" for name, kind, value in rows)

    async def generate(self, request: Received, transport: asyncio.Transport) -> None:
        """Answer one completion on `transport`."""
        body = request.json
        chat = request.path.endswith("/chat/completions")
        asked = int(body.get("max_tokens") or 16)
        count = asked if body.get("ignore_eos") or self.natural is None else min(asked, self.natural)
        reason = "length" if count == asked else "stop"
        prompt = body.get("prompt") if not chat else [m.get("content", "") for m in body.get("messages", [])]
        prompt_tokens = len(prompt) if isinstance(prompt, list) else max(1, len(str(prompt)) // 4)
        options = body.get("stream_options") or {}
        self.prompt_tokens += prompt_tokens
        self.running += 1
        stamps = self.stamps.setdefault(request.id or str(request.index), [request.at])
        start = time.monotonic_ns() / 1e9 + self._wait_for_first(json.dumps(prompt), prompt_tokens)
        try:
            if not body.get("stream"):
                await self._until(start + (count - 1) * self.interval_s)
                self.generated += count
                text = " t" * count
                shape: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
                if body.get("return_token_ids"):
                    shape["token_ids"] = list(range(count))
                answer = {
                    "choices": [{"index": 0, **shape, "finish_reason": reason}],
                    "usage": self._usage(prompt_tokens, count),
                }
                for step in json_answer(answer):
                    transport.write(step.data)
                return
            transport.write(head().data)
            if chat:
                transport.write(chunk(self._event({"delta": {"role": "assistant", "content": ""}}, None)))
            done = 0
            while done < count:
                new = min(self.per_chunk, count - done)
                await self._until(start + done * self.interval_s)
                done += new
                text = " t" * new
                shape = {"delta": {"content": text}} if chat else {"text": text}
                if body.get("return_token_ids"):
                    shape["token_ids"] = list(range(done - new, done))
                usage = self._usage(prompt_tokens, done) if options.get("continuous_usage_stats") else None
                data = chunk(self._event({**shape, "finish_reason": reason if done == count else None}, usage))
                stamps.append(time.monotonic_ns())
                transport.write(data)
                self.generated += new
            if options.get("include_usage"):
                final = {"id": "cmpl-x", "choices": [], "usage": self._usage(prompt_tokens, count)}
                transport.write(chunk(b"data: " + json.dumps(final).encode() + b"\n\n"))
            transport.write(chunk(DONE) + b"0\r\n\r\n")
        finally:
            self.running -= 1

    def _wait_for_first(self, prompt: str, tokens: int) -> float:
        """How long a prompt takes to its first token, the cache allowed for."""
        if self.seen_ttft_s is None:
            return self.ttft_s
        known = prompt in self.prompts
        self.prompts.add(prompt)
        self.hits += known * tokens
        return self.seen_ttft_s if known else self.ttft_s

    @staticmethod
    async def _until(when_s: float) -> None:
        """Late it may be, early never: the loop's own timers round to whole milliseconds, also downwards."""
        while (left := when_s - time.monotonic_ns() / 1e9) > 0:
            await asyncio.sleep(max(left, 0.001))

    @staticmethod
    def _usage(prompt: int, completion: int) -> dict[str, int]:
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _event(self, choice: dict[str, Any], usage: dict[str, int] | None) -> bytes:
        message: dict[str, Any] = {
            "id": "cmpl-x",
            "object": "text_completion",
            "created": 1,
            "model": self.model,
            "choices": [{"index": 0, "logprobs": None, **choice}],
        }
        if usage is not None:
            message["usage"] = usage
        return b"data: " + json.dumps(message).encode() + b"\n\n"
