"""SGLang, started by its module (`python -m sglang.launch_server`). Made from its documentation and source (0.5.23), proven
against a fake alone: no GPU was at hand."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from backends.base import (
    Backend,
    Capabilities,
    EngineSettings,
    FailurePattern,
    InContainer,
    LaunchContext,
    LaunchPlan,
    MetricRule,
    Resolved,
    Source,
)
from backends.speculation import Method, Speculation, asked_speculation
from results.errors import EngineError

MODULE = "sglang.launch_server"
INFO_PATHS = ("/server_info", "/get_server_info")
MODELS_PATH = "/v1/models"
_FLAGS = {
    "dtype": "--dtype",
    "kv_dtype": "--kv-cache-dtype",
    "max_model_len": "--context-length",
    "max_num_seqs": "--max-running-requests",
    "kv_cache_tokens": "--max-total-tokens",
    "memory_fraction": "--mem-fraction-static",
    "block_size": "--page-size",
    "scheduler_policy": "--schedule-policy",
    "tensor_parallel": "--tp-size",
    "quantisation": "--quantization",
    "seed": "--random-seed",
    "load_format": "--load-format",
}
_METHODS = {Method.NGRAM: "NGRAM", Method.DRAFT: "STANDALONE", Method.EAGLE3: "EAGLE3", Method.MTP: "NEXTN"}
# Neutral name -> key of the server's own arguments.
_TOLD = {
    "dtype": "dtype",
    "kv_dtype": "kv_cache_dtype",
    "max_model_len": "context_length",
    "max_num_seqs": "max_running_requests",
    "max_num_batched_tokens": "chunked_prefill_size",
    "kv_cache_tokens": "max_total_num_tokens",
    "memory_fraction": "mem_fraction_static",
    "block_size": "page_size",
    "scheduler_policy": "schedule_policy",
    "tensor_parallel": "tp_size",
    "seed": "random_seed",
    "load_format": "load_format",
    "attention_backend": "attention_backend",
    "stream_interval": "stream_interval",
}
_LINE = re.compile(
    r"max_total_num_tokens=(\d+), chunked_prefill_size=(-?\d+),.*max_running_requests=(\d+), context_len=(\d+)"
)


class SGLangBackend(Backend):
    """`python -m sglang.launch_server --model-path MODEL ...`"""

    name: ClassVar[str] = "sglang"
    words: ClassVar[str] = "SGLang (0.5), on GPUs"
    capabilities: ClassVar[Capabilities] = Capabilities(continuous_usage=True)
    settings: ClassVar[frozenset[str]] = frozenset(
        {
            *_FLAGS,
            "max_num_batched_tokens",
            "prefix_caching",
            "chunked_prefill",
            "cuda_graphs",
            "speculative",
            "speculative_tokens",
            "speculative_model",
        }
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        "admission": "on-demand",
        "batching": "continuous",
        "kv_layout": "paged",
        "kv_cache": True,
    }
    metrics: ClassVar[tuple[MetricRule, ...]] = (
        MetricRule("running", ("sglang:num_running_reqs",)),
        MetricRule("waiting", ("sglang:num_queue_reqs",)),
        MetricRule("kv_usage", ("sglang:token_usage",)),
        MetricRule("kv_capacity_tokens", ("sglang:max_total_num_tokens",)),
        MetricRule("prompt_tokens_total", ("sglang:prompt_tokens_total",)),
        MetricRule("generation_tokens_total", ("sglang:generation_tokens_total",)),
        MetricRule("preemptions_total", ("sglang:num_retracted_requests_total",)),
        MetricRule("prefix_hits_total", ("sglang:cached_tokens_total",)),
        MetricRule("acceptance_length", ("sglang:spec_accept_length",)),
    )
    failures: ClassVar[tuple[FailurePattern, ...]] = (
        FailurePattern(
            "out_of_memory_kv_cache",
            r"Not enough memory\. Please try to increase --mem-fraction-static",
            "Raise memory_fraction (here it is the share of weights and cache together), or take a smaller model.",
        ),
        FailurePattern(
            "port_in_use", r"Port is already in use|is not available in \d+ seconds", "Choose another port."
        ),
        FailurePattern("bad_argument", r"launch_server\.py: error: ", "Change the flag which that line names."),
        FailurePattern(
            "missing_dependency",
            r"No module named '?sglang\b",
            'Name the python of its environment: DYNO_SGLANG_COMMAND="/path/to/python -m sglang.launch_server".',
        ),
    )
    in_container: ClassVar[InContainer | None] = InContainer(("python3", "-m", MODULE))

    def default_command(self) -> tuple[str, ...]:
        """The module of this Python. Raises EngineError where it is not there."""
        if importlib.util.find_spec("sglang") is not None:
            return (sys.executable, "-m", MODULE)
        raise EngineError(
            f"SGLang is not installed in {sys.executable}. Install it into an environment of its own and name that one: export "
            f'DYNO_SGLANG_COMMAND="/path/to/venv/bin/python -m {MODULE}"; or run it in a container (`container: image=...`).'
        )

    def launch_plan(self, context: LaunchContext) -> LaunchPlan:
        self.refuse_unsupported(context.settings)
        settings = context.settings
        asked = settings.asked()
        argv = [*context.command, "--model-path", str(context.model), "--served-model-name", context.served_name]
        argv += ["--host", context.host, "--port", str(context.port)]
        # Sampling is what the requests say, as for the other engines; a line a request would cost the API process.
        argv += ["--sampling-defaults", "openai", "--enable-metrics", "--log-level-http", "warning"]
        for setting, flag in _FLAGS.items():
            if setting in asked:
                argv += [flag, str(asked[setting])]
        tokens = settings.max_num_batched_tokens
        if settings.chunked_prefill is False:
            argv += ["--chunked-prefill-size", "-1"]
        elif tokens is not None:
            argv += ["--chunked-prefill-size", str(tokens)]
        if tokens is not None:
            argv += ["--max-prefill-tokens", str(tokens)]
        if settings.prefix_caching is False:
            argv += ["--disable-radix-cache"]
        if settings.cuda_graphs is False:
            argv += ["--disable-cuda-graph"]
        if (wanted := asked_speculation(settings)) is not None:
            argv += _speculation(wanted)
        notes = []
        if settings.memory_fraction is not None:
            notes.append("memory_fraction is the share of weights and KV cache together in the device's memory here")
        # Otherwise each look at its health would generate a token.
        env = {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}
        measuring = frozenset({"--enable-metrics", "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"})
        return LaunchPlan((*argv, *context.options), {**env, **context.env}, notes=tuple(notes), measuring=measuring)

    def settings_paths(self) -> tuple[str, ...]:
        return (*INFO_PATHS, MODELS_PATH)

    def resolved_settings(self, asked: EngineSettings, documents: Mapping[str, Any], log: str) -> dict[str, Resolved]:
        resolved = {name: Resolved(value, Source.ASKED) for name, value in asked.asked().items()}
        resolved |= {name: Resolved(value, Source.FIXED) for name, value in self.fixed.items()}
        for found in _LINE.finditer(log):
            tokens, chunk, running, context = map(int, found.groups())
            told = {"kv_cache_tokens": tokens, "max_num_seqs": running, "max_model_len": context}
            told |= {"max_num_batched_tokens": chunk} if chunk > 0 else {}
            resolved |= {name: Resolved(value, Source.LOG) for name, value in told.items()}
        resolved |= {name: Resolved(value, Source.ENDPOINT) for name, value in _from_info(documents).items()}
        return resolved

    def versions(self, documents: Mapping[str, Any], log: str) -> dict[str, str]:
        version = _info(documents).get("version")
        return {"sglang": version} if isinstance(version, str) else {}


def _speculation(wanted: Speculation) -> list[str]:
    words = ["--speculative-algorithm", _METHODS[wanted.method]]
    words += ["--speculative-num-draft-tokens", str(wanted.tokens + 1)]
    if wanted.method is not Method.NGRAM:
        words += ["--speculative-num-steps", str(wanted.tokens), "--speculative-eagle-topk", "1"]
    if wanted.model is not None:
        words += ["--speculative-draft-model-path", wanted.model]
    return words


def _info(documents: Mapping[str, Any]) -> dict[str, Any]:
    return next((dict(d) for path in INFO_PATHS if isinstance(d := documents.get(path), dict)), {})


def _from_info(documents: Mapping[str, Any]) -> dict[str, Any]:
    info = _info(documents)
    told = {name: info[key] for name, key in _TOLD.items() if info.get(key) is not None}
    if told.get("max_num_batched_tokens", 1) < 1:
        del told["max_num_batched_tokens"]
    if "chunked_prefill_size" in info and info["chunked_prefill_size"] is not None:
        told["chunked_prefill"] = info["chunked_prefill_size"] > 0
    for name, key in (("prefix_caching", "disable_radix_cache"), ("cuda_graphs", "disable_cuda_graph")):
        if isinstance(info.get(key), bool):
            told[name] = not info[key]
    if isinstance(info.get("disable_overlap_schedule"), bool):
        told["async_scheduling"] = not info["disable_overlap_schedule"]
    if "quantization" in info:
        told["quantisation"] = info["quantization"] or "none"
    if "speculative_algorithm" in info:
        told["speculative_decoding"] = info["speculative_algorithm"] is not None
    if "sampling_defaults" in info:
        told["sampling_source"] = "request" if info["sampling_defaults"] == "openai" else "model"
    models = documents.get(MODELS_PATH)
    for entry in models.get("data", ()) if isinstance(models, dict) else ():
        if isinstance(entry, dict) and isinstance(entry.get("max_model_len"), int):
            told["max_model_len"] = entry["max_model_len"]
    return told


BACKEND = SGLangBackend()
