"""The block manager: which block of the KV pool belongs to whom. Knows no tensors.

A request's *block table* lists its blocks in order: the KV of its token i lives in block `table[i // block_size]` at
offset `i % block_size`. Convention: the block must be there before the KV of token i is written, so a table covers n
tokens when it has ceil(n / block_size) blocks. A block is either on the free list or referenced by `ref_count` tables.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence


class BlockAccountingError(RuntimeError):
    """Blocks do not add up: a defect of the engine, never of a request."""


class BlockManager:
    """Free list and reference counts over `num_blocks` blocks of `block_size` tokens."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs at least one block of one token, got {num_blocks=} {block_size=}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free: deque[int] = deque(range(num_blocks))
        self._ref_counts = [0] * num_blocks

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

    def grow(self, table: list[int], num_tokens: int) -> bool:
        """Extend `table` in place until it covers `num_tokens`. All or nothing: False changes nothing."""
        missing = self.blocks_for(num_tokens) - len(table)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            block = self._free.popleft()
            self._ref_counts[block] = 1
            table.append(block)
        return True

    def share(self, blocks: Sequence[int]) -> None:
        """Add one reference to each of `blocks`, which must be in use."""
        for block in blocks:
            if self._ref_counts[block] < 1:
                raise BlockAccountingError(f"block {block} is free and cannot be shared")
        for block in blocks:
            self._ref_counts[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Give back one reference to each block. Freeing more references than there are raises and changes nothing."""
        for block, times in Counter(blocks).items():
            if not 0 <= block < self.num_blocks or self._ref_counts[block] < times:
                raise BlockAccountingError(f"block {block} freed {times} times, but its references do not allow it")
        for block in blocks:
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free.append(block)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise unless free + referenced = pool and each count equals the number of live tables that name the block."""
        named = Counter(block for table in tables for block in table)
        free = set(self._free)
        if len(free) != len(self._free):
            raise BlockAccountingError(f"the free list names {len(self._free) - len(free)} blocks twice")
        if len(free | named.keys()) != self.num_blocks or free & named.keys():
            raise BlockAccountingError(
                f"{len(free)} free + {len(named)} in tables (both: {len(free & named.keys())}) != {self.num_blocks} blocks"
            )
        for block, count in enumerate(self._ref_counts):
            if count != named[block]:
                raise BlockAccountingError(f"block {block} has {count} references but {named[block]} tables name it")
