"""Whether a run's engines give the same tokens, in words: what HTML, terminal and Markdown show of its verify.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from results.agreement import WORDS, Agreement, PromptAgreement
from results.errors import StoreError
from results.report_format import UNKNOWN, count, listed, number, percent, plural
from results.report_sentences import Sentence
from results.verification import measured_fingerprints, read_verification, unlike, verified_fingerprints

_BAD = (Agreement.DIFFERENT, Agreement.BROKEN)
# Class of the badge, by class of the pair.
STANDINGS = {"identical": "good", "near-tie": "good", "close": "may", "different": "bad", "broken": "bad"}
NOT_COMPARED = "not compared"
# First divergences shown of a pair; the rest is in verify.json.
_PARTINGS = 6


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two outputs for one prompt part: `sent` alone, batched, or both ways; `gap` between the two candidates, in words."""

    prompt: str
    sent: str
    token: str
    gap: str
    means: str


@dataclass(frozen=True, slots=True)
class PairTokens:
    """Two engines. `kind` is their class, None where they could not be compared; `alone` and `batched`: how many of how many outputs
    are equal."""

    a: str
    b: str
    kind: str | None
    words: str
    why: str
    alone: str = UNKNOWN
    batched: str = UNKNOWN
    forced: str = ""
    forced_why: str = ""
    partings: Sequence[Parting] = ()
    more_partings: int = 0

    @property
    def label(self) -> str:
        return self.kind or NOT_COMPARED

    @property
    def standing(self) -> str:
        return STANDINGS.get(self.kind or "", "open")


@dataclass(frozen=True, slots=True)
class OwnTokens:
    """An engine against itself: one in flight and all at once, the same prompt again, and outputs that are not sane."""

    label: str
    batched: str
    again: str
    problems: str


@dataclass(frozen=True, slots=True)
class SameTokens:
    """The answer for a run. `doubts`: in what an engine was another when it was verified than when it was measured."""

    asked: str
    pairs: list[PairTokens]
    own: list[OwnTokens] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def kind_of(self, a: str, b: str) -> str | None:
        """The class of two engines as a label beside their ratio; None where the answer has no such pair."""
        return next((p.label for p in self.pairs if {p.a, p.b} == {a, b}), None)

    @property
    def caution(self) -> bool:
        return bool(self.doubts) or any(p.kind is None or p.kind in _BAD for p in self.pairs)


def same_tokens(
    folder: Path, engines: Sequence[str], sessions: Iterable[Mapping[str, Any]], cells: Iterable[Mapping[str, Any]]
) -> SameTokens | None:
    """The verify.json of the run in `folder`, for those of its pairs that are engines of the run; None where there is none.

    One that cannot be read is an answer without pairs, and says so.
    """
    try:
        document = read_verification(folder)
    except StoreError as error:
        return SameTokens("", [], doubts=[str(error)])
    if document is None:
        return None
    try:
        prompts = list(document["prompts"])
        pairs = [_pair(p, prompts) for p in document["pairs"] if {p["a"], p["b"]} <= {*engines}]
        own = [_own(row) for row in document["engines"] if row["label"] in engines]
        asked = _asked(prompts, document["output_len"])
        measured = measured_fingerprints(sessions, (str(c.get("session")) for c in cells))
        doubts = _doubts(measured, verified_fingerprints(document))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        said = f"{type(error).__name__} {error}"
        return SameTokens("", [], doubts=[f"{folder / 'verify.json'} does not hold what `dyno verify` writes: {said}."])
    return SameTokens(asked, pairs, own, doubts) if pairs else None


def _asked(prompts: Sequence[Mapping[str, Any]], length: int) -> str:
    tokens = [int(p["tokens"]) for p in prompts]
    span = f"{min(tokens)} to {max(tokens)}" if tokens else "0"
    return f"{plural(len(prompts), 'prompt')} of {span} tokens, {plural(int(length), 'output token')} for each, greedy"


def _pair(pair: Mapping[str, Any], prompts: Sequence[Mapping[str, Any]]) -> PairTokens:
    kind = pair["class"]
    if kind is None:
        return PairTokens(str(pair["a"]), str(pair["b"]), None, "they could not be compared", str(pair["why"]))
    partings = _partings(pair, prompts)
    return PairTokens(
        a=str(pair["a"]),
        b=str(pair["b"]),
        kind=str(kind),
        words=WORDS[Agreement(kind)],
        why=str(pair["why"]),
        alone=equal_outputs(pair["prompts"]),
        batched=equal_outputs(pair["batched"]["prompts"]),
        forced=_forced(pair["teacher_forced"]),
        forced_why=str(pair["teacher_forced_reason"] or ""),
        partings=partings[:_PARTINGS],
        more_partings=max(0, len(partings) - _PARTINGS),
    )


