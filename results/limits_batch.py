"""What holds the batch: why no more sequences were worked on together, step by step (or reading by reading).

    nothing waits    offered load: the load keeps no more in flight; of a closed loop, the part of its slots that were idle
                     between an answer and the next request is the client's
    something waits  max_num_seqs: as many run as may; token budget: the step holds as many tokens as may; KV capacity: the queue's
                     head needs more blocks than are free; KV reservation: it would fit, but blocks are promised to others;
                     static batching: the batch is closed until all in it have ended

The last three are told apart only where the engine logs its steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from results.events import MISSING, Floats, Ints, Requests, Samples
from results.kv_use import setting
from results.limits_shares import UNEXPLAINED, Finding, finding, undetermined
from results.truth import Steps
from results.xray import XRay

OFFERED, CLIENT, MAX_SEQS, BUDGET = "offered_load", "client", "max_num_seqs", "token_budget"
KV_CAPACITY, KV_RESERVATION, STATIC = "kv_capacity", "kv_reservation", "static_batching"
BATCH_FACTORS = (OFFERED, CLIENT, MAX_SEQS, BUDGET, KV_CAPACITY, KV_RESERVATION, STATIC, UNEXPLAINED)
# A gauge of the KV cache above this is full: engines keep a little back.
_FULL = 0.95
_ENOUGH_READINGS = 10


@dataclass(frozen=True, slots=True)
class Load:
    """How the cell was loaded: its mode, and how many it keeps in flight (None where the load does not say)."""

    mode: str
    width: int | None


@dataclass(frozen=True, slots=True)
class Caps:
    """What the engine allows, as it said; None where it did not."""

    max_num_seqs: int | None
    token_budget: int | None
    block_size: int | None
    batching: str
    promises: bool

    @classmethod
    def of(cls, session: Mapping[str, Any]) -> Caps:
        return cls(
            _count(setting(session, "max_num_seqs")),
            _count(setting(session, "max_num_batched_tokens")),
            _count(setting(session, "block_size")),
            str(setting(session, "batching") or "continuous"),
            str(setting(session, "admission") or "").startswith("reserve"),
        )


def batch_from_steps(
    steps: Steps, requests: Requests, input_tokens: Ints, load: Load, session: Mapping[str, Any]
) -> Finding:
    """From the engine's own steps. Each stands for the time until the next one starts."""
    if len(steps) < 2:
        return undetermined("the engine logged too few steps")
    caps = Caps.of(session)
    # What is being drained after the last send is no state of the load.
    last = _last_send(requests)
    steps = steps.take(steps.start <= last) if (steps.start <= last).sum() >= 2 else steps
    weight = np.diff(steps.start, append=steps.end[-1]).astype(np.float64)
    label = np.full(len(steps), BATCH_FACTORS.index(UNEXPLAINED))
    waits = steps.waiting > 0
    label[~waits] = BATCH_FACTORS.index(OFFERED)
    reserved = np.where(steps.blocks_reserved >= 0, steps.blocks_reserved, steps.blocks_allocated)
    need, most = _blocks(input_tokens, caps.block_size)
    if steps.preempted.any():  # whoever comes back has its output to compute again as well
        most = _blocks(input_tokens + np.maximum(requests.output_tokens, 0), caps.block_size)[1]
    free, unpromised = steps.blocks_total - steps.blocks_allocated, steps.blocks_total - reserved
    # Later rules take over from earlier ones.
    short = waits & (steps.blocks_total > 0)
    label[short & (free < most)] = BATCH_FACTORS.index(KV_CAPACITY)
    # Where admission promises, the head needs more than its prompt: how much only the engine knows.
    promised = (reserved > steps.blocks_allocated) & (caps.promises | (unpromised < most))
    label[short & promised & (free >= need)] = BATCH_FACTORS.index(KV_RESERVATION)
    if caps.batching.startswith("static"):
        label[waits] = BATCH_FACTORS.index(STATIC)
    if caps.token_budget is not None:
        left_out = steps.running > steps.decodes + steps.prefills
        full = steps.prefill_tokens + steps.decodes >= caps.token_budget
        label[full & (waits | left_out)] = BATCH_FACTORS.index(BUDGET)
    if caps.max_num_seqs is not None:
        label[waits & (steps.running >= caps.max_num_seqs)] = BATCH_FACTORS.index(MAX_SEQS)
    evidence = (
        f"requests waited at the start of steps that took {np.average(waits, weights=weight):.0%} of the time; "
        f"{np.average(steps.running, weights=weight):.1f} ran together, at most {steps.running.max()}"
    )
    if steps.blocks_total.max() > 0:
        evidence += (
            f"; of {steps.blocks_total.max()} KV blocks {np.average(steps.blocks_allocated, weights=weight):.0f} were in use and "
            f"{np.average(reserved, weights=weight):.0f} promised"
        )
    idle = _idle_part(requests, steps.start, weight, load)
    return finding(BATCH_FACTORS, _parts(label, weight, idle), evidence, "steps")


