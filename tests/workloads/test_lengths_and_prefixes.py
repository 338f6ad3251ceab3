"""Distributions of lengths, shared prefixes and conversations: bounds, means, shares, and that a longer draw begins alike."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from workloads.base import Vocabulary
from workloads.conversations import ConversationsWorkload
from workloads.lengths import FixedLength, Length, UniformLength
from workloads.prefix import PrefixWorkload

LENGTH: TypeAdapter[Any] = TypeAdapter(Length)
WORDS = Vocabulary(5000, frozenset({0, 1}))


@given(
    dist=st.sampled_from(["normal", "lognormal", "exponential"]),
    mean=st.integers(1, 5000),
    std=st.integers(1, 5000),
    seed=st.integers(0, 2**32),
)
def test_draws_stay_between_the_bounds_that_were_asked(dist: str, mean: int, std: int, seed: int) -> None:
    length = LENGTH.validate_python({"dist": dist, "mean": mean, **({} if dist == "exponential" else {"std": std})})
    drawn = length.draw(np.random.default_rng(seed), 50)
    assert all(length.low <= n <= length.high for n in drawn)
    assert LENGTH.validate_python(length.model_dump()) == length


@pytest.mark.parametrize(
    ("fields", "std"),
    [
        ({"dist": "normal", "mean": 500, "std": 50}, 50),
        ({"dist": "lognormal", "mean": 500, "std": 200}, 200),
        ({"dist": "exponential", "mean": 500}, 500),
    ],
)
def test_means_and_spreads_are_those_asked_for(fields: dict[str, Any], std: float) -> None:
    drawn = LENGTH.validate_python(fields).draw(np.random.default_rng(1), 20_000)
    assert np.mean(drawn) == pytest.approx(500, rel=0.03)
    assert np.std(drawn) == pytest.approx(std, rel=0.08)


def test_a_mean_outside_its_bounds_is_refused() -> None:
    with pytest.raises(ValidationError, match="is not between low"):
        LENGTH.validate_python({"dist": "normal", "mean": 10, "std": 1, "low": 20, "high": 30})


def prefixes(share: float, groups: int = 3) -> PrefixWorkload:
    lengths = {"input_len": FixedLength(tokens=4), "output_len": FixedLength(tokens=2)}
    return PrefixWorkload(prefix_len=16, groups=groups, hit_share=share, **lengths)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.0])
def test_the_share_of_prompts_that_begin_alike_is_the_one_asked_for(share: float) -> None:
    made = prefixes(share).requests(1000, 3, WORDS)
    assert {len(r.prompt) for r in made} == {20}
    first = [r.prompt[:16] for r in made]
    alike = sum(first.count(p) > 1 for p in first) / len(first)
    assert alike == pytest.approx(share, abs=0.05)
    assert len({p for p in first if first.count(p) > 1}) == (3 if share else 0)
    assert len({r.prompt[16:] for r in made}) == 1000
    assert prefixes(share).cached_share == pytest.approx(share * 0.8)


def test_a_longer_draw_of_prefixes_begins_like_a_shorter_one() -> None:
    assert prefixes(0.5).requests(50, 3, WORDS)[:20] == prefixes(0.5).requests(20, 3, WORDS)


@given(seed=st.integers(0, 2**32))
def test_each_turn_begins_with_all_of_the_turn_before_and_its_answers_place(seed: int) -> None:
    workload = ConversationsWorkload(
        turns=UniformLength(low=1, high=4),
        input_len=FixedLength(tokens=10),
        turn_len=FixedLength(tokens=3),
        output_len=UniformLength(low=2, high=5),
    )
    made = workload.requests(30, seed, WORDS)
    for before, turn in itertools.pairwise(made):
        if turn.chain == before.chain:
            assert turn.prompt[: len(before.prompt)] == before.prompt
            assert len(turn.prompt) == len(before.prompt) + before.output_len + 3
        else:
            assert len(turn.prompt) == 10
    assert all(len(r.prompt) <= workload.longest_input for r in made)
    assert not any({0, 1} & set(r.prompt) for r in made)
