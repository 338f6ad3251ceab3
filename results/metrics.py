"""The metric table: every number of a scope, with its unit, which way is better, what it needs, and how it is computed.

A new metric is a row. Definitions:

    whole scope   first send to last end, over all requests of the cell
    first token   arrival of the first chunk with at least one generated token; role, empty and usage chunks are none
    TTFT          first token - sent (scheduled: - intended); of content: first chunk of content, not reasoning, - sent
    TPOT          (last token - first token) / (n - tokens in the first chunk), per request; / (n - 1) where that count is
                  unknown (code first_chunk_tokens_unknown); undefined for one token
    ITL           gaps between token-bearing chunks, pooled over requests; null where a chunk may carry several tokens
    E2E           last token - sent (scheduled: - intended)
    tokens/s      all tokens delivered, by failed and short requests too, / duration of the scope; null where an answer in
                  full does not tell how many it held

The first request of each slot of a closed loop is shortened so that the loop does not lock in phase: it is out of E2E.
Only requests answered in full (outcome ok) enter latencies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from results import phases
from results.clock import NS_PER_MS, NS_PER_S
from results.distribution import distribution
from results.events import MISSING, Bools, Floats, Ints
from results.scope import WHOLE, WINDOW, ScopeData, span_ms, tpot_ms
from results.truth_check import decodes_needed


class Direction(StrEnum):
    """Which way a metric gets better."""

    HIGHER = "higher"
    LOWER = "lower"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Measured:
    """A value (number, distribution or None) and, where something must be said about it, a reason code and evidence."""

    value: Any
    code: str | None = None
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the table. `unit` is the unit of every number in the value; `scope` names the scopes it is defined in and
    `needs` what it is read from (`?`: where the engine tells it)."""

    id: str
    words: str
    unit: str
    direction: Direction
    scope: tuple[str, ...]
    needs: tuple[str, ...]
    function: Callable[[ScopeData], Measured]


def measure(data: ScopeData) -> tuple[dict[str, Any], dict[str, str]]:
    """Every metric of the table for one scope, and the reason codes met with their evidence."""
    values: dict[str, Any] = {}
    notes: dict[str, str] = {}
    for metric in METRICS:
        if data.name not in metric.scope:
            continue
        found = metric.function(data)
        values[metric.id] = found.value
        if found.code:
            notes.setdefault(found.code, found.evidence)
    return values, notes


def _start_s(data: ScopeData) -> Measured:
    return Measured((data.start - data.cell_started) / NS_PER_S)


def _duration_s(data: ScopeData) -> Measured:
    return Measured(data.seconds)


def _input_tokens(data: ScopeData) -> Measured:
    # A prompt counts once its first token, or an answer in one piece, shows that it was processed.
    return Measured(int(data.input_tokens[data.prefilled].sum()))


def _output_tokens(data: ScopeData) -> Measured:
    return Measured(None if data.uncounted.any() else int(data.delivered.sum()))


def _output_tokens_per_s(data: ScopeData) -> Measured:
    return _per_second(data, _output_tokens(data).value)


def _completed_output_tokens_per_s(data: ScopeData) -> Measured:
    return _per_second(data, None if data.uncounted.any() else int(data.delivered[data.ok].sum()))


def _total_tokens_per_s(data: ScopeData) -> Measured:
    output = _output_tokens(data).value
    return _per_second(data, output + _input_tokens(data).value if output else None)


def _requests_per_s(data: ScopeData) -> Measured:
    return _per_second(data, int((data.ok & data.holds(data.requests.end)).sum()))


def _per_second(data: ScopeData, count: int | None) -> Measured:
    """A rate; null when the count is not known, or nothing was done at all: then no speed was observed."""
    return Measured(count / data.seconds if data.seconds and count else None)


def _prefill(data: ScopeData) -> Measured:
    return _phase(prefill_rate(data), "prefill")


def _decode(data: ScopeData) -> Measured:
    rate = decode_rate(data)
    if rate.value is None and data.mode == "batch" and data.answered.any():
        return Measured(
            None, "no_decode_window", "in no wave were all requests decoding at once for the length of a step"
        )
    return _phase(rate, "decode")


def prefill_rate(data: ScopeData) -> phases.Rate:
    """Where the prefill rate comes from: the engine's steps, else the client's estimate."""
    everything = float(data.input_tokens[data.prefilled].sum())
    rate = phases.prefill_from_steps(data.steps, everything) if data.steps is not None else phases.NO_RATE
    return rate if rate.value is not None else phases.prefill_at_client(data)


