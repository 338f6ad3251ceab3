"""A strict fake `trtllm-serve`: what NVIDIA's description of a version refuses, it refuses; what that version does behind a
user's back, it does.

`install(folder, "1.2.1")` makes an executable `trtllm-serve` of that version. Faults and times come from the variable
DYNO_FAKE_TRTLLM, words like `step_ms=2 kv_tokens=4096 break_after=3 crash_after=2`:

    step_ms=N       time of a step (default 2)
    kv_tokens=N     what the cache can hold where nothing less is asked (default 65536)
    break_after=N   streams end after N tokens: the connection breaks, without an error event
    crash_after=N   after N answers a rank is lost: the server lives on and says 503 for ever
    oom=1           it does not start: no memory for the KV cache
    keep_alive_s=S  when an idle connection is closed (default 5)
    idle_s=S        how long /metrics waits where there is nothing to tell (default 2)
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from backends.installed import parse_version
from backends.tensorrt_llm_reference import Era, Reference, era_of, fits, reference
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_steps import DONE, Received, chunk, head, json_answer
from tests.servers.openai_fake_tokens import TokenSchedule
from tests.servers.trtllm_fake_config import RefusedError, effective, parse
from tests.servers.trtllm_fake_steps import Engine, Work

FAULTS = "DYNO_FAKE_TRTLLM"
KEEP_ALIVE_S = 5.0
ROOT = Path(__file__).resolve().parents[2]


def install(folder: Path, version: str, python: str = sys.executable) -> Path:
    """Make `folder/bin/trtllm-serve`, which the Python of its first line says is of that version. Returns its path."""
    site = folder / "site"
    info = site / f"tensorrt_llm-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {version}\n", encoding="utf-8")
    script = folder / "bin" / "trtllm-serve"
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        f"#!/usr/bin/env -S PYTHONPATH={site}:{ROOT} {python}\nfrom tests.servers.trtllm_fake import main\nmain()\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    return script


def say(*lines: str) -> None:
    for line in lines:
        os.write(1, f"{line}\n".encode())


class TrtllmServer(TokenSchedule):
    """The pages and streams of one server."""

    def __init__(
        self, model: str, name: str, config: dict[str, Any], known: Reference, faults: dict[str, float]
    ) -> None:
        super().__init__(model=name, max_model_len=int(config.get("max_seq_len") or _own_length(model)))
        self.config, self.known, self.faults = config, known, faults
        self.answered = 0
        capacity = int(faults.get("kv_tokens", 65_536))
        gather = int(faults.get("gather", 1))
        self.engine = Engine(config, faults.get("step_ms", 2.0) / 1000, capacity, known.era, gather)

    def page(self, request: Received) -> list[Any] | None:
        if request.path == "/health":
            if self.engine.dead:
                return json_answer("LLM is unavailable. Please check the server logs for more details.", 503)
            return json_answer("")
        if request.path == "/version":
            return json_answer({"version": installed("tensorrt_llm")})
        if request.path == "/v1/models":
            return json_answer(
                {"object": "list", "data": [{"id": self.model, "object": "model", "owned_by": "tensorrt_llm"}]}
            )
        if request.path == "/fake/config":
            return json_answer(self.config)
        if request.path == "/metrics" and request.method == "GET":
            return None
        if request.path != "/v1/completions" or request.method != "POST":
            return json_answer({"detail": "Not Found"}, 404)
        return self._refusal(request.json)

    def _refusal(self, body: Any) -> list[Any] | None:
        if not isinstance(body, dict):
            return json_answer({"error": "Input should be a valid dictionary"}, 400)
        for name, value in body.items():
            kind = self.known.request.get(name)
            if kind is None:
                return json_answer({"error": f"body.{name}: Extra inputs are not permitted"}, 400)
            if isinstance(kind, dict):
                extra = [key for key in value or {} if key not in kind]
                if extra:
                    return json_answer({"error": f"body.{name}.{extra[0]}: Extra inputs are not permitted"}, 400)
            elif not fits(kind, value):
                return json_answer({"error": f"body.{name}: Input should be a valid {kind}"}, 400)
        if self.known.era is Era.V1_0 and body.get("logprobs"):
            return json_answer({"error": "logprobs is not supported"}, 400)
        if body.get("stream_options") is not None and not body.get("stream"):
            return json_answer({"error": "Stream options can only be defined when `stream` is true."}, 400)
        prompt = _length(body.get("prompt"))
        if prompt >= self.max_model_len:
            return _bad(
                f"`default_max_tokens` ({self.max_model_len - prompt}) must be greater than 0, `default_max_tokens` = "
                f"max_seq_len ({self.max_model_len}) - `splited_prompt_len` ({prompt})"
            )
        if prompt > self.engine.max_tokens and not self.engine.chunked:
            limit = self.engine.max_tokens
            if self.known.era is Era.MAIN:
                return _bad(f"The prompt length ({prompt}) should not exceed max_num_tokens ({limit})")
            return _bad(
                f"The sum of prompt length ({prompt}), query length (0) should not exceed max_num_tokens ({limit})"
            )
        return None

    async def generate(self, request: Received, transport: asyncio.Transport) -> None:
        if request.path == "/metrics":
            await self._metrics_page(transport)
            return
        body = request.json
        prompt = _length(body["prompt"])
        room = self.max_model_len - prompt
        asked = body.get("max_tokens") or room
        if asked > room:
            say(f"[TRT-LLM] [W] User-specified `max_tokens` ({asked}) is greater than deduced `default_max_tokens` ({room}), "
                "using default_max_tokens instead.")  # fmt: skip
        work = Work(prompt, min(asked, room))
        if self.engine.dead:
            transport.abort()
            return
        self.engine.submit(work)
        try:
            await (self._stream if body.get("stream") else self._whole)(body, work, transport)
        finally:
            work.left = True
        self.answered += 1
        if self.answered >= self.faults.get("crash_after", float("inf")):
            say("[TRT-LLM] [E] [rank 1] CUDA error: an illegal memory access was encountered")
            self.engine.die()

    async def _whole(self, body: dict[str, Any], work: Work, transport: asyncio.Transport) -> None:
        for _ in range(work.asked):
            if not await work.tokens.get():
                transport.abort()
                return
        text, ids = self._shape(body, work.asked)
        choice = {"index": 0, "text": text, "token_ids": ids, "finish_reason": "length", "stop_reason": None}
        answer = {"id": "cmpl-x", "object": "text_completion", "model": body["model"], "choices": [choice]}
        for step in json_answer({**answer, "usage": self._usage(work.prompt, work.asked)}):
            transport.write(step.data)

    async def _stream(self, body: dict[str, Any], work: Work, transport: asyncio.Transport) -> None:
        options = body.get("stream_options")
        usage = options is not None and options.get("include_usage", True)
        every = usage and options.get("continuous_usage_stats", True)
        transport.write(head().data)
        for number in range(1, work.asked + 1):
            alive = await work.tokens.get()
            if not alive or number > self.faults.get("break_after", float("inf")):
                transport.close()
                return
            text, ids = self._shape(body, 1)
            last = number == work.asked
            choice = {"index": 0, "text": text, "token_ids": ids, "logprobs": None}
            choice |= {"finish_reason": "length" if last else None, "stop_reason": None}
            event = {"id": "cmpl-x", "object": "text_completion", "model": body["model"], "choices": [choice]}
            event["usage"] = self._usage(work.prompt, number) if every else None
            transport.write(chunk(b"data: " + json.dumps(event).encode() + b"\n\n"))
        if usage:
            final = {"id": "chatcmpl-x", "choices": [], "model": body["model"]}
            final["usage"] = self._usage(work.prompt, work.asked)
            transport.write(chunk(b"data: " + json.dumps(final).encode() + b"\n\n"))
        transport.write(chunk(DONE) + b"0\r\n\r\n")

    @staticmethod
    def _shape(body: dict[str, Any], tokens: int) -> tuple[str, list[int] | None]:
        return (" t" * tokens, None) if body.get("detokenize", True) else ("", [7] * tokens)

    async def _metrics_page(self, transport: asyncio.Transport) -> None:
        """One entry a step since the last reading, gone once read; where there is none it waits."""
        deadline = asyncio.get_running_loop().time() + self.faults.get("idle_s", 2.0)
        while not self.engine.stats and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        entries = list(self.engine.stats)
        self.engine.stats.clear()
        if self.config.get("return_perf_metrics"):
            entries = []  # The server's own collector was first.
        for step in json_answer(entries):
            transport.write(step.data)


def _bad(message: str) -> list[Any]:
    return json_answer(
        {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}, 400
    )


def _length(prompt: Any) -> int:
    return len(prompt) if isinstance(prompt, list) else max(1, len(str(prompt)) // 4)


def _own_length(model: str) -> int:
    try:
        return int(json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"])
    except (OSError, ValueError, KeyError):
        return 4096


def announce(config: dict[str, Any], known: Reference, server: TrtllmServer) -> None:
    """The lines of a start, as the version writes them."""
    # A container's clock shows UTC.
    began = int(time.time()) - 9

    def stamp(after: int) -> str:
        return time.strftime("[%m/%d/%Y-%H:%M:%S] [TRT-LLM] [I] ", time.gmtime(began + after))

    kv, engine = config.get("kv_cache_config") or {}, server.engine
    graphs = config.get("cuda_graph_config")
    shown = (
        "None"
        if graphs is None
        else f"CudaGraphConfig(batch_sizes=[1, 2, 4], enable_padding={graphs.get('enable_padding', False)})"
    )
    policy = (config.get("scheduler_config") or {}).get("capacity_scheduler_policy", "GUARANTEED_NO_EVICT")
    say(f"[TensorRT-LLM] TensorRT-LLM version: {installed('tensorrt_llm')}")
    say(stamp(1) + "Loading safetensors weights in parallel")
    say(stamp(3) + "Memory used after loading model weights (inside torch) in memory usage profiling: 1.00 GiB")
    fraction = kv.get("free_gpu_memory_fraction") or 0.9
    peak = "Peak memory during memory usage profiling (torch + non-torch): 2.00 GiB, available KV cache memory when "
    say(stamp(4) + peak + f"calculating max tokens: 8.00 GiB, fraction is set {fraction}, kv size is 1024.")
    say(f"[TensorRT-LLM][INFO] Number of tokens per block: {engine.block}.")
    say(
        f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated 8.00 GiB for max tokens in paged KV cache ({engine.blocks * engine.block})."
    )
    sizes = (
        f"max_seq_len={server.max_model_len}, max_num_requests={engine.max_batch}, max_num_tokens={engine.max_tokens}"
    )
    say(stamp(6) + sizes + ("" if known.era is Era.V1_0 else f", max_batch_size={engine.max_batch}"))
    say(stamp(7) + "LLM Args:",
        f"tensor_parallel_size={config.get('tensor_parallel_size', 1)} dtype='{config.get('dtype', 'auto')}' "
        f"load_format=<LoadFormat.{str(config.get('load_format', 'auto')).upper()}: 0> "
        f"kv_cache_config=KvCacheConfig(enable_block_reuse={kv.get('enable_block_reuse', True)}, dtype='{kv.get('dtype', 'auto')}') "
        f"enable_chunked_prefill={engine.chunked} "
        f"scheduler_config=SchedulerConfig(capacity_scheduler_policy=<CapacitySchedulerPolicy.{policy}: '{policy}'>) "
        f"speculative_config={'SpecConfig()' if engine.speculates else 'None'} cuda_graph_config={shown} "
        f"disable_overlap_scheduler={config.get('disable_overlap_scheduler', False)} attn_backend='TRTLLM' "
        f"print_iter_log={config.get('print_iter_log', False)} stream_interval=1")  # fmt: skip
    say(stamp(8) + "get signal from executor worker")


def main(argv: Sequence[str] | None = None) -> None:
    faults = {k: float(v) for k, v in (word.split("=") for word in os.environ.get(FAULTS, "").split())}
    known = reference(era_of(parse_version(installed("tensorrt_llm")) or (1, 2, 0)))
    try:
        model, given = parse(sys.argv[1:] if argv is None else argv, known)
        config = effective(given, known)
        if given.get("backend") in ("tensorrt", "trt"):
            config["enable_iter_perf_stats"] = True  # That backend always keeps them.
        if faults.get("oom"):
            raise RefusedError(1, "RuntimeError: Executor creation failed due to insufficient GPU memory.\nThe following component "
                          "could not be created: KV cache\nRuntimeError: Executor worker returned error")  # fmt: skip
    except RefusedError as refusal:
        print(refusal, file=sys.stderr, flush=True)
        raise SystemExit(refusal.code) from None
    name = given.get("served_model_name") or Path(model).name
    server = TrtllmServer(model, name, config, known, faults)
    announce(config, known, server)
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    host, port = given.get("host", "localhost"), given.get("port", 8000)
    try:
        listening = FakeServer(server, host=host, port=port, close_idle_after=faults.get("keep_alive_s", KEEP_ALIVE_S))
    except OSError as error:
        print(f"RuntimeError: Failed to bind socket to {host}:{port}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None
    with listening:
        say("INFO:     Application startup complete.", f"INFO:     Uvicorn running on http://{host}:{port}")
        signal.sigwait(ends)
        say("INFO:     Shutting down")
        listening.errors.clear()
