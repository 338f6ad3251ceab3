"""The other answers to "where does a request's KV live": one contiguous run of the pool, or nowhere.

Both stand where the paged `kv_cache.BlockManager` does, over the same bytes and the same attention code, so that a
comparison shows the layout alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backends.reference.kv_cache import BlockManager


class ContiguousRuns(BlockManager):
    """Layout *contiguous*: each request gets one run of blocks for `max_model_len` tokens, used or not.

    The pool's remainder, too short for a run, serves nobody.
    """

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        super().__init__(num_blocks, block_size)
        self.run = self.blocks_for(max_model_len)
        if self.run > num_blocks:
            raise ValueError(f"no run of {self.run} blocks in a pool of {num_blocks}")
        self._free_runs = list(range(num_blocks // self.run))[::-1]

    def allocate(self, table: list[int], num_tokens: int, hits: Sequence[int] = ()) -> bool:
        """A whole run, whatever `num_tokens`; False when none is free."""
        if not self._free_runs:
            return False
        first = self._free_runs.pop() * self.run
        for block in range(first, first + self.run):
            del self._free[block]
            self._ref_counts[block] = 1
            table.append(block)
        return True

    def free(self, blocks: Sequence[int]) -> None:
        """See BlockManager; blocks are a whole run."""
        super().free(blocks)
        if blocks:
            self._free_runs.append(blocks[0] // self.run)


class NoKvCache(BlockManager):
    """KV cache *off*: nothing is kept, so no request needs a block, and every step computes its tokens from the first."""

    keeps_kv = False

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.num_blocks = 0
        self._free.clear()

    def blocks_for(self, num_tokens: int) -> int:
        """None at all."""
        return 0

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise when somebody has a block."""
        if any(tables):
            raise RuntimeError("a request has KV blocks although the KV cache is off")
