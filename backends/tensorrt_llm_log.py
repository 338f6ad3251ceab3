"""What TensorRT-LLM's log tells: how it is set, and when each phase of its start was done.

Lines of its Python part begin with a date and whole seconds (`[12/20/2025-03:40:47] [TRT-LLM] [I] ...`), those of its C++ part
with `[TensorRT-LLM][INFO]` and no time.
"""

from __future__ import annotations

import calendar
import re
from typing import Any

from results.clock import NS_PER_S

_STAMP = re.compile(r"^\[(\d\d)/(\d\d)/(\d{4})-(\d\d):(\d\d):(\d\d)\]")
_VERSION = re.compile(r"TensorRT-LLM version: (\S+)")
_SIZES = re.compile(r"max_seq_len=(\d+), max_num_requests=(\d+), max_num_tokens=(\d+)")
_KV_TOKENS = re.compile(r"Allocated ([\d.]+) GiB for max tokens in paged KV cache \((\d+)\)")
_BLOCK = re.compile(r"Number of tokens per block: (\d+)")
_ARGS = re.compile(r"LLM Args:\s*\n?(.*)")
# Neutral name -> its word in the dump of all arguments, and what that is in neutral words.
_SAID: dict[str, tuple[re.Pattern[str], dict[str, Any]]] = {
    "prefix_caching": (re.compile(r"\benable_block_reuse=(True|False)"), {"True": True, "False": False}),
    "chunked_prefill": (re.compile(r"\benable_chunked_prefill=(True|False)"), {"True": True, "False": False}),
    "async_scheduling": (re.compile(r"\bdisable_overlap_scheduler=(True|False)"), {"True": False, "False": True}),
    "cuda_graph_padding": (re.compile(r"\benable_padding=(True|False)"), {"True": True, "False": False}),
    "admission": (
        re.compile(r"capacity_scheduler_policy=<?(?:CapacitySchedulerPolicy\.)?'?([A-Z_]+)"),
        {"GUARANTEED_NO_EVICT": "reserve-oracle", "MAX_UTILIZATION": "on-demand"},
    ),
    "scheduler_policy": (
        re.compile(r"waiting_queue_policy=<?(?:WaitingQueuePolicy\.)?'?(\w+)"),
        {"FCFS": "fcfs", "PRIORITY": "priority", "fcfs": "fcfs", "priority": "priority"},
    ),
    # `auto` is the checkpoint's, which the line does not tell.
    "kv_dtype": (re.compile(r"\bkv_cache_config=KvCacheConfig\([^)]*?\bdtype='(?!auto)(\w+)'"), {}),
    "memory_fraction": (re.compile(r"\bfree_gpu_memory_fraction=(\d*\.\d+)"), {}),
    "step_log": (re.compile(r"\bprint_iter_log=(True|False)"), {"True": True, "False": False}),
    "stream_interval": (re.compile(r"\bstream_interval=(\d+)"), {}),
    "tensor_parallel": (re.compile(r"\btensor_parallel_size=(\d+)"), {}),
    "attention_backend": (re.compile(r"\battn_backend='(\w+)'"), {}),
    "load_format": (re.compile(r"\bload_format=<?(?:LoadFormat\.)?'?(\w+)"), {}),
    "kv_cache_manager_v2": (re.compile(r"\buse_kv_cache_manager_v2=(True|False)"), {"True": True, "False": False}),
}
_FRACTION = re.compile(r"\d*\.\d+")
_GRAPHS = re.compile(r"\bcuda_graph_config=(None|\w+\()")
_GRAPH_SIZES = re.compile(r"\bcuda_graph_config=\w+\(batch_sizes=\[([\d, ]*)\]")
_SPECULATION = re.compile(r"\bspeculative_config=(None|\w+\()")

_QUARTER_S, _WIDEST_ZONE_S = 15 * 60, 15 * 3600
# The last line of a start is read within this time; whole seconds, so it may also seem to lie ahead a little.
_RECENT_S, _SLACK_S = 8 * 60, 2
# Phase of the start -> the line that ends it; the last one counts.
_PHASES: dict[str, re.Pattern[str]] = {
    "log_first_line": re.compile(""),
    "weights_loaded": re.compile(r"Memory used after loading model weights|Model init total"),
    "profiled": re.compile(r"Peak memory during memory usage profiling"),
    "engine_config": _SIZES,
    "engine_ready": re.compile(r"get signal from executor worker"),
}


def version_of(log: str) -> str | None:
    """The version that it names itself."""
    found = _VERSION.search(log)
    return None if found is None else found[1]


def settings_of(log: str) -> dict[str, Any]:
    """Settings under neutral names, as far as the log tells them. Where a line stands several times (it estimates the cache
    before it makes it) the last counts."""
    told: dict[str, Any] = {}
    for found in _ARGS.finditer(log):
        told |= _from_dump(found[1])
    for found in _SIZES.finditer(log):
        told["max_model_len"], told["max_num_seqs"], told["max_num_batched_tokens"] = map(int, found.groups())
    for found in _BLOCK.finditer(log):
        told["block_size"] = int(found[1])
    for found in _KV_TOKENS.finditer(log):
        told["kv_cache_tokens"] = int(found[2])
        if size := float(found[1]):
            told["kv_cache_bytes"] = round(size * (1 << 30))
    return told


def _from_dump(dump: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, (pattern, words) in _SAID.items():
        if (found := pattern.search(dump)) is None:
            continue
        text = found[1]
        if words:
            if text in words:
                told[name] = words[text]
        else:
            told[name] = int(text) if text.isdigit() else float(text) if _FRACTION.fullmatch(text) else text.lower()
    if found := _GRAPHS.search(dump):
        told["cuda_graphs"] = found[1] != "None"
    if found := _GRAPH_SIZES.search(dump):
        told["cuda_graph_sizes"] = [int(size) for size in found[1].split(",") if size.strip()]
    if found := _SPECULATION.search(dump):
        told["speculative_decoding"] = found[1] != "None"
    return told


def startup_phases(log: str, now_wall_ns: int) -> dict[str, int]:
    """Phase -> wall-clock ns of the line that ends it, to the second. {} for a log that is not of now.

    The stamps carry no zone, and a container's is not this machine's: the last one is taken to be of now, and whatever whole
    quarters of an hour it is off are taken from all.
    """
    stamped = [(at, line) for line in log.splitlines() if (at := _stamp(line)) is not None]
    if not stamped:
        return {}
    late = now_wall_ns // NS_PER_S - stamped[-1][0]
    zone = round(late / _QUARTER_S) * _QUARTER_S
    if not 0 <= late - zone + _SLACK_S <= _RECENT_S or abs(zone) > _WIDEST_ZONE_S:
        return {}
    phases: dict[str, int] = {}
    for at, line in stamped:
        for phase, pattern in _PHASES.items():
            if pattern.search(line) and not (phase == "log_first_line" and phase in phases):
                phases[phase] = (at + zone) * NS_PER_S
    return phases


def _stamp(line: str) -> int | None:
    """Seconds since the epoch as if the stamp were UTC."""
    if (found := _STAMP.match(line)) is None:
        return None
    month, day, year, hour, minute, second = map(int, found.groups())
    try:
        return calendar.timegm((year, month, day, hour, minute, second, 0, 0, 0))
    except (ValueError, OverflowError):
        return None
