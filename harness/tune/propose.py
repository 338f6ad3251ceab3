"""Which settings are tried next: what a predictor takes for the best of those not tried, else the neighbours of the best so far.

A predictor cannot tell of every setting (threads, a dtype). Its three best are tried, then every other trial is a neighbour it
could not tell of, so that no setting that is to be searched waits for all the others.

A neighbour differs in one setting. Settings take turns, the most promising value of each first; where something better is
found the search goes on from there. When no neighbour is left, the rest comes in an order of the seed's draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from harness.tune.space import Space, Values, at_least, ordered, shown
from workloads.base import canonical

# A predictor is asked about so many at once.
MOST_PREDICTED = 48
# So many trials of its choice come first.
PREDICTED_FIRST = 3


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial and what came of it: the number that is to be large, or None; and whether its engine ran out of memory."""

    values: Values
    score: float | None
    lacked_memory: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """Settings to try, and what for."""

    values: dict[str, Any]
    why: str


@dataclass(frozen=True, slots=True)
class Rules:
    """What may not be tried: `refuse` says why an engine with these values cannot be started (None: it can), `leave_out` is told
    of what is dropped."""

    refuse: Callable[[Values], str | None]
    leave_out: Callable[[Values, str], None]


def propose(
    space: Space,
    tried: Sequence[Tried],
    defaults: Values,
    rules: Rules,
    predict: Callable[[Sequence[Values]], Sequence[float | None]],
    seed: int = 0,
) -> Proposal | None:
    """The next trial; None where nothing is left to try. `defaults` are the values the engine has where none is asked, as far
    as it tells them: what equals them is no change."""
    best = _best(tried)
    ahead = list(islice(_legal(_in_order(space, best, seed), tried, defaults, rules), MOST_PREDICTED))
    if not ahead:
        return None
    values = predict(ahead)
    predicted = [(value, at) for at, value in enumerate(values) if value is not None]
    untold = [a for a, value in zip(ahead, values, strict=True) if value is None and _is_next_to(a, best)]
    others_turn = len(tried) > PREDICTED_FIRST and len(tried) % 2 == 0
    if predicted and not (untold and others_turn):
        value, at = max(predicted, key=lambda p: (p[0], -p[1]))
        return Proposal(ahead[at], f"predicted {value:,.0f} tokens/s, the most of {len(predicted)}")
    if predicted:
        return Proposal(untold[0], f"next to {shown(best)}, of which the twin cannot tell")
    return Proposal(ahead[0], f"next to {shown(best)}" if _is_next_to(ahead[0], best) else "drawn from what is left")


def _is_next_to(values: Values, best: Values) -> bool:
    """Whether they differ in one setting."""
    return len([name for name in {**values, **best} if values.get(name) != best.get(name)]) == 1


def _best(tried: Sequence[Tried]) -> Values:
    """Of equals the first, which is never further from the defaults than those found from it."""
    scored = [t for t in tried if t.score is not None]
    return max(scored, key=lambda t: t.score or 0.0).values if scored else {}


def _in_order(space: Space, best: Values, seed: int) -> Iterator[Values]:
    for place in range(max((len(values) for values in space.axes.values()), default=0)):
        for name, values in space.axes.items():
            if place < len(values):
                yield {**best, name: values[place]}
    for name in best:
        yield {other: value for other, value in best.items() if other != name}
    yield from space.combinations(seed)


def _legal(
    candidates: Iterator[Values], tried: Sequence[Tried], defaults: Values, rules: Rules
) -> Iterator[dict[str, Any]]:
    """Those that are new, may be started, and are not larger than what ran out of memory; without what is no change."""
    seen = {_key(t.values) for t in tried} | {_key({})}
    failed = [t.values for t in tried if t.lacked_memory]
    for given in candidates:
        values = {name: value for name, value in ordered(given).items() if defaults.get(name) != value}
        if (key := _key(values)) in seen:
            continue
        seen.add(key)
        smaller = next((f for f in failed if at_least(values, f, defaults)), None)
        why = f"{shown(smaller)} ran out of memory, and this is no smaller" if smaller is not None else None
        if why is None:
            why = rules.refuse(values)
        if why is None:
            yield values
        else:
            rules.leave_out(values, why)


def _key(values: Mapping[str, Any]) -> str:
    return canonical(dict(values))