def _partings(pair: Mapping[str, Any], prompts: Sequence[Mapping[str, Any]]) -> list[Parting]:
    """By prompt; one row where both ways of sending part at the same token with the same gap."""
    near = float(pair["near_tie_nats"])
    found: list[Parting] = []
    for alone, batched in zip(pair["prompts"], pair["batched"]["prompts"], strict=True):
        rows = [
            _parting(prompts, sent, row, near)
            for sent, row in (("alone", alone), ("batched", batched))
            if not row["match"]
        ]
        if len(rows) == 2 and replace(rows[0], sent="") == replace(rows[1], sent=""):
            rows = [replace(rows[0], sent="both ways")]
        found += rows
    return found


def _forced(found: Mapping[str, Any] | None) -> str:
    """Agreement on fixed text; what is not told is left out."""
    if found is None:
        return ""
    parts = []
    if found["top1_share"] is not None:
        parts.append(f"the same favourite at {percent(found['top1_share'])}")
    if found["mean_abs_logprob_difference"] is not None:
        parts.append(f"log probabilities {number(found['mean_abs_logprob_difference'])} nats apart on average")
    if found["mean_kl"] is not None:
        parts.append(f"KL at least {number(found['mean_kl'])} nats")
    return f"{count(found['tokens'])} tokens: {', '.join(parts)}" if parts else ""


def _parting(prompts: Sequence[Mapping[str, Any]], sent: str, row: Mapping[str, Any], near: float) -> Parting:
    asked = prompts[row["index"]]
    gap, least = row["logprob_gap"], bool(row["gap_at_least"])
    if gap is None:
        words, means = "not told", ""
    else:
        words = f"{'at least ' if least else ''}{number(gap)} nats"
        found = PromptAgreement(False, row["first_divergence"], 0, 0, logprob_gap=gap, at_least=least)
        means = "rounding decides" if found.near_tie(near) else f"more than rounding: over {number(near)}"
    said = f"{asked['text']!r}" if asked["text"] else f"{count(asked['tokens'])} random ids"
    return Parting(said, sent, count(row["first_divergence"]), words, means)


def _own(row: Mapping[str, Any]) -> OwnTokens:
    alone, again = row["alone_and_batched"], row["first_and_again"]
    kinds = sorted({str(kind) for found in row["problems"] for kind in found["problems"]})
    problems = f"{plural(len(row['problems']), 'output')}: {listed(kinds)}" if kinds else "none"
    return OwnTokens(str(row["label"]), _mode(alone), _mode(again), problems)


def _mode(found: Mapping[str, Any]) -> str:
    return f"{found['class']}, {equal_outputs(found['prompts'])} the same"


def equal_outputs(prompts: Sequence[Mapping[str, Any]]) -> str:
    """Of how many prompts the outputs match: a share of so few says less than the two numbers."""
    return f"{sum(bool(p['match']) for p in prompts)} of {len(prompts)}" if prompts else UNKNOWN


def _doubts(measured: Mapping[str, Any], verified: Mapping[str, Any]) -> list[str]:
    found = []
    for label, now in verified.items():
        if parts := unlike(measured.get(label), now):
            text = f"{label} was measured as one engine and verified as another: {listed(parts, 4)}."
            found.append(f"{text} Verify again with `dyno sweep .. --verify`.")
    return found


def tokens_words(found: SameTokens) -> str:
    """The classes of all pairs in a sentence."""
    if not found.pairs:
        return "It is not known."
    return f"{'; '.join(_said(pair, several=len(found.pairs) > 1) for pair in found.pairs)}."


def tokens_sentence(found: SameTokens | None) -> Sentence:
    """The one sentence that stands with the ratios between engines, with what to doubt of it; None where nobody asked."""
    if found is None:
        return Sentence("Engines", "Same tokens? Nobody asked: the same sweep with --verify does.")
    return Sentence("Engines", " ".join(["Same tokens?", tokens_words(found), *found.doubts]), found.caution)


def _said(pair: PairTokens, several: bool) -> str:
    """A pair among several is named, and described by its class alone."""
    who = f"{pair.a} and {pair.b}"
    if pair.kind is None:
        return f"{who}: {NOT_COMPARED} ({pair.why.rstrip('.')})"
    if several:
        return f"{who}: {pair.kind} ({pair.alone} equal alone, {pair.batched} batched)"
    return f"{pair.kind.capitalize()}: {pair.words}; {pair.alone} outputs equal alone, {pair.batched} batched"
