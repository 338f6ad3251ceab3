"""Scheduling on the hash model: order, budget, chunks, preemption, admission, abort."""

from __future__ import annotations

import pytest

from backends.reference.admission import RefusedError
from backends.reference.engine import Engine
from backends.reference.messages import Sampling, Submit
from backends.reference.truth import NoTruth
from tests.backends.reference.hash_model import HashRunner, expected_output, hash_engine, run_to_end


def submit(engine: Engine, key: int, prompt_len: int, max_tokens: int) -> list[int]:
    prompt = [(key * 31 + i) % 50 for i in range(prompt_len)]
    engine.submit(Submit(key, f"r{key}", prompt, max_tokens))
    return prompt


def batches(engine: Engine) -> list[list[tuple[int, int, int]]]:
    assert isinstance(engine.runner, HashRunner)
    return engine.runner.batches


def outputs(engine: Engine) -> dict[int, list[int]]:
    return {key: [token.token for token in tokens] for key, tokens in run_to_end(engine).items()}


@pytest.mark.parametrize("chunk", [1, 15, 16, 17, 32, 500])
@pytest.mark.parametrize("prompt_len", [1, 15, 16, 17, 31, 32, 33, 64])
def test_prompt_in_chunks_gives_the_same_output_whatever_the_chunk(prompt_len: int, chunk: int) -> None:
    engine = hash_engine(max_num_batched_tokens=chunk)
    prompt = submit(engine, 0, prompt_len, 20)
    assert outputs(engine)[0] == expected_output(prompt, 20)
    assert engine.scheduler.blocks.num_free == 1000


def test_decodes_go_first_and_a_long_prompt_takes_what_is_left_of_the_budget() -> None:
    engine = hash_engine(max_num_batched_tokens=10)
    submit(engine, 0, 4, 10)
    engine.step()
    submit(engine, 1, 30, 5)
    submit(engine, 2, 4, 5)
    for _ in range(4):
        engine.step()
    assert batches(engine)[1:5] == [
        [(0, 4, 1), (1, 0, 9)],
        [(0, 5, 1), (1, 9, 9)],
        [(0, 6, 1), (1, 18, 9)],
        [(0, 7, 1), (1, 27, 3), (2, 0, 4)],  # the last chunk leaves room for the next prompt
    ]


def test_no_step_exceeds_the_token_budget_or_the_number_of_requests() -> None:
    engine = hash_engine(max_num_batched_tokens=24, max_num_seqs=5)
    for key in range(20):
        submit(engine, key, 1 + key * 7 % 60, 12)
    run_to_end(engine)
    assert max(sum(count for _, _, count in batch) for batch in batches(engine)) == 24
    assert max(len(batch) for batch in batches(engine)) == 5


def test_a_request_that_finds_no_blocks_is_not_overtaken_and_is_served() -> None:
    engine = hash_engine(num_blocks=10, block_size=16)
    submit(engine, 0, 60, 20)
    engine.step()
    submit(engine, 1, 140, 5)  # nine blocks: waits for the first to end
    submit(engine, 2, 5, 5)
    first_steps = {}
    for number, batch in enumerate(batches_after_all(engine)):
        for key, _, _ in batch:
            first_steps.setdefault(key, number)
    assert first_steps[0] < first_steps[1] <= first_steps[2]


def batches_after_all(engine: Engine) -> list[list[tuple[int, int, int]]]:
    run_to_end(engine)
    return batches(engine)


@pytest.mark.parametrize("requests", [2, 8])
def test_requests_that_outgrow_the_pool_together_all_finish(requests: int) -> None:
    engine = hash_engine(num_blocks=20, block_size=16)
    prompts = [submit(engine, key, 100, 200) for key in range(requests)]
    made = run_to_end(engine, max_steps=2000)
    for key, prompt in enumerate(prompts):
        assert [token.token for token in made[key]] == expected_output(prompt, 200)
        assert [token.index for token in made[key]] == list(range(200))
    assert engine.scheduler.num_preemptions > 0
    assert engine.stats().preemptions == engine.scheduler.num_preemptions
    assert engine.scheduler.blocks.num_free == 20


