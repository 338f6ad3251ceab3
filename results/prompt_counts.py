"""Prompt tokens as planned against those the server counted: where they differ, and whether one cause explains it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from results.events import Requests

# A template adds the same to every prompt; a single prompt that differs is a mismatch like any other.
_FEWEST = 2
_SHARE = 0.5
# How servers say that a prompt is longer than they take; each has words of its own.
_TOO_LONG = re.compile(
    r"maximum context length|exceeds the maximum allowed length|`?max_new_tokens`? must be <=|prompt is too long"
    r"|longer than the maximum model length|exceeds? (the )?(available )?context size",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class PromptCounts:
    """`overhead`: tokens that the server has more than we in all answers alike (those of a chat template); None where nothing
    is known. `differ` are the prompts that it does not explain. `notes`: reason codes with their evidence."""

    differ: int = 0
    example: str = ""
    overhead: int | None = None
    notes: dict[str, str] = field(default_factory=dict)


def prompt_counts(requests: Requests, endpoint: str | None) -> PromptCounts:
    """Hold both counts against each other, request by request.

    A chat message grows by its template: what most answers have in common is that overhead, stored and no mismatch. A prompt
    of the completions endpoint has no template; one more token in every prompt is a BOS that the server put before ours.
    """
    planned, counted = requests.input_tokens_planned, requests.input_tokens_counted
    notes: dict[str, str] = {}
    refused = [str(error) for error in requests.error if error and _TOO_LONG.search(str(error))]
    if refused:
        notes["prompts_too_long"] = f"{len(refused)} of {len(requests)} requests, e.g. {refused[0][:200]}"
    known = np.flatnonzero((planned >= 0) & (counted >= 0))
    if not len(known):
        return PromptCounts(notes=notes)
    more = counted[known] - planned[known]
    values, times = np.unique(more, return_counts=True)
    common = int(values[np.argmax(times)])
    explained = len(known) >= _FEWEST and times.max() > _SHARE * len(known)
    overhead = None
    off = more != 0
    if endpoint == "chat" and explained and common >= 0:
        overhead, off = common, more != common
        if common:
            notes["template_overhead"] = (
                f"{common} tokens more than the text of the message in {times.max()} of {len(known)} prompts"
            )
    elif endpoint != "chat" and common == 1 and times.max() == len(known):
        at = known[0]
        notes["bos_duplicated"] = (
            f"{planned[at]} tokens sent and {counted[at]} counted, one more in all {len(known)} prompts"
        )
        off = np.zeros(len(known), dtype=bool)
    example = ""
    if off.any():
        at = known[int(np.flatnonzero(off)[0])]
        example = f"e.g. {planned[at]} sent, {counted[at]} counted"
    return PromptCounts(int(off.sum()), example, overhead, notes)
