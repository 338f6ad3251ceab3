"""vLLM's names for server metrics, which several other servers (the reference engine among them) use as well."""

from __future__ import annotations

from collections.abc import Iterable

from backends.base import MetricRule
from backends.prometheus import Sample

CACHE_CONFIG = "vllm:cache_config_info"

# Neutral name, then the engine's names, newest first.
VLLM_METRICS = (
    MetricRule("running", ("vllm:num_requests_running",)),
    MetricRule("waiting", ("vllm:num_requests_waiting",)),
    MetricRule("kv_usage", ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")),
    MetricRule("prompt_tokens_total", ("vllm:prompt_tokens_total",)),
    MetricRule("generation_tokens_total", ("vllm:generation_tokens_total",)),
    MetricRule("preemptions_total", ("vllm:num_preemptions_total",)),
    MetricRule("prefix_queries_total", ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")),
    MetricRule("prefix_hits_total", ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")),
)
# The same quantities, and those that only vLLM itself counts.
VLLM_ENGINE_METRICS = (
    *VLLM_METRICS,
    MetricRule("steps_total", ("vllm:iteration_tokens_total_count",)),
    MetricRule("step_tokens_total", ("vllm:iteration_tokens_total_sum",)),
    MetricRule("queue_seconds_total", ("vllm:request_queue_time_seconds_sum",)),
    MetricRule("drafts_total", ("vllm:spec_decode_num_drafts_total",)),
    MetricRule("draft_tokens_total", ("vllm:spec_decode_num_draft_tokens_total",)),
    MetricRule("accepted_tokens_total", ("vllm:spec_decode_num_accepted_tokens_total",)),
    MetricRule("requests_finished_total", ("vllm:request_success_total",)),
)

_LABELS = (
    ("block_size", "block_size"),
    ("kv_cache_tokens", "kv_cache_size_tokens"),
    ("kv_cache_bytes", "kv_cache_memory_bytes"),
)


def cache_settings(samples: Iterable[Sample]) -> dict[str, int | bool]:
    """Neutral KV-cache settings from the info gauge: block_size, kv_cache_tokens, kv_cache_bytes (asked ones, a device),
    prefix_caching, where it tells them.

    Tokens come from the gauge's own label alone: blocks x block size is wrong for hybrid models.
    """
    settings: dict[str, int | bool] = {}
    for name, labels, _ in samples:
        if name != CACHE_CONFIG:
            continue
        for neutral, label in _LABELS:
            if (text := labels.get(label, "")).isdigit():
                settings[neutral] = int(text)
        if labels.get("num_gpu_blocks_override", "None") != "None":
            settings.pop("kv_cache_bytes", None)  # The number of blocks was forced: the asked bytes were not used.
        if (text := labels.get("enable_prefix_caching", "")) in ("True", "False"):
            settings["prefix_caching"] = text == "True"
    return settings
