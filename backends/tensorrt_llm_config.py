"""Neutral settings as TensorRT-LLM's configuration: every option once, in one YAML file, nested blocks complete.

Why so: up to 1.2 the file wins over the command line, since then the command line over the file; 1.0 replaces a nested block
as a whole (a file with `kv_cache_config: {dtype: fp8}` drops the memory fraction); and 1.0 takes the sizes from the command
line alone. So what a user adds (`--config FILE`, `--set PATH=VALUE`, flags) is put into the same file, and wins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from backends.base import EngineSettings, SettingNotSupportedError
from backends.speculation import NGRAM, Method, Speculation, asked_speculation
from backends.tensorrt_llm_reference import Era, Reference
from results.errors import UsageError

# Neutral setting -> where it stands in the file. More than a row: graphs, prefix caching, admission, speculation.
PATHS: dict[str, tuple[str, ...]] = {
    "dtype": ("dtype",),
    "load_format": ("load_format",),
    "max_model_len": ("max_seq_len",),
    "max_num_seqs": ("max_batch_size",),
    "max_num_batched_tokens": ("max_num_tokens",),
    "tensor_parallel": ("tensor_parallel_size",),
    "chunked_prefill": ("enable_chunked_prefill",),
    "kv_dtype": ("kv_cache_config", "dtype"),
    "kv_cache_tokens": ("kv_cache_config", "max_tokens"),
    "kv_cache_bytes": ("kv_cache_config", "max_gpu_total_bytes"),
    "memory_fraction": ("kv_cache_config", "free_gpu_memory_fraction"),
    "block_size": ("kv_cache_config", "tokens_per_block"),
    "scheduler_policy": ("scheduler_config", "waiting_queue_policy"),
    "step_log": ("print_iter_log",),
}
SETTINGS = frozenset(PATHS) | {
    "prefix_caching",
    "cuda_graphs",
    "admission",
    "quantisation",
    "speculative",
    "speculative_tokens",
    "speculative_model",
}
# It knows one way of promising: a request's prompt and max_tokens. The model's longest, as others promise it, is taken as that.
ADMISSION = {
    "reserve-oracle": "GUARANTEED_NO_EVICT",
    "reserve-max": "GUARANTEED_NO_EVICT",
    "on-demand": "MAX_UTILIZATION",
}
# The engine's own, where nothing else is asked.
MAX_BATCH_SIZE, MEMORY_FRACTION = 2048, 0.9
_STATS_KEPT = 10_000
_KV_DTYPES = {
    Era.V1_0: ("auto", "fp8"),
    Era.V1_2: ("auto", "fp8", "nvfp4"),
    Era.MAIN: ("auto", "float16", "bfloat16", "float32", "fp8", "nvfp4"),
}
_FILE_FLAGS = ("--config", "--extra_llm_api_options")
# Flags that say what a key of the file says, where that key goes by another name or deeper down.
_SAME_AS = {
    "free_gpu_memory_fraction": ("kv_cache_config", "free_gpu_memory_fraction"),
    "kv_cache_dtype": ("kv_cache_config", "dtype"),
}
# Flags that are keys of the file too, but say what is served rather than how.
_STAY = frozenset({"backend", "tokenizer", "custom_tokenizer", "revision"})
_SPECULATION = {Method.NGRAM: "NGram", Method.DRAFT: "Draft_Target", Method.EAGLE3: "Eagle3", Method.MTP: "MTP"}
_SPECULATION_1_0 = {**_SPECULATION, Method.DRAFT: "DraftTarget", Method.EAGLE3: "Eagle"}
# What a user says of these as a block is taken as it is: sizes as a list exclude a largest one, methods have keys of their own.
_WHOLE = frozenset({"cuda_graph_config", "speculative_config"})


@dataclass(slots=True)
class Translation:
    """The file's content, the words that stay on the command line, and what differs from what was asked. `measuring` are keys
    of the file that only serve the measuring, unless the user set them."""

    config: dict[str, Any] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    measuring: set[str] = field(default_factory=set)

    def put(self, path: Sequence[str], value: Any) -> None:
        """Set a value, making the blocks on the way to it."""
        self.measuring.discard(path[0])
        block = self.config
        for step in path[:-1]:
            inner = block.get(step)
            if not isinstance(inner, dict):
                inner = block[step] = {}
            block = inner
        block[path[-1]] = value


def translate(
    settings: EngineSettings, options: Sequence[str], known: Reference, sure: bool, model: Path
) -> Translation:
    """The whole configuration. `sure` is False where the version is not known: then what every version takes is written.

    Raises SettingNotSupportedError for what this version cannot take, UsageError for what contradicts itself.
    """
    out = Translation()
    engine = is_engine(model)
    asked = settings.asked()
    _refuse(asked, known, engine)
    for name, path in PATHS.items():
        if name in asked:
            out.put(path, asked[name])
    if asked.get("kv_dtype") == "fp8_e4m3":
        out.put(PATHS["kv_dtype"], "fp8")
    if settings.prefix_caching is not None:
        for key in ("enable_block_reuse", "enable_partial_reuse"):
            out.put(("kv_cache_config", key), settings.prefix_caching)
    if settings.admission is not None:
        out.put(("scheduler_config", "capacity_scheduler_policy"), ADMISSION[settings.admission])
    if not engine:
        _pytorch(settings, known, out)
    _own(options, known, out)
    if not engine and "cuda_graph_config" not in out.config:
        size = out.config.get("max_batch_size") or MAX_BATCH_SIZE
        out.put(("cuda_graph_config",), {"enable_padding": True, "max_batch_size": size})
        out.notes.append(
            "CUDA graphs are padded and captured up to max_batch_size; left alone it captures up to 128 and runs other sizes "
            "kernel by kernel"
        )
    if isinstance(kv := out.config.get("kv_cache_config"), dict):
        kv.setdefault("free_gpu_memory_fraction", MEMORY_FRACTION)
    _remarks(settings, known, out)
    for key in known.from_command_line if sure else ("max_batch_size", "max_num_tokens", "max_seq_len"):
        if (value := out.config.pop(key, None)) is not None:
            out.words += [f"--{key}", str(value)]
    return out


def is_engine(model: Path) -> bool:
    """Whether a folder holds a built TensorRT engine instead of a model's weights."""
    config = _json(model / "config.json")
    return "build_config" in config and "pretrained_config" in config


