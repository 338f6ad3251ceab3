"""The fake's engine: step by step, with TensorRT-LLM's two ways of letting requests in, and its statistics of each step.

GUARANTEED_NO_EVICT sets aside a request's prompt and all it may still generate before it is let in, and never stops one.
MAX_UTILIZATION sets aside what is there, and when the cache is full pauses the youngest, which then computes its context anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from backends.tensorrt_llm_reference import Era
from tests.servers.trtllm_fake_log import IterationLog, Silent


@dataclass(eq=False)
class Work:
    """One request in the engine. `tokens` gives one True a token; False: the engine is lost."""

    prompt: int
    asked: int
    tokens: asyncio.Queue[bool] = field(default_factory=asyncio.Queue)
    made: int = 0
    computed: int = 0
    left: bool = False

    @property
    def held(self) -> int:
        return self.prompt + self.made


class Engine:
    """Steps every `step_s` while there is work. The first step with a request of more than one token waits for `gather` of them."""

    def __init__(
        self, config: dict[str, Any], step_s: float, capacity: int, era: Era = Era.V1_2, gather: int = 1
    ) -> None:
        kv = config.get("kv_cache_config") or {}
        scheduler = config.get("scheduler_config") or {}
        self.block = int(kv.get("tokens_per_block") or 32)
        limit = kv.get("max_tokens")
        self.blocks = min(capacity, int(limit) if limit else capacity) // self.block
        self.evicts = scheduler.get("capacity_scheduler_policy") == "MAX_UTILIZATION"
        self.max_batch = int(config["max_batch_size"])
        self.max_tokens = int(config["max_num_tokens"])
        self.chunked = bool(config.get("enable_chunked_prefill"))
        self.speculates = config.get("speculative_config") is not None
        self.records = bool(config.get("enable_iter_perf_stats"))
        self.log = (IterationLog if config.get("print_iter_log") else Silent)(era)
        self.kept = int(config.get("max_stats_len") or config.get("iter_stats_max_iterations") or 1000)
        self.step_s, self.gather = step_s, gather
        self.waiting: deque[Work] = deque()
        self.running: list[Work] = []
        self.stats: deque[dict[str, Any]] = deque(maxlen=self.kept)
        self.steps = 0
        self.dead = False
        self._made: list[Work] = []
        self._task: asyncio.Task[None] | None = None

    def submit(self, work: Work) -> None:
        """Queue a request; the loop starts with the first."""
        self.waiting.append(work)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def die(self) -> None:
        """A rank is lost: what runs never ends well, and nothing is taken any more."""
        self.dead = True
        for work in [*self.running, *self.waiting]:
            work.tokens.put_nowait(False)
        self.running.clear()
        self.waiting.clear()

    async def _run(self) -> None:
        while sum(work.asked > 1 for work in self.waiting) in range(1, self.gather):
            await asyncio.sleep(self.step_s)
        if any(work.asked > 1 for work in self.waiting):
            self.gather = 1
        while (self.running or self.waiting) and not self.dead:
            done = self.step()
            await asyncio.sleep(self.step_s)
            self.log.tick(done)
            self._hand_out()

    def step(self) -> dict[str, Any]:
        """Schedule, compute, record. Returns what it held."""
        self.running = [work for work in self.running if not work.left]
        self.waiting = deque(work for work in self.waiting if not work.left)
        new = self._admit()
        paused = self._pause() if self.evicts else 0
        budget, context, context_requests, decodes, done = self.max_tokens, 0, 0, 0, 0
        for work in self.running:
            if work.computed < work.held:
                take = min(work.held - work.computed, budget)
                budget -= take
                context += take
                context_requests += 1 if take else 0
                work.computed += take
                if work.computed < work.held:
                    continue
            else:
                decodes += 1
            work.made += 1
            work.computed = work.held
            self._made.append(work)
            done += work.made >= work.asked
        scheduled = len(self.running)
        self.running = [work for work in self.running if work.made < work.asked]
        self.steps += 1
        entry = self._entry(scheduled, new, paused, context, context_requests, decodes, done)
        if self.records:
            self.stats.append(entry)
        return entry

    def _hand_out(self) -> None:
        """As where host and device overlap: what a step made goes out in the round after it, behind its line."""
        for work in self._made:
            work.tokens.put_nowait(True)
        self._made.clear()

    def _need(self, tokens: int) -> int:
        return -(-tokens // self.block)

    def _used(self) -> int:
        if self.evicts:
            return sum(self._need(work.held) for work in self.running)
        return sum(self._need(work.prompt + work.asked) for work in self.running)

    def _admit(self) -> int:
        new = 0
        while self.waiting and len(self.running) < self.max_batch:
            work = self.waiting[0]
            need = self._need(work.held + 1 if self.evicts else work.prompt + work.asked)
            if self._used() + need > self.blocks and self.running:
                break
            self.running.append(self.waiting.popleft())
            new += 1
        return new

    def _pause(self) -> int:
        paused = 0
        while len(self.running) > 1 and sum(self._need(work.held + 1) for work in self.running) > self.blocks:
            work = self.running.pop()
            work.computed = 0
            self.waiting.appendleft(work)
            paused += 1
        return paused

    def _entry(
        self, scheduled: int, new: int, paused: int, context: int, contexts: int, decodes: int, done: int
    ) -> dict[str, Any]:
        used = self._used()
        entry: dict[str, Any] = {
            "timestamp": "",
            "iter": self.steps,
            "iterLatencyMS": self.step_s * 1000,
            "numActiveRequests": scheduled,
            "numQueuedRequests": len(self.waiting),
            "numNewActiveRequests": new,
            "numCompletedRequests": done,
            "kvCacheStats": {
                "maxNumBlocks": self.blocks,
                "freeNumBlocks": self.blocks - used,
                "usedNumBlocks": used,
                "tokensPerBlock": self.block,
                "reusedBlocks": 0,
                "missedBlocks": 0,
            },
            "inflightBatchingStats": {
                "numScheduledRequests": scheduled,
                "numContextRequests": contexts,
                "numGenRequests": decodes,
                "numPausedRequests": paused,
                "numCtxTokens": context,
                "avgNumDecodedTokensPerIter": 0,
            },
        }
        if self.speculates:
            entry["specDecodingStats"] = {
                "numDraftTokens": 3 * decodes,
                "numAcceptedTokens": 2 * decodes,
                "numRequestsWithDraftTokens": decodes,
                "acceptanceLength": 3.0,
            }
        return entry
