"""X-ray: an engine's steps, recovered from nothing but the arrivals of its streams.

A stream gets at most one token a step, and the tokens of one step are written together. So between two tokens of one stream
there is a step's edge, and the arrivals fall into bursts:

    stream a   |        |        |                    |   a paused: preempted, or not scheduled
    stream b    |        |        |      |      |      |
    stream c     |        |        |      |      |      |
               step 1   step 2   step 3 ...

Where to cut: wherever nothing arrives for a good part of the least time between two tokens of a stream; before a request's first
token, if a gap far wider than those inside bursts lies there (engines that prefill by itself); and, where bursts run into each
other, between two tokens of one stream at the widest gap, or right before the second token if none stands out (an engine hands
out its tokens in the same order every step). Two neighbours that share no stream although all theirs were running
are one step whose burst was interrupted. Tokens of a stream that come all but together (they were read together) are spread
evenly over the time since the one before. Steps that give nobody a token are not seen.

It is refused where the rule does not hold: chunks of several tokens (speculation, a stream interval), arrivals that were
coalesced, and arrivals so scattered that streams seem to miss more than a few of the steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from results.clock import NS_PER_MS, NS_PER_S
from results.events import MISSING, Bools, Floats, Ints, Requests
from results.tokens import TokenChunks

# So many arrivals are read at most, from the middle of the cell: more change no figure.
MOST_ARRIVALS = 200_000
LEAST_ARRIVALS = 20
# Shares above which the picture is not trusted.
_SEVERAL_TOKENS = 0.02
_COALESCED = 0.05
# Of the cells that were held against a log (benchmarks/xray.py), those with less than this had 92 % of their steps found whole.
_MISSED = 0.07
# A gap is an edge by itself from this part of the least usual time between two tokens of one stream.
_EDGE = 0.5
# Before a first token, from so many times the usual gap inside bursts, and at least from this part of that time.
_WIDE, _EDGE_FIRST = 10.0, 0.05
# And below this part of it, two tokens of one stream came together.
_TOGETHER = 0.2
# Of two gaps, one stands out when it is so many times the other.
_STANDS_OUT = 2.0
# A stream that misses so many steps in a row, and waits so many times the usual, was taken off the batch.
_PAUSE_STEPS = 2
_PAUSE_TIMES = 2.5
_STALL = 4.0
_MIXED = 1.25
# A step shorter than this (ms) is lengthened by a request's arrival alone; where more than this share of the prompt steps rest on
# length, there is no number of them.
_SHORT_MS, _BY_LENGTH = 5.0, 0.2


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no X-ray."""

    reason: str


@dataclass(slots=True)
class XRay:
    """The steps that gave a token, one element each, in order.

    `t` is the arrival of a step's first token (ns), `tokens` how many streams got one, `first` how many of those were a
    request's first, `waiting` how many requests were sent and still without one, `step` the step of each arrival (in the order
    of `order`, indices into the token chunks), `alone` that no two requests were in flight together.
    """

    t: Ints
    tokens: Ints
    first: Ints
    waiting: Ints
    step: Ints
    order: Ints
    missed_share: float
    pauses: int
    alone: bool = False

    def __len__(self) -> int:
        return len(self.t)

    @property
    def seconds(self) -> Floats:
        """Duration of each step but the first: from the step before to it."""
        out: Floats = np.diff(self.t) / NS_PER_S
        return out

    @property
    def batch(self) -> float | None:
        """Streams that got a token together, time-weighted over steps."""
        weight = self.seconds
        return float(np.average(self.tokens[1:], weights=weight)) if weight.sum() > 0 else None

    @property
    def decode_only(self) -> Bools:
        """Steps (from the second on) during which no request waited for its first token and none got it."""
        out: Bools = (self.waiting[1:] == 0) & (self.first[1:] == 0)
        return out

    def usual_seconds(self) -> Floats:
        """What a step of its batch usually takes: the median of the decode-only steps of about that many tokens, else of all
        decode-only ones, else the lower quartile of all."""
        seconds, tokens, plain = self.seconds, self.tokens[1:], self.decode_only
        if plain.sum() < 5:
            return np.full(len(seconds), np.quantile(seconds, 0.25) if len(seconds) else np.nan)
        usual = np.full(len(seconds), np.median(seconds[plain]))
        sizes = np.round(np.log2(np.maximum(tokens, 1)) * 2).astype(np.int64)
        for size in np.unique(sizes):
            same = plain & (sizes == size)
            if same.sum() >= 5:
                usual[sizes == size] = np.median(seconds[same])
        return usual

    @property
    def stalls(self) -> Bools:
        """Steps (from the second on) that took several times the usual while no prompt was being worked on."""
        out: Bools = self.decode_only & (self.seconds > _STALL * self.usual_seconds())
        return out

    @property
    def mixed(self) -> Bools:
        """Steps (from the second on) that decoded while a prompt, or a chunk of one, was computed beside: a request got its
        first token in them, or one waits for it and the step took longer than usual. A chunk that costs little is not seen, and
        where every request was in flight alone there is none."""
        if self.alone:
            return np.zeros(len(self.t) - 1, dtype=bool)
        long = (self.waiting[1:] > 0) & (self.seconds > _MIXED * self.usual_seconds())
        out: Bools = (self.tokens[1:] > self.first[1:]) & ((self.first[1:] > 0) | long)
        return out

    def mixed_steps(self) -> tuple[int | None, str]:
        """How many steps held a prompt beside decodes; or None and why that cannot be told. A step in which a request got its first
        token is known to be one, a longer step while one waits is so in engines whose steps are long."""
        mixed = self.mixed
        told, by_length = int(mixed.sum()), int((mixed & (self.first[1:] == 0)).sum())
        usual_ms = float(np.median(self.seconds)) * NS_PER_S / NS_PER_MS if len(self) > 1 else 0.0
        if usual_ms < _SHORT_MS and by_length > _BY_LENGTH * told:
            return None, (
                f"{by_length} of {told} steps that seem to hold a prompt are told by their length alone, and steps of "
                f"{usual_ms:.1f} ms are too short for that: the arrival of a request lengthens them as well"
            )
        return told, ""


