"""The scheduler: which tokens of which requests the next step computes. Knows no tensors.

There are no phases. Each request has tokens (prompt + output) of which `num_computed` have their KV in the pool; a step
gives every scheduled request some of the rest, and whoever catches up gets a new token:

      tokens   | computed before | this step (count) | left for later |
               0            num_computed         +count         num_tokens

A prompt chunk, a decode (one token left), the return of a preempted request, a prompt whose beginning the prefix cache
holds, and an engine without KV cache (nothing is ever computed before) are this one case. Order within one token
budget: decodes, then chunks of requests already running, then the queue, all first come first served. A queued request
enters only with blocks for all its known tokens, so a chunk never lacks a block; only growth past a block edge can.
Then the youngest running request gives its blocks back and computes again later. The oldest is never the victim of a
younger one and fits the pool alone (else it was refused), so somebody always gets on. Admission policies that reserve
(`policies`) promise a request its blocks to the end, and then nobody is preempted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from backends.reference.admission import refuse_impossible
from backends.reference.kv_cache import BlockManager
from backends.reference.policies import Policies
from backends.reference.request import Request, Scheduled, StepPlan


class Scheduler:
    """Queue, running set and token budget over one block manager. Called by the engine's owner only."""

    def __init__(
        self,
        blocks: BlockManager,
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policies: Policies | None = None,
    ) -> None:
        if max_num_seqs < 1 or max_num_batched_tokens < 1:
            raise ValueError(f"at least one request and one token a step, {max_num_seqs=} {max_num_batched_tokens=}")
        self.blocks = blocks
        self.max_model_len = max_model_len
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.policies = policies or Policies()
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in order of arrival
        self._live: dict[int, Request] = {}
        self._padding: list[Request] = []  # finished rows of a padded batch; they hold their blocks until it ends
        self._promised_blocks = 0
        self.num_preemptions = 0
        self.prefix_queries = 0  # tokens looked up in the prefix cache, and those found
        self.prefix_hits = 0

    def check_admission(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Raise RefusedError for what can never run, whatever else does."""
        refuse_impossible(self.blocks, self.max_model_len, num_prompt_tokens, max_tokens)

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
            budget = self._admit(plan, budget)
        self._plan_padding(plan, budget)
        return plan

    def commit(self, plan: StepPlan, new_tokens: Sequence[int]) -> list[Request]:
        """Record a computed step. `new_tokens` has one token for each item that samples, in the order of the plan.

        Returns the requests that got a token; those that finished have a `finish_reason` and hold no blocks.
        """
        advanced = []
        tokens = iter(new_tokens)
        keeps_kv, block_size = self.blocks.keeps_kv, self.blocks.block_size
        for item in plan.items:
            if item.is_padding:
                continue
            request, end = item.request, item.end
            samples = end == request.num_tokens
            if keeps_kv:
                request.num_computed = end
                if end >= (request.published + 1) * block_size:
                    self._publish(request)
            if samples:
                token = next(tokens)
                request.tokens.append(token)
                sampling, made = request.sampling, request.num_output_tokens
                if token in sampling.stop_ids and made > sampling.min_tokens:
                    request.finish_reason = "stop"
                elif made == request.max_tokens:
                    request.finish_reason = "length"
                advanced.append(request)
        for request in advanced:
            if request.finish_reason is not None:
                self._remove(request, pad=self.policies.batching.pads)
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
    def blocks_reserved(self) -> int:
        """Blocks that nobody else can have: promised to running requests or, without promises, those they hold."""
        return max(self._promised_blocks, self.blocks.num_allocated)

    def is_decode(self, item: Scheduled) -> bool:
        """True when the item is there for the token after a generated one; without a KV cache it computes them all."""
        if self.blocks.keeps_kv:
            return item.is_decode
        return not item.is_padding and item.request.num_output_tokens > 0

    @property
    def tokens_held(self) -> int:
        """Tokens of running requests whose KV is in the pool; one that several share (blocks full of them) counts once."""
        shared = self.blocks.num_shared * self.blocks.block_size
        return sum(request.num_computed for request in self.running) - shared

    def check_integrity(self) -> None:
        """Raise unless queue, running set and blocks agree (used after every step in tests)."""
        holders = [*self.running, *self._padding]
        self.blocks.check_integrity(request.block_table for request in holders)
        promised = sum(request.promised_blocks for request in holders)
        if promised != self._promised_blocks or promised > max(self.blocks.num_blocks, self.blocks.num_allocated):
            raise RuntimeError(f"{self._promised_blocks} blocks promised, {promised} to requests")
        if self._padding and not self.running:
            raise RuntimeError(f"{len(self._padding)} padding rows outlived their batch")
        order = [request.key for request in (*self.running, *self.waiting)]
        if order != sorted(order) or sorted(self._live) != order:
            raise RuntimeError(f"queues out of order or incomplete: {order} of {sorted(self._live)}")
        for request in self.waiting:
            if request.block_table or request.num_computed or request.is_running or request.promised_blocks:
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
        """The next prompt chunk of running requests, oldest first; their blocks are there since admission."""
        for request in self.running:
            if budget > 0 and request.num_left > 1:
                budget -= self._plan_chunk(plan, request, budget)
        return budget

    def _admit(self, plan: StepPlan, budget: int) -> int:
        """Queued requests in order of arrival. One that cannot enter holds up those behind it (no overtaking)."""
        batching = self.policies.batching
        if not self.waiting or not batching.is_open(self.running):
            return budget
        while self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            if batching.waits_for_budget() and budget == 0:
                break
            if not self._allocate(request, plan, budget):
                break
            self.running.append(self.waiting.popleft())
            request.is_running = True
            plan.admitted.append(request)
            budget -= self._plan_chunk(plan, request, budget)
        return budget

    def _allocate(self, request: Request, plan: StepPlan, budget: int) -> bool:
        """Give a queued request its promise and the blocks of its known tokens, shared where it can. All or nothing."""
        blocks, policies = self.blocks, self.policies
        promise = policies.admission.promise(request, self.max_model_len)
        promised = min(blocks.blocks_for(promise), blocks.num_blocks)
        if self._promised_blocks + promised > blocks.num_blocks:
            return False
        # One token at least is computed, for its logits; log probabilities of the prompt need all of it.
        shareable = 0 if request.sampling.prompt_logprobs is not None else (request.num_tokens - 1) // blocks.block_size
        hits, node = blocks.prefixes.match(request.tokens, shareable)
        cached = len(hits) * blocks.block_size
        if policies.batching.waits_for_budget() and not policies.chunking.take(request.num_tokens - cached, budget):
            return False
        if not blocks.allocate(request.block_table, request.num_tokens, hits):
            return False
        self._promised_blocks += promised
        request.promised_blocks = promised
        request.num_computed, request.published, request.prefix = cached, len(hits), node
        plan.cached_tokens += cached
        if not request.preemptions:
            self.prefix_queries += request.num_tokens
            self.prefix_hits += cached
        return True

    def _plan_chunk(self, plan: StepPlan, request: Request, budget: int) -> int:
        count = self.policies.chunking.take(request.num_left, budget)
        if count:
            plan.items.append(Scheduled(request, request.num_computed, count))
        return count

    def _plan_padding(self, plan: StepPlan, budget: int) -> None:
        """Finished rows of a padded batch: their last computed token once more (without KV cache, all of them)."""
        for request in self._padding:
            last = request.num_tokens - 1
            start = last - 1 if self.blocks.keeps_kv else 0
            if last - start <= budget:
                plan.items.append(Scheduled(request, start, last - start, is_padding=True))
                budget -= last - start

    def _make_room(self, request: Request, plan: StepPlan) -> bool:
        """Blocks for the request's next token, at the cost of the youngest. False when it was the youngest itself."""
        while not self.blocks.grow(request.block_table, request.num_tokens):
            if self._padding:
                self._release(self._padding.pop())
                continue
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
        request.preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(request)

    def _publish(self, request: Request) -> None:
        """Tell the prefix cache of the blocks that this step filled."""
        size, first = self.blocks.block_size, request.published
        full = request.num_computed // size
        filled = request.block_table[first:full]
        request.prefix = self.blocks.prefixes.publish(request.prefix, request.tokens, first * size, filled)
        request.published = full

    def _remove(self, request: Request, pad: bool = False) -> None:
        del self._live[request.key]
        if not request.is_running:
            self.waiting.remove(request)
            return
        self.running.remove(request)
        if pad:
            self._padding.append(request)
        else:
            self._release(request)
        if not self.running:  # the batch is over
            while self._padding:
                self._release(self._padding.pop())

    def _release(self, request: Request) -> None:
        """Take back all a request has of the pool."""
        self.blocks.free(request.block_table)
        request.block_table.clear()
        self._promised_blocks -= request.promised_blocks
        request.promised_blocks = request.num_computed = request.published = 0
        request.prefix = None
        request.is_running = False