def decode_rate(data: ScopeData) -> phases.Rate:
    """Where the decode rate comes from: locked waves (the same for every engine), else steps, else an estimate."""
    if data.mode == "batch":
        return data.once("waves", lambda: phases.decode_in_waves(data))
    everything = decodes_needed(data.delivered)
    rate = phases.decode_from_steps(data.steps, everything) if data.steps is not None else phases.NO_RATE
    return rate if rate.value is not None else phases.decode_at_client(data)


def _phase(rate: phases.Rate, name: str) -> Measured:
    if rate.source == "client":
        return Measured(rate.value, "client_phase_estimate", f"{name} rate from the union of client intervals")
    return Measured(rate.value)


def _ttft(data: ScopeData) -> Measured:
    return _latency(data, data.requests.sent, data.requests.first_token)


def _scheduled_ttft(data: ScopeData) -> Measured:
    return _latency(data, data.requests.intended, data.requests.first_token)


def _content_ttft(data: ScopeData) -> Measured:
    """None where no answer held reasoning: then it is TTFT."""
    chunks, requests = data.chunks, data.requests
    if chunks.reasoning is None:
        return Measured(None)
    content = np.flatnonzero(~chunks.reasoning)
    first = content[np.diff(chunks.request[content], prepend=-1) != 0]
    at = np.full(len(requests), MISSING)
    at[chunks.request[first]] = chunks.t[first]
    found = _latency(data, requests.sent, at)
    answered = data.ok & data.holds(requests.last_token) & (requests.first_token != MISSING)
    none = int((answered & (at == MISSING)).sum())
    later = found.value["p50"] if found.value["p50"] is not None else found.value["mean"]
    words = "no content came" if later is None else f"the first content came {later:.1f} ms after the send (median)"
    return replace(
        found,
        code="reasoning_first",
        evidence=words + (f"; {none} of {int(answered.sum())} answers held none" if none else ""),
    )


def _e2e(data: ScopeData) -> Measured:
    left_out = data.ok & data.shortened & data.holds(data.requests.last_token)
    found = _latency(data, data.requests.sent, data.requests.last_token, ~left_out)
    if n := int(left_out.sum()):
        words = f"{n} of {int((data.ok & data.holds(data.requests.last_token)).sum())} requests answered in full"
        return replace(found, code="first_of_slot_left_out", evidence=words)
    return found


def _scheduled_e2e(data: ScopeData) -> Measured:
    return _latency(data, data.requests.intended, data.requests.last_token, ~data.shortened)


def _latency(data: ScopeData, start: Ints, end: Ints, which: Bools | None = None) -> Measured:
    kept = data.ok & data.holds(end)
    return Measured(distribution(span_ms(start, end, kept if which is None else kept & which), data.dependent, end))


def _tpot(data: ScopeData) -> Measured:
    values = tpot_ms(data.requests, data.ok & data.holds(data.requests.last_token))
    found = distribution(values, data.dependent, data.requests.last_token)
    blind = int((np.isfinite(values) & (data.requests.tokens_in_first_chunk <= 0)).sum())
    if blind:
        return Measured(found, "first_chunk_tokens_unknown", f"{blind} of {found['n']} requests divided by n - 1")
    return Measured(found)


def _itl(data: ScopeData) -> Measured:
    tokens = data.chunks.tokens[_mine(data)]
    if len(tokens) and not (tokens == 1).all():
        unknown = int((tokens < 0).sum())
        if unknown:
            evidence = f"{unknown} of {len(tokens)} chunks do not say how many tokens they carry"
        else:
            evidence = f"{int((tokens > 1).sum())} of {len(tokens)} chunks carry several tokens"
        return Measured(None, "itl_not_single_token", evidence)
    return _interchunk(data)


def _interchunk(data: ScopeData) -> Measured:
    return Measured(data.once("gaps", lambda: _gaps(data)))


