"""What one engine says: the fixed prompts one in flight, then all at once, some again, and scores of fixed text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.verify.arm import Arm, Scores
from harness.verify.prompts import Prompt
from results.agreement import Position

Outputs = list[list[Position]]
# Prompts sent a second time, alone: a prefix cache answers these.
_AGAIN = 3


@dataclass(slots=True)
class Observed:
    """Everything an arm said. `single`, `many`: outputs by prompt; `again`: the first few prompts once more."""

    label: str
    about: Mapping[str, Any]
    length: int
    single: Outputs
    many: Outputs
    again: Outputs
    scores: Scores

    @property
    def dtype(self) -> str | None:
        found = self.about.get("dtype")
        return str(found) if found is not None else None


def observe(
    arm: Arm,
    prompts: Sequence[Prompt],
    length: int,
    texts: Sequence[Sequence[int]] | None,
    say: Callable[[str], None] = lambda words: None,
) -> tuple[Observed, list[list[int]]]:
    """Ask one arm everything. `texts` is the fixed text to score; None for the first arm, whose prompts with their outputs
    become the fixed text for all (so that both what people wrote and what a model says is in it). Returns it as well.
    """
    ids = [prompt.ids for prompt in prompts]
    say("one in flight")
    single = arm.generate(ids, length, together=False)
    say("all at once")
    many = arm.generate(ids, length, together=True)
    say("the first again")
    again = arm.generate(ids[:_AGAIN], length, together=False)
    fixed = (
        [[*prompt, *(p.token for p in output)] for prompt, output in zip(ids, single, strict=True)]
        if texts is None
        else [list(text) for text in texts]
    )
    say("fixed text")
    scores = arm.score(fixed)
    return Observed(arm.label, arm.about, length, single, many, again, scores), fixed
