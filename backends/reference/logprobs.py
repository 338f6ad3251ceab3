"""Log probabilities of tokens, for requests that ask for them: of what was sampled, and of the prompt.

They are the model's own, before temperature and truncation, in float32. Nothing here runs for other requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from backends.reference.messages import TokenLogprobs
from backends.reference.request import Request, Scheduled

# Prompt rows whose logits are held at once: 256 rows of 128k words in float32 are 128 MiB.
_ROWS = 256


def output_logprobs(
    logits: torch.Tensor, tokens: Sequence[int], requests: Sequence[Request]
) -> dict[int, TokenLogprobs]:
    """Of the tokens just sampled from logits [len(requests), vocabulary], by request key, where asked."""
    found = {}
    for row, (token, request) in enumerate(zip(tokens, requests, strict=True)):
        count = request.sampling.logprobs
        if count is not None:
            (found[request.key],) = token_logprobs(logits[row : row + 1], [token], count)
    return found


def add_prompt_logprobs(
    item: Scheduled, hidden: torch.Tensor, logits_of: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Append what this step's rows say of the request's prompt. `hidden` [item.count, ...] are the item's rows.

    The row of position p predicts token p + 1, so the last prompt position is the sampler's:

        prompt   | known already | this item's rows that count |
                 1            first                  num_prompt_tokens
    """
    request = item.request
    count = request.sampling.prompt_logprobs
    assert count is not None
    first = len(request.prompt_logprobs) + 1  # tokens 1 .. first-1 are known, perhaps from before a preemption
    last = min(item.end + 1, request.num_prompt_tokens)
    for begin in range(first, last, _ROWS):
        end = min(begin + _ROWS, last)
        rows = hidden[begin - 1 - item.start : end - 1 - item.start]
        request.prompt_logprobs += token_logprobs(logits_of(rows), request.tokens[begin:end], count)


def token_logprobs(logits: torch.Tensor, tokens: Sequence[int], count: int) -> list[TokenLogprobs]:
    """For each row of logits [len(tokens), vocabulary]: its token's log probability, and the `count` likeliest."""
    scores = torch.log_softmax(logits.float(), dim=-1)
    chosen = scores.gather(1, torch.tensor(tokens, device=scores.device)[:, None])
    ranks = (scores > chosen).sum(dim=1) + 1
    values, ids = scores.topk(min(count, scores.shape[1]), dim=-1)
    return [
        TokenLogprobs(token, logprob, rank, tuple(zip(top_ids, top_values, strict=True)))
        for token, logprob, rank, top_ids, top_values in zip(
            tokens, chosen[:, 0].tolist(), ranks.tolist(), ids.tolist(), values.tolist(), strict=True
        )
    ]
