"""From logits to tokens: greedy, or by temperature and truncation with a draw that depends on the request alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from backends.reference.request import Request

_MASK = (1 << 64) - 1
# Below this a temperature is greedy: dividing by it would overflow the logits.
MIN_TEMPERATURE = 1e-5


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from (seed, output position) alone, so batching or preemption cannot shift a draw."""
    state = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _MASK
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        state = ((state ^ (state >> 30)) * multiplier) & _MASK
    return ((state ^ (state >> 31)) >> 11) / (1 << 53)


def sample(logits: torch.Tensor, requests: Sequence[Request]) -> list[int]:
    """One token for each row of logits [len(requests), vocabulary]."""
    logits = _without_early_stops(logits, requests)
    tokens = logits.max(dim=-1).indices  # on the CPU several times quicker than argmax
    hot = [row for row, request in enumerate(requests) if request.sampling.temperature >= MIN_TEMPERATURE]
    # Which way a row takes depends on its own request alone, so that its draws never depend on the batch.
    for truncated in (False, True):
        rows = [row for row in hot if requests[row].sampling.truncates is truncated]
        if rows:
            theirs = logits if len(rows) == len(requests) else logits[rows]  # no copy where it is all of them
            tokens[rows] = (_draw_likely if truncated else _draw)(theirs, [requests[row] for row in rows])
    result: list[int] = tokens.tolist()
    return result


def _without_early_stops(logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
    """The same logits, or a copy in which requests short of their min_tokens cannot stop."""
    early = [
        (row, list(request.sampling.stop_ids))
        for row, request in enumerate(requests)
        if request.num_output_tokens < request.sampling.min_tokens and request.sampling.stop_ids
    ]
    if early:
        logits = logits.clone()
        for row, stop_ids in early:
            logits[row, stop_ids] = -torch.inf
    return logits


def _weights(logits: torch.Tensor, requests: list[Request]) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities after temperature, and a draw from [0, 1) for each row, [rows, 1]."""
    scale = _column([request.sampling.temperature for request in requests], logits, torch.float32)
    draws = [uniform(request.sampling.seed, request.num_output_tokens) for request in requests]
    return torch.softmax(logits.float() / scale, dim=-1), _column(draws, logits, torch.float64)


def _draw(logits: torch.Tensor, requests: list[Request]) -> torch.Tensor:
    """Inverse of the cumulative distribution at the given draws, row by row."""
    weights, draws = _weights(logits, requests)
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    # The first token whose cumulative weight exceeds the target: never one of weight 0.
    found = torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True)
    return found.squeeze(1).clamp(max=logits.shape[1] - 1)


def _draw_likely(logits: torch.Tensor, requests: list[Request]) -> torch.Tensor:
    """The same among the likelier tokens: min-p and top-k first, then top-p of what they leave (vLLM's order).

    With tokens sorted by weight each of the three keeps a beginning, and never an empty one:

        sorted   | kept by top-p |   kept by min-p and top-k   | never drawn |
    """
    weights, draws = _weights(logits, requests)
    weights, order = weights.sort(dim=-1, descending=True, stable=True)
    asked = [request.sampling for request in requests]
    top_k = _column([sampling.top_k or logits.shape[1] for sampling in asked], logits, torch.int64)
    min_p = _column([sampling.min_p for sampling in asked], logits, torch.float32)
    top_p = _column([sampling.top_p for sampling in asked], logits, torch.float64)
    ranks = torch.arange(logits.shape[1], device=logits.device)
    kept = (ranks < top_k) & (weights >= min_p * weights[:, :1])
    cumulative = (weights * kept).cumsum(dim=-1, dtype=torch.float64)
    kept &= cumulative - weights < top_p * cumulative[:, -1:]
    last = kept.sum(dim=-1, keepdim=True) - 1
    target = draws * cumulative.gather(1, last)
    found = torch.minimum(torch.searchsorted(cumulative, target, right=True), last)
    return order.gather(1, found).squeeze(1)


def _column(values: list[float] | list[int], like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=like.device)[:, None]
