"""The least time of many steps at once, from what each was made of: `step_cost` over arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from results.events import Floats, Ints
from results.step_cost import Format, Peaks, Shape


@dataclass(frozen=True, slots=True)
class Composition:
    """What each step held: prompt tokens, prompts (or chunks of them), decodes, and tokens of context over all of them."""

    prefill_tokens: Ints
    prefills: Ints
    decodes: Ints
    context_tokens: Ints

    def __len__(self) -> int:
        return len(self.decodes)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Of each step: FLOPs, bytes, and the least seconds in operators bound by compute and in those bound by bandwidth."""

    flops: Floats
    bytes: Floats
    compute_s: Floats
    bandwidth_s: Floats


def step_times(shape: Shape, form: Format, peaks: Peaks, made: Composition) -> StepTimes:
    """As `step_cost`, with one approximation: all sequences of a step have the mean context of the step. A chunk counts as
    sampled, so a long prompt in chunks reads the LM head a few times too often."""
    size, split = form.weight_bytes, form.tensor_parallel
    prefill, decodes = made.prefill_tokens.astype(np.float64), made.decodes.astype(np.float64)
    tokens, rows = prefill + decodes, decodes + made.prefills
    worked = tokens > 0
    flops, moved = np.zeros(len(made)), np.zeros(len(made))
    compute, bandwidth = np.zeros(len(made)), np.zeros(len(made))

    def add(work: Floats, traffic: Floats, rate: float) -> None:
        nonlocal flops, moved, compute, bandwidth
        c, b = work / rate, traffic / peaks.bytes_per_s
        flops, moved = flops + work, moved + traffic
        compute, bandwidth = compute + np.where(c > b, c, 0.0), bandwidth + np.where(c > b, 0.0, b)

    def gemm(row: Floats, used: float, read: Floats | float, over: int) -> None:
        add(2.0 * row * used / over, np.where(row > 0, read, 0.0) * size / over, peaks.gemm_flops)

    gemm(tokens, shape.projections, shape.projections, split)
    gemm(tokens, shape.dense_ffn, shape.dense_ffn, split)
    if (moe := shape.experts) is not None:
        missed = (1.0 - moe.per_token / moe.count) ** tokens
        read = moe.layers * moe.count * (1.0 - missed) * moe.parameters
        gemm(tokens, moe.layers * moe.per_token * moe.parameters, read, split)
    gemm(rows, shape.head, shape.head, split)
    gemm(tokens, shape.norms, shape.norms, 1)
    kv_share = max(1.0, shape.kv_heads / split) / shape.kv_heads
    sequences = np.maximum(decodes + made.prefills, 1.0)
    context = made.context_tokens / sequences
    new = np.divide(prefill, made.prefills, out=np.zeros(len(made)), where=made.prefills > 0)
    seen_decode = _layers(shape, context)
    seen_prefill = _layers(shape, np.maximum(context - new / 2, new / 2))
    score = decodes * shape.score * seen_decode + prefill * shape.prefill_score * seen_prefill
    held = shape.kv.growing * context
    if shape.window is not None:
        held = held + shape.kv.windowed * np.minimum(context, shape.window + np.maximum(new - 1, 0))
    traffic = (sequences * held + shape.kv.per_token * tokens) * form.kv_bytes * kv_share
    add(score / split, np.where(worked, traffic, 0.0), peaks.attention_flops)
    return StepTimes(flops, moved, compute, bandwidth)


def _layers(shape: Shape, context: Floats) -> Floats:
    """Context tokens a token sees, summed over layers."""
    seen = shape.growing * context
    if shape.window is not None:
        seen = seen + shape.windowed * np.minimum(context, shape.window)
    out: Floats = seen
    return out
