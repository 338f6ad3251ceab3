"""Sampling: greedy rows, temperature rows, and draws that depend on the request alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backends.reference.messages import Sampling
from backends.reference.request import Request
from backends.reference.sampler import sample, uniform
from tests.backends.reference.test_model import TINY, built, generate, random_prompts, save_llama


def request(temperature: float, seed: int = 0, position: int = 0) -> Request:
    made = Request(0, "r", [1], 10**6, Sampling(temperature, seed))
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