class Queue(NoTruth):
    """A truth log that keeps who left the queue, and in which step."""

    def __init__(self) -> None:
        self.left: list[tuple[str, int]] = []

    def scheduled(self, request_id: str, step: int, start: int) -> None:
        self.left.append((request_id, step))


def test_leaving_the_queue_is_told_once_however_often_a_request_was_preempted() -> None:
    engine = hash_engine(num_blocks=20, block_size=16, max_num_seqs=4)
    engine.truth = queue = Queue()
    for key in range(8):
        submit(engine, key, 100, 200)
    run_to_end(engine, max_steps=2000)
    assert engine.scheduler.num_preemptions > 0
    assert [request_id for request_id, _ in queue.left] == [f"r{key}" for key in range(8)]
    steps = [step for _, step in queue.left]
    assert steps == sorted(steps)
    # A pool of 20 blocks has room for the prompts of two (7 each): the rest waits.
    assert steps[0] == 0 < steps[-1]


def test_the_oldest_request_is_never_preempted() -> None:
    engine = hash_engine(num_blocks=20, block_size=16)
    for key in range(4):
        submit(engine, key, 100, 200)
    alive = engine.scheduler
    preempted = 0
    while alive.has_work:
        oldest = alive.live_keys[0]
        plan = alive.schedule()
        preempted += len(plan.preempted)
        assert oldest not in [request.key for request in plan.preempted]
        assert all(victim.key > running.key for victim in plan.preempted for running in alive.running)
        alive.commit(plan, engine.runner.run(plan.items).tokens)
        alive.check_integrity()
    assert preempted > 0


@pytest.mark.parametrize("edge", range(30, 36))
def test_preemption_around_a_block_edge_does_not_change_the_output(edge: int) -> None:
    """Two requests share a pool with room for one and a half; the younger is preempted after about `edge` tokens."""
    engine = hash_engine(num_blocks=6, block_size=16, max_num_batched_tokens=20)
    prompts = [submit(engine, 0, edge, 96 - edge), submit(engine, 1, 16, 60)]
    made = outputs(engine)
    for key, (prompt, length) in enumerate(zip(prompts, (96 - edge, 60), strict=True)):
        assert made[key] == expected_output(prompt, length)
    assert engine.scheduler.num_preemptions > 0


def test_thrashing_is_told_in_the_log_but_does_not_flood_it(caplog: pytest.LogCaptureFixture) -> None:
    engine = hash_engine(num_blocks=20, block_size=16)
    for key in range(8):
        submit(engine, key, 100, 200)
    run_to_end(engine)
    preemptions = engine.scheduler.num_preemptions
    warnings = [record.getMessage() for record in caplog.records if "raise --kv-cache-tokens" in record.getMessage()]
    assert 1 <= len(warnings) <= preemptions.bit_length()


def test_prompt_tokens_are_counted_once_although_computed_again() -> None:
    engine = hash_engine(num_blocks=20, block_size=16)
    for key in range(4):
        submit(engine, key, 100, 100)
    run_to_end(engine)
    assert engine.scheduler.num_preemptions > 0
    assert engine.stats().prompt_tokens == 400
    assert engine.stats().generated_tokens == 400


def test_what_can_never_fit_is_refused_at_once_with_the_arithmetic_and_holds_up_nobody() -> None:
    engine = hash_engine(num_blocks=50, block_size=16, max_model_len=4096)
    with pytest.raises(
        RefusedError, match=r"900 tokens and max_tokens is 1: 901 .* 57 blocks of 16.* has 50 \(800 tok"
    ):
        submit(engine, 1, 900, 1)
    with pytest.raises(RefusedError, match="700 tokens and max_tokens is 200: 900"):
        submit(engine, 2, 700, 200)
    for key in range(3, 11):
        submit(engine, key, 20, 5)
    assert sorted(outputs(engine)) == list(range(3, 11))


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "fits"), [(33, 1, False), (32, 1, False), (31, 1, True), (31, 2, False), (1, 31, True)]
)
def test_edges_of_the_model_length(prompt_len: int, max_tokens: int, fits: bool) -> None:
    engine = hash_engine(max_model_len=32)
    if fits:
        prompt = submit(engine, 0, prompt_len, max_tokens)
        assert outputs(engine)[0] == expected_output(prompt, max_tokens)
    else:
        with pytest.raises(RefusedError, match="max_model_len is 32"):
            submit(engine, 0, prompt_len, max_tokens)
        assert not engine.scheduler.has_work


