"""What holds the step: where its time goes, beside the least that arithmetic and memory would take.

compute     least time of its operators that are bound by FLOPs, at the measured ceiling
power       the part that those take longer because the clock is below its maximum (throttled, with evidence)
bandwidth   least time of its operators that are bound by memory
host gap    time between two steps while requests are in flight: the engine's own host work (from its log only)
unexplained all the rest: overheads, kernels below the ceiling, other load
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from results.ceilings import Ceilings
from results.clock import NS_PER_S
from results.events import MISSING, Floats, Ints, Requests
from results.limits_shares import UNDETERMINED, UNEXPLAINED, Finding, finding, undetermined
from results.step_cost import Format, Shape, peaks_for
from results.step_times import Composition, StepTimes, step_times
from results.tokens import TokenChunks
from results.truth import Steps
from results.xray import XRay

COMPUTE, POWER, BANDWIDTH, HOST = "compute", "power", "bandwidth", "host_gap"
STEP_FACTORS = (COMPUTE, POWER, BANDWIDTH, HOST, UNEXPLAINED)
# A mean clock this close to its maximum is not lowered.
_CLOCK = 0.97


@dataclass(frozen=True, slots=True)
class Model:
    """A model in the format a session runs it in, and the ceilings of the machine it runs on."""

    shape: Shape
    form: Format
    activations: str
    ceilings: Ceilings


@dataclass(frozen=True, slots=True)
class Clock:
    """The mean SM clock over its maximum, and the part of the time a limit of power or heat held it."""

    ratio: float
    throttled: float


@dataclass(slots=True)
class StepLog:
    """The steps of a cell as they can be told: what each held, its seconds, and the seconds of host gap after each (NaN where
    that cannot be seen). `firsts`: how many first tokens they gave; None where each prompt of a step is whole, and gave one."""

    made: Composition
    seconds: Floats
    gap: Floats
    basis: str
    end: Ints
    firsts: int | None = None

    @property
    def output_tokens(self) -> int:
        return int(self.made.decodes.sum()) + (int(self.made.prefills.sum()) if self.firsts is None else self.firsts)

    def __len__(self) -> int:
        return len(self.seconds)


def log_from_steps(
    steps: Steps, requests: Requests, chunks: TokenChunks | None = None, input_tokens: Ints | None = None
) -> StepLog:
    """From the engine's log; the context of its sequences from the client's `chunks` where it does not tell that."""
    context = steps.context_tokens
    if not steps.tells("context_tokens") and chunks is not None and input_tokens is not None:
        context = context_held(chunks, input_tokens, (steps.start + steps.end) // 2) + steps.prefill_tokens
    made = Composition(steps.prefill_tokens, steps.prefills, steps.decodes, context)
    seconds = (steps.end - steps.start) / NS_PER_S
    after = np.append(steps.start[1:], steps.end[-1:])
    gap = (after - steps.end) / NS_PER_S
    gap = np.maximum(gap - _idle(requests, steps.end, after), 0.0) if steps.gaps_told else np.full(len(steps), np.nan)
    # Its prefills count chunks, and only the last of a prompt gives a token.
    firsts = min(int((requests.first_token != MISSING).sum()), int(steps.prefills.sum()))
    return StepLog(made, seconds, gap, "steps", steps.end, firsts)


def context_held(chunks: TokenChunks, input_tokens: Ints, at: Ints) -> Ints:
    """Tokens that the streams between their first and last token have behind them at these times: prompts and what arrived."""
    if not len(chunks):
        return np.zeros(len(at), dtype=np.int64)
    last = np.append(chunks.first[1:], True)
    made = np.bincount(chunks.request, weights=chunks.weight, minlength=len(input_tokens))
    prompts, whole = input_tokens[chunks.request], (input_tokens + made)[chunks.request]
    change = chunks.weight + np.where(chunks.first, prompts, 0) - np.where(last, whole, 0)
    order = np.argsort(chunks.t, kind="stable")
    held = np.concatenate([[0.0], np.cumsum(change[order])])
    out: Ints = np.rint(held[np.searchsorted(chunks.t[order], at, side="right")]).astype(np.int64)
    return out


def _idle(requests: Requests, low: Ints, high: Ints) -> Floats:
    """Of each stretch [low, high], the seconds in which no request was in flight at the client: then the engine has no work."""
    known = (requests.sent != MISSING) & (requests.end != MISSING)
    sent, end = requests.sent[known], requests.end[known]
    order = np.argsort(sent, kind="stable")
    sent, end = sent[order], np.maximum.accumulate(end[order])
    # Holes in the union of [sent, end]: from what has ended until then to the next send.
    holes = np.flatnonzero(sent[1:] > end[:-1])
    starts, stops = end[:-1][holes], sent[1:][holes]
    edges = np.concatenate([starts, stops])
    if not len(edges):
        return np.zeros(len(low))
    length = np.concatenate([[0], np.cumsum(stops - starts)])

    def until(t: Ints) -> Floats:
        at = np.searchsorted(starts, t, side="right")
        inside = np.where(at > 0, np.maximum(stops[np.maximum(at - 1, 0)] - t, 0), 0)
        out: Floats = (length[at] - inside).astype(np.float64)
        return out

    out: Floats = (until(high) - until(low)) / NS_PER_S
    return out


def log_from_xray(found: XRay, requests: Requests, chunks: TokenChunks, input_tokens: Ints) -> StepLog:
    """From arrivals: a step's duration is the time since the one before, its prompts those whose first token it gave."""
    stream = chunks.request[found.order]
    index = np.arange(len(chunks)) - np.flatnonzero(chunks.first)[np.cumsum(chunks.first) - 1]
    index = index[found.order]
    first = chunks.first[found.order]
    n = len(found)

    def per_step(values: Ints) -> Ints:
        return np.bincount(found.step, weights=values, minlength=n).astype(np.int64)

    prompt = per_step(np.where(first, input_tokens[stream], 0))
    context = per_step(input_tokens[stream] + index)
    made = Composition(prompt[1:], found.first[1:], (found.tokens - found.first)[1:], context[1:])
    seconds = found.seconds - _idle(requests, found.t[:-1], found.t[1:])
    return StepLog(made, np.maximum(seconds, 0.0), np.full(n - 1, np.nan), "xray", found.t[1:])


