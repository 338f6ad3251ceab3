"""Do two engines say the same? Pure comparison of greedy token sequences and of log probabilities on fixed text.

Free-running outputs part for ever at the first near-tie, so a token match alone says little: what counts is how far apart
the two candidates were where they parted, and how the two engines score text that neither of them chose.
All log probabilities are natural (nats).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from types import MappingProxyType

# A gap between two candidates that rounding alone can turn over, by the coarser dtype of a pair: the spacing of its
# numbers where large logits lie (16 to 32), twice, since both candidates move. float32 has far finer numbers, but sums
# of thousands of terms in another order.
NEAR_TIE: Mapping[str, float] = MappingProxyType({"float32": 0.01, "float16": 0.04, "bfloat16": 0.25})
# An engine whose dtype is not known is taken for the coarsest.
UNKNOWN_DTYPE = "bfloat16"
# Still the same model, otherwise rounded: on fixed text the same favourite almost everywhere (but for near-ties), and the
# same confidence.
LEVEL = NEAR_TIE[UNKNOWN_DTYPE]
CLOSE_TOP1 = 0.95
CLOSE_LOGPROB = 0.1
# Where no log probability is told at all, tokens must do: so much of the outputs before they part.
CLOSE_PREFIX = 0.5
# Gaps of coarse numbers lie exactly on the threshold, but for the last digits of a softmax.
_EXACT = 1e-3
# A token repeated through a whole output of so many tokens is what an engine with broken numbers gives.
REPEATED_TOKENS = 8
# ... when it does that in so much larger a share of the outputs than the other engine.
REPEATED_SHARE = 0.5


class Agreement(StrEnum):
    """How far two engines agree, best first."""

    IDENTICAL = "identical"
    NEAR_TIE = "near-tie"
    CLOSE = "close"
    DIFFERENT = "different"
    BROKEN = "broken"


WORDS: Mapping[Agreement, str] = MappingProxyType(
    {
        Agreement.IDENTICAL: "every token is the same",
        Agreement.NEAR_TIE: "they part only where two candidates are as good as level",
        Agreement.CLOSE: "they part, but score fixed text alike: the same model, otherwise rounded",
        Agreement.DIFFERENT: "they do not compute the same model",
        Agreement.BROKEN: "one of them gives no sane output",
    }
)


@dataclass(frozen=True, slots=True)
class Position:
    """A token in its place: its log probability there, and those of the likeliest candidates. None: not told."""

    token: int
    logprob: float | None = None
    top: Mapping[int, float] = field(default_factory=dict)


Sequenced = Sequence[Position]


@dataclass(frozen=True, slots=True)
class PromptAgreement:
    """One prompt through two engines.

    `first_divergence` is the output position where they part, None where they match. `logprob_gap` is how much likelier
    the chosen candidate was than the other's, at that position, in the engine that saw the larger difference; None where
    it is not told, or where one output merely ended. `at_least`: the other candidate was not among those told of.
    `logprob_difference` is the mean absolute difference of the two engines' log probabilities before they part.
    """

    match: bool
    first_divergence: int | None
    agreed: int
    longest: int
    logprob_gap: float | None = None
    at_least: bool = False
    logprob_difference: float | None = None

    def near_tie(self, threshold: float) -> bool:
        """Whether the parting is one that rounding explains. A match is."""
        if self.match:
            return True
        return self.logprob_gap is not None and not self.at_least and self.logprob_gap <= threshold + _EXACT


@dataclass(frozen=True, slots=True)
class TeacherForced:
    """Two engines' scores of the same fixed text, over the `tokens` positions of which both tell something.

    `top1_share` of them have the same favourite, `top1_or_tie_share` the same or one that is level with it in both.
    `mean_kl` is the mean Kullback-Leibler divergence of the second from the first over the candidates both tell of, with all
    others as one: a lower bound. Any of them None where it is not told.
    """

    tokens: int
    top1_share: float | None
    top1_or_tie_share: float | None
    mean_abs_logprob_difference: float | None
    mean_kl: float | None


def first_divergence(a: Sequenced, b: Sequenced) -> int | None:
    """The first position that differs (or that only one has); None for equal sequences."""
    for index, (x, y) in enumerate(zip_longest(a, b)):
        if x is None or y is None or x.token != y.token:
            return index
    return None


def gap(position: Position, other: int) -> tuple[float, bool] | None:
    """How much likelier the token at `position` is than `other` there, and whether that is only a lower bound.

    None where the engine told too little. Never negative for a greedy choice, but for rounding in what was told.
    """
    if position.logprob is None or math.isnan(position.logprob):
        return None
    if other in position.top:
        return position.logprob - position.top[other], False
    rest = [value for token, value in position.top.items() if token != position.token]
    return (position.logprob - min(rest), True) if rest else None


def compare_outputs(a: Sequenced, b: Sequenced) -> PromptAgreement:
    """Two engines' greedy outputs for one prompt."""
    at = first_divergence(a, b)
    longest = max(len(a), len(b))
    agreed = longest if at is None else at
    difference = _mean(_differences(a[:agreed], b[:agreed]))
    if at is None or at >= min(len(a), len(b)):
        return PromptAgreement(at is None, at, agreed, longest, logprob_difference=difference)
    gaps = [g for g in (gap(a[at], b[at].token), gap(b[at], a[at].token)) if g is not None]
    size, at_least = max(gaps, default=(None, False), key=lambda g: (g[0], not g[1]))
    size = None if size is None else max(size, 0.0)
    return PromptAgreement(False, at, agreed, longest, size, at_least, difference)


