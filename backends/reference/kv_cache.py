"""The block manager: which block of the KV pool belongs to whom. Knows no tensors.

A request's *block table* lists its blocks in order: the KV of its token i lives in block `table[i // block_size]` at
offset `i % block_size`. Convention: the block must be there before the KV of token i is written, so a table covers n
tokens when it has ceil(n / block_size) blocks. A block is either on the free list or referenced by `ref_count` tables.
A free block may still be known to the prefix cache; the longest unused is handed out first (LRU), and then forgotten.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import ClassVar

from backends.reference.prefix_cache import NoPrefixes, Prefixes


class BlockAccountingError(RuntimeError):
    """Blocks do not add up: a defect of the engine, never of a request."""


class BlockManager:
    """Layout *paged*: free list and reference counts over `num_blocks` blocks of `block_size` tokens."""

    keeps_kv: ClassVar[bool] = True  # the next step can read the KV of what this one computes

    def __init__(self, num_blocks: int, block_size: int, prefixes: Prefixes | None = None) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs at least one block of one token, got {num_blocks=} {block_size=}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefixes = prefixes or NoPrefixes()
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._ref_counts = [0] * num_blocks
        self.num_shared = 0  # references beyond each block's first

    @property
    def num_free(self) -> int:
        """Blocks nobody references."""
        return len(self._free)

    @property
    def num_allocated(self) -> int:
        """Blocks at least one table references."""
        return self.num_blocks - len(self._free)

    @property
    def num_tokens(self) -> int:
        """Token slots in the whole pool."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens of one request."""
        return -(-num_tokens // self.block_size)

    def allocate(self, table: list[int], num_tokens: int, hits: Sequence[int] = ()) -> bool:
        """Fill an empty table: the blocks of a prefix match, then new ones. All or nothing: False changes nothing."""
        revived = sum(1 for block in hits if self._ref_counts[block] == 0)
        if self.blocks_for(num_tokens) - len(hits) + revived > len(self._free):
            return False
        for block in hits:
            self._free.pop(block, None)
            self.num_shared += self._ref_counts[block] > 0
            self._ref_counts[block] += 1
        table.extend(hits)
        return self.grow(table, num_tokens)

    def grow(self, table: list[int], num_tokens: int) -> bool:
        """Extend `table` in place until it covers `num_tokens`. All or nothing: False changes nothing."""
        missing = self.blocks_for(num_tokens) - len(table)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            block, _none = self._free.popitem(last=False)
            self.prefixes.forget(block)
            self._ref_counts[block] = 1
            table.append(block)
        return True

    def free(self, blocks: Sequence[int]) -> None:
        """Give back one reference to each block. Freeing more references than there are raises and changes nothing.

        The end of a sequence is freed first: a prefix stays useful longer than what followed it.
        """
        for block, times in Counter(blocks).items():
            if not 0 <= block < self.num_blocks or self._ref_counts[block] < times:
                raise BlockAccountingError(f"block {block} freed {times} times, but its references do not allow it")
        for block in reversed(blocks):
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free[block] = None
            else:
                self.num_shared -= 1

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise unless free + referenced = pool and each count equals the number of live tables that name the block."""
        named = Counter(block for table in tables for block in table)
        if len(self._free.keys() | named.keys()) != self.num_blocks or self._free.keys() & named.keys():
            raise BlockAccountingError(
                f"{len(self._free)} free + {len(named)} in tables (both: {len(self._free.keys() & named.keys())}) "
                f"!= {self.num_blocks} blocks"
            )
        for block, count in enumerate(self._ref_counts):
            if count != named[block]:
                raise BlockAccountingError(f"block {block} has {count} references but {named[block]} tables name it")
        shared = sum(count - 1 for count in self._ref_counts if count)
        if shared != self.num_shared:
            raise BlockAccountingError(f"{shared} references are shared, but {self.num_shared} are counted")
        self.prefixes.check_integrity()