def least_times(log: StepLog, model: Model) -> StepTimes:
    """The least time of each step at the measured ceilings."""
    ceilings = model.ceilings
    peaks = peaks_for(model.form, ceilings.flops, ceilings.bytes_per_s, model.activations)
    return step_times(model.shape, model.form, peaks, log.made)


def step_finding(
    log: StepLog, model: Model | None, why_not: str, clock: Clock | None = None, refuted: str = ""
) -> Finding:
    """Where the time of the cell's steps goes. Without a model or ceilings only the host gap can be told. `refuted` says why the
    ceilings are none: then nothing is named by them."""
    if not len(log) or log.seconds.sum() <= 0:
        return undetermined("no steps to tell by")
    gap = np.where(np.isfinite(log.gap), log.gap, 0.0)
    if model is None:
        parts = np.stack([gap, log.seconds], axis=1)
        return finding((HOST, UNEXPLAINED), parts, f"compute and bandwidth cannot be told: {why_not}", log.basis)
    times = least_times(log, model)
    least = times.compute_s + times.bandwidth_s
    # A ceiling that is passed (a better kernel, a busy machine when it was measured) explains all of a step, no more.
    fit = np.divide(log.seconds, least, out=np.ones(len(log)), where=least > log.seconds)
    compute, bandwidth = times.compute_s * fit, times.bandwidth_s * fit
    power = np.zeros(len(log))
    if clock is not None and clock.ratio < _CLOCK and clock.throttled > 0:
        power = np.minimum(compute * (1.0 / clock.ratio - 1.0), np.maximum(log.seconds - compute - bandwidth, 0.0))
        # A board that idles runs slowly too: a limit costs no more than the time it held.
        power = np.minimum(power, clock.throttled * log.seconds)
    rest = np.maximum(log.seconds - compute - bandwidth - power, 0.0)
    parts = np.stack([compute, power, bandwidth, gap, rest], axis=1)
    evidence = (
        f"of {log.seconds.sum():.3g} s in {len(log):,} steps the arithmetic needs {compute.sum():.3g} s where compute-bound and "
        f"{bandwidth.sum():.3g} s where bandwidth-bound, at the ceilings {model.ceilings.words_for(model.form.weights)}"
    )
    if np.isfinite(log.gap).all():
        evidence += f"; between steps {gap.sum():.3g} s passed with requests in flight"
    ceilings = model.ceilings
    memory = ceilings.read if ceilings.read.best >= ceilings.copy.best else ceilings.copy
    rate = max(ceilings.gemm.values(), key=lambda r: r.best)
    stretch = {COMPUTE: rate.best / rate.median, BANDWIDTH: memory.best / memory.median}
    found = finding(STEP_FACTORS, parts, evidence, log.basis, stretch)
    # Too low a ceiling takes from the gap's share nothing: that factor stands.
    if refuted and found.factor != HOST:
        return replace(found, factor=UNDETERMINED, rivals=(), why=refuted)
    if found.factor == BANDWIDTH and ceilings.threads is not None:
        # On a CPU no counter says what memory did: caches and the least time alone are no proof.
        words = "; no counter of this CPU shows it, so bandwidth is not named by its share"
        return replace(found, factor=UNDETERMINED, evidence=found.evidence + words, rivals=())
    return found