def checkpoint_quantisation(model: Path) -> str:
    """What a model folder's weights are quantised to, in lower case; `none` where nothing says so."""
    own = _json(model / "hf_quant_config.json").get("quantization") or {}
    config = _json(model / "config.json").get("quantization_config") or {}
    found = own.get("quant_algo") or config.get("quant_algo") or config.get("quant_method")
    return str(found).lower() if found else "none"


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _refuse(asked: Mapping[str, Any], known: Reference, engine: bool) -> None:
    """Settings that this version, or a built engine, has no way to take."""
    name = f"tensorrt_llm {known.era}{' (a built engine)' if engine else ''}"
    can = sorted(setting for setting, path in PATHS.items() if _takes(known, path, engine))
    for setting in asked:
        if setting in PATHS and setting not in can:
            raise SettingNotSupportedError(name, setting, can)
    if engine and (wrong := {"cuda_graphs", "speculative"} & asked.keys()):
        raise SettingNotSupportedError(name, wrong.pop(), can)
    kinds = ("auto",) if engine else _KV_DTYPES[known.era]
    kv = asked.get("kv_dtype")
    if kv is not None and kv not in kinds and not (kv == "fp8_e4m3" and "fp8" in kinds):
        raise UsageError(f"{name} has no kv_dtype {kv!r}: it takes {', '.join(kinds)}.")
    if (admission := asked.get("admission")) is not None and admission not in ADMISSION:
        raise UsageError(f"{name} has no admission {admission!r}: it takes {', '.join(ADMISSION)}.")


def _takes(known: Reference, path: tuple[str, ...], engine: bool) -> bool:
    if engine and path[0] not in known.engine_keys:
        return False
    keys = known.keys if len(path) == 1 else known.blocks[path[0]]
    return path[-1] in keys


