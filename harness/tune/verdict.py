"""What the confirmation says: is the best that was found faster than the defaults, and which engine is faster in which arm?

Blocks may be added after a look at them (`--blocks`), so intervals and verdicts are those of 97 % (`results.precision`). Each
engine against its own defaults stands for itself; of the arms across engines the p-values are Holm's over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from results.audit import EQUALISED, KIND_WORDS, OWN_DEFAULTS, TUNED
from results.comparison import EQUIVALENT, FASTER, INCONCLUSIVE, MARGIN, PRIMARY, SLOWER, judge
from results.precision import LOOKED_AT
from results.report_format import plural, seconds
from results.statistics import BLOCKS_FOR_A_VERDICT, Interval, blocks_needed, equivalence_p, holm, paired

# How the best that was found stands against the defaults.
BEATEN, NOT_BEATEN, OPEN, NOTHING = "beaten", "not beaten", "inconclusive", "nothing found"
UNFINISHED = "unfinished"
# Every combination is the engine as it is, or cannot be started.
NO_TRIAL = "nothing to try"
_PICKED = "picked by these same blocks, which flatters it"
# The search's budget had no room for a trial beside the defaults.
TOO_SHORT = "budget too short"


@dataclass(frozen=True, slots=True)
class Number:
    """What an engine gave in one block, and whether one of its cells is SUSPECT: that travels with the number."""

    value: float
    suspect: bool = False


ByBlock = Mapping[int, Number]


@dataclass(frozen=True, slots=True)
class Ratio:
    """other / base over the blocks that both have, paired, with its interval of `LOOKED_AT`. `verdict` is judged as that of
    `dyno compare`; where there is none, `more` is about how many blocks more would give one, if the difference is as large as it
    looks (at least the margin). `suspect` counts the numbers, of both sides, that rest on SUSPECT cells."""

    base: str
    other: str
    ratio: float | None
    low: float | None
    high: float | None
    n_blocks: int
    verdict: str
    why: str
    more: int | None
    suspect: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def words(self, whose: str) -> str:
        """`1.120 [1.080, 1.160] times the defaults' output tokens/s over 5 blocks`."""
        if self.ratio is None:
            return "no ratio yet"
        interval = "" if self.low is None or self.high is None else f" [{self.low:.3f}, {self.high:.3f}]"
        doubt = f" ({self.suspect} of {2 * self.n_blocks} sessions SUSPECT)" if self.suspect else ""
        return f"{self.ratio:.3f}{interval} times {whose} output tokens/s over {plural(self.n_blocks, 'block')}{doubt}"

    @property
    def missing(self) -> str:
        """What it lacks for a verdict."""
        more = (
            "no number of blocks that could be run" if self.more is None else f"about {plural(self.more, 'block')} more"
        )
        return f"{self.why}; {more} would tell"


def ratio_of(base: str, other: str, values: Mapping[str, ByBlock]) -> Ratio:
    """One engine against another, by the labels of their values."""
    found = _interval(base, other, values)
    return _judged(base, other, values, found, *judge(PRIMARY, found, MARGIN, found.p))


def ratios_of(pairs: Sequence[tuple[str, str]], values: Mapping[str, ByBlock]) -> list[Ratio]:
    """The same of several pairs that are looked at together: what each claims stands by Holm's p-values over all."""
    intervals = [_interval(*pair, values) for pair in pairs]
    differs = holm([_known(found.p) for found in intervals])
    same = holm([_known(equivalence_p(found, MARGIN)) for found in intervals])
    ratios = []
    for pair, found, differ, equal in zip(pairs, intervals, differs, same, strict=True):
        alone, _ = judge(PRIMARY, found, MARGIN, found.p)
        verdict, why = judge(PRIMARY, found, MARGIN, differ, equal)
        if verdict == INCONCLUSIVE != alone:
            why = f"{alone} by itself, but not beside the other {plural(len(pairs) - 1, 'comparison')} (Holm)"
        ratios.append(_judged(*pair, values, found, verdict, why))
    return ratios


def _known(p: float | None) -> float:
    return math.nan if p is None else p


def _shared(base: str, other: str, values: Mapping[str, ByBlock]) -> list[tuple[Number, Number]]:
    a, b = values.get(base, {}), values.get(other, {})
    return [(a[block], b[block]) for block in sorted(a.keys() & b.keys())]


def _interval(base: str, other: str, values: Mapping[str, ByBlock]) -> Interval:
    shared = _shared(base, other, values)
    return paired([a.value for a, _ in shared], [b.value for _, b in shared], LOOKED_AT)


def _judged(base: str, other: str, values: Mapping[str, ByBlock], found: Interval, verdict: str, why: str) -> Ratio:
    suspect = sum(a.suspect + b.suspect for a, b in _shared(base, other, values))
    more = None
    if verdict not in (FASTER, SLOWER, EQUIVALENT):
        looks = abs(math.log(found.estimate)) if found.estimate else 0.0
        effect = max(MARGIN, -math.expm1(-looks))
        wanted = blocks_needed(found.sd, effect, LOOKED_AT) if found.sd else BLOCKS_FOR_A_VERDICT
        more = None if wanted is None else max(wanted - found.n, BLOCKS_FOR_A_VERDICT - found.n, 1)
    return Ratio(base, other, found.estimate, found.low, found.high, found.n, verdict, why, more, suspect)


