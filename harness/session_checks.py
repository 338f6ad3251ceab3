"""What a ready server must be before it is measured: the engine that the run's earlier sessions met, and one that takes the
lengths that are asked for."""

from __future__ import annotations

import json
import platform
from typing import Any

from backends.base import Backend, Resolved
from harness.experiment import Experiment
from results.clock import ClockPair
from results.errors import UsageError
from results.records import SessionRecord
from results.store import RunWriter
from workloads.from_file import FromFile

# What of an engine's resolved settings may differ between two sessions of one run without making them unlike.
_VOLATILE_SETTINGS = frozenset({"url", "port"})
# Read back from what memory happened to be free, unless asked for: a few blocks more or less make no other engine.
_MEASURED_SETTINGS = frozenset({"kv_cache_tokens", "kv_cache_bytes"})


def fingerprint(record: SessionRecord, resolved: dict[str, Resolved]) -> dict[str, Any]:
    """What two sessions of an engine must share to be blocks of one run."""
    volatile = _VOLATILE_SETTINGS | (_MEASURED_SETTINGS - record.asked.keys())
    return {
        "backend": record.backend,
        "versions": record.versions,
        "settings": {k: v.value for k, v in sorted(resolved.items()) if k not in volatile},
        "machine": platform.machine(),
        "node": platform.node(),
        **_devices(record),
    }


def _devices(record: SessionRecord) -> dict[str, Any]:
    """The kinds of device the server sees, where they are known: one session without telemetry makes no other engine."""
    names = sorted(str(device.get("name")) for device in (record.telemetry or {}).get("devices", []))
    return {"devices": names} if names else {}


def told_phases(backend: Backend, log: str) -> dict[str, int]:
    """Phases of the start that the server's log tells, on our clock (the log's own are to the second)."""
    clocks = ClockPair.read()
    return {name: clocks.to_monotonic(at) for name, at in backend.startup_phases(log, clocks.wall_ns).items()}


def refuse_other_fingerprint(store: RunWriter, record: SessionRecord) -> None:
    """Raise UsageError where cells of this engine in this run were measured on another thing under the same label.

    Only sessions that own a committed cell count: one that was refused here must not refuse the right engine later.
    """
    measured = {cell.session for cell in store.cells()}
    for earlier in store.sessions():
        if earlier["engine"] != record.engine or earlier["id"] not in measured or not earlier.get("fingerprint"):
            continue
        before, now = earlier["fingerprint"], json.loads(json.dumps(record.fingerprint))
        if "devices" not in before or "devices" not in now:
            before, now = ({k: v for k, v in one.items() if k != "devices"} for one in (before, now))
        if before != now:
            parts = [
                f"{k}: {before.get(k)} before, {now.get(k)} now"
                for k in sorted({*before, *now})
                if before.get(k) != now.get(k)
            ]
            raise UsageError(
                f"Engine {record.engine!r} is not what it was in session {earlier['id']} of this run ({'; '.join(parts)}). Cells of "
                "two different engines do not belong under one label: measure into a new run with --out."
            )


def refuse_too_long(experiment: Experiment, engine: str, max_model_len: Resolved | None) -> None:
    """Raise UsageError where a prompt with its output cannot fit, with both numbers."""
    if max_model_len is None or max_model_len.value is None:
        return
    limit = int(max_model_len.value)
    for workload in experiment.workloads:
        if workload.longest > limit and isinstance(workload, FromFile):
            raise UsageError(
                f"{workload.path} has requests of up to {workload.longest} tokens, more than the {limit} that engine {engine!r} takes. "
                f"Say what is to become of them: max_len={limit} with too_long=drop (left out, counted) or too_long=truncate "
                "(prompts cut)."
            )
        if workload.longest > limit:
            raise UsageError(
                f"{workload.longest_input} prompt tokens and {workload.longest_output} output tokens make {workload.longest}, "
                f"more than the {limit} that engine {engine!r} takes. Ask for shorter --input-len or --output-len."
            )


def refuse_long_prompts(experiment: Experiment, engine: str, max_prompt_len: Resolved | None) -> None:
    """Raise UsageError where a prompt is longer than the engine takes in at once, though it would fit its context."""
    if max_prompt_len is None:
        return
    limit = int(max_prompt_len.value)
    for workload in experiment.workloads:
        if workload.longest_input > limit:
            raise UsageError(
                f"A prompt of {workload.longest_input} tokens is more than the {limit} that engine {engine!r} takes into one step, "
                "and it does not split prompts: turn chunked_prefill on, raise max_num_batched_tokens, or shorten --input-len."
            )
