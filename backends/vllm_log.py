"""What vLLM's log tells: how the engine is set, and when each phase of its start was done.

Lines carry the process (`(EngineCore pid=1) INFO 04-21 05:42:02 [core.py:105] ...`), a date without a year and whole seconds.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from typing import Any

from results.clock import NS_PER_S

# Where steps are logged the seconds since the epoch stand in front too, before or after the process (`vllm_steps`).
_STAMP = re.compile(
    r"^(?:\d+\.\d+ )?(?:\([^)]*\)\s)?(?:\d+\.\d+ )?(?:INFO|WARNING|ERROR|DEBUG) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) "
)
_CONFIG = re.compile(r"Initializing a V1 LLM engine \(v(?P<version>[^)]+)\) with config: (?P<config>.*)")
_VERSION = re.compile(r"█\s+version (\S+)")
_ARGS = re.compile(r"non-default args: (\{.*\})")
_DAY_S = 86_400

# Neutral name -> key of the engine's own dump of its configuration.
_DUMPED = {
    "dtype": "dtype",
    "max_model_len": "max_seq_len",
    "load_format": "load_format",
    "tensor_parallel": "tensor_parallel_size",
    "quantisation": "quantization",
    "kv_dtype": "kv_cache_dtype",
    "seed": "seed",
    "prefix_caching": "enable_prefix_caching",
    "chunked_prefill": "enable_chunked_prefill",
    "device": "device_config",
}
# Neutral name -> what the engine says somewhere in passing; the last one in the log counts.
_SAID: dict[str, re.Pattern[str]] = {
    "max_num_batched_tokens": re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)"),
    "kv_cache_tokens": re.compile(r"KV cache size: ([\d,]+) tokens"),
    "block_size": re.compile(r"Setting (?:kv cache|attention) block size to (\d+)"),
    "attention_backend": re.compile(r"Using (\w+|Flash Attention) (?:attention )?backend(?: out of| on V1|\.)"),
}
_KV_MEMORY = re.compile(
    r"Available KV cache memory: ([\d.]+) GiB|(?:Explicitly|Auto) set \(([\d.]+)/[\d.]+\) GiB for KV cache"
)
_THREADS = re.compile(r"local_rank=\d+, core ids=\[([\d, ]*)\]")
_CAPTURE_SIZES = re.compile(r"'cudagraph_capture_sizes': \[([\d, ]*)\]")
_GRAPH_MODE = re.compile(r"'cudagraph_mode': (?:<CUDAGraphMode\.)?([A-Z_]+)")
_COMPILE_MODE = re.compile(r"'mode': <CompilationMode\.(\w+)")
# The upper end of the compiler's ranges is the tokens of a step, whatever else stands there.
_RANGES = re.compile(r"'compile_ranges_endpoints': \[([\d, ]+)\]")

# Phase of the start -> the line that ends it. The last such line of the start counts (several workers end theirs in turn).
_PHASES: dict[str, re.Pattern[str]] = {
    "log_first_line": re.compile(""),
    "engine_config": _CONFIG,
    "weights_loaded": re.compile(r"Loading weights took|Model loading took"),
    "compiled": re.compile(r"torch\.compile (?:took|takes) "),
    "warmed_up": re.compile(r"Warming up done"),
    "kv_allocated": re.compile(r"KV cache size: [\d,]+ tokens"),
    "graphs_captured": re.compile(r"Graph capturing finished in"),
    "engine_ready": re.compile(r"init engine \(profile, create kv cache, warmup model\) took"),
    "http_ready": re.compile(r"Starting vLLM (?:API )?server .*on http"),
}


def version_of(log: str) -> str | None:
    """The version that the engine itself names."""
    found = _CONFIG.search(log) or _VERSION.search(log)
    return None if found is None else found[1]


def settings_of(log: str) -> dict[str, Any]:
    """Settings under neutral names, as far as the log tells them."""
    told: dict[str, Any] = {}
    args = _arguments(log)
    told |= {name: args[name] for name in ("max_num_seqs", "max_num_batched_tokens", "block_size") if name in args}
    if "generation_config" in args:
        told["sampling_source"] = sampling_source(args["generation_config"])
    if (dump := _CONFIG.search(log)) is not None:
        told |= _from_dump(dump["config"])
    for name, pattern in _SAID.items():
        for found in pattern.finditer(log):
            text = found[1].replace(",", "")
            told[name] = int(text) if text.isdigit() else text
    if memory := _KV_MEMORY.findall(log):
        told["kv_cache_bytes"] = round(min(float(a or b) for a, b in memory) * (1 << 30))
    if ranks := _THREADS.findall(log):
        told["threads"] = sum(len(cores.split(",")) for cores in ranks if cores.strip())
    return told


def _arguments(log: str) -> dict[str, Any]:
    """The engine's own list of arguments that are not at their default; {} where it holds what is no literal."""
    found = _ARGS.search(log)
    if found is None:
        return {}
    try:
        value = ast.literal_eval(re.sub(r"<([\w.]+): [^<>]*>", r"'\1'", found[1]))
    except (ValueError, SyntaxError):
        return {}
    return value if isinstance(value, dict) else {}