def _gaps(data: ScopeData) -> dict[str, Any]:
    """Pooled gaps. All streams of a batch share each step's gap, so those that end within one usual gap's time are one draw."""
    which = _mine(data) & ~data.chunks.first
    gaps: Floats = data.chunks.gaps()[which] / NS_PER_MS
    if not len(gaps):
        return distribution(gaps)
    # Where most chunks come together the usual gap is 0: then draws are as far apart as they are on average.
    since = data.chunks.t[which] - data.start
    usual = max(int(np.median(gaps) * NS_PER_MS), int(since.max()) // len(gaps), 1)
    return distribution(gaps, cluster=since // usual)


def _mine(data: ScopeData) -> Bools:
    """Chunks of requests answered in full that arrived in the scope."""
    return data.chunks.of(data.ok) & data.holds(data.chunks.t)


def _tokens_per_chunk(data: ScopeData) -> Measured:
    mine = _mine(data)
    return Measured(float(data.chunks.weight[mine].mean()) if mine.any() else None)


_BOTH = (WHOLE, WINDOW)
_H, _L, _N = Direction.HIGHER, Direction.LOWER, Direction.NONE

METRICS: tuple[Metric, ...] = (
    Metric("start_s", "Start of the scope after the start of the cell", "s", _N, _BOTH, ("requests",), _start_s),
    Metric("duration_s", "Duration, first send to last end", "s", _N, _BOTH, ("requests",), _duration_s),
    Metric(
        "input_tokens",
        "Prompt tokens of requests that got a token",
        "tok",
        _N,
        _BOTH,
        ("requests",),
        _input_tokens,
    ),
    Metric("output_tokens", "Output tokens delivered", "tok", _N, _BOTH, ("requests", "chunks"), _output_tokens),
    Metric(
        "output_tokens_per_s",
        "Output tokens delivered per second of the scope",
        "tok/s",
        _H,
        _BOTH,
        ("requests", "chunks"),
        _output_tokens_per_s,
    ),
    Metric(
        "completed_output_tokens_per_s",
        "Output tokens of requests answered in full, per second of the scope",
        "tok/s",
        _H,
        _BOTH,
        ("requests",),
        _completed_output_tokens_per_s,
    ),
    Metric(
        "total_tokens_per_s",
        "Prompt and output tokens per second of the scope",
        "tok/s",
        _H,
        _BOTH,
        ("requests", "chunks"),
        _total_tokens_per_s,
    ),
    Metric(
        "requests_per_s",
        "Requests answered in full per second of the scope (a closed loop's first ones are shortened)",
        "1/s",
        _H,
        _BOTH,
        ("requests",),
        _requests_per_s,
    ),
    Metric(
        "prefill_tokens_per_s",
        "Prompt tokens per second of prefill: over the steps that prefill, else over the union of sent to first token",
        "tok/s",
        _H,
        _BOTH,
        ("requests", "steps?"),
        _prefill,
    ),
    Metric(
        "decode_tokens_per_s",
        "Output tokens per second of decode: in a locked batch between the last first token and the first last token of "
        "each wave, else over the steps that decode, else over the union of first to last token",
        "tok/s",
        _H,
        _BOTH,
        ("requests", "chunks", "steps?"),
        _decode,
    ),
    Metric("ttft_ms", "Time to first token, from the send", "ms", _L, _BOTH, ("requests",), _ttft),
    Metric(
        "scheduled_ttft_ms",
        "Time to first token, from the intended send",
        "ms",
        _L,
        _BOTH,
        ("requests",),
        _scheduled_ttft,
    ),
    Metric(
        "ttft_content_ms",
        "Time to the first chunk of content, not reasoning, from the send, where answers held reasoning",
        "ms",
        _L,
        _BOTH,
        ("requests", "chunks"),
        _content_ttft,
    ),
    Metric(
        "tpot_ms",
        "Time per output token of a request: first to last token / tokens after the first chunk",
        "ms",
        _L,
        _BOTH,
        ("requests",),
        _tpot,
    ),
    Metric(
        "itl_pooled_ms",
        "Gap between tokens, pooled over requests, where every chunk carries one token",
        "ms",
        _L,
        _BOTH,
        ("chunks",),
        _itl,
    ),
    Metric(
        "interchunk_ms",
        "Gap between chunks that carry tokens, pooled over requests",
        "ms",
        _L,
        _BOTH,
        ("chunks",),
        _interchunk,
    ),
    Metric("tokens_per_chunk", "Output tokens per chunk", "tok", _N, _BOTH, ("chunks",), _tokens_per_chunk),
    Metric(
        "e2e_ms",
        "Time to the last token, from the send, first requests of a closed loop's slots left out",
        "ms",
        _L,
        _BOTH,
        ("requests",),
        _e2e,
    ),
    Metric(
        "scheduled_e2e_ms",
        "Time to the last token, from the intended send, first requests of a closed loop's slots left out",
        "ms",
        _L,
        _BOTH,
        ("requests",),
        _scheduled_e2e,
    ),
)
