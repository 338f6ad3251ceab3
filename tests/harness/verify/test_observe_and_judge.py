"""`verify` on engines made of arithmetic: what each defect of an engine is judged to be."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.verify import Observed, Prompt, Scores, fixed_prompts, judge, observe
from harness.verify.judge import worst
from harness.verify.prompts import TEXTS
from results.agreement import Agreement, Position
from results.errors import UsageError
from workloads.base import Vocabulary

SIZE = 50
PROMPTS = fixed_prompts(6, 0, Vocabulary(SIZE, frozenset({0, 1})), None)


@dataclass
class ToyArm:
    """A model whose next-token scores are a fixed function of the tokens so far, and its defects."""

    label: str = "toy"
    noise: float = 0.0
    dtype: str = "float32"
    batch_noise: float = 0.0
    other_model: bool = False
    repeats: bool = False
    empty: bool = False
    forgets: bool = False
    scores: bool = True
    logprobs: bool = True
    seen: set[tuple[int, ...]] = field(default_factory=set)

    @property
    def about(self) -> Mapping[str, Any]:
        return {"backend": "toy", "dtype": self.dtype}

    def _distribution(self, context: Sequence[int], noise: float) -> dict[int, float]:
        salt = 7919 if self.other_model else 104729
        seed = sum((i + 1) * t for i, t in enumerate(context)) * 31
        # Gumbel numbers: the best candidate is well ahead of the next ...
        u = [(math.sin((seed + t * salt) % 9973) * 43758.5453) % 1 for t in range(SIZE)]
        logits = [-2 * math.log(-math.log(min(max(x, 1e-6), 1 - 1e-6))) for x in u]
        if len(context) % 3 == 0:  # ... but for every third place, where the two are nearly level
            first, second = sorted(range(SIZE), key=lambda t: -logits[t])[:2]
            logits[second] = logits[first] - 0.02
        logits = [v + noise * math.cos(t * 12.9 + len(context)) for t, v in enumerate(logits)]
        total = math.log(sum(math.exp(v) for v in logits))
        return {token: value - total for token, value in enumerate(logits)}

    def _position(self, context: Sequence[int], token: int | None, noise: float) -> Position:
        scores = self._distribution(context, noise)
        best = sorted(scores, key=lambda t: (-scores[t], t))
        chosen = best[0] if token is None else token
        if not self.logprobs:
            return Position(chosen)
        return Position(chosen, scores[chosen], {t: scores[t] for t in best[:5]} | {chosen: scores[chosen]})

    def generate(self, prompts: Sequence[Sequence[int]], length: int, *, together: bool) -> list[list[Position]]:
        return [
            self._one(tuple(prompt), length, self.noise + (self.batch_noise if together else 0)) for prompt in prompts
        ]

    def _one(self, prompt: tuple[int, ...], length: int, noise: float) -> list[Position]:
        if self.empty:
            return []
        if self.repeats:
            return [Position(3, -0.1, {3: -0.1})] * length
        context = list(prompt[1:] if self.forgets and prompt in self.seen else prompt)
        self.seen.add(prompt)
        made = []
        for _ in range(length):
            made.append(self._position(context, None, noise))
            context.append(made[-1].token)
        return made

    def score(self, texts: Sequence[Sequence[int]]) -> Scores:
        if not self.scores:
            return Scores(None, f"{self.label} tells nothing of a prompt")
        return Scores([[self._position(t[:i], t[i], self.noise) for i in range(1, len(t))] for t in texts])


def compared(*arms: ToyArm, prompts: Sequence[Prompt] = PROMPTS, length: int = 12) -> dict[str, Any]:
    said: list[Observed] = []
    texts = None
    for arm in arms:
        observed, texts = observe(arm, prompts, length, texts)
        said.append(observed)
    document: dict[str, Any] = json.loads(json.dumps(judge(said, prompts)))
    return document


def test_the_document_has_the_promised_shape() -> None:
    document = compared(ToyArm("x"), ToyArm("y", noise=0.05), ToyArm("z"))
    assert [(p["a"], p["b"]) for p in document["pairs"]] == [("x", "y"), ("x", "z"), ("y", "z")]
    for pair in document["pairs"]:
        assert pair.keys() >= {"a", "b", "class", "exact_match", "prompts", "teacher_forced"}
        assert [row["index"] for row in pair["prompts"]] == list(range(len(PROMPTS)))
        assert pair["prompts"][0].keys() >= {"index", "match", "first_divergence", "logprob_gap"}
        share = sum(row["match"] for row in pair["prompts"]) / len(PROMPTS)
        assert pair["exact_match"] == share
    assert document["thresholds"]["near_tie_nats"]["bfloat16"] == 0.25


def test_the_same_engine_twice_is_identical() -> None:
    document = compared(ToyArm("a"), ToyArm("b"))
    (pair,) = document["pairs"]
    assert (pair["class"], pair["exact_match"]) == ("identical", 1)
    assert (pair["teacher_forced"]["top1_share"], pair["teacher_forced"]["mean_kl"]) == (1, pytest.approx(0))
    assert {row["alone_and_batched"]["class"] for row in document["engines"]} == {"identical"}


def test_rounding_parts_only_at_near_ties() -> None:
    (pair,) = compared(ToyArm("fp32"), ToyArm("bf16", noise=0.08, dtype="bfloat16"))["pairs"]
    parted = [row for row in pair["prompts"] if not row["match"]]
    assert parted, "the noise should turn over some of the level places"
    assert pair["class"] == "near-tie", pair["why"]
    assert all(0 <= row["logprob_gap"] <= 0.25 for row in parted)
    assert pair["near_tie_nats"] == 0.25


def test_the_same_partings_between_two_float32_engines_are_no_rounding() -> None:
    (pair,) = compared(ToyArm("a"), ToyArm("b", noise=0.08))["pairs"]
    assert pair["near_tie_nats"] == 0.01
    assert pair["class"] == "close", pair["why"]


def test_another_model_is_different() -> None:
    (pair,) = compared(ToyArm("a"), ToyArm("b", other_model=True))["pairs"]
    assert pair["class"] == "different", pair["why"]
    assert pair["teacher_forced"]["top1_share"] < 0.5


@pytest.mark.parametrize("defect", [ToyArm("b", repeats=True), ToyArm("b", empty=True, scores=False)])
def test_insane_outputs_are_broken(defect: ToyArm) -> None:
    document = compared(ToyArm("a"), defect)
    assert document["pairs"][0]["class"] == "broken"
    assert worst(document) is Agreement.BROKEN
    problems = [kind for row in document["engines"][1]["problems"] for kind in row["problems"]]
    assert problems == (["repeated"] if defect.repeats else ["empty"]) * 2 * len(PROMPTS)


def test_an_engine_that_tells_no_scores_has_a_reason_and_is_judged_without() -> None:
    (pair,) = compared(ToyArm("a"), ToyArm("b", scores=False))["pairs"]
    assert pair["class"] == "identical"
    assert pair["teacher_forced"] is None
    assert pair["teacher_forced_reason"] == "b tells nothing of a prompt"


def test_without_log_probabilities_tokens_alone_decide() -> None:
    (pair,) = compared(ToyArm("a"), ToyArm("b", other_model=True, scores=False, logprobs=False))["pairs"]
    assert pair["class"] == "different"
    (pair,) = compared(ToyArm("a", logprobs=False, scores=False), ToyArm("b", logprobs=False, scores=False))["pairs"]
    assert (pair["class"], pair["prompts"][0]["logprob_gap"]) == ("identical", None)


def test_a_batch_that_changes_the_answer_shows_in_the_engine_and_in_the_pair() -> None:
    document = compared(ToyArm("a"), ToyArm("b", batch_noise=3.0))
    assert document["pairs"][0]["exact_match"] == 1
    assert document["pairs"][0]["batched"]["exact_match"] < 1
    assert document["engines"][0]["alone_and_batched"]["class"] == "identical"
    assert document["engines"][1]["alone_and_batched"]["exact_match"] < 1


def test_a_repeated_prompt_that_is_answered_otherwise_shows() -> None:
    """As when a prefix cache resumes at the wrong position."""
    document = compared(ToyArm("a"), ToyArm("b", forgets=True))
    assert document["engines"][0]["first_and_again"]["class"] == "identical"
    assert document["engines"][1]["first_and_again"]["class"] != "identical"
    assert document["engines"][1]["first_and_again"]["exact_match"] < 1


def test_one_engine_alone_is_held_against_itself() -> None:
    assert worst(compared(ToyArm("a"))) is Agreement.IDENTICAL
    assert compared(ToyArm("a"))["pairs"] == []


# The fixed set.


def test_prompts_are_the_same_for_the_same_seed_and_others_for_another() -> None:
    words = Vocabulary(512, frozenset({0, 1, 2}))
    assert fixed_prompts(8, 0, words, None) == fixed_prompts(8, 0, words, None)
    assert fixed_prompts(8, 0, words, None) != fixed_prompts(8, 1, words, None)
    for prompt in fixed_prompts(20, 3, words, None):
        assert not {0, 1, 2} & set(prompt.ids)
        assert max(prompt.ids) < 512


def test_half_the_prompts_are_texts_where_there_is_a_tokenizer(smollm2_dir: Path) -> None:
    from harness.models import open_folder, vocabulary

    found = fixed_prompts(6, 0, vocabulary(open_folder("m", smollm2_dir)), smollm2_dir)
    assert [p.text for p in found] == [*TEXTS[:3], None, None, None]
    assert found[0].ids == (504, 3575, 282, 4649, 314)


def test_a_vocabulary_without_words_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to draw"):
        fixed_prompts(2, 0, Vocabulary(2, frozenset({0, 1})), None)
