"""The scheduler: which tokens of which requests the next step computes. Knows no tensors.

There are no phases. Each request has tokens (prompt + output) of which `num_computed` have their KV in the pool; a step
gives every scheduled request some of the rest, and whoever catches up gets a new token:

      tokens   | computed before | this step (count) | left for later |
               0            num_computed         +count         num_tokens

A prompt chunk, a decode (one token left) and the return of a preempted request are this one case. Order within one
token budget: decodes, then chunks of requests already running, then the queue, all first come first served. A queued
request enters only with blocks for all its known tokens, so a chunk never lacks a block; only growth past a block edge
can. Then the youngest running request gives its blocks back and computes again later. The oldest is never the victim
of a younger one and fits the pool alone (else it was refused), so somebody always gets on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from backends.reference.kv_cache import BlockManager
from backends.reference.messages import GREEDY, Sampling, TokenLogprobs


class RefusedError(ValueError):
    """A request that can never run with these settings; the message has the arithmetic."""


@dataclass(slots=True, eq=False)
class Request:
    """One sequence from arrival to finish. `key` orders requests by arrival and is unique within an engine."""

    key: int
    request_id: str
    tokens: list[int]
    max_tokens: int
    sampling: Sampling = GREEDY
    num_prompt_tokens: int = field(init=False)
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    preemptions: int = 0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known so far."""
        return len(self.tokens)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_left(self) -> int:
        """Known tokens whose KV is not in the pool."""
        return len(self.tokens) - self.num_computed


@dataclass(slots=True)
class Scheduled:
    """`count` tokens of `request` from position `start`, to be computed in this step."""

    request: Request
    start: int
    count: int

    @property
    def end(self) -> int:
        """The context length after this step."""
        return self.start + self.count

    @property
    def samples(self) -> bool:
        """True when this step reaches the request's last known token, so that it gets a new one."""
        return self.end == self.request.num_tokens

    @property
    def is_decode(self) -> bool:
        """True for the KV of one generated token; prompt chunks and recomputation are prefill."""
        return self.count == 1 and self.start >= self.request.num_prompt_tokens


@dataclass(slots=True)
class StepPlan:
    """What one step computes, and whom it had to preempt."""

    items: list[Scheduled] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)


