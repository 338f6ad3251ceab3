"""Scoring fixed text by an engine that tells nothing of a prompt: its favourite after each beginning of the text.

One greedy token after the first i tokens is what the engine holds likeliest in place i, whatever it said before: the same
teacher forcing, a request a place. Of long texts a part of the places is asked, spread evenly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from results.agreement import Position

MOST_PLACES = 200


def score_by_prefix(
    texts: Sequence[Sequence[int]], next_token: Callable[[Sequence[int]], Position]
) -> list[list[Position]]:
    """The texts' positions after their first; those that were asked have the favourite in `top`, with NaN where its log
    probability is not told. `next_token` gives the engine's choice after a prompt."""
    scored = [[Position(token) for token in text[1:]] for text in texts]
    places = [(text, at) for text, ids in enumerate(texts) for at in range(1, len(ids))]
    for number in range(min(len(places), MOST_PLACES)):
        text, at = places[number * len(places) // min(len(places), MOST_PLACES)]
        said, token = next_token(texts[text][:at]), texts[text][at]
        top = dict(said.top) or {said.token: math.nan if said.logprob is None else said.logprob}
        scored[text][at - 1] = Position(token, said.logprob if said.token == token else said.top.get(token), top)
    return scored
