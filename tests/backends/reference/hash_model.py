"""A model without arithmetic: the next token is a hash of what it reads through the block table.

Any mix-up of blocks, positions or recomputation changes its output, which is known in advance from the prompt alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from backends.reference.build_scheduler import build_scheduler
from backends.reference.config import EngineSettings
from backends.reference.engine import Engine
from backends.reference.messages import NewToken
from backends.reference.request import Scheduled
from backends.reference.runner import StepResult
from backends.reference.switches import STANDARD, Switches

VOCABULARY = 61


def next_token(tokens: Sequence[int]) -> int:
    """The token that follows `tokens`."""
    return zlib.crc32(",".join(map(str, tokens)).encode()) % VOCABULARY


def expected_output(prompt: Sequence[int], max_tokens: int, stop_ids: frozenset[int] = frozenset()) -> list[int]:
    """What must be generated after `prompt`, whatever else the engine does."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
        if tokens[-1] in stop_ids:
            break
    return tokens[len(prompt) :]


class HashRunner:
    """Keeps each slot's token, as a real runner keeps its KV."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[tuple[int, int], int] = {}
        self.batches: list[list[tuple[int, int, int]]] = []  # per step: (key, start, count)

    def run(self, items: Sequence[Scheduled]) -> StepResult:
        self.batches.append([(item.request.key, item.start, item.count) for item in items])
        for item in items:
            for position in range(item.start, item.end):
                self.slots[self._slot(item, position)] = item.request.tokens[position]
        tokens = [
            next_token([self.slots[self._slot(item, position)] for position in range(item.end)])
            for item in items
            if item.samples
        ]
        return StepResult(tokens)

    def _slot(self, item: Scheduled, position: int) -> tuple[int, int]:
        return item.request.block_table[position // self.block_size], position % self.block_size


class RecomputingRunner(HashRunner):
    """Without KV cache: knows what the step itself brings, and nothing else."""

    def run(self, items: Sequence[Scheduled]) -> StepResult:
        self.batches.append([(item.request.key, item.start, item.count) for item in items])
        assert {item.start for item in items} == {0}
        return StepResult([next_token(item.request.tokens[: item.end]) for item in items if item.samples])


def hash_engine(
    num_blocks: int = 1000,
    block_size: int = 16,
    max_model_len: int = 4096,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
    switches: Switches = STANDARD,
) -> Engine:
    """An engine over the hash model."""
    if not switches.chunked_prefill:
        max_num_batched_tokens = max(max_num_batched_tokens, max_model_len)
    settings = EngineSettings(
        "float32",
        max_model_len,
        max_num_seqs,
        max_num_batched_tokens,
        block_size,
        num_blocks * block_size,
        switches=switches,
    )
    runner = RecomputingRunner(block_size) if switches.kv_cache == "off" else HashRunner(block_size)
    return Engine(build_scheduler(settings), runner)


def run_to_end(engine: Engine, max_steps: int = 5000) -> dict[int, list[NewToken]]:
    """Step until idle, checking all accounts after every step; tokens by request key."""
    made: dict[int, list[NewToken]] = {}
    for _ in range(max_steps):
        if not engine.scheduler.has_work:
            return made
        for token in engine.step():
            made.setdefault(token.key, []).append(token)
        engine.scheduler.check_integrity()
    raise AssertionError(f"not idle after {max_steps} steps: {engine.stats()}")
