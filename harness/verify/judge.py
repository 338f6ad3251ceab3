"""From what engines said to the document of `dyno verify`: engines by themselves, and pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from types import MappingProxyType
from typing import Any

from harness.verify.observe import Observed, Outputs
from harness.verify.prompts import Prompt
from results import agreement
from results.agreement import Agreement, Evidence, PromptAgreement, classify, compare_outputs, compare_scores, problems

SCHEMA = 1


def judge(
    observed: Sequence[Observed],
    prompts: Sequence[Prompt],
    length: int | None = None,
    absent: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The whole answer. Classes and thresholds are those of `results.agreement`.

    `absent` are engines that could not be asked, with the reason: their pairs have no class. `length` is the output length
    where nobody could be asked.
    """
    missing = [p for p in combinations([*(one.label for one in observed), *absent], 2) if absent.keys() & p]
    return {
        "schema": SCHEMA,
        "prompts": [{"index": i, "tokens": len(p.ids), "text": p.text} for i, p in enumerate(prompts)],
        "output_len": observed[0].length if observed else length or 0,
        "engines": [_engine(one) for one in observed],
        "absent": [{"label": label, "why": why} for label, why in absent.items()],
        "pairs": [_pair(a, b) for a, b in combinations(observed, 2)] + [_no_pair(a, b, absent) for a, b in missing],
        "thresholds": {
            "near_tie_nats": dict(agreement.NEAR_TIE),
            "level_nats": agreement.LEVEL,
            "close_top1_or_tie_share": agreement.CLOSE_TOP1,
            "close_logprob_difference": agreement.CLOSE_LOGPROB,
            "close_prefix_share": agreement.CLOSE_PREFIX,
            "repeated_tokens": agreement.REPEATED_TOKENS,
        },
    }


def worst(document: dict[str, Any]) -> Agreement:
    """The worst class of the document's pairs, or of an engine against itself where there is but one."""
    found = [row["class"] for row in document["pairs"] if row["class"] is not None] or [
        row["alone_and_batched"]["class"] for row in document["engines"]
    ]
    return max((Agreement(name) for name in found), key=list(Agreement).index, default=Agreement.IDENTICAL)


def _engine(one: Observed) -> dict[str, Any]:
    """An engine by itself: does batching or a repeated prompt change its answers, and are they sane?"""
    threshold = agreement.near_tie_threshold(one.dtype)
    return {
        "label": one.label,
        **one.about,
        "alone_and_batched": _mode(one.single, one.many, one, one, threshold),
        "first_and_again": _mode(one.single[: len(one.again)], one.again, one, one, threshold),
        "problems": [
            {"index": index, "sent": sent, "problems": found}
            for sent, outputs in (("alone", one.single), ("batched", one.many))
            for index, output in enumerate(outputs)
            if (found := problems(output, one.length))
        ],
    }


def _pair(a: Observed, b: Observed) -> dict[str, Any]:
    """Two engines. `prompts` and `exact_match` are of one in flight, `batched` of all at once; the class is of all."""
    threshold = agreement.near_tie_threshold(a.dtype, b.dtype)
    alone = [compare_outputs(x, y) for x, y in zip(a.single, b.single, strict=True)]
    batched = [compare_outputs(x, y) for x, y in zip(a.many, b.many, strict=True)]
    forced, reason = None, a.scores.reason or b.scores.reason
    if a.scores.texts is not None and b.scores.texts is not None:
        forced = compare_scores(a.scores.texts, b.scores.texts)
    found, why = classify(
        Evidence(
            prompts=[*alone, *batched],
            threshold=threshold,
            problems_a=[problems(output, a.length) for output in (*a.single, *a.many)],
            problems_b=[problems(output, b.length) for output in (*b.single, *b.many)],
            forced=forced,
        )
    )
    return {
        "a": a.label,
        "b": b.label,
        "class": str(found),
        "why": why,
        "near_tie_nats": threshold,
        "exact_match": _share(alone),
        "prompts": _rows(alone),
        "batched": {"exact_match": _share(batched), "prompts": _rows(batched)},
        "teacher_forced": None if forced is None else asdict(forced),
        "teacher_forced_reason": reason,
    }


def _no_pair(a: str, b: str, absent: Mapping[str, str]) -> dict[str, Any]:
    """A pair of which one could not be asked: everything is null, and the reason."""
    why = "; ".join(f"{label}: {absent[label]}" for label in (a, b) if label in absent)
    nothing = dict.fromkeys(("near_tie_nats", "exact_match", "batched", "teacher_forced"))
    return {"a": a, "b": b, "class": None, "why": why, "prompts": [], "teacher_forced_reason": why} | nothing


def _mode(x: Outputs, y: Outputs, a: Observed, b: Observed, threshold: float) -> dict[str, Any]:
    found = [compare_outputs(p, q) for p, q in zip(x, y, strict=True)]
    evidence = Evidence(found, threshold, [problems(o, a.length) for o in x], [problems(o, b.length) for o in y])
    kind, why = classify(evidence)
    return {"class": str(kind), "why": why, "exact_match": _share(found), "prompts": _rows(found)}


def _share(found: Sequence[PromptAgreement]) -> float | None:
    return sum(p.match for p in found) / len(found) if found else None


def _rows(found: Sequence[PromptAgreement]) -> list[dict[str, Any]]:
    return [
        {
            "index": index,
            "match": p.match,
            "first_divergence": p.first_divergence,
            "logprob_gap": p.logprob_gap,
            "gap_at_least": p.at_least,
            "logprob_difference": p.logprob_difference,
        }
        for index, p in enumerate(found)
    ]
