"""From logits to tokens: greedy, or by temperature with a draw that depends on the request alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
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
    tokens = logits.max(dim=-1).indices  # on the CPU several times quicker than argmax
    hot = [row for row, request in enumerate(requests) if request.sampling.temperature >= MIN_TEMPERATURE]
    if hot:
        chosen = [requests[row] for row in hot]
        tokens[hot] = _draw(
            logits[hot],
            [request.sampling.temperature for request in chosen],
            [uniform(request.sampling.seed, request.num_output_tokens) for request in chosen],
        )
    result: list[int] = tokens.tolist()
    return result


def _draw(logits: torch.Tensor, temperatures: list[float], draws: list[float]) -> torch.Tensor:
    """Inverse of the cumulative distribution at the given draws, row by row."""
    scale = torch.from_numpy(np.array(temperatures, dtype=np.float32)).to(logits.device)
    weights = torch.softmax(logits.float() / scale[:, None], dim=-1)
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    target = torch.from_numpy(np.array(draws)).to(logits.device)[:, None] * cumulative[:, -1:]
    # The first token whose cumulative weight exceeds the target: never one of weight 0.
    return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)
