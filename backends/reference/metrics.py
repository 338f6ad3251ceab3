"""Prometheus text: vLLM's names where the quantity is the same, `dyno_reference:` for bytes."""

from __future__ import annotations

from collections.abc import Mapping

from backends.reference.messages import EngineStats


def exposition(
    stats: EngineStats,
    model: str,
    block_size: int,
    num_blocks: int,
    kv_bytes_per_token: int,
    weight_bytes: int,
    finished: Mapping[str, int],
) -> str:
    """The body of /metrics. `finished` counts requests by finish reason."""
    label = f'model_name="{_escaped(model)}",engine="0"'
    block_bytes = block_size * kv_bytes_per_token
    lines: list[str] = []

    def metric(name: str, kind: str, text: str, values: Mapping[str, float]) -> None:
        lines.append(f"# HELP {name} {text}")
        lines.append(f"# TYPE {name} {kind}")
        for extra, value in values.items():
            lines.append(f"{name}{{{label}{extra}}} {value}")

    metric("vllm:num_requests_running", "gauge", "Requests in execution batches.", {"": stats.running})
    metric("vllm:num_requests_waiting", "gauge", "Requests waiting to be processed.", {"": stats.waiting})
    metric(
        "vllm:kv_cache_usage_perc",
        "gauge",
        "Allocated share of the KV blocks; 1 means all.",
        {"": stats.blocks_allocated / max(num_blocks, 1)},
    )
    metric("vllm:prompt_tokens_total", "counter", "Prompt tokens processed.", {"": stats.prompt_tokens})
    metric("vllm:generation_tokens_total", "counter", "Tokens generated.", {"": stats.generated_tokens})
    metric("vllm:num_preemptions_total", "counter", "Preemptions.", {"": stats.preemptions})
    metric("vllm:prefix_cache_queries_total", "counter", "Tokens looked up.", {"": stats.prefix_queries})
    metric("vllm:prefix_cache_hits_total", "counter", "Tokens found computed.", {"": stats.prefix_hits})
    metric(
        "vllm:request_success_total",
        "counter",
        "Finished requests by reason.",
        {f',finished_reason="{reason}"': count for reason, count in finished.items()},
    )
    metric(
        "vllm:cache_config_info",
        "gauge",
        "The KV cache as configured, in labels.",
        {
            f',block_size="{block_size}",num_gpu_blocks="{num_blocks}",'
            f'kv_cache_size_tokens="{num_blocks * block_size}"': 1
        },
    )
    metric("dyno_reference:steps_total", "counter", "Engine steps.", {"": stats.steps})
    metric("dyno_reference:kv_pool_bytes", "gauge", "Bytes of the KV pool.", {"": num_blocks * block_bytes})
    metric(
        "dyno_reference:kv_reserved_bytes",
        "gauge",
        "Bytes of KV blocks promised to running requests or held by them.",
        {"": stats.blocks_reserved * block_bytes},
    )
    metric(
        "dyno_reference:kv_allocated_bytes",
        "gauge",
        "Bytes of KV blocks that belong to a request.",
        {"": stats.blocks_allocated * block_bytes},
    )
    metric(
        "dyno_reference:kv_token_bytes",
        "gauge",
        "Bytes of KV slots that hold a token.",
        {"": stats.tokens_held * kv_bytes_per_token},
    )
    metric("dyno_reference:weight_bytes", "gauge", "Bytes of the model's parameters.", {"": weight_bytes})
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