class Scheduler:
    """Queue, running set and token budget over one block manager. Called by the engine's owner only."""

    def __init__(
        self, blocks: BlockManager, max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        if max_num_seqs < 1 or max_num_batched_tokens < 1:
            raise ValueError(f"at least one request and one token a step, {max_num_seqs=} {max_num_batched_tokens=}")
        self.blocks = blocks
        self.max_model_len = max_model_len
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in order of arrival
        self._live: dict[int, Request] = {}
        self.num_preemptions = 0

    def check_admission(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Raise RefusedError for what can never run, whatever else does."""
        if num_prompt_tokens < 1:
            raise RefusedError("The prompt is empty: 0 tokens; at least 1 is needed.")
        if max_tokens < 1:
            raise RefusedError(f"max_tokens is {max_tokens}; at least 1 is needed.")
        total = num_prompt_tokens + max_tokens
        asked = f"The prompt has {num_prompt_tokens} tokens and max_tokens is {max_tokens}: {total} tokens"
        if total > self.max_model_len:
            raise RefusedError(
                f"{asked}, but max_model_len is {self.max_model_len}. Shorten the prompt or lower max_tokens by "
                f"{total - self.max_model_len}."
            )
        # The last generated token is never fed back, so it needs no KV.
        needed = self.blocks.blocks_for(total - 1)
        if needed > self.blocks.num_blocks:
            raise RefusedError(
                f"{asked}, whose KV needs {needed} blocks of {self.blocks.block_size}, but the whole pool has "
                f"{self.blocks.num_blocks} ({self.blocks.num_tokens} tokens). Raise --kv-cache-tokens or ask for less."
            )

    def add(self, request: Request) -> None:
        """Queue a request. RefusedError when it can never run; ValueError when its key is in use."""
        self.check_admission(request.num_prompt_tokens, request.max_tokens)
        if request.key in self._live:
            raise ValueError(f"request key {request.key} is in use")
        self._live[request.key] = request
        self.waiting.append(request)

    def schedule(self) -> StepPlan:
        """Choose the next step's tokens and give them their blocks. Empty only when nothing is queued or running."""
        plan = StepPlan()
        budget = self._plan_decodes(plan, self.max_num_batched_tokens)
        budget = self._plan_chunks(plan, budget)
        if not plan.preempted:  # a victim must not come back in the very step that took its blocks
            self._admit(plan, budget)
        return plan

    def commit(self, plan: StepPlan, new_tokens: Sequence[int]) -> list[Request]:
        """Record a computed step. `new_tokens` has one token for each item that samples, in the order of the plan.

        Returns the requests that got a token; those that finished have a `finish_reason` and hold no blocks.
        """
        advanced = []
        tokens = iter(new_tokens)
        for item in plan.items:
            request = item.request
            samples = item.samples
            request.num_computed = item.end
            if samples:
                token = next(tokens)
                request.tokens.append(token)
                if token in request.sampling.stop_ids:
                    request.finish_reason = "stop"
                elif request.num_output_tokens == request.max_tokens:
                    request.finish_reason = "length"
                advanced.append(request)
        for request in advanced:
            if request.finish_reason is not None:
                self._remove(request)
        return advanced

    def abort(self, key: int) -> bool:
        """End a request in whatever state it is; False when it is unknown or over. Only between steps."""
        request = self._live.get(key)
        if request is None:
            return False
        request.finish_reason = "abort"
        self._remove(request)
        return True

    @property
    def has_work(self) -> bool:
        """True while a request is queued or running."""
        return bool(self._live)

    @property
    def live_keys(self) -> list[int]:
        """Keys of all queued and running requests."""
        return list(self._live)

    @property
    def tokens_held(self) -> int:
        """Tokens whose KV is in the pool."""
        return sum(request.num_computed for request in self.running)

    def check_integrity(self) -> None:
        """Raise unless queue, running set and blocks agree (used after every step in tests)."""
        self.blocks.check_integrity(request.block_table for request in self.running)
        order = [request.key for request in (*self.running, *self.waiting)]
        if order != sorted(order) or sorted(self._live) != order:
            raise RuntimeError(f"queues out of order or incomplete: {order} of {sorted(self._live)}")
        for request in self.waiting:
            if request.block_table or request.num_computed:
                raise RuntimeError(f"queued request {request.key} holds blocks")

    def _plan_decodes(self, plan: StepPlan, budget: int) -> int:
        """Requests with one token left, oldest first. May preempt, but only requests that are not planned yet."""
        for request in [request for request in self.running if request.num_left == 1]:
            if budget == 0 or request in plan.preempted:
                break  # the rest is younger, so preempted as well
            if self._make_room(request, plan):
                plan.items.append(Scheduled(request, request.num_computed, 1))
                budget -= 1
        return budget

    def _plan_chunks(self, plan: StepPlan, budget: int) -> int:
        """The next prompt chunk of running requests; their blocks are there since admission."""
        for request in self.running:
            if budget > 0 and request.num_left > 1:
                budget -= self._plan_chunk(plan, request, budget)
        return budget

    def _admit(self, plan: StepPlan, budget: int) -> None:
        """Queued requests in order of arrival. One that finds no blocks holds up those behind it (no overtaking)."""
        while budget > 0 and self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            if not self.blocks.grow(request.block_table, request.num_tokens):
                break
            self.running.append(self.waiting.popleft())
            budget -= self._plan_chunk(plan, request, budget)

    def _plan_chunk(self, plan: StepPlan, request: Request, budget: int) -> int:
        count = min(request.num_left, budget)
        plan.items.append(Scheduled(request, request.num_computed, count))
        return count

    def _make_room(self, request: Request, plan: StepPlan) -> bool:
        """Blocks for the request's next token, at the cost of the youngest. False when it was the youngest itself."""
        while not self.blocks.grow(request.block_table, request.num_tokens):
            victim = self.running[-1]
            self._preempt(victim)
            plan.preempted.append(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        """Back to the head of the queue, to be computed again from its first token."""
        self.running.pop()
        self._release(request)
        request.num_computed = 0
        request.preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(request)

    def _remove(self, request: Request) -> None:
        del self._live[request.key]
        if request.block_table:
            self.running.remove(request)
            self._release(request)
        else:
            self.waiting.remove(request)

    def _release(self, request: Request) -> None:
        self.blocks.free(request.block_table)
        request.block_table.clear()
