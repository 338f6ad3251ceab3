"""Thousands of requests through a small pool: random lengths, aborts, preemptions, prefix hits; nothing may be left.

`DYNO_SOAK=1` runs the full size, 10,000 requests in about half a minute.
"""

from __future__ import annotations

import gc
import os
import random

import pytest

from backends.reference.messages import Submit
from backends.reference.switches import Switches
from tests.backends.reference.hash_model import HashRunner, expected_output, hash_engine

REQUESTS = 10_000 if os.environ.get("DYNO_SOAK") else 2_000
LIVE = 12
NUM_BLOCKS, BLOCK_SIZE = 48, 8


class Load:
    """Keeps `LIVE` requests in an engine, a fifth of which is aborted at some point, and checks every answer."""

    def __init__(self, switches: Switches, seed: int) -> None:
        self.random = random.Random(seed)
        self.engine = hash_engine(NUM_BLOCKS, BLOCK_SIZE, 200, 8, 64, switches)
        assert isinstance(self.engine.runner, HashRunner)
        self.runner = self.engine.runner
        self.begins = [[self.random.randrange(50) for _ in range(40)] for _ in range(4)]
        self.asked: dict[int, Submit] = {}
        self.made: dict[int, list[int]] = {}
        self.abort_at: dict[int, int] = {}
        self.arrived = self.finished = self.aborted = 0

    def arrive(self) -> None:
        draw = self.random
        shared = draw.choice(self.begins)[: draw.choice((0, 13, 24, 40))]
        prompt = shared + [draw.randrange(50) for _ in range(draw.randint(1, 30))]
        message = Submit(self.arrived, "r", prompt, draw.randint(1, 40))
        self.engine.submit(message)
        self.asked[message.key], self.made[message.key] = message, []
        if draw.random() < 0.2:
            self.abort_at[message.key] = self.engine.num_steps + draw.randint(0, 40)
        self.arrived += 1

    def step(self) -> None:
        for key in [key for key, when in self.abort_at.items() if when <= self.engine.num_steps]:
            del self.abort_at[key]
            self.engine.abort(key)
            self.end(key, whole=False)
            self.aborted += 1
        if not self.engine.scheduler.has_work:
            return
        tokens = self.engine.step()
        self.runner.batches.clear()  # the test's own record, which would grow
        for token in tokens:
            self.made[token.key].append(token.token)
            if token.finish_reason:
                self.abort_at.pop(token.key, None)
                self.end(token.key, whole=True)
                self.finished += 1

    def end(self, key: int, whole: bool) -> None:
        message, made = self.asked.pop(key), self.made.pop(key)
        assert made == expected_output(message.prompt, message.max_tokens if whole else len(made))

    def run(self, until: int) -> None:
        while self.arrived < until or self.asked:
            while self.arrived < until and len(self.asked) < LIVE:
                self.arrive()
            self.step()
            if self.engine.num_steps % 16 == 0:
                self.engine.scheduler.check_integrity()


@pytest.mark.timeout(600)
def test_every_block_comes_back_outputs_are_exact_and_memory_is_flat() -> None:
    load = Load(Switches(prefix_caching=True), seed=1)
    load.run(REQUESTS // 2)
    gc.collect()
    objects = len(gc.get_objects())
    load.run(REQUESTS)
    gc.collect()
    assert len(gc.get_objects()) - objects < REQUESTS / 20
    scheduler = load.engine.scheduler
    scheduler.check_integrity()
    assert not scheduler.has_work
    assert scheduler.blocks.num_free == NUM_BLOCKS
    assert load.finished + load.aborted == REQUESTS
    assert load.aborted > 0.1 * REQUESTS
    assert scheduler.num_preemptions > 0.01 * REQUESTS
    assert scheduler.prefix_hits > 0.1 * scheduler.prefix_queries
