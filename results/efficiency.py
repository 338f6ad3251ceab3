"""What a cell's steps did against the machine's ceilings: FLOPs and bytes, MFU and MBU by phase.

A percentage is of the measured ceiling that `ceilings` names. MFU and MBU are told by phase only where a phase is pure: steps
that only prefill (all of a cell with outputs of one token), and steps that decode a full batch and nothing else. Steps that
hold both are taken apart by a fit (`step_fit`), and its slopes give the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from results.device_specs import spec_of_device
from results.limits_step import Model, StepLog, least_times
from results.report_format import number
from results.step_cost import peaks_for
from results.step_fit import StepFit, fit_steps
from results.step_times import Composition, StepTimes

# A batch within this part of its largest is full.
_FULL = 0.95
_LEAST_PURE = 10
# Times and counts of steps are good to some percent: a use above this is the ceiling's fault.
_REFUTED = 1.05


def efficiency(log: StepLog | None, model: Model | None, why_not: str) -> dict[str, Any]:
    """The `arithmetic` numbers that need steps and ceilings; nulls with `reason` where there are none."""
    empty: dict[str, Any] = dict.fromkeys(
        ("flops", "bytes", "mfu", "mbu", "prefill", "decode", "fit", "ceilings", "step_basis")
    )
    if log is None or not len(log):
        return {**empty, "step_reason": why_not or "no steps to tell by"}
    fit = fit_steps(log.made, log.seconds)
    told = fit.to_dict() if isinstance(fit, StepFit) else {"reason": fit}
    if model is None:
        return {**empty, "fit": told, "step_basis": log.basis, "step_reason": why_not}
    times = least_times(log, model)
    peaks = _peaks(model)
    everything = np.ones(len(log), dtype=bool)
    return {
        "flops": float(times.flops.sum()),
        "bytes": float(times.bytes.sum()),
        **_of_ceilings(times, log, peaks, everything),
        "prefill": _phase(times, log, peaks, log.made.decodes == 0),
        "decode": _phase(times, log, peaks, _full_decode(log.made)),
        "fit": {**told, **_slopes(fit, fit_steps(log.made, times.flops), model, peaks)}
        if isinstance(fit, StepFit)
        else told,
        "ceilings": {
            "words": model.ceilings.words_for(model.form.weights),
            **peaks,
            "published": _published(model.ceilings.name),
        },
        "step_basis": log.basis,
        "step_reason": None,
    }


def refuted(arithmetic: Mapping[str, Any]) -> str:
    """In words, which measured ceiling the cell itself passed by more than 5 %, as a whole or in a phase; empty where none."""
    ceilings = arithmetic.get("ceilings")
    if not ceilings:
        return ""
    # Steps seen in arrivals are right in their sum; a few of them alone may read short.
    phases = (arithmetic[name] for name in ("prefill", "decode") if arithmetic["step_basis"] == "steps")
    uses = [arithmetic, *(phase for phase in phases if phase)]
    passed = []
    for use, rate, unit, did in (
        ("mfu", "flops_per_s", "GFLOP/s", "computed at"),
        ("mbu", "bytes_per_s", "GB/s", "needed bytes at"),
    ):
        top, ceiling = max((u[use] or 0.0) for u in uses), ceilings[rate] / 1e9
        if top > _REFUTED:
            passed.append(f"{number(ceiling)} {unit}, since the cell itself {did} {number(top * ceiling)}")
    return f"the measured ceiling is too low, {' and '.join(passed)} ({ceilings['words']})" if passed else ""


def memory(weights: int | None, server: Mapping[str, Any]) -> dict[str, Any]:
    """Where the server's memory goes: weights and KV pool as it says (weights else by the formula), the rest of its RSS."""
    told, pool, rss = server.get("weight_bytes"), server.get("kv_pool_bytes"), server.get("rss_bytes_max")
    known = told if told is not None else weights
    rest = None if rss is None or known is None or pool is None else rss - known - pool
    return {
        "weights_bytes": known,
        "weights_source": "server" if told is not None else "formula" if weights is not None else None,
        "kv_pool_bytes": pool,
        "rss_bytes": rss,
        # A pool whose pages were never touched is not in the RSS: then this is below 0 and means nothing.
        "other_bytes": rest if rest is not None and rest >= 0 else None,
    }


def _published(device: str) -> dict[str, float | None] | None:
    """What the maker says of a device of the table, and its bandwidth by clock and width, to stand beside the measured."""
    spec = spec_of_device(device)
    if spec is None:
        return None
    by_clock = spec.formula_bandwidth
    return {
        "bf16_flops_per_s": spec.bf16 * 1e12,
        "bytes_per_s": spec.bytes_per_s,
        "bytes_per_s_by_clock": None if by_clock is None else by_clock * 1e9,
    }


def _peaks(model: Model) -> dict[str, float]:
    found = peaks_for(model.form, model.ceilings.flops, model.ceilings.bytes_per_s, model.activations)
    return {"flops_per_s": found.gemm_flops, "bytes_per_s": found.bytes_per_s}


def _of_ceilings(times: StepTimes, log: StepLog, peaks: Mapping[str, float], which: Any) -> dict[str, float | None]:
    seconds = float(log.seconds[which].sum())
    if seconds <= 0:
        return {"mfu": None, "mbu": None}
    return {
        "mfu": float(times.flops[which].sum()) / seconds / peaks["flops_per_s"],
        "mbu": float(times.bytes[which].sum()) / seconds / peaks["bytes_per_s"],
    }


def _phase(times: StepTimes, log: StepLog, peaks: Mapping[str, float], which: Any) -> dict[str, Any] | None:
    """None where too few steps are of that phase alone."""
    if which.sum() < _LEAST_PURE:
        return None
    return {
        "steps": int(which.sum()),
        "seconds": float(log.seconds[which].sum()),
        **_of_ceilings(times, log, peaks, which),
    }


def _full_decode(made: Composition) -> Any:
    most = int(made.decodes.max(initial=0))
    return (made.prefill_tokens == 0) & (made.decodes >= max(1.0, _FULL * most))


def _slopes(fit: StepFit, flops: StepFit | str, model: Model, peaks: Mapping[str, float]) -> dict[str, Any]:
    """MFU of a prompt token at the margin, and MBU of reading a token of context, from the fit's slopes.

    `flops` is the same fit of the steps' FLOPs: its slope has the attention of prompts of this cell's lengths in it.
    """
    out: dict[str, Any] = {"mfu_prefill": None, "mbu_context": None}
    shape, form = model.shape, model.form
    value = fit.seconds.get("prefill_token", (0.0, 0.0, 0.0))
    if value[1] > 0 and isinstance(flops, StepFit):
        out["mfu_prefill"] = flops.seconds["prefill_token"][0] / value[0] / peaks["flops_per_s"]
    value = fit.seconds.get("context_token", (0.0, 0.0, 0.0))
    if value[1] > 0:
        out["mbu_context"] = shape.kv.per_token * form.kv_bytes / value[0] / peaks["bytes_per_s"]
    return out
