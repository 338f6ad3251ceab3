"""What a step is made of, in counts. Knows no tensors."""

from __future__ import annotations

from typing import NamedTuple

from backends.reference.request import StepPlan
from backends.reference.scheduler import Scheduler


class Composition(NamedTuple):
    """Tokens of prompts (and of what is computed again), requests of each kind, tokens of context over all of them, and tokens
    computed for finished rows."""

    prefill_tokens: int
    decodes: int
    prefills: int
    context_tokens: int
    padding_tokens: int


def composition(scheduler: Scheduler, plan: StepPlan) -> Composition:
    """Of a planned step, before it is committed."""
    decodes = prefills = computed = context = padding = 0
    for item in plan.items:
        if item.is_padding:
            padding += item.count
            continue
        computed += item.count
        context += item.start + item.count
        if scheduler.is_decode(item):
            decodes += 1
        else:
            prefills += 1
    return Composition(computed - decodes, decodes, prefills, context, padding)