def _from_dump(config: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, key in _DUMPED.items():
        if found := re.search(rf"(?:^|, ){key}=('[^']*'|[^,]*)", config):
            told[name] = plain(found[1].strip("'"))
    if mode := _GRAPH_MODE.search(config):
        told["cuda_graphs"] = told.get("device") != "cpu" and mode[1] != "NONE"
    told["quantisation"] = told.get("quantisation") or "none"
    if found := re.search(r"(?:^|, )speculative_config=(\w+)", config):
        told["speculative_decoding"] = found[1] != "None"
    if sizes := _CAPTURE_SIZES.search(config):
        told["cuda_graph_sizes"] = [int(size) for size in sizes[1].split(",") if size.strip()]
    if mode := _COMPILE_MODE.search(config):
        told["compilation"] = mode[1].lower()
    if "observability_config=" in config:  # a version whose dump has no such word has no such line either
        told["step_log"] = "enable_logging_iteration_details=True" in config
    if ranges := _RANGES.search(config):
        told["max_num_batched_tokens"] = int(ranges[1].split(",")[-1])
    return told


def sampling_source(generation_config: Any) -> str:
    """Where what a request leaves open comes from: nowhere but the engine's neutral values, or a file of the model's."""
    return (
        "request" if generation_config == "vllm" else "model" if generation_config == "auto" else str(generation_config)
    )


def plain(text: str) -> Any:
    """A value as Python prints it: None, booleans and whole numbers as such, torch's dtypes by their name."""
    known = {"None": None, "True": True, "False": False}
    if text in known:
        return known[text]
    return int(text) if re.fullmatch(r"-?\d+", text) else text.removeprefix("torch.")


def startup_phases(log: str, now_wall_ns: int) -> dict[str, int]:
    """When each phase of the start was done, as wall-clock ns of this machine's time zone, to the second.

    The year is the one in which the stamp is not in the future of `now_wall_ns`. Phases the log does not tell are absent.
    """
    phases: dict[str, int] = {}
    for stamp, line in _stamped(log, now_wall_ns):
        for phase, pattern in _PHASES.items():
            if (phase != "log_first_line" or not phases) and pattern.search(line):
                phases[phase] = stamp
        if "http_ready" in phases:
            break
    return phases


def _stamped(log: str, now_wall_ns: int) -> Iterator[tuple[int, str]]:
    now_s = now_wall_ns / NS_PER_S
    year = time.localtime(now_s).tm_year
    for line in log.splitlines():
        if (found := _STAMP.match(line)) is None:
            continue
        month, day, hour, minute, second = map(int, found.groups())
        try:
            at = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
            if at > now_s + _DAY_S:
                at = time.mktime((year - 1, month, day, hour, minute, second, 0, 0, -1))
        except (ValueError, OverflowError):
            continue
        yield int(at) * NS_PER_S, line
