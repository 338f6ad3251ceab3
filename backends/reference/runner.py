"""Runs a step's plan on the model: builds the batch's tensors once, calls the model, samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch

from backends.reference.logprobs import add_prompt_logprobs, output_logprobs
from backends.reference.messages import TokenLogprobs
from backends.reference.request import Scheduled
from backends.reference.sampler import sample


@dataclass(slots=True)
class StepResult:
    """One new token for each item that samples, in the plan's order; log probabilities by request key where asked."""

    tokens: list[int]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


class Runner(Protocol):
    """What an engine needs to compute a step; tests put a model of hashes here."""

    def run(self, items: Sequence[Scheduled]) -> StepResult:
        """Compute the items."""
        ...


class KVCache(Protocol):
    """Where a model keeps keys and values; the model alone knows what the index is made of."""

    name: str
    device: torch.device

    @property
    def num_bytes(self) -> int:
        """Bytes of the pool."""
        ...

    def index(self, items: list[Scheduled]) -> Any:
        """Where the tokens of one step live. Items with a single token come first."""
        ...


class Model(Protocol):
    """What computes; `model.Llama` on PyTorch, or `native.NativeLlama` on the compiled kernels."""

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, kv: Any, index: Any) -> torch.Tensor:
        """Compute one step: write the KV of its tokens; the last layer's output [tokens, hidden_size] back."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of the next token after each row of `hidden`: [rows, vocabulary]."""
        ...


class ModelRunner:
    """The real runner: a model and its KV cache."""

    def __init__(self, model: Model, kv: KVCache) -> None:
        self.model = model
        self.kv = kv

    @torch.inference_mode()
    def run(self, items: Sequence[Scheduled]) -> StepResult:
        """See Runner. Single-token items go first in the batch, where attention takes them together."""
        order = sorted(range(len(items)), key=lambda i: items[i].count > 1)
        batch = [items[i] for i in order]
        token_ids = np.fromiter(
            chain.from_iterable(item.request.tokens[item.start : item.end] for item in batch), dtype=np.int64
        )
        positions = np.concatenate([np.arange(item.start, item.end) for item in batch])
        ends = np.cumsum([item.count for item in batch])
        sampling = [i for i, item in enumerate(batch) if item.samples]
        hidden = self.model.hidden(self._tensor(token_ids), self._tensor(positions), self.kv, self.kv.index(batch))
        logits = self.model.logits(hidden[self._tensor(ends[sampling] - 1)])
        requests = [batch[i].request for i in sampling]
        tokens = sample(logits, requests)
        for end, item in zip(ends, batch, strict=True):
            if item.request.sampling.prompt_logprobs is not None:
                add_prompt_logprobs(item, hidden[end - item.count : end], self.model.logits)
        of_item = dict(zip((order[i] for i in sampling), tokens, strict=True))
        return StepResult([of_item[i] for i in sorted(of_item)], output_logprobs(logits, tokens, requests))

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.kv.device)
