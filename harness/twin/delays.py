"""What lies between client and engine: how late a request goes out, reaches the engine, and its tokens come back.

Everything here is read from cells that were measured; each delay is a line over the one thing it grows with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.twin.observed import Observed
from results.clock import NS_PER_S
from results.events import MISSING, Floats, Ints

Points = tuple[Floats, Floats]  # places, seconds

_MOST_PLACES = 64
_MOST_SCATTER = 2000


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds: `zero` + `slope` x. `n` values stand behind it (of none it is zero throughout); `scatter` is how they lie about it."""

    zero: float = 0.0
    slope: float = 0.0
    n: int = 0
    scatter: tuple[float, ...] = (0.0,)

    def at(self, x: float) -> float:
        return self.zero + self.slope * x

    def times(self, pace: float) -> Line:
        """The same where everything takes `pace` times as long."""
        return replace(
            self, zero=pace * self.zero, slope=pace * self.slope, scatter=tuple(pace * s for s in self.scatter)
        )


@dataclass(frozen=True, slots=True)
class Delays:
    """`send`: from when a request was due to its last byte, over its rank among those due together. `ingest`: from there to the
    step of an idle engine that took it up, over the prompts of that step: the slope is the server's front, which takes one
    request after the other, the zero what an idle engine takes to wake. `gap`: from a step's end to the next one's start while
    there is work, over the tokens it gave. `deliver`: from the end of its step to a token's arrival, over its rank in the step.

    While the front is busy with a burst, an idle engine does not get on (they share an interpreter), but no longer than
    `patience`: then it begins with those that are there."""

    send: Line
    ingest: Line
    gap: Line
    deliver: Line
    patience: float = np.inf

    def at(self, pace: float) -> Delays:
        """The same where everything takes `pace` times as long."""
        send, ingest, gap, deliver = (line.times(pace) for line in (self.send, self.ingest, self.gap, self.deliver))
        return Delays(send, ingest, gap, deliver, pace * self.patience)


def fit_delays(cells: Sequence[Observed], paces: Sequence[float]) -> Delays:
    """From all cells together, each at its pace: how many times as long as usual things took in it."""

    def line(points: Callable[[Observed], Points]) -> Line:
        found = [(points(cell), pace) for cell, pace in zip(cells, paces, strict=True)]
        return _line([(x, seconds / pace) for (x, seconds), pace in found])

    return Delays(
        send=line(_send),
        ingest=line(lambda cell: _ingest(cell)[0]),
        gap=line(_gap),
        deliver=line(_deliver),
        patience=_patience([_ingest(cell)[1] / pace for cell, pace in zip(cells, paces, strict=True)]),
    )


def _line(parts: Sequence[Points]) -> Line:
    """Through the medians of the values at each place: what was held up now and then bends nothing."""
    x, y = (np.concatenate([np.zeros(0), *(part[i] for part in parts)]) for i in (0, 1))
    if not len(x):
        return Line()
    edges = np.unique(np.quantile(x, np.linspace(0, 1, _MOST_PLACES + 1)))
    place = np.searchsorted(edges, x, side="right")
    middles = [
        (float(x[place == p].mean()), float(np.median(y[place == p])), int((place == p).sum()))
        for p in np.unique(place)
    ]
    at, value, count = (np.array(column, dtype=np.float64) for column in zip(*middles, strict=True))
    mean, level = np.average(at, weights=count), np.average(value, weights=count)
    spread = np.average((at - mean) ** 2, weights=count)
    slope = max(float(np.average((at - mean) * (value - level), weights=count) / spread), 0.0) if spread > 0 else 0.0
    zero = max(float(level - slope * mean), 0.0)
    rest = (y - zero - slope * x)[:: max(1, len(x) // _MOST_SCATTER)]
    return Line(zero, slope, len(x), tuple(map(float, rest)))


def _send(cell: Observed) -> Points:
    r = cell.requests
    known = (r.sent != MISSING) & (r.intended != MISSING)
    intended, sent = r.intended[known], r.sent[known]
    order = np.lexsort((sent, intended))
    rank = _rank(intended[order])
    return rank, (sent[order] - intended[order]) / NS_PER_S


def _patience(left_some: Sequence[Floats]) -> float:
    """The usual time to a step that left some of its burst behind; where none did, the front was always done before."""
    seconds = np.concatenate([np.zeros(0), *left_some])
    return float(np.median(seconds)) if len(seconds) else np.inf


def _ingest(cell: Observed) -> tuple[Points, Floats]:
    """Only of requests that found the engine idle: the others waited for a step. Those right behind them share that step.
    Besides, the seconds to those steps that did not take all that were sent before them."""
    r, steps = cell.requests, cell.steps
    known = np.flatnonzero(r.sent != MISSING)
    known = known[np.argsort(r.sent[known], kind="stable")]
    next_step = np.searchsorted(steps.start, r.sent[known])
    inside = next_step < len(steps)
    known, next_step = known[inside], next_step[inside]
    sent = r.sent[known]
    # Nobody may be unanswered: the step would be theirs.
    ends = np.sort(r.end[r.end != MISSING])
    unanswered = np.arange(len(known)) - np.searchsorted(ends, sent)
    first = (unanswered <= 0) & ((next_step == 0) | (steps.end[np.maximum(next_step - 1, 0)] < sent))
    took = steps.prefills[next_step].astype(np.float64)
    # A step that is full may have left some behind that were there.
    first &= steps.prefill_tokens[next_step] < float(cell.settings.get("max_num_batched_tokens") or np.inf)
    seconds = (steps.start[next_step] - sent) / NS_PER_S
    were_sent = np.searchsorted(sent, steps.start[next_step]) - np.arange(len(sent))
    left_some = first & (were_sent > steps.prefills[next_step])
    return (took[first], seconds[first]), seconds[left_some]


def _gap(cell: Observed) -> Points:
    steps = cell.steps
    if len(steps) < 2:
        return np.zeros(0), np.zeros(0)
    # With somebody left over, the next step follows at once.
    busy = (steps.waiting[:-1] > 0) | (steps.decodes[1:] > 0)
    gap = (steps.start[1:] - steps.end[:-1]) / NS_PER_S
    made = (steps.decodes + steps.prefills)[:-1].astype(np.float64)
    return made[busy], gap[busy]


def _deliver(cell: Observed) -> Points:
    tokens = cell.tokens
    known = (tokens.written != MISSING) & (tokens.written >= tokens.sampled)
    step, late = tokens.step[known], (tokens.written - tokens.sampled)[known]
    order = np.lexsort((late, step))
    return _rank(step[order]), late[order] / NS_PER_S


def _rank(groups: Ints) -> Floats:
    """0, 1, 2 ... within each run of equal values."""
    starts = np.flatnonzero(np.diff(groups, prepend=groups[:1] - 1)) if len(groups) else np.zeros(0, dtype=np.int64)
    sizes = np.diff(np.append(starts, len(groups)))
    return (np.arange(len(groups)) - np.repeat(starts, sizes)).astype(np.float64)