def compare_scores(a: Sequence[Sequenced], b: Sequence[Sequenced], level_nats: float = LEVEL) -> TeacherForced:
    """Two engines' scores of the same texts, position by position. Raises ValueError where the texts differ.

    Favourites up to `level_nats` apart are level.
    """
    pairs = [pair for x, y in zip(a, b, strict=True) for pair in zip(x, y, strict=True)]
    if any(x.token != y.token for x, y in pairs):
        raise ValueError("the two engines scored different texts")
    tops = [(x.top, y.top) for x, y in pairs if x.top and y.top]
    favourites = [(max(x, key=x.__getitem__), max(y, key=y.__getitem__)) for x, y in tops]
    same = [x == y for x, y in favourites]
    level = [
        one == other or _level(x, one, other, y, level_nats)
        for (one, other), (x, y) in zip(favourites, tops, strict=True)
    ]
    differences = _differences([x for x, _ in pairs], [y for _, y in pairs])
    return TeacherForced(
        tokens=sum(bool(x.top and y.top) or bool(_differences([x], [y])) for x, y in pairs),
        top1_share=_mean(same),
        top1_or_tie_share=_mean(level),
        mean_abs_logprob_difference=_mean(differences),
        mean_kl=_mean([coarse_kl(x, y) for x, y in tops if _weighed(x) and _weighed(y)]),
    )


def _weighed(top: Mapping[int, float]) -> bool:
    """Whether more than the favourite's name is told."""
    return not any(math.isnan(value) for value in top.values())


def _level(x: Mapping[int, float], one: int, other: int, y: Mapping[int, float], nats: float) -> bool:
    """Whether two favourites, `one` of x and `other` of y, are level in both; an engine that names its favourite alone has no
    word in that, and where neither has more to say they are not."""
    told = [
        _below(top, favourite, rival) for top, favourite, rival in ((x, one, other), (y, other, one)) if _weighed(top)
    ]
    return bool(told) and max(told) <= nats


def _below(top: Mapping[int, float], favourite: int, other: int) -> float:
    """How far the other candidate lies below the favourite; beyond all where it is not told of."""
    return top[favourite] - top[other] if other in top else math.inf


def coarse_kl(p: Mapping[int, float], q: Mapping[int, float]) -> float:
    """KL(p || q) in nats over the candidates in both (log probabilities), with everything else as one candidate."""
    both = [(math.exp(p[token]), math.exp(q[token])) for token in p.keys() & q.keys()]
    tiny = 1e-9
    rest = (max(1 - sum(x for x, _ in both), tiny), max(1 - sum(y for _, y in both), tiny))
    return max(0.0, sum(x * math.log(x / max(y, tiny)) for x, y in [*both, rest] if x > 0))


def problems(output: Sequenced, asked: int | None) -> list[str]:
    """What is insane about an output by itself: empty, short, nan, repeated. `asked` None: its length was free."""
    found = []
    if not output:
        found.append("empty")
    elif asked is not None and len(output) < asked:
        found.append("short")
    if any(p.logprob is not None and math.isnan(p.logprob) for p in output):
        found.append("nan")
    if len(output) >= REPEATED_TOKENS and len({p.token for p in output}) == 1:
        found.append("repeated")
    return found


def near_tie_threshold(*dtypes: str | None) -> float:
    """The gap that rounding explains between engines of these dtypes: the coarsest one's."""
    return max(NEAR_TIE.get(str(d).rpartition(".")[2].lower(), NEAR_TIE[UNKNOWN_DTYPE]) for d in dtypes)


