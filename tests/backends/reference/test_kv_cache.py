"""The block manager: all or nothing, exact reference counts, an integrity check that notices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.reference.kv_cache import BlockAccountingError, BlockManager


@given(block_size=st.integers(1, 33), lengths=st.lists(st.integers(0, 200), min_size=1, max_size=8))
def test_table_covers_its_tokens_and_has_no_block_nobody_will_write(block_size: int, lengths: list[int]) -> None:
    blocks = BlockManager(300, block_size)
    table: list[int] = []
    for length in sorted(lengths):
        if blocks.grow(table, length):
            assert len(table) * block_size >= length > (len(table) - 1) * block_size or length == 0
    blocks.check_integrity([table])


def test_growth_that_does_not_fit_changes_nothing() -> None:
    blocks = BlockManager(4, 16)
    table: list[int] = []
    assert blocks.grow(table, 33)
    before = list(table)
    assert not blocks.grow(table, 65)
    assert table == before
    assert blocks.num_free == 1
    assert blocks.grow(table, 64)  # an exact fit


def test_block_freed_twice_raises_and_changes_nothing() -> None:
    blocks = BlockManager(8, 16)
    table: list[int] = []
    blocks.grow(table, 16)
    with pytest.raises(BlockAccountingError, match="freed 2 times"):
        blocks.free([table[0], table[0]])
    assert blocks.num_free == 7
    blocks.free(table)
    with pytest.raises(BlockAccountingError):
        blocks.free(table)
    blocks.check_integrity([])
    assert blocks.num_free == 8


def test_shared_block_stays_until_its_last_owner_frees_it() -> None:
    blocks = BlockManager(2, 4)
    table: list[int] = []
    blocks.grow(table, 4)
    other: list[int] = []
    assert blocks.allocate(other, 8, hits=table)
    assert other[0] == table[0]
    blocks.check_integrity([table, other])
    blocks.free(table)
    assert blocks.num_free == 0
    blocks.check_integrity([other])
    blocks.free(other)
    assert blocks.num_free == 2


def test_free_block_that_is_hit_again_counts_as_needed() -> None:
    blocks = BlockManager(3, 4)
    table: list[int] = []
    blocks.grow(table, 8)
    blocks.free(table)
    assert not blocks.allocate([], 16, hits=table)  # two hits, both free, and two more: four of three
    blocks.check_integrity([])
    again: list[int] = []
    assert blocks.allocate(again, 12, hits=table)
    assert again[:2] == table
    blocks.check_integrity([again])


def test_longest_unused_block_is_handed_out_first_and_ends_of_sequences_before_their_beginnings() -> None:
    blocks = BlockManager(5, 4)
    first: list[int] = []
    second: list[int] = []
    blocks.grow(first, 8)
    blocks.grow(second, 8)
    blocks.free(second)
    blocks.free(first)
    last: list[int] = []
    blocks.grow(last, 20)
    assert last[1:] == [*reversed(second), *reversed(first)]


@pytest.mark.parametrize("unknown", [-1, 2])
def test_block_outside_the_pool_cannot_be_freed(unknown: int) -> None:
    with pytest.raises(BlockAccountingError):
        BlockManager(2, 4).free([unknown])


def test_integrity_check_notices_a_lost_and_a_doubly_owned_block() -> None:
    blocks = BlockManager(4, 4)
    table: list[int] = []
    blocks.grow(table, 8)
    blocks.check_integrity([table])
    with pytest.raises(BlockAccountingError):
        blocks.check_integrity([])  # two blocks belong to nobody
    with pytest.raises(BlockAccountingError):
        blocks.check_integrity([table, table])
    with pytest.raises(BlockAccountingError):
        blocks.check_integrity([[*table, (set(range(4)) - set(table)).pop()]])  # one is free as well
