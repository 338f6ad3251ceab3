"""The settings that the twin's scheduler runs with: as an engine resolved them, with what a trial asks otherwise.

Policies, by the names engines have for them. TensorRT-LLM's GUARANTEED_NO_EVICT promises a request prompt + max_tokens when it
enters (`reserve-oracle`), and nobody is ever sent back. Its MAX_UTILIZATION goes through requests in order of arrival, gives
each the blocks of its next step, and where one lacks them pauses the last that has started, which computes again later: what
`on-demand` does (and vLLM), but for one step more of look-ahead when steps overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.reference.config import EngineSettings
from backends.reference.policies import ADMISSION, BATCHING
from backends.reference.switches import KV_LAYOUTS, Switches, conflict
from results.errors import UsageError

POLICIES: Mapping[str, str] = {
    **{name: name for name in ADMISSION},
    "no-evict": "reserve-oracle",
    "guaranteed-no-evict": "reserve-oracle",
    "max-utilization": "on-demand",
}
# TensorRT-LLM knows no reservation up to max_model_len: what its adapter calls reserve-max is GUARANTEED_NO_EVICT.
_OF_BACKEND: Mapping[str, Mapping[str, str]] = {"tensorrt_llm": {"reserve-max": "reserve-oracle"}}
# Without these there is no telling what a step may hold.
NEEDED = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_tokens")


def scheduler_settings(backend: str, resolved: Mapping[str, Any], asked: Mapping[str, Any]) -> EngineSettings:
    """`resolved` are the settings of a measured session, `asked` the neutral ones that a trial sets; None is not told.

    What is not asked stays as it was resolved. Raises UsageError where that is not enough to simulate, or makes no sense.
    """
    found = {**resolved, **{name: value for name, value in asked.items() if value is not None}}
    if asked.get("kv_cache_bytes") and (per_token := resolved.get("kv_bytes_per_token")):
        found["kv_cache_tokens"] = int(asked["kv_cache_bytes"]) // int(per_token)
    off = found.get("kv_cache") is False
    missing = [name for name in NEEDED if not _whole(found.get(name)) and not (off and name == "kv_cache_tokens")]
    if missing:
        raise UsageError(f"Backend {backend} does not tell {', '.join(missing)}, so its scheduler cannot be simulated.")
    switches = Switches(
        admission=_policy(backend, found.get("admission")),
        batching=_known("batching", found.get("batching"), BATCHING, "continuous"),
        chunked_prefill=_flag(found, "chunked_prefill", not off),
        kv_layout=_known("kv_layout", found.get("kv_layout"), KV_LAYOUTS, "paged"),
        kv_cache="off" if off else "on",
        prefix_caching=_flag(found, "prefix_caching", False),
    )
    if (reason := conflict(switches)) is not None:
        raise UsageError(f"These settings do not go together, {reason}.")
    size, longest = int(found["block_size"]), int(found["max_model_len"])
    budget, pool = int(found["max_num_batched_tokens"]), 0 if off else int(found["kv_cache_tokens"]) // size * size
    if not off and pool < longest:
        raise UsageError(f"The KV pool of {pool:,} tokens is smaller than one request of max_model_len {longest:,}.")
    if not switches.chunked_prefill and budget < longest:
        raise UsageError(
            f"Without chunked prefill a whole prompt must fit a step: {budget:,} tokens a step, max_model_len {longest:,}."
        )
    return EngineSettings(
        dtype=str(found.get("dtype") or "unknown"),
        max_model_len=longest,
        max_num_seqs=int(found["max_num_seqs"]),
        max_num_batched_tokens=budget,
        block_size=size,
        kv_cache_tokens=pool,
        switches=switches,
    )


def _policy(backend: str, value: Any) -> str:
    name = str(value or "on-demand").lower().replace("_", "-")
    name = _OF_BACKEND.get(backend, {}).get(name, name)
    return POLICIES[_known("admission", name, POLICIES, "on-demand")]


def _known(setting: str, value: Any, known: Any, default: str) -> str:
    if value is None:
        return default
    if value not in known:
        raise UsageError(f"{setting} {value!r} cannot be simulated; known: {', '.join(known)}.")
    return str(value)


def _flag(found: Mapping[str, Any], name: str, default: bool) -> bool:
    value = found.get(name)
    return value if isinstance(value, bool) else default


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
