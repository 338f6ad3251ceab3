"""Random workloads: exact lengths, seeded, and never a special token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.errors import UsageError
from workloads.base import Vocabulary, request_seed
from workloads.lengths import FixedLength, UniformLength
from workloads.random import RandomWorkload

FIXED = RandomWorkload(input_len=FixedLength(tokens=17), output_len=FixedLength(tokens=5))


@given(seed=st.integers(0, 2**64 - 1), n=st.integers(0, 20), size=st.integers(8, 500))
def test_every_prompt_has_its_exact_length_and_only_ordinary_ids(seed: int, n: int, size: int) -> None:
    special = frozenset(range(0, size, 5))
    requests = FIXED.requests(n, seed, Vocabulary(size, special))
    assert [len(r.prompt) for r in requests] == [17] * n
    assert all(0 <= token < size and token not in special for r in requests for token in r.prompt)
    assert all(r.output_len == 5 for r in requests)


@given(tokens=st.integers(1, 10_000), seed=st.integers(0, 2**32))
def test_a_spread_stays_within_a_fifth_and_above_zero(tokens: int, seed: int) -> None:
    spread = UniformLength.around(tokens)
    workload = RandomWorkload(input_len=FixedLength(tokens=1), output_len=spread)
    lengths = [r.output_len for r in workload.requests(50, seed, Vocabulary(100))]
    assert all(max(1, 0.8 * tokens - 1) <= length <= 1.2 * tokens for length in lengths)
    assert workload.longest == 1 + spread.high


def test_the_same_seed_gives_the_same_requests_and_another_gives_others() -> None:
    vocabulary = Vocabulary(49_152)
    assert FIXED.requests(4, 7, vocabulary) == FIXED.requests(4, 7, vocabulary)
    assert FIXED.requests(4, 7, vocabulary) != FIXED.requests(4, 8, vocabulary)


def test_a_longer_cell_of_the_same_seed_does_not_repeat_prompts() -> None:
    requests = FIXED.requests(64, 3, Vocabulary(49_152))
    assert len({r.prompt for r in requests}) == 64


def test_a_thousand_prompts_share_not_even_their_first_block() -> None:
    lengths = {"dist": "fixed", "tokens": 128}
    made = RandomWorkload.model_validate({"input_len": lengths, "output_len": {"dist": "fixed", "tokens": 1}})
    prompts = [r.prompt for r in made.requests(1000, 7, Vocabulary(32_000))]
    assert len({p[:16] for p in prompts}) == 1000


def test_seeds_differ_in_every_part_and_do_not_depend_on_the_order_of_keys() -> None:
    parts = [(0, {"a": 1}, 0), (1, {"a": 1}, 0), (0, {"a": 2}, 0), (0, {"a": 1}, 1)]
    assert len({request_seed(*p) for p in parts}) == len(parts)
    assert request_seed({"a": 1, "b": 2}) == request_seed({"b": 2, "a": 1})


def test_a_vocabulary_with_nothing_to_draw_from_is_refused_with_the_numbers() -> None:
    with pytest.raises(UsageError, match=r"3 tokens, 2 of them special.*--tokenizer"):
        FIXED.requests(1, 0, Vocabulary(3, frozenset({0, 1})))
