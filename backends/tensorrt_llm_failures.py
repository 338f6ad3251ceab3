"""Lines of TensorRT-LLM's log that name a failure, with its own way out. The common table holds what all engines share."""

from __future__ import annotations

from backends.base import FailurePattern

TENSORRT_LLM_FAILURES = (
    FailurePattern(
        "out_of_memory_kv_cache",
        r"component could not be created.*KV cache|KV cache.*could not be created",
        "Lower memory_fraction (it is a share of what is free after the weights), max_num_batched_tokens or max_num_seqs.",
    ),
    FailurePattern(
        "out_of_memory_device",
        r"Executor creation failed due to insufficient GPU memory",
        "Lower max_num_batched_tokens, max_num_seqs or memory_fraction; the table in the log tells which part did not fit.",
    ),
    FailurePattern(
        "port_in_use",
        r"Failed to bind socket to",
        "Choose another port, or leave it out so that a free one is taken.",
    ),
    FailurePattern(
        "no_device",
        r"No GPU devices found on the node",
        "It sees no GPU: check `nvidia-smi` and CUDA_VISIBLE_DEVICES; in a container, that it was given one (`container: gpus`).",
    ),
    FailurePattern(
        "missing_dependency",
        r"No module named '?tensorrt_llm\b|libmpi\S*: cannot open shared object file",
        "TensorRT-LLM needs its own wheel, CUDA and Open MPI: the container images of NVIDIA's registry have all of it "
        "(docs/tensorrt-llm.md).",
    ),
    FailurePattern(
        "bad_argument",
        r"^Error: No such option|^(?:Error: )?Invalid value for|is not a known backend",
        "This version does not take that flag: `dyno backends` tells the versions the adapter was made for; leave the option out.",
    ),
    FailurePattern(
        "bad_argument",
        r"Extra inputs are not permitted",
        "This version does not know the key named above that line: leave it out of the options, or take another version.",
    ),
    FailurePattern(
        "bad_argument",
        r"Unknown architecture for AutoModelForCausalLM|Unsupported architecture",
        "This version does not serve that model: see its list of supported models.",
    ),
    FailurePattern(
        "bad_argument",
        r"Pre SM 80 GPUs do not support bfloat16",
        "Ask for dtype=float16: this GPU has no bfloat16.",
    ),
)
