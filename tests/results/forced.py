"""The reference engine's real scheduler under a load that forces a limit, on a clock of arithmetic: no model, no waiting.

A step takes `fixed_ns` + `token_ns` for each token it computes. A closed loop sends the next request of a slot `think_ns` after
its last token. What comes out is what a cell's files hold: requests, token chunks, the step log.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from backends.reference import engine as engine_module
from backends.reference.engine import Engine
from backends.reference.kv_cache import BlockManager
from backends.reference.messages import Submit
from backends.reference.policies import ADMISSION, BATCHING, Policies
from backends.reference.request import Scheduled
from backends.reference.runner import StepResult
from backends.reference.scheduler import Scheduler
from results.events import Requests
from results.schema import TRUTH_STEPS
from results.tokens import TokenChunks
from results.truth import Steps

BLOCK = 16


@dataclass
class Clock:
    now: int = 10**12

    def monotonic_ns(self) -> int:
        return self.now


@dataclass
class Timed:
    """Takes time by the token; every token is a 1."""

    clock: Clock
    fixed_ns: int
    token_ns: int

    def run(self, items: Sequence[Scheduled]) -> StepResult:
        self.clock.now += self.fixed_ns + self.token_ns * sum(item.count for item in items)
        return StepResult([1 for item in items if not item.is_padding and item.end == item.request.num_tokens])


@dataclass
class Log:
    rows: list[tuple[int, ...]] = field(default_factory=list)

    def token(self, request_id: str, index: int, step: int, sampled: int, written: int | None) -> None:
        """Not kept."""

    def step(self, *row: int) -> None:
        self.rows.append(row)

    def scheduled(self, request_id: str, step: int, start: int) -> None:
        """Not needed here."""

    def close(self) -> None:
        """Nothing to end."""


@dataclass
class Forced:
    """A cell. `session` holds the settings as an engine resolves them."""

    requests: Requests
    chunks: TokenChunks
    steps: Steps
    input_tokens: np.ndarray[Any, np.dtype[np.int64]]
    session: dict[str, Any]
    concurrency: int


def forced(
    monkeypatch: pytest.MonkeyPatch,
    *,
    concurrency: int = 8,
    count: int = 64,
    prompts: tuple[int, int] = (20, 60),
    outputs: tuple[int, int] = (20, 60),
    max_num_seqs: int = 64,
    budget: int = 2048,
    pool_tokens: int = 16_384,
    admission: str = "on-demand",
    batching: str = "continuous",
    think_ns: int = 0,
    fixed_ns: int = 2_000_000,
    token_ns: int = 100_000,
    host_ns: int = 20_000,
    seed: int = 0,
) -> Forced:
    clock, log, draw = Clock(), Log(), random.Random(seed)
    monkeypatch.setattr(engine_module, "time", clock)
    policies = Policies(ADMISSION[admission](), BATCHING[batching]())
    scheduler = Scheduler(BlockManager(pool_tokens // BLOCK, BLOCK), 512, max_num_seqs, budget, policies)
    engine = Engine(scheduler, Timed(clock, fixed_ns, token_ns), log)
    asked = [(draw.randint(*prompts), draw.randint(*outputs)) for _ in range(count)]
    due = [(clock.now, slot) for slot in range(concurrency)]
    rows: list[dict[str, Any]] = []
    arrivals: list[tuple[int, int, int]] = []
    slot_of: dict[int, int] = {}
    while (due and len(rows) < count) or scheduler.has_work:
        due.sort()
        if not scheduler.has_work and due and due[0][0] > clock.now:
            clock.now = due[0][0]
        while due and due[0][0] <= clock.now and len(rows) < count:
            at, slot = due.pop(0)
            key = len(rows)
            prompt, output = asked[key]
            rows.append(
                {"request_id": f"r{key:04d}", "slot": slot, "sent": at, "outcome": "ok", "output_tokens": output}
            )
            slot_of[key] = slot
            engine.submit(Submit(key, f"r{key:04d}", [1] * prompt, output))
        for token in engine.step():
            arrivals.append((token.key, token.index, token.sampled))
            if token.index == 0:
                rows[token.key]["first_token"] = token.sampled
            if token.finish_reason is not None:
                rows[token.key] |= {"last_token": token.sampled, "end": token.sampled}
                due.append((token.sampled + think_ns, slot_of[token.key]))
        clock.now += host_ns
    arrivals.sort()
    of, index, t = (np.array(column, dtype=np.int64) for column in zip(*arrivals, strict=True))
    ones = np.ones(len(t), dtype=np.int64)
    logged = dict(zip(TRUTH_STEPS.names, np.array(log.rows).T, strict=True))
    settings = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": budget,
        "block_size": BLOCK,
        "kv_cache_tokens": pool_tokens,
        "admission": admission,
        "batching": batching,
        "threads": 1,
        "dtype": "bfloat16",
    }
    return Forced(
        Requests.of(rows),
        TokenChunks(of, t, ones, ones.astype(float), index == 0),
        Steps(**{name: logged[name].astype(np.int64) for name in Steps.__slots__}),
        np.array([prompt for prompt, _ in asked], dtype=np.int64),
        {"settings": {name: {"value": value, "source": "endpoint"} for name, value in settings.items()}},
        concurrency,
    )
