"""The X-ray held against the engine's own log: how many steps it found whole, and how far off its figures are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from results.batch import decodes_per_step
from results.events import Ints, Requests
from results.tokens import TokenChunks
from results.truth import Steps, Tokens
from results.xray import MOST_ARRIVALS, Refused, XRay


@dataclass(frozen=True, slots=True)
class XRayError:
    """`exact` is the share of true steps found with exactly their tokens. Errors are relative, signed: 0.02 is 2 % too much;
    None where there is nothing to hold it against. `mixed_found` of the steps that held a prompt beside decodes were told,
    `mixed_right` of those told did; None where the X-ray does not tell them."""

    steps: int
    exact: float
    steps_error: float
    batch_error: float
    seconds_error: float | None
    pauses: int
    preempted: int
    mixed_found: float | None
    mixed_right: float | None


def true_steps(requests: Requests, chunks: TokenChunks, tokens: Tokens, order: Ints) -> Ints:
    """The engine's step of each arrival, by request and index of the token; -1 where the log does not hold it."""
    index = np.arange(len(chunks)) - np.flatnonzero(chunks.first)[np.cumsum(chunks.first) - 1]
    of_request = {str(name): number for number, name in enumerate(requests.request_id)}
    logged = np.array([of_request.get(str(name), -1) for name in tokens.request_id], dtype=np.int64)
    longest = int(max(index.max(initial=0), tokens.index.max(initial=0))) + 1
    keys, steps = logged * longest + tokens.index, tokens.step
    known = logged >= 0
    keys, steps = keys[known], steps[known]
    by_key = np.argsort(keys)
    keys, steps = keys[by_key], steps[by_key]
    wanted = (chunks.request * longest + index)[order]
    at = np.clip(np.searchsorted(keys, wanted), 0, max(len(keys) - 1, 0))
    if not len(keys):
        return np.full(len(order), -1, dtype=np.int64)
    return np.where(keys[at] == wanted, steps[at], -1)


def check(found: XRay, requests: Requests, chunks: TokenChunks, tokens: Tokens, steps: Steps) -> XRayError | None:
    """The error of an X-ray; None where the log does not hold its tokens."""
    true = true_steps(requests, chunks, tokens, found.order)
    if (true < 0).any():
        return None
    names, of = np.unique(true, return_inverse=True)
    size = np.bincount(of)
    # A step is exact when all its arrivals lie in one found step that has no others.
    pairs = np.unique(np.stack([of, found.step]), axis=1)
    alone = np.bincount(pairs[0], minlength=len(names)) == 1
    holds_one = np.bincount(pairs[1], minlength=len(found)) == 1
    exact = alone[pairs[0]] & holds_one[pairs[1]]
    logged = steps.take(np.isin(steps.step, names))
    true_mean = float(size.mean())
    mixed_found = mixed_right = None
    if len(logged) == len(names) and len(found) > 1 and found.mixed_steps()[0] is not None:
        really = (logged.prefill_tokens > 0) & (logged.decodes > 0)
        in_found = np.zeros(len(found), dtype=bool)
        in_found[found.step[really[of]]] = True
        seen = np.concatenate([[False], found.mixed])
        mixed_found = float((seen & in_found).sum() / in_found.sum()) if in_found.any() else None
        mixed_right = float((seen & in_found).sum() / seen.sum()) if seen.any() else None
    seconds = None
    if len(logged) > 2 and len(found) > 2:
        gaps = np.diff(logged.end)
        seconds = float(np.median(np.diff(found.t)) / np.median(gaps) - 1.0)
    inside = steps.take((steps.step >= names[0]) & (steps.step <= names[-1]))
    return XRayError(
        steps=len(names),
        exact=float(exact.sum() / len(names)),
        steps_error=len(found) / len(names) - 1.0,
        batch_error=float(found.tokens.mean()) / true_mean - 1.0,
        seconds_error=seconds,
        pauses=found.pauses,
        preempted=int(inside.preempted.sum()),
        mixed_found=mixed_found,
        mixed_right=mixed_right,
    )


_LOGGED = ("steps_logged", "decode_steps_logged", "decode_batch_logged", "steps_error", "decode_batch_error")


def against_log(found: XRay | Refused, steps: Steps | None) -> dict[str, Any]:
    """The X-ray of a cell beside what the engine's log says of the same: counts, the time-weighted decodes a step, and how far
    off the X-ray is (relative, signed; None where one of the two does not tell).

    An X-ray sees all steps but those that give nobody a token (chunks of prompts with no decode beside). So its number is right
    between the steps that decode and all of them: the error is the distance to the nearer of the two.
    """
    if steps is None or not len(steps):
        return dict.fromkeys(_LOGGED)
    decoding = steps.decodes > 0
    most, least = len(steps), int(decoding.sum())
    batch = decodes_per_step(steps)
    errors: dict[str, float | None] = {"steps_error": None, "decode_batch_error": None}
    # Of a very long cell only the middle was looked at.
    if isinstance(found, XRay) and len(found.step) < MOST_ARRIVALS and least:
        inside = min(max(len(found), least), most)
        later = (found.tokens - found.first)[1:]
        own = _weighted(later[later > 0], np.diff(found.t)[later > 0])
        errors["steps_error"] = len(found) / inside - 1.0
        errors["decode_batch_error"] = own / batch - 1.0 if own is not None and batch else None
    return {"steps_logged": most, "decode_steps_logged": least, "decode_batch_logged": batch, **errors}


def _weighted(values: Ints, weights: Ints) -> float | None:
    return float(np.average(values, weights=weights)) if len(values) and weights.sum() > 0 else None
