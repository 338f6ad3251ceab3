"""Runs a step's plan on the model: builds the batch's tensors once, calls the model, samples."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Protocol

import numpy as np
import torch

from backends.reference.attention import PagedKV
from backends.reference.model import Llama
from backends.reference.sampler import sample
from backends.reference.scheduler import Scheduled


class Runner(Protocol):
    """What an engine needs to compute a step; tests put a model of hashes here."""

    def run(self, items: Sequence[Scheduled]) -> list[int]:
        """Compute the items and return one new token for each that samples, in their order."""
        ...


class ModelRunner:
    """The real runner: a model and its paged KV cache."""

    def __init__(self, model: Llama, kv: PagedKV) -> None:
        self.model = model
        self.kv = kv

    @torch.inference_mode()
    def run(self, items: Sequence[Scheduled]) -> list[int]:
        """See Runner. Single-token items go first in the batch, where attention takes them together."""
        order = sorted(range(len(items)), key=lambda i: items[i].count > 1)
        batch = [items[i] for i in order]
        token_ids = np.fromiter(
            chain.from_iterable(item.request.tokens[item.start : item.end] for item in batch), dtype=np.int64
        )
        positions = np.concatenate([np.arange(item.start, item.end) for item in batch])
        last_rows = np.cumsum([item.count for item in batch]) - 1
        sampling = [i for i, item in enumerate(batch) if item.samples]
        logits = self.model.forward(
            self._tensor(token_ids),
            self._tensor(positions),
            self._tensor(last_rows[sampling]),
            self.kv,
            self.kv.index(batch),
        )
        tokens = sample(logits, [batch[i].request for i in sampling])
        of_item = dict(zip((order[i] for i in sampling), tokens, strict=True))
        return [of_item[i] for i in sorted(of_item)]

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.kv.device)
