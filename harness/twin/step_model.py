"""How long a step takes by what it holds, for steps nobody has seen.

    seconds = base + f(tokens) + decodes x a + prompt chunks x b + context x c + (prompt tokens x mean context) x d

f rises from knot to knot (powers of two) with a slope of its own: a step of few tokens is bound by reading the weights and one
of many by arithmetic, which one straight line (`results.step_fit`, made to tell prefill and decode apart inside one cell) cannot
be both. No term is negative. What the fit leaves unexplained is kept as ratios, of which a simulated step draws one.

A machine that others use too is not as fast in one session as in the next, whatever its steps hold: each session has a pace of
its own, which is fitted along with the terms, in turns until neither moves. 1 is the median session, and what the terms are for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from results.events import Floats, Ints

LEAST_STEPS = 40
# A segment of f needs so many steps, else it is one with the next.
_LEAST_IN_SEGMENT = 20
# Terms and paces are fitted in turns until none moves by more than this part (of the largest term; of the usual pace).
SETTLED = 1e-4
_MOST_ROUNDS = 100
# A step that took so many times what was expected was interrupted: it does not shape the fit, but is drawn like any other.
_INTERRUPTED = 3.0
# Lengths that scatter less than this, as a part of their mean, are as good as equal.
_VARIES = 0.25


@dataclass(frozen=True, slots=True)
class Made:
    """What steps held, one element each: the columns of the engine's log that the fit reads."""

    prefill_tokens: Floats
    prefills: Floats
    decodes: Floats
    context_tokens: Floats

    def __len__(self) -> int:
        return len(self.decodes)


@dataclass(frozen=True, slots=True)
class StepModel:
    """`knots` of f, `weights` of all terms in the order of `_terms`, and measured / expected of the steps behind it, of those
    that held prompts and of those that did not. `moves`: the part that terms and paces moved by in the last round, below SETTLED
    where they settled."""

    knots: tuple[float, ...]
    weights: tuple[float, ...]
    mixed: tuple[float, ...]
    plain: tuple[float, ...]
    n: int
    moves: float = 0.0

    def seconds(self, prefill: int, prefills: int, decodes: int, context: int) -> float:
        """Expected duration of one step."""
        tokens = prefill + decodes
        rows = max(prefills + decodes, 1)
        low, value, terms = 0.0, self.weights[0], iter(self.weights[1:])
        for high in self.knots:
            value += next(terms) * min(max(tokens - low, 0.0), high - low)
            low = high
        return sum(
            (
                weight * x
                for weight, x in zip(terms, (decodes, prefills, context, prefill * context / rows), strict=True)
            ),
            value,
        )

    def at(self, pace: float) -> StepModel:
        """The same where a step takes `pace` times as long."""
        return replace(self, weights=tuple(pace * weight for weight in self.weights))

    def draw(self, random_: random.Random, expected: float, holds_prompts: bool) -> float:
        """A duration as they scatter."""
        ratios = (self.mixed if holds_prompts else self.plain) or self.plain or self.mixed
        return expected * random_.choice(ratios)


def fit_step_model(made: Made, seconds: Floats, session: Ints) -> tuple[StepModel, Floats] | str:
    """The model and the pace of each session, or why there is none. `session` numbers the sessions of the steps from 0; a step of
    -1 is at the usual pace."""
    from scipy.optimize import nnls

    if len(seconds) < LEAST_STEPS:
        return f"{len(seconds)} steps are too few to fit"
    tokens = made.prefill_tokens + made.decodes
    knots = _knots(tokens)
    matrix = _terms(made, tokens, knots) * _told_apart(made, len(knots))
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    matrix = matrix / scale
    expected, clean = seconds, np.ones(len(seconds), dtype=bool)
    found, paces = np.zeros(matrix.shape[1]), np.ones(int(session.max()) + 2)  # the last, -1, is the usual one
    for _ in range(_MOST_ROUNDS):
        before, before_paces = found, paces
        # Interruptions add up over a step, so its variance goes as its length; as expected, not as measured: else long steps would
        # count for too little.
        weight = 1 / np.sqrt(expected[clean])
        rows = matrix[clean] * (paces[session[clean]] * weight)[:, None]
        q, r = np.linalg.qr(rows)
        found = nnls(r, q.T @ (seconds[clean] * weight))[0]
        usual = np.maximum(matrix @ found, 1e-9)
        paces = _paces(seconds / usual, usual, session)
        expected = usual * paces[session]
        clean = (seconds < _INTERRUPTED * expected) & (seconds > expected / _INTERRUPTED)
        if clean.sum() < LEAST_STEPS:
            return "what the steps held does not explain how long they took"
        moves = float(max(np.abs(found - before).max() / found.max(), np.abs(paces - before_paces).max()))
        if moves < SETTLED:
            break
    ratio = seconds / expected
    prompts = made.prefills > 0
    model = StepModel(
        knots=tuple(map(float, knots)),
        weights=tuple(map(float, found / scale)),
        mixed=tuple(map(float, ratio[prompts])),
        plain=tuple(map(float, ratio[~prompts])),
        n=len(seconds),
        moves=moves,
    )
    return model, paces[:-1]


def _paces(ratio: Floats, weight: Floats, session: Ints) -> Floats:
    """The weighted median ratio of each session: half of its time was slower, half faster. The last is the usual one."""
    order = np.lexsort((ratio, session))
    paces = np.ones(int(session.max()) + 2)
    for number in np.unique(session[session >= 0]):
        own = order[session[order] == number]
        reached = np.cumsum(weight[own])
        paces[number] = ratio[own[np.searchsorted(reached, reached[-1] / 2)]]
    if len(paces) > 1:
        paces[:-1] /= np.median(paces[:-1])
    return paces


def _knots(tokens: Floats) -> list[float]:
    """Upper ends of the segments: powers of two with steps between them, and a last one that everything lies below."""
    knots: list[float] = []
    low = 0.0
    top = float(tokens.max())
    power = 1.0
    while power < top:
        above = int((tokens > power).sum())
        if ((tokens > low) & (tokens <= power)).sum() >= _LEAST_IN_SEGMENT and above >= _LEAST_IN_SEGMENT:
            knots.append(power)
            low = power
        power *= 2
    return [*knots, 1e9]


def _told_apart(made: Made, knots: int) -> NDArray[np.float64]:
    """1 for each term, 0 for one that goes along with the prompt tokens in all steps there are: fitted, it would take their cost
    and multiply it where lengths are others."""
    prompts = made.prefills > 0
    tokens, chunks = made.prefill_tokens[prompts], made.prefills[prompts]
    context = (made.context_tokens / np.maximum(made.prefills + made.decodes, 1))[prompts]

    def varies(x: Floats) -> bool:
        return bool(len(x) and x.std() > _VARIES * x.mean() > 0)

    return np.array([1.0] * (knots + 2) + [varies(tokens / np.maximum(chunks, 1)), 1.0, varies(context)])


def _terms(made: Made, tokens: Floats, knots: Sequence[float]) -> NDArray[np.float64]:
    rows = np.maximum(made.prefills + made.decodes, 1)
    lows = (0.0, *knots[:-1])
    ramps = [np.clip(tokens - low, 0, high - low) for low, high in zip(lows, knots, strict=True)]
    return np.stack(
        [
            np.ones(len(tokens)),
            *ramps,
            made.decodes,
            made.prefills,
            made.context_tokens,
            made.prefill_tokens * made.context_tokens / rows,
        ],
        axis=1,
    )
