"""llama.cpp's server: `llama-server`, or the same server as a library (the package xllamacpp), on the model's own weights.

It serves GGUF files. A Hugging Face folder without one is converted once, in bf16 or f16 (`llamacpp_gguf`), by the process that
then serves it (`llamacpp_server`).
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
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
from results.errors import EngineError, UsageError

PROGRAM, MODULE = "llama-server", "backends.llamacpp_server"
PROPS_PATH, MODELS_PATH = "/props", "/v1/models"
# Without a context or slots asked: what every other engine gets by default is a model's whole context, and many at once.
_SLOTS = 8
_FLAGS = {
    "max_num_seqs": ("--parallel",),
    "max_num_batched_tokens": ("--batch-size", "--ubatch-size"),
    "threads": ("--threads", "--threads-batch"),
    "seed": ("--seed",),
    "kv_dtype": ("--cache-type-k", "--cache-type-v"),
}
_KV_TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "q8_0": "q8_0", "auto": "f16"}
_DTYPES = ("bfloat16", "float16", "auto")
_FTYPES = {"BF16": "bfloat16", "F16": "float16", "all F32": "float32"}
# The cells of a slot are set aside for its longest request; what it samples where a request leaves that open is its own.
_ALWAYS = {"sampling_source": "llama.cpp", "stream_interval": 1, "async_scheduling": False, "chunked_prefill": True}
_THREADS = re.compile(r"n_threads = (\d+)")
_BUILD = re.compile(r"build_info: (\S+)|^xllamacpp (\S+) listening", re.MULTILINE)


class LlamaCppBackend(Backend):
    """`python -m backends.llamacpp_server MODEL [--program llama-server] ...`"""

    name: ClassVar[str] = "llamacpp"
    words: ClassVar[str] = "llama.cpp's server, from PATH or the package xllamacpp (CPU)"
    capabilities: ClassVar[Capabilities] = Capabilities()
    settings: ClassVar[frozenset[str]] = frozenset({"dtype", "max_model_len", "prefix_caching", *_FLAGS})
    fixed: ClassVar[Mapping[str, Any]] = {
        "admission": "reserve-max",
        "batching": "continuous",
        "kv_layout": "contiguous",
        "kv_cache": True,
        "tensor_parallel": 1,
        "chunked_prefill": True,
    }
    metrics: ClassVar[tuple[MetricRule, ...]] = (
        MetricRule("running", ("llamacpp:requests_processing",)),
        MetricRule("waiting", ("llamacpp:requests_deferred",)),
        MetricRule("prompt_tokens_total", ("llamacpp:prompt_tokens_total",)),
        MetricRule("generation_tokens_total", ("llamacpp:tokens_predicted_total",)),
        MetricRule("prefix_hits_total", ("llamacpp:prompt_tokens_cached_total",)),
        MetricRule("steps_total", ("llamacpp:n_decode_total",)),
        MetricRule("drafts_total", ("llamacpp:spec_decode_num_drafts_total",)),
        MetricRule("draft_tokens_total", ("llamacpp:spec_decode_num_draft_tokens_total",)),
        MetricRule("accepted_tokens_total", ("llamacpp:spec_decode_num_accepted_tokens_total",)),
    )
    failures: ClassVar[tuple[FailurePattern, ...]] = (
        FailurePattern("port_in_use", r"couldn't bind HTTP server socket", "Choose another port, or leave it out."),
        FailurePattern(
            "out_of_memory_kv_cache",
            r"failed to allocate buffer for kv cache",
            "Lower max_model_len or max_num_seqs: each slot sets its whole context aside.",
        ),
        FailurePattern(
            "bad_argument", r"failed to load model|error loading model", "See the lines above it in the log."
        ),
        FailurePattern("bad_argument", r"^error: |^llamacpp_server: error: ", "Change what that line names."),
    )
    in_container: ClassVar[InContainer | None] = InContainer(("/app/llama-server",), replaces_entrypoint=True)

    def default_command(self) -> tuple[str, ...]:
        """The program on PATH, else the library in this Python. Raises EngineError where neither is there."""
        if shutil.which(PROGRAM) is not None:
            return (PROGRAM,)
        if importlib.util.find_spec("xllamacpp") is not None:
            return (sys.executable, "-P", "-m", MODULE)
        raise EngineError(
            f"llama.cpp is not installed: no `{PROGRAM}` on PATH, no package xllamacpp in {sys.executable}. Install the package "
            f"(`pip install xllamacpp`), or name a server: export DYNO_LLAMACPP_COMMAND=/path/to/{PROGRAM}."
        )

    def launch_plan(self, context: LaunchContext) -> LaunchPlan:
        self.refuse_unsupported(context.settings)
        asked = context.settings.asked()
        dtype = asked.get("dtype", "bfloat16")
        if dtype not in _DTYPES:
            raise UsageError(f"llama.cpp serves weights in {', '.join(_DTYPES[:2])} here, not in {dtype!r}.")
        if (kv := asked.get("kv_dtype")) is not None and kv not in _KV_TYPES:
            raise UsageError(f"llama.cpp has no kv_dtype {kv!r} here: it takes {', '.join(_KV_TYPES)}.")
        slots = asked.setdefault("max_num_seqs", _SLOTS)
        argv = [*_start(context, "bfloat16" if dtype == "auto" else dtype)]
        argv += ["--host", context.host, "--port", str(context.port), "--alias", context.served_name]
        # A slot's context is the whole divided by the slots, and is not to shrink by itself.
        argv += ["--metrics", "--fit", "off", "--ctx-size", str(asked.get("max_model_len", 0) * slots)]
        for setting, flags in _FLAGS.items():
            if setting in asked:
                value = _KV_TYPES[asked[setting]] if setting == "kv_dtype" else str(asked[setting])
                argv += [word for flag in flags for word in (flag, value)]
        if context.settings.prefix_caching is False:
            argv += ["--no-cache-prompt", "--cache-ram", "0"]
        notes = [] if context.settings.max_num_seqs else [f"{slots} slots: its own default is one, or four"]
        if "max_model_len" not in asked:
            notes.append("its context is the model's, divided by the slots")
        env = {"PYTHONUNBUFFERED": "1", **context.env}
        return LaunchPlan((*argv, *context.options), env, notes=tuple(notes), measuring=frozenset({"--metrics"}))

    def settings_paths(self) -> tuple[str, ...]:
        return (PROPS_PATH, MODELS_PATH)

    def resolved_settings(self, asked: EngineSettings, documents: Mapping[str, Any], log: str) -> dict[str, Resolved]:
        resolved = {name: Resolved(value, Source.ASKED) for name, value in asked.asked().items()}
        resolved |= {name: Resolved(value, Source.FIXED) for name, value in {**_ALWAYS, **self.fixed}.items()}
        if threads := _THREADS.findall(log):
            resolved["threads"] = Resolved(int(threads[-1]), Source.LOG)
        props, meta = documents.get(PROPS_PATH), _meta(documents.get(MODELS_PATH))
        told: dict[str, Any] = {}
        if isinstance(props, dict):
            told["max_num_seqs"] = props.get("total_slots")
        told["max_model_len"] = meta.get("n_ctx")
        told["dtype"] = _FTYPES.get(str(meta.get("ftype")))
        if told.get("max_num_seqs") and told["max_model_len"]:
            told["kv_cache_tokens"] = told["max_num_seqs"] * told["max_model_len"]
        resolved |= {name: Resolved(value, Source.ENDPOINT) for name, value in told.items() if value is not None}
        return resolved

    def versions(self, documents: Mapping[str, Any], log: str) -> dict[str, str]:
        found = {a or b for a, b in _BUILD.findall(log)} - {"b0-unknown"}
        return {"llamacpp": sorted(found)[0]} if found else {}


def _start(context: LaunchContext, dtype: str) -> tuple[str, ...]:
    """The words before the flags: the library's process, or one that makes the GGUF and becomes the program."""
    if context.image is not None:
        own = sorted(context.model.glob("*.gguf"))
        if len(own) != 1:
            raise UsageError(
                f"In a container llama.cpp needs the GGUF itself: put one into {context.model} (here: {len(own)})."
            )
        return (*context.command, "--model", str(own[0]))
    if MODULE in context.command:
        return (*context.command, str(context.model), "--dtype", dtype)
    ours = (sys.executable, "-P", "-m", MODULE, str(context.model), "--dtype", dtype)
    return (*ours, "--program", shlex.join(context.command))


def _meta(document: Any) -> dict[str, Any]:
    entries = document.get("data") if isinstance(document, dict) else None
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("meta"), dict):
            return dict(entry["meta"])
    return {}


BACKEND = LlamaCppBackend()