@dataclass(frozen=True, slots=True)
class ArmVerdict:
    """An arm's answer: how the best stands against the defaults, in words, and the label of what is to be run."""

    verdict: str
    words: str
    run: str
    against: Ratio | None


def too_short(arm: str, budget_s: float, round_s: float | None, needed_s: float) -> ArmVerdict:
    """A search that its budget ended before any trial beside the defaults, whose round took `round_s` (0: that of an earlier
    start; None: not even they were measured)."""
    if round_s is None:
        words = (
            f"{arm}: the budget of {seconds(budget_s)} is too short: it ended before the defaults were measured. The same command "
            "with a longer --budget goes on from here."
        )
        return ArmVerdict(TOO_SHORT, words, arm, None)
    took = f"the defaults took {seconds(round_s)}, and " if round_s else ""
    words = (
        f"{arm}: the budget of {seconds(budget_s)} is too short: {took}another trial would not have left the confirmation its "
        f"time. It would take about {seconds(needed_s)}, the blocks that confirm included: the same command with --budget "
        f"{math.ceil(needed_s / 60)}m goes on from here."
    )
    return ArmVerdict(TOO_SHORT, words, arm, None)


def judge_arm(defaults: str, best: str | None, values: Mapping[str, ByBlock]) -> ArmVerdict:
    """`best` is the label of what the search found, None for nothing; `values` what the confirmation measured."""
    if best is None:
        return ArmVerdict(NOTHING, f"{defaults}: no trial beside the defaults gave a number.", defaults, None)
    found = ratio_of(defaults, best, values)
    if not values.get(defaults) and values.get(best):
        blocks = plural(len(values[best]), "block")
        return ArmVerdict(OPEN, f"{best}: a number in {blocks}, in none of which the defaults have one.", best, found)
    told = found.words("the defaults'")
    if found.verdict == FASTER:
        return ArmVerdict(BEATEN, f"{best}: {told}.", best, found)
    if found.verdict in (SLOWER, EQUIVALENT):
        how = "slower" if found.verdict == SLOWER else f"within {100 * MARGIN:g} %"
        words = f"{defaults}: the defaults were not beaten. The best other, {best}, is {how}: {told}."
        return ArmVerdict(NOT_BEATEN, words, defaults, found)
    open_words = f"{told}; {found.missing}" if found.ratio is not None else found.missing
    return ArmVerdict(OPEN, f"{defaults}: inconclusive. The best other, {best}: {open_words}.", defaults, found)


@dataclass(frozen=True, slots=True)
class Arms:
    """Two engines in one arm of the comparison: both with their own defaults, both made equal, both as tuned. `audit` is what
    the fairness audit calls the pair, `remark` what is to be known of the arm."""

    kind: str
    ratio: Ratio
    audit: str | None
    remark: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"arm": self.kind, "audit": self.audit, "remark": self.remark, **self.ratio.to_dict()}

    @property
    def words(self) -> str:
        whose, verdict = f"{self.ratio.base}'s", self.ratio.verdict
        arm = f"{KIND_WORDS[self.kind]}{f' ({self.remark})' if self.remark else ''}"
        if verdict not in (FASTER, SLOWER, EQUIVALENT):
            return f"{arm}: {self.ratio.other}, {self.ratio.words(whose)}; {self.ratio.missing}"
        return f"{arm}: {self.ratio.other} is {verdict}, {self.ratio.words(whose)}"


def three_arms(
    labels: Sequence[Mapping[str, str]],
    values: Mapping[str, ByBlock],
    audit: Mapping[str, Any] | None,
    unequal: str = "",
    trials: str = "",
) -> list[Arms]:
    """Every engine against the first, arm by arm, once anything was measured there. `labels` holds for each engine what it is
    called in each arm; `audit` is that of the confirmation's summary; `unequal` says what the equalised engines still differ
    in, `trials` how many each engine had."""
    found: list[tuple[str, tuple[str, str]]] = []
    for kind in (OWN_DEFAULTS, EQUALISED, TUNED):
        for other in labels[1:]:
            if kind in labels[0] and kind in other and (values.get(labels[0][kind]) or values.get(other[kind])):
                found.append((kind, (labels[0][kind], other[kind])))
    # Where both engines stay at their defaults two arms are one comparison.
    pairs = list(dict.fromkeys(pair for _, pair in found))
    ratios = dict(zip(pairs, ratios_of(pairs, values), strict=True))
    own = {engine.get(OWN_DEFAULTS) for engine in labels}
    remarks = {EQUALISED: unequal, TUNED: trials}
    return [
        Arms(
            kind,
            ratios[pair],
            _audit_label(audit, *pair),
            "; ".join(filter(None, (remarks.get(kind), _PICKED if kind == TUNED and not own.issuperset(pair) else ""))),
        )
        for kind, pair in found
    ]


def _audit_label(audit: Mapping[str, Any] | None, a: str, b: str) -> str | None:
    pairs = (audit or {}).get("pairs") or ()
    return next((str(p["label"]) for p in pairs if {p.get("a"), p.get("b")} == {a, b}), None)