@dataclass(slots=True)
class Evidence:
    """What a class is judged from: prompts of both ways of sending, outputs' problems, scores of fixed text."""

    prompts: Sequence[PromptAgreement]
    threshold: float
    problems_a: Sequence[Sequence[str]] = field(default_factory=list)
    problems_b: Sequence[Sequence[str]] = field(default_factory=list)
    forced: TeacherForced | None = None


def classify(evidence: Evidence) -> tuple[Agreement, str]:
    """The class, and the sentence that says why, with its numbers."""
    if why := _broken(evidence):
        return Agreement.BROKEN, why
    prompts = evidence.prompts
    parted = [p for p in prompts if not p.match]
    forced = evidence.forced
    if not prompts and (forced is None or not forced.tokens):
        return Agreement.DIFFERENT, "Nothing was compared."
    far = forced is not None and _is_close(forced) is False
    if not parted and not far:
        return Agreement.IDENTICAL, f"All {len(prompts)} outputs are the same, token by token."
    real = [p for p in parted if not p.near_tie(evidence.threshold)]
    shown = f"{len(parted)} of {len(prompts)} outputs part"
    if not real and not far:
        largest = max(p.logprob_gap or 0.0 for p in parted)
        return (
            Agreement.NEAR_TIE,
            f"{shown}, each where the two candidates were within {largest:.3g} nats (rounding explains {evidence.threshold:g}).",
        )
    if forced is not None and (close := _is_close(forced)) is not None:
        return (Agreement.CLOSE if close else Agreement.DIFFERENT), f"{shown}; {_forced_words(forced)}."
    if (difference := _mean([p.logprob_difference for p in prompts if p.logprob_difference is not None])) is not None:
        close = difference <= CLOSE_LOGPROB
        words = f"{shown}; before that their log probabilities differ by {difference:.3g} nats (close: at most {CLOSE_LOGPROB:g})"
        return (Agreement.CLOSE if close else Agreement.DIFFERENT), f"{words}."
    share = sum(p.agreed for p in prompts) / max(1, sum(p.longest for p in prompts))
    words = (
        f"{shown}; {share:.0%} of the tokens come before that (no log probabilities are told, so tokens alone decide)"
    )
    return (Agreement.CLOSE if share >= CLOSE_PREFIX else Agreement.DIFFERENT), f"{words}."


def _is_close(forced: TeacherForced) -> bool | None:
    """Whether fixed text is scored alike; None where neither number is told."""
    if forced.top1_or_tie_share is None and forced.mean_abs_logprob_difference is None:
        return None
    top1 = forced.top1_or_tie_share is None or forced.top1_or_tie_share >= CLOSE_TOP1
    return top1 and (forced.mean_abs_logprob_difference is None or forced.mean_abs_logprob_difference <= CLOSE_LOGPROB)


def _forced_words(forced: TeacherForced) -> str:
    parts = []
    if forced.top1_or_tie_share is not None:
        parts.append(
            f"the same favourite, or one that is level, at {forced.top1_or_tie_share:.1%} (close: at least {CLOSE_TOP1:.0%})"
        )
    if forced.mean_abs_logprob_difference is not None:
        parts.append(
            f"log probabilities {forced.mean_abs_logprob_difference:.3g} nats apart (close: at most {CLOSE_LOGPROB:g})"
        )
    return f"over {forced.tokens} tokens of fixed text {' and '.join(parts)}"


def _broken(evidence: Evidence) -> str | None:
    shares = {}
    for name, outputs in (("first", evidence.problems_a), ("second", evidence.problems_b)):
        for kind in ("empty", "nan"):
            if count := sum(kind in found for found in outputs):
                return f"{count} of {len(outputs)} outputs of the {name} engine are {kind}."
        shares[name] = sum("repeated" in found for found in outputs) / len(outputs) if outputs else 0.0
    for name, other in (("first", "second"), ("second", "first")):
        if shares[name] - shares[other] >= REPEATED_SHARE:
            return (
                f"{shares[name]:.0%} of the outputs of the {name} engine are one token repeated, {shares[other]:.0%} of "
                f"the {other} engine's."
            )
    return None


def _differences(a: Sequenced, b: Sequenced) -> list[float]:
    return [
        abs(x.logprob - y.logprob)
        for x, y in zip(a, b, strict=True)
        if x.logprob is not None and y.logprob is not None and not math.isnan(x.logprob) and not math.isnan(y.logprob)
    ]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
