"""The in-repo reference engine, launched like any other server: its own process, its own log, its own port."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, ClassVar

from backends.base import (
    Backend,
    Capabilities,
    EngineSettings,
    FailurePattern,
    LaunchContext,
    LaunchPlan,
    MetricRule,
    Resolved,
    Source,
)
from backends.reference.switches import Switches, check_switches
from backends.vllm_metrics import VLLM_METRICS
from results.errors import UsageError

SETTINGS_PATH = "/v1/dyno/settings"

# Neutral setting -> flag of `python -m backends.reference`.
_FLAGS = {
    "dtype": "--dtype",
    "max_model_len": "--max-model-len",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "block_size": "--block-size",
    "kv_cache_tokens": "--kv-cache-tokens",
    "kv_cache_bytes": "--kv-cache-bytes",
    "threads": "--threads",
    "seed": "--seed",
    "load_format": "--load-format",
    "admission": "--admission",
    "batching": "--batching",
    "kv_layout": "--kv-layout",
}
# What it always does and nobody can set: token by token, each sent at once, each step planned after the one before; what a
# request leaves open is plain sampling.
_ALWAYS = {
    "speculative_decoding": False,
    "sampling_source": "request",
    "async_scheduling": False,
    "stream_interval": 1,
}
# Neutral switch -> its words when on and when off.
_SWITCHES = {
    "chunked_prefill": (("--chunked-prefill",), ("--no-chunked-prefill",)),
    "prefix_caching": (("--prefix-caching",), ("--no-prefix-caching",)),
    "kv_cache": (("--kv-cache", "on"), ("--kv-cache", "off")),
}
_SWITCH_NAMES = tuple(field.name for field in fields(Switches))
# Phase of the start -> the line of its log that ends it; each line begins with local time, to the millisecond.
_PHASES = {
    "log_first_line": re.compile(""),
    "weights_loaded": re.compile(r": loaded [\d.]+ \w+ of weights"),
    "kv_allocated": re.compile(r": allocated KV in"),
}
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) ")
# What the server tells of itself beside settings.
_OTHER_KEYS = frozenset({"versions", "model"})


class ReferenceBackend(Backend):
    """`python -m backends.reference MODEL_DIR ...`"""

    name: ClassVar[str] = "reference"
    words: ClassVar[str] = "the in-repo reference engine (paged KV cache, continuous batching), on the CPU"
    capabilities: ClassVar[Capabilities] = Capabilities(
        launches=True,
        token_id_prompts=True,
        ignore_eos=True,
        continuous_usage=True,
        return_token_ids=True,
        truth_log=True,
        server_metrics=True,
        api_in_main_thread=True,
    )
    settings: ClassVar[frozenset[str]] = frozenset({*_FLAGS, *_SWITCHES})
    fixed: ClassVar[Mapping[str, Any]] = {
        "cuda_graphs": False,
        "tensor_parallel": 1,
        "quantisation": "none",
        "step_log": True,  # its truth log: the measuring always asks for it
    }
    metrics: ClassVar[tuple[MetricRule, ...]] = (
        *VLLM_METRICS,
        MetricRule("kv_pool_bytes", ("dyno_reference:kv_pool_bytes",)),
        MetricRule("kv_reserved_bytes", ("dyno_reference:kv_reserved_bytes",)),
        MetricRule("kv_allocated_bytes", ("dyno_reference:kv_allocated_bytes",)),
        MetricRule("kv_held_bytes", ("dyno_reference:kv_held_bytes", "dyno_reference:kv_token_bytes")),
        MetricRule("weight_bytes", ("dyno_reference:weight_bytes",)),
    )
    # The engine states every mistake of its user as one such line, with the numbers and the way out.
    failures: ClassVar[tuple[FailurePattern, ...]] = (
        FailurePattern(
            "model_not_found",
            r"^error: (Model folder|Weights|The weights in) ",
            "Name a folder with config.json and safetensors files, or fetch one: `dyno models fetch smollm2-135m`.",
        ),
        FailurePattern(
            "unsupported_model",
            r"^error: Architecture .* is not supported",
            "Take a model of a supported architecture.",
        ),
        FailurePattern("out_of_memory_host", r"^error: The KV pool of .* are available", "Ask for a smaller KV cache."),
        FailurePattern("port_in_use", r"^error: Cannot listen on .*in use", "Choose another port, or leave it out."),
        FailurePattern("bad_argument", r"^error: ", "Change the setting which that line names."),
    )

    def default_command(self) -> tuple[str, ...]:
        # -P: a folder of the user's that happens to be called `backends` is not ours.
        return (sys.executable, "-P", "-m", "backends.reference")

    def launch_plan(self, context: LaunchContext) -> LaunchPlan:
        self.refuse_unsupported(context.settings)
        asked = context.settings.asked()
        if "kv_cache_tokens" in asked and "kv_cache_bytes" in asked:
            raise UsageError(
                f"The KV cache's size was asked twice: kv_cache_tokens={asked['kv_cache_tokens']} and "
                f"kv_cache_bytes={asked['kv_cache_bytes']}. Leave one out."
            )
        argv = [*context.command, str(context.model), "--host", context.host, "--port", str(context.port)]
        truth = ("--truth-dir", str(context.session_dir))
        argv += ["--served-model-name", context.served_name, *truth]
        for setting, flag in _FLAGS.items():
            if setting in asked:
                argv += [flag, str(asked[setting])]
        for setting, words in _SWITCHES.items():
            if setting in asked:
                argv += words[not asked[setting]]
        env = {"PYTHONUNBUFFERED": "1", **context.env}
        return LaunchPlan((*argv, *context.options), env, measuring=frozenset(truth))

    def refuse_unsupported(self, asked: EngineSettings) -> None:
        """Also switches that do not go together: its engine would say so only once it is started."""
        super().refuse_unsupported(asked)
        values = {name: value for name in _SWITCH_NAMES if (value := getattr(asked, name)) is not None}
        cache = values.pop("kv_cache", True)
        chunked = values.pop("chunked_prefill", cache)
        check_switches(Switches(**values, chunked_prefill=chunked, kv_cache="on" if cache else "off"))

    def settings_paths(self) -> tuple[str, ...]:
        return (SETTINGS_PATH,)

    def resolved_settings(self, asked: EngineSettings, documents: Mapping[str, Any], log: str) -> dict[str, Resolved]:
        resolved = {name: Resolved(value, Source.FIXED) for name, value in {**self.fixed, **_ALWAYS}.items()}
        resolved |= {
            name: Resolved(value, Source.ASKED) for name, value in asked.asked().items() if name in self.settings
        }
        document = documents.get(SETTINGS_PATH)
        if isinstance(document, dict):
            resolved |= {
                name: Resolved(value, Source.ENDPOINT)
                for name, value in document.items()
                if name not in _OTHER_KEYS and not isinstance(value, dict)
            }
        return resolved

    def startup_phases(self, log: str, now_wall_ns: int) -> dict[str, int]:
        phases: dict[str, int] = {}
        for line in log.splitlines():
            if (stamp := _STAMP.match(line)) is None:
                continue
            try:
                at = round(datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S,%f").timestamp() * 1000) * 1_000_000
            except ValueError:
                continue  # no date
            for phase, pattern in _PHASES.items():
                if phase not in phases and pattern.search(line):
                    phases[phase] = at
        return phases

    def versions(self, documents: Mapping[str, Any], log: str) -> dict[str, str]:
        document = documents.get(SETTINGS_PATH)
        found = document.get("versions") if isinstance(document, dict) else None
        return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


BACKEND = ReferenceBackend()