def batch_from_gauges(
    samples: Samples, requests: Requests, load: Load, session: Mapping[str, Any], cell: tuple[int, int]
) -> Finding | None:
    """From the server's gauges, read now and then; None where there are too few readings."""
    times, waiting = samples.series("server", "waiting")
    when, running = samples.series("server", "running")
    last = min(cell[1], _last_send(requests))
    inside = (times >= cell[0]) & (times <= last)
    if inside.sum() < _ENOUGH_READINGS or not len(when):
        return None
    times, waiting = times[inside], waiting[inside]
    runs = _held(when, running, times)
    caps = Caps.of(session)
    label = np.full(len(times), BATCH_FACTORS.index(UNEXPLAINED))
    label[waiting <= 0] = BATCH_FACTORS.index(OFFERED)
    at, usage = samples.series("server", "kv_usage")
    if len(at):
        label[(waiting > 0) & (_held(at, usage, times) >= _FULL)] = BATCH_FACTORS.index(KV_CAPACITY)
    if caps.max_num_seqs is not None:
        label[(waiting > 0) & (runs >= caps.max_num_seqs)] = BATCH_FACTORS.index(MAX_SEQS)
    weight = np.diff(times, append=times[-1] + int(np.median(np.diff(times)))).astype(np.float64)
    queued = np.average(waiting > 0, weights=weight)
    evidence = f"requests waited in {queued:.0%} of {len(times)} readings; {runs.mean():.1f} ran together"
    return finding(BATCH_FACTORS, _parts(label, weight, _idle_part(requests, times, weight, load)), evidence, "gauges")


def batch_from_xray(found: XRay, requests: Requests, load: Load) -> Finding:
    """From arrivals alone: whether requests waited for their first token. What they waited for is not seen."""
    start = found.t[:-1]
    weight = np.diff(found.t).astype(np.float64)
    keep = start <= _last_send(requests)
    start, weight, waiting = start[keep], weight[keep], found.waiting[:-1][keep]
    label = np.full(len(start), BATCH_FACTORS.index(UNEXPLAINED))
    label[waiting <= 0] = BATCH_FACTORS.index(OFFERED)
    if not len(start):
        return undetermined("no step before the last request was sent")
    evidence = f"{np.average(waiting > 0, weights=weight):.0%} of the time a request had no first token yet"
    return finding(BATCH_FACTORS, _parts(label, weight, _idle_part(requests, start, weight, load)), evidence, "xray")


def _idle_part(requests: Requests, start: Ints, length: Floats, load: Load) -> Floats:
    """Of each stretch of time, the part of a closed loop's slots that had nothing in flight, 0 to 1."""
    if load.mode != "concurrency" or not load.width:
        return np.zeros(len(start))

    def busy(until: Floats) -> Floats:
        """Slot-time in flight from the first send until then."""
        total = np.zeros(len(until))
        for stamps, sign in ((requests.sent, 1.0), (requests.end, -1.0)):
            known = np.sort(stamps[stamps != MISSING]).astype(np.float64)
            before = np.searchsorted(known, until, side="right")
            total += sign * (before * until - np.concatenate([[0.0], np.cumsum(known)])[before])
        return total

    base = int(start[0]) if len(start) else 0
    requests = replace(requests, sent=_shift(requests.sent, base), end=_shift(requests.end, base))
    low = (start - base).astype(np.float64)
    used = busy(low + length) - busy(low)
    out: Floats = np.clip(
        1.0 - np.divide(used, load.width * length, out=np.ones(len(used)), where=length > 0), 0.0, 1.0
    )
    return out


def _shift(stamps: Ints, base: int) -> Ints:
    """Stamps near 0, so that their sums keep their precision."""
    return np.where(stamps != MISSING, stamps - base, MISSING)


def _last_send(requests: Requests) -> int:
    sent = requests.sent[requests.sent != MISSING]
    return int(sent.max()) if len(sent) else 0


def _blocks(input_tokens: Ints, block_size: int | None) -> tuple[int, int]:
    """Blocks that a prompt of the cell needs to enter: the usual one, the longest."""
    tokens = input_tokens[input_tokens > 0]
    if not len(tokens):
        return 1, 1
    size = block_size or 1
    return int(-(-np.median(tokens) // size)), int(-(-tokens.max() // size))


def _held(times: Ints, values: Floats, at: Ints) -> Floats:
    """A gauge at other times: its last reading until then, else its first."""
    out: Floats = values[np.clip(np.searchsorted(times, at, side="right") - 1, 0, len(values) - 1)]
    return out


def _parts(label: Ints, weight: Floats, idle: Floats) -> Floats:
    """Seconds by factor; of the time in which nothing waits, the idle part of the slots is the client's."""
    out = np.zeros((len(label), len(BATCH_FACTORS)))
    out[np.arange(len(label)), label] = np.maximum(weight, 0.0)
    offered, client = BATCH_FACTORS.index(OFFERED), BATCH_FACTORS.index(CLIENT)
    out[:, client] = out[:, offered] * idle
    out[:, offered] -= out[:, client]
    return out


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None
