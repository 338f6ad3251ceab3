"""What vLLM's endpoints tell of its settings: /metrics, /v1/models, /version, and /server_info where it is open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.prometheus import parse_prometheus
from backends.vllm_log import plain, sampling_source
from backends.vllm_metrics import CACHE_CONFIG, cache_settings

MODELS_PATH, METRICS_PATH, VERSION_PATH = "/v1/models", "/metrics", "/version"
# Only with VLLM_SERVER_DEV_MODE=1, which this adapter sets for servers that listen on the loopback alone.
INFO_PATH = "/server_info?config_format=json"
PATHS = (MODELS_PATH, METRICS_PATH, VERSION_PATH, INFO_PATH)

# Neutral name -> section and key of the engine's configuration.
_CONFIG = {
    "dtype": ("model_config", "dtype"),
    "max_model_len": ("model_config", "max_model_len"),
    "quantisation": ("model_config", "quantization"),
    "seed": ("model_config", "seed"),
    "kv_dtype": ("cache_config", "cache_dtype"),
    "block_size": ("cache_config", "block_size"),
    "kv_cache_tokens": ("cache_config", "kv_cache_size_tokens"),
    "kv_cache_bytes": ("cache_config", "kv_cache_memory_bytes"),
    "memory_fraction": ("cache_config", "gpu_memory_utilization"),
    "prefix_caching": ("cache_config", "enable_prefix_caching"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens"),
    "chunked_prefill": ("scheduler_config", "enable_chunked_prefill"),
    "scheduler_policy": ("scheduler_config", "policy"),
    "async_scheduling": ("scheduler_config", "async_scheduling"),
    "stream_interval": ("scheduler_config", "stream_interval"),
    "tensor_parallel": ("parallel_config", "tensor_parallel_size"),
    "load_format": ("load_config", "load_format"),
    "attention_backend": ("attention_config", "backend"),
    "device": ("device_config", "device"),
}


def settings_from(documents: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under neutral names, as far as the endpoints tell them. The metrics page wins: it is the running engine's."""
    told = _from_info(documents.get(INFO_PATH))
    models = documents.get(MODELS_PATH)
    entries = models.get("data") if isinstance(models, dict) else None
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("max_model_len"), int):
            told["max_model_len"] = entry["max_model_len"]
    if isinstance(page := documents.get(METRICS_PATH), str):
        told |= cache_settings(parse_prometheus(page, {CACHE_CONFIG}))
    return told


def versions_from(documents: Mapping[str, Any]) -> dict[str, str]:
    """Versions of the engine and of torch, where they are told."""
    told = {
        "vllm": _section(dict(documents), VERSION_PATH).get("version"),
        "torch": _section(documents.get(INFO_PATH), "system_env").get("torch_version"),
    }
    return {name: version for name, version in told.items() if isinstance(version, str)}


def _from_info(document: Any) -> dict[str, Any]:
    config = _section(document, "vllm_config")
    told: dict[str, Any] = {}
    for name, (section, key) in _CONFIG.items():
        part = _section(config, section)
        if (value := part.get(key)) is not None:
            told[name] = plain(value) if isinstance(value, str) else value
        elif name == "quantisation" and key in part:
            told[name] = "none"
    if _section(config, "cache_config").get("num_gpu_blocks_override") is not None:
        told.pop("kv_cache_bytes", None)  # The number of blocks was forced: the asked bytes were not used.
    if "speculative_config" in config:
        told["speculative_decoding"] = config["speculative_config"] is not None
    model, compilation = _section(config, "model_config"), _section(config, "compilation_config")
    if "generation_config" in model:
        told["sampling_source"] = sampling_source(model["generation_config"])
    if "cudagraph_mode" in compilation:
        told["cuda_graphs"] = compilation["cudagraph_mode"] not in (0, None, "NONE")
        told["cuda_graph_sizes"] = compilation.get("cudagraph_capture_sizes") or []
    return told


def _section(document: Any, name: str) -> dict[str, Any]:
    """A part of a document; {} where the document is of another shape."""
    part = document.get(name) if isinstance(document, dict) else None
    return part if isinstance(part, dict) else {}
