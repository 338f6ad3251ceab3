"""The paged KV cache in memory, and attention over it: write KV, attend. Plain PyTorch, any device.

One tensor of shape [layers, 2, blocks + 1, KV heads, block_size, head_dim] holds keys (0) and values (1). Heads come
before offsets so that a gather of (block, head) rows gives contiguous [KV heads, tokens, head_dim] keys. The last
block is the *null block*: all zeros, never written; block tables are padded with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from backends.reference.config import ModelConfig
from backends.reference.request import Scheduled

# Query rows that a chunk attends with at a time: bounds the matrix of scores, and skips most of what causality hides.
QUERY_TILE = 128


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """One prompt chunk: rows [first, last) of the batch, the last of the `context` tokens they see.

    `rows` gathers the (block, head) rows of the context, or is None when the chunk is the whole context.
    """

    first: int
    last: int
    context: int
    rows: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionIndex:
    """Where one step's tokens live in the pool, built once a step and used by every layer.

    `slots` [tokens x KV heads] are rows of the pool seen as [(blocks + 1) x KV heads x block_size, head_dim].
    Rows [0, num_single) of the batch are requests with one token: their contexts, padded to the longest, are gathered
    together by `single_rows` [num_single x KV heads x blocks], and `single_mask` [num_single, 1, 1, tokens] is added to
    their scores.
    """

    slots: torch.Tensor
    num_single: int
    single_rows: torch.Tensor | None
    single_mask: torch.Tensor | None
    chunks: list[ChunkIndex]


class PagedKV:
    """The pool of KV blocks and attention through block tables."""

    name = "paged-gather"

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self.block_size = block_size
        self.null_block = num_blocks
        self.dtype = dtype
        self.device = device
        self.kv_heads = config.num_kv_heads
        shape = (config.num_layers, 2, num_blocks + 1, self.kv_heads, block_size, config.head_dim)
        self.pool = torch.zeros(shape, dtype=dtype, device=device)
        square = torch.full((QUERY_TILE, QUERY_TILE), -torch.inf, dtype=dtype, device=device)
        self._causal = square.triu(diagonal=1).unsqueeze(1)  # [query, 1, key]

    @property
    def num_bytes(self) -> int:
        """Bytes of the pool without the null block."""
        return self.pool.nbytes // (self.null_block + 1) * self.null_block

    def index(self, items: list[Scheduled]) -> AttentionIndex:
        """Indices for one step. Items with a single token must come first."""
        slots = np.concatenate([self._slots(item) for item in items])
        singles = [item for item in items if item.count == 1]
        chunks, first = [], len(singles)
        for item in items[len(singles) :]:
            chunks.append(self._chunk(item, first))
            first += item.count
        rows = mask = None
        if singles:
            rows, mask = self._singles(singles)
        self._clear_new_tails(items)
        return AttentionIndex(self._tensor(slots), len(singles), rows, mask, chunks)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, index: AttentionIndex) -> None:
        """Store this step's keys and values, each [tokens, KV heads, head_dim]."""
        pool = self.pool[layer].view(2, -1, self.config.head_dim)
        pool[0].index_copy_(0, index.slots, keys.reshape(-1, self.config.head_dim))
        pool[1].index_copy_(0, index.slots, values.reshape(-1, self.config.head_dim))

    def attend(
        self, layer: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, index: AttentionIndex
    ) -> torch.Tensor:
        """Attention of query [tokens, heads, head_dim] over what `write` stored; same shape back.

        `keys` and `values` are this step's own, for chunks that have nothing before them.
        """
        output = torch.empty_like(query)
        # [tokens, KV heads, queries of the group, head_dim]
        grouped = (query * self.config.head_dim**-0.5).unflatten(1, (self.kv_heads, -1))
        if index.single_rows is not None:
            output[: index.num_single] = self._attend_singles(layer, grouped[: index.num_single], index)
        for chunk in index.chunks:
            part = slice(chunk.first, chunk.last)
            if chunk.rows is None:
                key, value = keys[part].transpose(0, 1).contiguous(), values[part].transpose(0, 1).contiguous()
            else:
                key, value = (self._context(layer, kind, chunk) for kind in (0, 1))
            self._attend_chunk(grouped[part], key, value, output[part])
        return output

    def _attend_singles(self, layer: int, query: torch.Tensor, index: AttentionIndex) -> torch.Tensor:
        """One token a request: the queries of a group are the rows of one product. [requests, heads, head_dim] back."""
        assert index.single_rows is not None
        assert index.single_mask is not None
        requests, kv_heads, group, dim = query.shape
        key, value = (self._rows(layer, kind, index.single_rows).view(requests * kv_heads, -1, dim) for kind in (0, 1))
        scores = torch.bmm(query.reshape(-1, group, dim), key.transpose(1, 2))
        scores = scores.view(requests, kv_heads, group, -1) + index.single_mask
        weights = torch.softmax(scores, dim=-1)
        return torch.bmm(weights.flatten(0, 1), value).view(requests, kv_heads * group, dim)

    def _attend_chunk(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor) -> None:
        """query [tokens, KV heads, group, head_dim]; key, value [KV heads, context, head_dim]; fills output."""
        tokens, kv_heads, group, dim = query.shape
        before = key.shape[1] - tokens
        for first in range(0, tokens, QUERY_TILE):
            last = min(first + QUERY_TILE, tokens)
            count, visible = last - first, before + last
            rows = query[first:last].transpose(0, 1).reshape(kv_heads, count * group, dim)
            scores = torch.bmm(rows, key[:, :visible].transpose(1, 2)).view(kv_heads, count, group, visible)
            # Only the tile's own tokens are hidden from each other; all before them is seen.
            scores[..., before + first :] += self._causal[:count, :, :count]
            weights = torch.softmax(scores, dim=-1).view(kv_heads, count * group, visible)
            attended = torch.bmm(weights, value[:, :visible]).view(kv_heads, count, group, dim)
            output[first:last] = attended.transpose(0, 1).flatten(1, 2)

    def _rows(self, layer: int, kind: int, rows: torch.Tensor) -> torch.Tensor:
        """Copy (block, head) rows out of the pool: [rows, block_size x head_dim]."""
        pool = self.pool[layer, kind].view(-1, self.block_size * self.config.head_dim)
        return pool.index_select(0, rows)

    def _context(self, layer: int, kind: int, chunk: ChunkIndex) -> torch.Tensor:
        """Keys or values that a chunk sees, [KV heads, context, head_dim]."""
        assert chunk.rows is not None
        rows = self._rows(layer, kind, chunk.rows).view(self.kv_heads, -1, self.config.head_dim)
        return rows[:, : chunk.context]

    def _slots(self, item: Scheduled) -> np.ndarray:
        """Pool rows of an item's tokens, [count x KV heads]."""
        positions = np.arange(item.start, item.end)
        table = np.asarray(item.request.block_table, dtype=np.int64)
        first = table[positions // self.block_size] * (self.kv_heads * self.block_size) + positions % self.block_size
        return (first[:, None] + np.arange(self.kv_heads) * self.block_size).ravel()

    def _singles(self, items: list[Scheduled]) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = np.array([item.end for item in items])
        num_blocks = -(-int(lengths.max()) // self.block_size)
        tables = np.full((len(items), num_blocks), self.null_block, dtype=np.int64)
        for row, item in zip(tables, items, strict=True):
            used = -(-item.end // self.block_size)
            row[:used] = item.request.block_table[:used]
        rows = tables[:, None, :] * self.kv_heads + np.arange(self.kv_heads)[None, :, None]
        hidden = np.arange(num_blocks * self.block_size) >= lengths[:, None]
        mask = np.where(hidden, -np.inf, 0.0).astype(np.float32)[:, None, None, :]
        return self._tensor(rows.ravel()), self._tensor(mask).to(self.dtype)

    def _chunk(self, item: Scheduled, first: int) -> ChunkIndex:
        last = first + item.count
        if item.start == 0:
            return ChunkIndex(first, last, item.end, None)
        table = np.asarray(item.request.block_table[: -(-item.end // self.block_size)], dtype=np.int64)
        rows = table[None, :] * self.kv_heads + np.arange(self.kv_heads)[:, None]
        return ChunkIndex(first, last, item.end, self._tensor(rows.ravel()))

    def _clear_new_tails(self, items: list[Scheduled]) -> None:
        """Zero each block that this step begins but does not fill.

        A masked slot still enters the product as 0 x its content, and a former owner may have left inf or NaN there.
        """
        tails = [
            item.request.block_table[item.end // self.block_size]
            for item in items
            if item.end % self.block_size and item.start <= item.end // self.block_size * self.block_size
        ]
        if tails:
            self.pool[:, :, self._tensor(np.array(tails))] = 0

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)


class NoKV(PagedKV):
    """No KV cache: every item is a whole sequence and attends over this step's own keys and values."""

    name = "no-cache"

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(config, 0, 1, dtype, device)

    def index(self, items: list[Scheduled]) -> AttentionIndex:
        """See PagedKV; nothing is read from a pool."""
        chunks, first = [], 0
        for item in items:
            chunks.append(ChunkIndex(first, first + item.count, item.count, None))
            first += item.count
        return AttentionIndex(torch.empty(0, dtype=torch.int64), 0, None, None, chunks)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, index: AttentionIndex) -> None:
        """Keep nothing."""
