"""The limiting factor of a cell, as a pair, since throughput = batch / step time: what holds the batch, what holds the step.

Throughput follows from both: a larger batch helps while the step does not grow with it, and a faster step always does. Shares
tell where to look; only an experiment decides (`dyno why` changes one resource and sees what the throughput does).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from results.arithmetic import weight_bytes
from results.ceilings import ceilings_of
from results.efficiency import efficiency, memory, refuted
from results.errors import UsageError
from results.events import Ints, Requests, Samples
from results.kv_use import setting
from results.limits_batch import Load, batch_from_gauges, batch_from_steps, batch_from_xray
from results.limits_shares import Finding, undetermined
from results.limits_step import Clock, Model, StepLog, least_times, log_from_steps, log_from_xray, step_finding
from results.step_cost import format_of, shape_of
from results.tokens import TokenChunks
from results.truth import Steps
from results.xray import Refused, XRay, xray
from results.xray_check import against_log

# Of what the X-ray says the engine's own log is preferred; where both are there they are held against each other.
_XRAY_FIELDS = ("steps", "batch", "step_ms_p50", "stalls", "mixed_steps", "mixed_refused", "pauses", "missed_share")


@dataclass(frozen=True, slots=True)
class CellData:
    """What a cell's limits are worked out from. `machine` is the manifest's `ceilings`."""

    requests: Requests
    chunks: TokenChunks
    samples: Samples
    steps: Steps | None
    input_tokens: Ints
    session: Mapping[str, Any]
    config: Mapping[str, Any] | None
    machine: Mapping[str, Any] | None
    load: Load
    cell: tuple[int, int]
    span: tuple[int, int]
    server: Mapping[str, Any]
    device: Mapping[str, Any] | None
    output_tokens: int


def limit_numbers(data: CellData) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `limits` and the step part of the `arithmetic` of a cell's summary."""
    seen = xray(data.requests, data.chunks)
    model, why_not = cell_model(data.config, data.session, data.machine)
    log = _log(data, seen)
    why_no_log = seen.reason if isinstance(seen, Refused) else ""
    arithmetic = efficiency(log, model, why_no_log if log is None else why_not)
    clock, too_low = _clock(data.device), refuted(arithmetic)
    step = step_finding(log, model, why_not, clock, too_low) if log is not None else undetermined(why_no_log)
    limits = {
        "batch": _batch(data, seen).to_dict(),
        "step": step.to_dict(),
        "xray": {**_xray_numbers(seen), **against_log(seen, data.steps)},
    }
    weights = None
    if data.config and model is not None:
        weights = weight_bytes(dict(data.config), model.form.weights)
    arithmetic["bytes_per_output_token"] = _predicted(log, model, data.span, data.output_tokens)
    arithmetic["bytes_per_output_token_counted"] = _counted(data.device, data.output_tokens)
    return limits, {**arithmetic, "memory": memory(weights, data.server)}


def cell_model(
    config: Mapping[str, Any] | None, session: Mapping[str, Any], machine: Mapping[str, Any] | None
) -> tuple[Model | None, str]:
    """The model as this session runs it with the ceilings of its machine; or None and why it is not known."""
    if not config:
        return None, "the manifest holds no model config"
    threads = setting(session, "threads")
    device = str(setting(session, "device") or "") or None
    ceilings = ceilings_of({"ceilings": machine or {}}, threads if isinstance(threads, int) else None, device)
    if ceilings is None:
        return None, f"no ceilings of this machine{'s CPU' if device == 'cpu' else ''} were measured"
    plain = dict(config)
    try:
        dtype, split = str(setting(session, "dtype") or "auto"), setting(session, "tensor_parallel")
        form = format_of(
            plain, dtype, str(setting(session, "kv_dtype") or "auto"), split if isinstance(split, int) else 1
        )
        return Model(shape_of(plain), form, form.weights, ceilings), ""
    except UsageError as error:
        return None, str(error)


def _log(data: CellData, seen: XRay | Refused) -> StepLog | None:
    if data.steps is not None and len(data.steps) > 1:
        return log_from_steps(data.steps, data.requests, data.chunks, data.input_tokens)
    if isinstance(seen, XRay) and len(seen) > 2:
        return log_from_xray(seen, data.requests, data.chunks, data.input_tokens)
    return None


def _batch(data: CellData, seen: XRay | Refused) -> Finding:
    if data.steps is not None and len(data.steps) > 1 and data.steps.tells("waiting"):
        return batch_from_steps(data.steps, data.requests, data.input_tokens, data.load, data.session)
    found = batch_from_gauges(data.samples, data.requests, data.load, data.session, data.cell)
    if found is not None:
        return found
    if isinstance(seen, XRay) and len(seen) > 2:
        return batch_from_xray(seen, data.requests, data.load)
    why = seen.reason if isinstance(seen, Refused) else "too few steps"
    return undetermined(f"the engine logs no steps, its gauges were read too seldom, and there is no X-ray ({why})")


_SLOWED_BY = ("sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")


def _clock(device: Mapping[str, Any] | None) -> Clock | None:
    """The SM clock against the highest it ran at, where the device was sampled and something held it down."""
    if not device:
        return None
    mean, highest = _at(device, "sm_clock_mhz", "mean"), _at(device, "sm_clock_mhz", "max")
    shares = [share for name in _SLOWED_BY if (share := _at(device, "event_shares", name)) is not None]
    return Clock(mean / highest, max(shares)) if mean and highest and shares else None


def _predicted(log: StepLog | None, model: Model | None, span: tuple[int, int], output_tokens: int) -> float | None:
    """Bytes an output token by what the steps held that ended in the span: the device's counter, beside it, sees the same."""
    if log is None or model is None or not output_tokens:
        return None
    inside = (log.end >= span[0]) & (log.end <= span[1])
    return float(least_times(log, model).bytes[inside].sum()) / output_tokens if inside.any() else None


def _counted(device: Mapping[str, Any] | None, output_tokens: int) -> float | None:
    """Bytes an output token by the device's own counter of its memory traffic."""
    rate, seconds = (_at(device or {}, name) for name in ("bandwidth_gb_per_s", "duration_s"))
    return rate * 1e9 * seconds / output_tokens if rate is not None and seconds and output_tokens else None


def _at(tree: Mapping[str, Any], *names: str) -> float | None:
    value: Any = tree
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _xray_numbers(seen: XRay | Refused) -> dict[str, Any]:
    if isinstance(seen, Refused):
        return {**dict.fromkeys(_XRAY_FIELDS), "refused": seen.reason}
    import numpy as np

    seconds = seen.seconds
    mixed, why_not = seen.mixed_steps()
    return {
        "steps": len(seen),
        "batch": seen.batch,
        "step_ms_p50": float(np.median(seconds)) * 1e3 if len(seconds) else None,
        "stalls": int(seen.stalls.sum()),
        "mixed_steps": mixed,
        "mixed_refused": why_not or None,
        "pauses": seen.pauses,
        "missed_share": seen.missed_share,
        "refused": None,
    }
