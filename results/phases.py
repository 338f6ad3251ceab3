"""Prefill and decode rates, told apart: from the engine's steps, from locked waves, or estimated at the client.

prefill   steps:   prompt tokens of the steps that prefill / their time (decodes in the same step share that time)
          log:     the same where a step is known by its end alone and lasts from the one before: host work included
          client:  prompt tokens / union of all [sent, first token]: an estimate, queueing and decodes of others included
decode    wave:    tokens between the last first-token and the first last-token of a wave / that time: decodes only
          steps:   tokens decoded in the steps that decode / their time (prefills in the same step share that time)
          log:     the same, as above
          client:  tokens after the first chunk / union of all [first token, last token]: an estimate

In a window the unions are cut at its edges, and only waves that lie in it are read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from results.clock import NS_PER_S
from results.events import MISSING, Ints, Requests
from results.scope import WINDOW, ScopeData
from results.truth import Steps


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens/s with where it was read; `share` is the part of all such tokens it rests on, `mixed` the part of the time
    in which the other phase was under way as well. None where it is not known."""

    value: float | None
    source: str | None
    share: float | None = None
    mixed: float | None = None


NO_RATE = Rate(None, None)


def union_ns(low: Ints, high: Ints) -> int:
    """Length of the union of intervals."""
    if not len(low):
        return 0
    order = np.argsort(low, kind="stable")
    low, high = low[order], np.maximum(high[order], low[order])
    reached = np.maximum.accumulate(high)
    covered_from = np.concatenate([low[:1], np.maximum(low[1:], reached[:-1])])
    return int(np.maximum(high - covered_from, 0).sum())


def prefill_from_steps(steps: Steps, everything: float) -> Rate:
    """Prompt tokens a second over the steps that prefill; `everything` is how many prompt tokens there were."""
    return _from_steps(steps, steps.prefill_tokens, steps.decodes, everything)


def decode_from_steps(steps: Steps, everything: float) -> Rate:
    """Decoded tokens a second over the steps that decode; `everything` is how many tokens followed a first one."""
    return _from_steps(steps, steps.decodes, steps.prefill_tokens, everything)


def _from_steps(steps: Steps, work: Ints, other: Ints, everything: float) -> Rate:
    doing = work > 0
    time = (steps.end - steps.start)[doing]
    total = int(time.sum())
    if total <= 0:
        return NO_RATE
    mixed = float(time[other[doing] > 0].sum()) / total
    done = float(work[doing].sum())
    # Work done twice (after a preemption) or for requests that failed makes more than there was to do.
    share = min(1.0, done / everything) if everything > 0 else None
    return Rate(done / total * NS_PER_S, steps.source, share, mixed)


def prefill_at_client(data: ScopeData) -> Rate:
    """Prompt tokens / union of [sent, first token] over the requests that got a first token."""
    requests = data.requests
    has = data.answered & (requests.sent != MISSING) & (requests.first_token != MISSING)
    total = _union_inside(data, requests.sent[has], requests.first_token[has])
    tokens = float(data.input_tokens[has & data.prefilled].sum())
    return Rate(tokens / total * NS_PER_S, "client") if total > 0 and tokens > 0 else NO_RATE


def decode_at_client(data: ScopeData) -> Rate:
    """Tokens after the first chunk / union of [first token, last token]. A first chunk of unknown count counts as one."""
    requests = data.requests
    has = data.answered & (requests.first_token != MISSING) & (requests.last_token != MISSING)
    has &= requests.output_tokens > 0
    total = _union_inside(data, requests.first_token[has], requests.last_token[has])
    after = float(data.after_first[has].sum())
    return Rate(after / total * NS_PER_S, "client") if total > 0 and after > 0 else NO_RATE


def _union_inside(data: ScopeData, low: Ints, high: Ints) -> int:
    return union_ns(np.clip(low, data.start, data.end), np.clip(high, data.start, data.end))


def waves(requests: Requests, batch: int) -> Ints:
    """The wave of each request: they are sent `batch` at a time, each wave after the end of the one before."""
    when = np.where(requests.sent != MISSING, requests.sent, requests.queued)
    when = np.where(when != MISSING, when, requests.intended)
    order = np.lexsort((requests.request_id.astype(str), when))
    wave = np.empty(len(requests), dtype=np.int64)
    wave[order] = np.arange(len(requests)) // batch
    return wave


def decode_in_waves(data: ScopeData) -> Rate:
    """Tokens between the last first-token and the first last-token of each wave / that time, over all waves.

    The tokens of one step arrive in a burst around each edge. Half the usual gap is the line between "this step" and "the
    next": both edges are moved by it, so that the step at the lower edge is left out and the one at the upper edge counted
    whole. A chunk of several tokens holds those of several steps: of it counts the part of its gap that lies between the
    edges. Waves with a failed request are left out: fewer streams were decoding there.
    """
    requests, answered, chunks = data.requests, data.answered, data.chunks
    if not len(requests):
        return NO_RATE
    wave = waves(requests, data.width)
    n = int(wave.max()) + 1
    usable = answered & (requests.first_token != MISSING) & (requests.last_token != MISSING)
    low = np.full(n, MISSING, dtype=np.int64)
    high = np.full(n, np.iinfo(np.int64).max, dtype=np.int64)
    np.maximum.at(low, wave[usable], requests.first_token[usable])
    np.minimum.at(high, wave[usable], requests.last_token[usable])
    good = (np.bincount(wave[~usable], minlength=n) == 0) & (high > low)
    if data.name == WINDOW:
        good &= (low >= data.start) & (high <= data.end)
    if not good.any():
        return NO_RATE
    of_wave = wave[chunks.request]
    later = good[of_wave] & ~chunks.first
    t, gap, weight, of_wave = chunks.t[later], chunks.gaps()[later], chunks.weight[later], of_wave[later]
    opens = requests.first_token[chunks.request[later]] == low[of_wave]
    within = (t - gap >= low[of_wave]) & (t <= high[of_wave])
    margin = int(np.median(gap[within])) // 2 if within.any() else 0
    # The stream whose first token is the lower edge has nothing else in that step.
    counted = (t > low[of_wave] + np.where(opens, 0, margin)) & (t <= high[of_wave] + margin)
    several = weight > 1
    tokens = float(weight[counted & ~several].sum())
    if several.any():
        t, gap, weight, of_wave = t[several], gap[several], weight[several], of_wave[several]
        overlap = np.minimum(t, high[of_wave]) - np.maximum(t - gap, low[of_wave])
        tokens += float((weight * np.clip(overlap / np.maximum(gap, 1), 0.0, 1.0)).sum())
    time = int((high[good] - low[good]).sum())
    everything = float(chunks.weight[chunks.of(answered) & data.holds(chunks.t)].sum())
    return Rate(tokens / time * NS_PER_S, "wave", tokens / everything, 0.0) if tokens else NO_RATE
