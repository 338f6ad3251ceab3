"""Sampling: greedy rows, temperature rows, and draws that depend on the request alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from backends.reference.messages import Sampling
from backends.reference.request import Request
from backends.reference.sampler import sample, uniform
from tests.backends.reference.test_model import TINY, built, generate, random_prompts, save_llama


def request(temperature: float, seed: int = 0, position: int = 0, **more: Any) -> Request:
    made = Request(0, "r", [1], 10**6, Sampling(temperature, seed, **more))
    made.tokens.extend([0] * position)
    return made


def test_greedy_rows_take_the_largest_logit_beside_hot_rows() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    tokens = sample(logits, [request(0.0), request(1.0), request(0.0), request(1e-9)])
    best = logits.argmax(-1).tolist()
    assert [tokens[0], tokens[2], tokens[3]] == [best[0], best[2], best[3]]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -torch.inf])
    draws = 4000
    requests = [request(temperature, seed=7, position=i) for i in range(draws)]
    counts = torch.bincount(torch.tensor(sample(logits.expand(draws, -1), requests)), minlength=5) / draws
    expected = torch.softmax(logits / temperature, -1)
    assert counts[4] == 0
    torch.testing.assert_close(counts, expected, atol=0.03, rtol=0)  # four standard errors


def test_draws_are_uniform_and_differ_by_seed_and_position() -> None:
    values = [uniform(seed, position) for seed in range(50) for position in range(50)]
    assert len(set(values)) == len(values)
    assert all(0 <= value < 1 for value in values)
    assert abs(sum(values) / len(values) - 0.5) < 0.03
    assert uniform(-1, 3) == uniform(-1, 3)
    assert uniform(2**70, 0) >= 0


def test_seeded_output_does_not_depend_on_the_batch_chunks_or_preemption(tmp_path: Path) -> None:
    save_llama(tmp_path)
    prompts = random_prompts((3, 17, 30), TINY["vocab_size"])
    engine = built(tmp_path)
    alone = [generate(engine, [prompt], temperature=0.8, seed=5)[0] for prompt in prompts]
    assert generate(engine, prompts, temperature=0.8, seed=5) == alone
    small = built(tmp_path, block_size=4, kv_cache_tokens=80, max_model_len=80, max_num_batched_tokens=9)
    assert generate(small, prompts, temperature=0.8, seed=5) == alone
    assert small.engine.scheduler.num_preemptions > 0
    assert generate(engine, prompts, temperature=0.8, seed=6) != alone


LOGITS = torch.tensor([1.0, 3.0, 2.0, 0.0, 2.0, -1.0])  # by weight: token 1, then 2 and 4 alike, 0, 3, 5


@pytest.mark.parametrize(
    ("limits", "drawn"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 4}, {1, 2, 4, 0}),
        ({"top_k": 100}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 1e-9}, {1}),
        ({"top_p": 0.7}, {1, 2}),  # 0.50 and 0.18: the third makes it 0.87, but 0.69 is still short of 0.7
        ({"top_p": 0.72}, {1, 2, 4}),
        ({"min_p": 0.3}, {1, 2, 4}),  # weights relative to the best: 1, 0.37, 0.37, 0.14
        ({"min_p": 1.0}, {1}),
        ({"top_k": 3, "top_p": 0.8}, {1, 2, 4}),  # of the three that are left, two are 0.79
        ({"top_k": 3, "top_p": 0.75}, {1, 2}),
        ({"min_p": 0.1, "top_k": 3}, {1, 2, 4}),
    ],
    ids=str,
)
def test_only_the_likelier_tokens_are_drawn_in_their_proportion(limits: dict[str, Any], drawn: set[int]) -> None:
    draws = 3000
    requests = [request(1.0, seed=3, position=i, **limits) for i in range(draws)]
    counts = torch.bincount(torch.tensor(sample(LOGITS.expand(draws, -1), requests)), minlength=6) / draws
    assert {token for token in range(6) if counts[token]} == drawn
    weights = torch.softmax(LOGITS, -1)
    for token in set(range(6)) - drawn:
        weights[token] = 0
    torch.testing.assert_close(counts, weights / weights.sum(), atol=0.04, rtol=0)


def test_rows_are_drawn_alike_whatever_is_beside_them() -> None:
    logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(1))
    kinds: list[dict[str, Any]] = [{}, {"top_p": 0.8}, {"top_k": 7}, {"min_p": 0.1}, {"temperature": 0.0}]
    requests = [request(**({"temperature": 1.3, "seed": i} | kinds[i % len(kinds)])) for i in range(40)]
    together = sample(logits, requests)
    assert together == [sample(logits[i : i + 1], [requests[i]])[0] for i in range(40)]
    assert together == sample(logits.flip(0), requests[::-1])[::-1]


def test_stop_ids_cannot_come_before_min_tokens() -> None:
    logits = LOGITS.expand(4, -1)
    stop = frozenset({1, 2})
    early = [request(0.0, position=i, stop_ids=stop, min_tokens=2) for i in range(4)]
    assert sample(logits, early) == [4, 4, 1, 1]
    hot = [request(1.0, seed=i, stop_ids=stop, min_tokens=1) for i in range(200)]
    assert not {1, 2} & set(sample(LOGITS.expand(200, -1), hot))
    assert LOGITS[1] == 3  # the model's own scores are untouched