def xray(requests: Requests, chunks: TokenChunks) -> XRay | Refused:
    """The steps behind a cell's arrivals, or why they cannot be told."""
    if refused := _unfit(requests, chunks):
        return Refused(refused)
    own = chunks.gaps()[~chunks.first]
    if not (own > 0).any():
        return Refused("no stream has two tokens that came one after the other")
    least = float(np.quantile(own[own > 0], 0.05))
    if (share := float((own <= 0).mean())) > _COALESCED:
        return Refused(f"{share:.0%} of the tokens arrived together with the one before them")
    spread = _spread(chunks, _TOGETHER * least)
    order = np.argsort(spread, kind="stable")
    if len(order) > MOST_ARRIVALS:
        start = (len(order) - MOST_ARRIVALS) // 2
        order = order[start : start + MOST_ARRIVALS]
    t, stream = spread[order], chunks.request[order]
    before = _before(stream)
    cut = _edges(t, chunks.first[order], least)
    step = _joined(_steps(t, before, cut), before)
    first_of = np.flatnonzero(np.diff(step, prepend=-1))
    n = len(first_of)
    first = np.bincount(step, weights=chunks.first[order], minlength=n).astype(np.int64)
    missed, present, pauses = _missed(step, t, before, np.bincount(step, minlength=n) > first)
    share = missed / (missed + present) if present else 0.0
    if share > _MISSED:
        return Refused(
            f"streams seem to miss {share:.0%} of the steps between their tokens: arrivals are too scattered to tell steps apart"
        )
    times = t[first_of]
    return XRay(
        t=times,
        tokens=np.bincount(step, minlength=n),
        first=first,
        waiting=_waiting(requests, times),
        step=step,
        order=order,
        missed_share=share,
        pauses=pauses,
        alone=_alone(requests),
    )


def _unfit(requests: Requests, chunks: TokenChunks) -> str | None:
    if len(chunks) < LEAST_ARRIVALS:
        return f"{len(chunks)} arrivals are too few"
    counts = np.bincount(chunks.request, minlength=len(requests))
    known = chunks.tokens >= 0
    several = int((chunks.tokens > 1).sum())
    if not known.all():
        # Chunks that do not say: one token each where there are as many chunks as tokens.
        told = (requests.output_tokens >= 0) & (counts > 0)
        several += int(np.abs(requests.output_tokens - counts)[told].sum())
        if not told.any():
            return "nothing tells how many tokens a chunk carries"
    if several > _SEVERAL_TOKENS * len(chunks):
        return f"{several} of {len(chunks)} chunks carry several tokens: a chunk is no step"
    return None


def _spread(chunks: TokenChunks, together: float) -> Ints:
    """Arrivals, those of a stream that came together spread evenly since the one before them."""
    t, first = chunks.t, chunks.first
    new = first | (chunks.gaps() > together)
    if new.all():
        return t
    run = np.cumsum(new) - 1
    starts = np.flatnonzero(new)
    sizes = np.diff(starts, append=len(t))
    # Those of a stream's very first read have nothing before them: they stay where they are.
    since = np.where(first[starts], 0, t[starts] - t[np.maximum(starts - 1, 0)])
    back = (sizes[run] - 1 - (np.arange(len(t)) - starts[run])) / sizes[run] * since[run]
    moved: Ints = t - back.astype(np.int64)
    return moved