def _pytorch(settings: EngineSettings, known: Reference, out: Translation) -> None:
    """What the PyTorch backend alone has: graphs, speculation, the statistics of each step."""
    kept = next((key for key in ("max_stats_len", "iter_stats_max_iterations") if key in known.keys), None)
    for key, value in (("enable_iter_perf_stats", True), *(((kept, _STATS_KEPT),) if kept else ())):
        out.put((key,), value)
        out.measuring.add(key)
    if settings.cuda_graphs is False:
        out.put(("cuda_graph_config",), None)
    if (wanted := asked_speculation(settings)) is not None:
        _speculation(wanted, known, out)


def _speculation(wanted: Speculation, known: Reference, out: Translation) -> None:
    method = (_SPECULATION_1_0 if known.era is Era.V1_0 else _SPECULATION)[wanted.method]
    if wanted.method == Method.MTP and known.era is not Era.MAIN:
        block: dict[str, Any] = {"decoding_type": method, "num_nextn_predict_layers": wanted.tokens}
    else:
        block = {"decoding_type": method, "max_draft_len": wanted.tokens}
    if wanted.method == Method.NGRAM:
        block["max_matching_ngram_size"] = NGRAM
    if wanted.model is not None:
        block["speculative_model_dir"] = wanted.model
    out.put(("speculative_config",), block)


def _own(options: Sequence[str], known: Reference, out: Translation) -> None:
    """The user's words: files, single keys and flags that are keys go into the file; the rest stays on the command line."""
    words = list(options)
    while words:
        word, _, value = words.pop(0).partition("=")
        flag = known.flag(word)
        takes_value = word in (*_FILE_FLAGS, "--set") or (flag is not None and flag.type != "flag")
        if takes_value and not value and words:
            value = words.pop(0)
        if word in _FILE_FLAGS:
            more = _read(Path(value))
            _merge(out.config, more)
            out.measuring -= more.keys()
        elif word == "--set":
            path, _, text = value.partition("=")
            out.put(path.split("."), yaml.safe_load(text))
        elif flag is not None and flag.name not in _STAY and (path_of := _key_of(flag.name, known)):
            out.put(path_of, True if flag.type == "flag" else value if flag.type == "str" else yaml.safe_load(value))
        else:
            out.words += [word, value] if takes_value else [f"{word}={value}" if value else word]


def _key_of(name: str, known: Reference) -> tuple[str, ...] | None:
    if name in _SAME_AS:
        return _SAME_AS[name]
    return (name,) if name in known.keys else None


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read the configuration {path}: {error.strerror or error}.") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not valid YAML: {str(error).splitlines()[0]}.") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds {type(data).__name__}, not keys and values.")
    return data


def _merge(base: dict[str, Any], more: Mapping[str, Any]) -> None:
    """`more` wins, block by block."""
    for key, value in more.items():
        inner = base.get(key)
        if key not in _WHOLE and isinstance(inner, dict) and isinstance(value, Mapping):
            _merge(inner, value)
        else:
            base[key] = value


def _remarks(settings: EngineSettings, known: Reference, out: Translation) -> None:
    say = out.notes.append
    for problem in known.problems(out.config):
        say(f"NVIDIA's description of TensorRT-LLM {known.era} does not have {problem}")
    if out.config.get("enable_iter_perf_stats"):
        say("statistics of each step are on, at a small cost; `--set enable_iter_perf_stats=false` leaves them out")
    if settings.memory_fraction is not None:
        say(
            f"memory_fraction={settings.memory_fraction} is a share of what is free after weights and activations here, of the "
            "whole device in vLLM"
        )
    if settings.admission == "reserve-max":
        say(
            "admission=reserve-max is GUARANTEED_NO_EVICT here, which promises prompt and max_tokens (reserve-oracle), not the model's "
            "longest"
        )
    if settings.kv_cache_tokens is not None:
        say("kv_cache_tokens is an upper limit: the memory fraction may give fewer (the log tells)")
    if out.config.get("return_perf_metrics") and out.config.get("enable_iter_perf_stats"):
        say("return_perf_metrics makes the server read its own step statistics: none is left for this run")
