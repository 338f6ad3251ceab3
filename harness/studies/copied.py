"""What block tables cost where attention is PyTorch's: keys and values are copied out of the pool before each product.

The same attention twice: over blocks that lie anywhere, gathered for each layer, and over keys and values that lie in one piece
already, as a cache that reserves one run a request could keep them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from backends.reference.attention import AttentionIndex, PagedKV
from backends.reference.kv_cache import BlockManager
from backends.reference.request import Request, Scheduled
from harness.studies.lab import Lab

BLOCK_SIZE = 16
# Waits until a device has computed all that it was given; a CPU has when the call returns.
_DONE: Mapping[str, Callable[[], None]] = {"cpu": lambda: None, "cuda": torch.cuda.synchronize}


class InOnePiece(PagedKV):
    """Rows of the pool are copied out once and found again as they lie: what remains is attention alone."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._found: dict[tuple[int, int], torch.Tensor] = {}

    def _rows(self, layer: int, kind: int, rows: torch.Tensor) -> torch.Tensor:
        if (layer, kind) not in self._found:
            self._found[layer, kind] = super()._rows(layer, kind, rows)
        return self._found[layer, kind]


class DecodeAttention:
    """The attention of one decode step over all layers: `batch` requests of `context` tokens whose blocks lie anywhere."""

    def __init__(self, lab: Lab, form: type[PagedKV], batch: int, context: int) -> None:
        config, dtype = lab.config, getattr(torch, lab.dtype)
        pool = BlockManager(batch * -(-(context + 1) // BLOCK_SIZE), BLOCK_SIZE)
        scattered = list(range(pool.num_blocks))
        lab.draw("copied").shuffle(scattered)
        of_each = pool.num_blocks // batch
        items = [
            Scheduled(Request(i, "", [0] * (context + 1), 1, block_table=scattered[i * of_each : (i + 1) * of_each]), context, 1)
            for i in range(batch)
        ]  # fmt: skip
        device = torch.device(lab.device)
        self._kv = form(config, pool.num_blocks, BLOCK_SIZE, dtype, device)
        self._kv.pool.normal_(generator=torch.Generator(device).manual_seed(lab.seed))
        self._index: AttentionIndex = self._kv.index(items)
        self._query = torch.randn(batch, config.num_heads, config.head_dim, device=device).to(dtype)
        self._new = torch.randn(batch, config.num_kv_heads, config.head_dim, device=device).to(dtype)
        self._layers, self._threads, self._done = config.num_layers, lab.threads, _DONE[lab.device]

    @torch.inference_mode()
    def seconds(self) -> float:
        """Of one step."""
        torch.set_num_threads(self._threads)
        self._done()
        start = time.monotonic()
        for layer in range(self._layers):
            self._kv.attend(layer, self._query, self._new, self._new, self._index)
        self._done()
        return time.monotonic() - start