def _before(stream: Ints) -> Ints:
    """Index of the arrival before in the same stream; -1 for the first of each."""
    by_stream = np.argsort(stream, kind="stable")
    same = stream[by_stream][1:] == stream[by_stream][:-1]
    before = np.full(len(stream), -1, dtype=np.int64)
    before[by_stream[1:][same]] = by_stream[:-1][same]
    return before


def _edges(t: Ints, first: Bools, least: float) -> Bools:
    """Arrivals before which a step ends because the gap is wide enough to say so by itself."""
    gap = np.diff(t, prepend=t[0])
    inside = gap[gap <= _EDGE * least]
    usual = float(np.quantile(inside, 0.8))
    edge_first = float(np.clip(_WIDE * usual, _EDGE_FIRST * least, _EDGE * least))
    out: Bools = (gap > _EDGE * least) | (first & (gap > edge_first))
    return out


def _steps(t: Ints, before: Ints, cut: Bools) -> Ints:
    """The step of each arrival, in time order: after the edges, the bursts that hold two tokens of one stream are cut."""
    gap = np.diff(t, prepend=t[0])
    segment = np.cumsum(cut)
    twice = (before >= 0) & (segment == segment[before])
    for number in np.unique(segment[twice]):
        low, high = np.searchsorted(segment, [number, number + 1])
        for at in _cuts(gap[low:high], before[low:high] - low):
            cut[low + at] = True
    cut[0] = False
    return np.cumsum(cut)


def _cuts(gap: Ints, before: Ints) -> list[int]:
    """Where to cut one run of arrivals so that no part holds a stream twice."""
    cuts: list[int] = []
    start = 0
    widths: list[int] = gap.tolist()
    for at, earlier in enumerate(before.tolist()):
        if earlier < start:
            continue
        widest = max(range(earlier + 1, at + 1), key=widths.__getitem__)
        start = widest if widths[widest] > _STANDS_OUT * widths[at] else at
        cuts.append(start)
    return cuts


def _joined(step: Ints, before: Ints) -> Ints:
    """Neighbours joined that share no stream, where both hold none but streams that were running."""
    later = before >= 0
    while True:
        n = int(step[-1]) + 1
        follows = step[later] - step[before[later]] == 1
        share = np.bincount(step[later], weights=follows, minlength=n) > 0
        began = np.bincount(step, weights=~later, minlength=n) > 0
        join = ~share & ~began & ~np.roll(began, 1)
        join[0] = False
        # Two at a time: whether a third belongs to them shows once they are one.
        join[1:] &= ~join[:-1]
        if not join.any():
            return step
        step = step - np.cumsum(join)[step]


def _missed(step: Ints, t: Ints, before: Ints, decoding: Bools) -> tuple[int, int, int]:
    """(steps that streams missed one at a time, tokens after the first ones, pauses of several steps).

    Long pauses are what an engine does on purpose; many single misses are what scattered arrivals look like. Steps that hold
    first tokens alone are left out: engines that prefill by itself let all others wait.
    """
    later = np.flatnonzero(before >= 0)
    count = np.cumsum(decoding)
    skipped: Ints = count[step[later] - 1] - count[step[before[later]]]
    took = t[later] - t[before[later]]
    paused = (skipped >= _PAUSE_STEPS) & (took > _PAUSE_TIMES * np.median(took))
    return int(skipped[~paused].sum()), len(later), int(paused.sum())


def _alone(requests: Requests) -> bool:
    """Whether each request was sent after the one before it had its last token (or had ended without one)."""
    ends = np.where(requests.last_token != MISSING, requests.last_token, requests.end)
    sent = requests.sent != MISSING
    if (ends[sent] == MISSING).any():
        return False
    order = np.argsort(requests.sent[sent], kind="stable")
    return bool((np.maximum.accumulate(ends[sent][order])[:-1] <= requests.sent[sent][order][1:]).all())


def _waiting(requests: Requests, times: Ints) -> Ints:
    """Requests sent by each time that still have no first token then."""
    known = (requests.sent != MISSING) & (requests.first_token != MISSING)
    sent, got = np.sort(requests.sent[known]), np.sort(requests.first_token[known])
    return np.searchsorted(sent, times, side="left") - np.searchsorted(got, times, side="right")