def test_request_that_fills_the_pool_exactly_is_served() -> None:
    engine = hash_engine(num_blocks=4, block_size=8)
    prompt = submit(engine, 0, 20, 13)  # 33 tokens, of which the last needs no slot
    assert outputs(engine)[0] == expected_output(prompt, 13)
    with pytest.raises(RefusedError):
        submit(engine, 1, 20, 14)


@pytest.mark.parametrize(("prompt_len", "max_tokens"), [(0, 1), (1, 0), (1, -1)])
def test_empty_prompts_and_outputs_are_refused(prompt_len: int, max_tokens: int) -> None:
    with pytest.raises(RefusedError, match="at least 1"):
        submit(hash_engine(), 0, prompt_len, max_tokens)


def test_abort_is_harmless_in_every_state_and_gives_all_blocks_back() -> None:
    engine = hash_engine(num_blocks=64, block_size=16, max_num_batched_tokens=32, max_num_seqs=2)
    scheduler = engine.scheduler
    submit(engine, 0, 100, 5)
    submit(engine, 1, 10, 5)
    engine.abort(1)  # queued
    engine.step()
    engine.abort(0)  # between two chunks of its prompt
    assert scheduler.blocks.num_free == 64
    submit(engine, 2, 10, 5)
    engine.step()
    engine.abort(2)  # after its first token
    engine.abort(2)  # twice
    submit(engine, 3, 10, 1)
    engine.step()
    engine.abort(3)  # finished
    engine.abort(99)  # never there
    scheduler.check_integrity()
    assert not scheduler.has_work
    assert scheduler.blocks.num_free == 64


def test_abort_of_a_preempted_request() -> None:
    engine = hash_engine(num_blocks=20, block_size=16)
    for key in range(2):
        submit(engine, key, 100, 200)
    while not engine.scheduler.num_preemptions:
        engine.step()
    engine.abort(1)
    assert list(run_to_end(engine)) == [0]
    assert engine.scheduler.blocks.num_free == 20


def test_a_key_in_use_is_an_error_and_the_first_request_goes_on() -> None:
    engine = hash_engine()
    prompt = submit(engine, 0, 5, 5)
    with pytest.raises(ValueError, match="in use"):
        submit(engine, 0, 5, 5)
    assert outputs(engine)[0] == expected_output(prompt, 5)


def test_stop_token_ends_a_request_with_that_token_and_reason_stop() -> None:
    engine = hash_engine()
    prompt = [1, 2, 3]
    stop = frozenset({expected_output(prompt, 9)[8]})
    engine.submit(Submit(0, "r", prompt, 50, Sampling(stop_ids=stop)))
    made = run_to_end(engine)[0]
    assert [token.token for token in made] == expected_output(prompt, 50, stop)
    assert [token.finish_reason for token in made] == [None] * (len(made) - 1) + ["stop"]


def test_minimum_of_output_tokens_still_counts_from_the_prompt_after_preemption() -> None:
    """What was generated before a preemption is output when it is computed again, not a longer prompt."""
    prompts = [[(key * 31 + i) % 50 for i in range(40)] for key in range(4)]
    free = [expected_output(prompt, 100) for prompt in prompts]
    ends = [max(free[key].index(token) for token in set(free[key])) for key in range(4)]  # a token first seen late
    engine = hash_engine(num_blocks=16, block_size=16)
    for key, prompt in enumerate(prompts):
        stops = frozenset({free[key][0], free[key][20], free[key][ends[key]]})
        engine.submit(Submit(key, f"r{key}", prompt, 100, Sampling(stop_ids=stops, min_tokens=30)))
    made = run_to_end(engine)
    assert engine.scheduler.num_preemptions > 0
    for key in range(4):
        stops = {free[key][0], free[key][20], free[key][ends[key]]}
        end = next(i for i, token in enumerate(free[key]) if token in stops and i >= 30)
        assert [token.token for token in made[key]] == free[key][: end + 1]
        assert made[key][-1].finish_reason == "stop"
