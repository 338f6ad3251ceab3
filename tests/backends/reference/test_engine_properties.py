"""Arrivals, aborts and preemptions in any order: outputs stay exact, and every block comes back."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backends.reference.admission import RefusedError
from backends.reference.messages import NewToken, Sampling, Submit
from backends.reference.switches import Switches, legal_combinations
from tests.backends.reference.hash_model import VOCABULARY, expected_output, hash_engine, run_to_end

MODEL_LEN = 60


class EngineMachine(RuleBasedStateMachine):
    """Drives an engine over the hash model with a pool small enough to preempt."""

    @initialize(
        num_blocks=st.integers(2, 16),
        block_size=st.integers(1, 9),
        max_num_seqs=st.integers(1, 6),
        budget=st.integers(1, 40),
        switches=st.sampled_from(legal_combinations()),
    )
    def start(self, num_blocks: int, block_size: int, max_num_seqs: int, budget: int, switches: Switches) -> None:
        if switches.kv_layout == "contiguous":  # a pool of two to four runs
            num_blocks = max(2 * -(-MODEL_LEN // block_size), num_blocks)
        self.engine = hash_engine(num_blocks, block_size, MODEL_LEN, max_num_seqs, budget, switches)
        self.may_preempt = (switches.kv_layout, switches.kv_cache, switches.admission) == ("paged", "on", "on-demand")
        self.next_key = 0
        self.asked: dict[int, Submit] = {}
        self.made: dict[int, list[NewToken]] = {}
        self.aborted: set[int] = set()

    @rule(
        shared=st.integers(0, 30),
        prompt=st.lists(st.integers(0, VOCABULARY - 1), max_size=20),
        max_tokens=st.integers(1, 30),
        stops=st.booleans(),
    )
    def submit(self, shared: int, prompt: list[int], max_tokens: int, stops: bool) -> None:
        prompt = [*range(shared), *prompt]  # many begin alike
        stop_ids = frozenset(range(5)) if stops else frozenset()
        message = Submit(self.next_key, f"r{self.next_key}", prompt, max_tokens, Sampling(stop_ids=stop_ids))
        self.next_key += 1
        scheduler = self.engine.scheduler
        total = len(prompt) + max_tokens
        fits = scheduler.blocks.blocks_for(total - 1) <= scheduler.blocks.num_blocks and total <= MODEL_LEN
        try:
            self.engine.submit(message)
        except RefusedError:
            assert not prompt or not fits
            return
        assert prompt
        assert fits
        self.asked[message.key] = message
        self.made[message.key] = []

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        key = data.draw(st.integers(0, self.next_key))
        if self.engine.scheduler.abort(key):
            assert key not in self.aborted
            self.aborted.add(key)

    @precondition(lambda self: self.engine.scheduler.has_work)
    @rule(steps=st.integers(1, 8))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            if self.engine.scheduler.has_work:
                self.receive(self.engine.step())
                self.engine.scheduler.check_integrity()

    def receive(self, tokens: list[NewToken]) -> None:
        for token in tokens:
            assert token.key not in self.aborted
            assert token.index == len(self.made[token.key])
            self.made[token.key].append(token)

    @invariant()
    def accounts_balance(self) -> None:
        if hasattr(self, "engine"):
            self.engine.scheduler.check_integrity()
            scheduler = self.engine.scheduler
            assert self.may_preempt or scheduler.num_preemptions == 0
            slots = scheduler.blocks.num_allocated * scheduler.blocks.block_size
            assert 0 <= scheduler.tokens_held <= slots <= scheduler.blocks_reserved * scheduler.blocks.block_size

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for tokens in run_to_end(self.engine).values():
            self.receive(tokens)
        assert self.engine.scheduler.blocks.num_free == self.engine.scheduler.blocks.num_blocks
        for key, message in self.asked.items():
            expected = expected_output(message.prompt, message.max_tokens, message.sampling.stop_ids)
            made = [token.token for token in self.made[key]]
            assert made == (expected[: len(made)] if key in self.aborted else expected)


EngineMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestEngine = EngineMachine.TestCase
