"""The owner thread: commands from outside, one message a step, and what happens when a step fails."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from backends.reference.engine import Engine, EngineThread
from backends.reference.messages import Abort, Failed, StepOutput, Submit
from backends.reference.owner import OwnerThread
from backends.reference.request import Scheduled
from backends.reference.runner import StepResult
from tests.backends.reference.hash_model import HashRunner, expected_output, hash_engine
from tests.waiting import LONG_S


class Owner:
    """An engine thread whose messages land in queues."""

    def __init__(self, engine: Engine) -> None:
        self.messages: queue.SimpleQueue[StepOutput] = queue.SimpleQueue()
        self.deaths: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        self.thread = EngineThread(engine, OwnerThread(), self.messages.put, self.deaths.put)

    def next(self) -> StepOutput:
        return self.messages.get(timeout=LONG_S)


def test_one_message_a_step_holds_the_tokens_of_all_requests() -> None:
    owner = Owner(hash_engine())
    prompts = {key: [key, 1, 2] for key in range(3)}
    for key, prompt in prompts.items():
        owner.thread.send(Submit(key, f"r{key}", prompt, 10))
    made: dict[int, list[int]] = {key: [] for key in prompts}
    finished, messages = 0, 0
    while finished < 3:
        output = owner.next()
        messages += 1
        assert len({token.step for token in output.tokens}) == 1
        for token in output.tokens:
            made[token.key].append(token.token)
            finished += token.finish_reason == "length"
    assert made == {key: expected_output(prompt, 10) for key, prompt in prompts.items()}
    assert owner.thread.stop(LONG_S)
    assert messages == owner.thread.engine.num_steps


def test_abort_gives_the_blocks_back_at_the_next_step_boundary() -> None:
    owner = Owner(hash_engine(max_model_len=10**6, num_blocks=10**5))
    owner.thread.send(Submit(0, "long", [1], 10**5))
    owner.next()
    owner.thread.send(Abort(0))
    owner.thread.send(Abort(0))
    owner.thread.send(Submit(1, "next", [2], 3))
    while True:
        keys = {token.key for token in owner.next().tokens}
        if 1 in keys:
            break
    assert keys == {1}  # the aborted one is not in the step that the next one enters
    assert owner.thread.stop(LONG_S)
    assert owner.thread.engine.scheduler.blocks.num_allocated in (0, 1)


class Held(HashRunner):
    """A model whose every step lasts until it is let go."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.begun, self.let_go = threading.Semaphore(0), threading.Semaphore(0)

    def run(self, items: Sequence[Scheduled]) -> StepResult:
        self.begun.release()
        assert self.let_go.acquire(timeout=LONG_S)
        return super().run(items)


def test_counts_tell_of_the_step_under_way_and_of_what_came_meanwhile() -> None:
    engine = hash_engine()
    held = engine.runner = Held(16)
    owner = Owner(engine)
    owner.thread.send(Submit(0, "a", [1, 2], 3))
    assert held.begun.acquire(timeout=LONG_S)
    assert (owner.thread.stats.running, owner.thread.stats.waiting) == (1, 0)
    owner.thread.send(Submit(1, "b", [3], 3))
    owner.thread.send(Submit(2, "c", [4], 3))
    owner.thread.send(Abort(7))
    assert (owner.thread.stats.running, owner.thread.stats.waiting) == (1, 2)
    held.let_go.release()
    assert held.begun.acquire(timeout=LONG_S)
    assert (owner.thread.stats.running, owner.thread.stats.waiting) == (3, 0)
    held.let_go.release(100)
    while engine.scheduler.has_work:
        owner.next()
    assert owner.thread.stop(LONG_S)
    assert (owner.thread.stats.running, owner.thread.stats.waiting) == (0, 0)


def test_request_that_can_never_run_is_answered_and_the_engine_goes_on() -> None:
    owner = Owner(hash_engine(max_model_len=32))
    owner.thread.send(Submit(0, "long", [1] * 33, 5))
    owner.thread.send(Submit(1, "short", [1], 1))
    assert owner.next().failed == [
        Failed(
            0,
            "The prompt has 33 tokens and max_tokens is 5: 38 tokens, but max_model_len is 32. Shorten the prompt or "
            "lower max_tokens by 6.",
        )
    ]
    assert [token.key for token in owner.next().tokens] == [1]
    assert owner.thread.stop(LONG_S)


class BrokenRunner:
    def run(self, items: Sequence[Scheduled]) -> StepResult:
        raise RuntimeError("out of luck")


def test_failed_step_tells_every_request_and_ends_the_thread() -> None:
    engine = hash_engine()
    engine.runner = BrokenRunner()
    owner = Owner(engine)
    owner.thread.send(Submit(0, "r", [1], 5))
    assert owner.next().failed == [Failed(0, "The engine failed: out of luck")]
    assert str(owner.deaths.get(timeout=LONG_S)) == "out of luck"
    assert owner.thread.stop(LONG_S)
