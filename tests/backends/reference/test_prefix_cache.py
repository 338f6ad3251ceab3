"""Prefix caching on the hash model: what is shared, what is recomputed, and that answers never change."""

from __future__ import annotations

import pytest

from backends.reference.engine import Engine
from backends.reference.kv_cache import BlockManager
from backends.reference.messages import Sampling, Submit
from backends.reference.prefix_cache import PrefixCache
from backends.reference.scheduler import Scheduler
from backends.reference.switches import Switches
from tests.backends.reference.hash_model import HashRunner, expected_output, hash_engine, run_to_end

CACHING = Switches(prefix_caching=True)


def ask(engine: Engine, prompt: list[int], max_tokens: int = 5) -> tuple[list[int], int]:
    """The output, and how many prompt tokens were found in the cache."""
    before = engine.scheduler.prefix_hits
    key = engine.scheduler.prefix_queries * 1000 + engine.num_steps
    engine.submit(Submit(key, "r", prompt, max_tokens))
    made = [token.token for token in run_to_end(engine)[key]]
    return made, engine.scheduler.prefix_hits - before


@pytest.mark.parametrize(
    ("length", "found"), [(15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32), (48, 32), (100, 96)]
)
def test_repeated_prompt_is_found_but_for_its_last_token(length: int, found: int) -> None:
    engine = hash_engine(switches=CACHING)
    prompt = [i * 7 % 50 for i in range(length)]
    expected = expected_output(prompt, 5)
    assert ask(engine, prompt) == (expected, 0)
    assert ask(engine, prompt) == (expected, found)
    assert ask(engine, prompt) == (expected, found)
    assert engine.scheduler.prefix_queries == 3 * length


def test_tails_after_a_shared_beginning_and_a_continued_conversation() -> None:
    engine = hash_engine(switches=CACHING)
    begin = [i * 3 % 40 for i in range(70)]
    answer, _ = ask(engine, begin, 30)
    for tail in ([1, 2, 3], [4], [1, 2, 9]):
        assert ask(engine, begin + tail) == (expected_output(begin + tail, 5), 64)
    follow_up = begin + answer + [7, 7]  # generated tokens are shared as well: 99 of these 102 were computed
    assert ask(engine, follow_up) == (expected_output(follow_up, 5), 96)


def test_same_tokens_after_another_beginning_are_not_the_same_block() -> None:
    engine = hash_engine(switches=CACHING)
    a, b = [65] * 16, [321 % 61] * 16
    ask(engine, a + b + [1])
    assert ask(engine, b + a + [1]) == (expected_output(b + a + [1], 5), 0)
    assert ask(engine, a + a + [1])[1] == 16


@pytest.mark.parametrize("distinct", [1, 3])
def test_colliding_hashes_cost_hits_and_never_answers(distinct: int) -> None:
    blocks = BlockManager(40, 4, PrefixCache(4, hash_of=lambda parent, tokens: tokens[0] % distinct))
    engine = Engine(Scheduler(blocks, 200, 8, 30), HashRunner(4))
    for round_ in range(3):
        for begin in range(6):
            prompt = [begin] * 8 + list(range(round_ + 3))
            made, _ = ask(engine, prompt)
            assert made == expected_output(prompt, 5)


def test_equal_prompts_in_one_step_each_compute_and_leave_a_valid_cache() -> None:
    engine = hash_engine(num_blocks=20, switches=CACHING)
    prompt = list(range(40))
    for key in range(3):
        engine.submit(Submit(key, "r", prompt, 5))
    made = run_to_end(engine)
    assert engine.scheduler.prefix_hits == 0  # nothing is known before it is computed
    assert [[token.token for token in tokens] for tokens in made.values()] == [expected_output(prompt, 5)] * 3
    assert engine.scheduler.blocks.num_free == 20
    assert ask(engine, prompt)[1] == 32


def test_a_prompt_in_chunks_shares_what_is_computed_so_far() -> None:
    engine = hash_engine(max_num_batched_tokens=20, switches=CACHING)
    prompt = list(range(61))
    engine.submit(Submit(0, "first", prompt, 5))
    engine.step()
    engine.step()  # 40 tokens: two full blocks
    engine.submit(Submit(1, "second", prompt, 5))
    made = run_to_end(engine)
    assert engine.scheduler.prefix_hits == 48  # a third block was filled before the second got its turn
    assert [token.token for token in made[1]] == expected_output(prompt, 5)


def test_what_an_aborted_request_did_not_compute_is_not_shared() -> None:
    engine = hash_engine(max_num_batched_tokens=20, switches=CACHING)
    prompt = list(range(61))
    engine.submit(Submit(0, "first", prompt, 5))
    engine.step()
    engine.abort(0)
    assert ask(engine, prompt) == (expected_output(prompt, 5), 16)


def test_reused_blocks_are_forgotten() -> None:
    engine = hash_engine(num_blocks=8, switches=CACHING)
    prompts = [[number] * 50 for number in range(5)]
    for prompt in prompts * 2:
        assert ask(engine, prompt)[0] == expected_output(prompt, 5)
    assert ask(engine, prompts[-1])[1] == 48  # the latest is still there
    assert ask(engine, prompts[0])[1] == 0


def test_beginning_outlives_its_ends() -> None:
    engine = hash_engine(num_blocks=8, switches=CACHING)
    begin = list(range(32))
    ask(engine, begin + [50] * 40)
    ask(engine, [9] * 90)  # takes six of the eight blocks: the two that stay are the beginning
    assert ask(engine, [*begin, 60])[1] == 32


def test_preempted_request_finds_its_own_blocks_and_is_counted_once() -> None:
    engine = hash_engine(num_blocks=20, switches=CACHING)
    prompts = [[key] * 100 for key in range(4)]
    for key, prompt in enumerate(prompts):
        engine.submit(Submit(key, "r", prompt, 150))
    made = run_to_end(engine)
    assert engine.scheduler.num_preemptions > 0
    assert engine.scheduler.prefix_queries == 400
    for key, prompt in enumerate(prompts):
        assert [token.token for token in made[key]] == expected_output(prompt, 150)


def test_log_probabilities_of_a_prompt_need_all_of_it() -> None:
    engine = hash_engine(switches=CACHING)
    prompt = list(range(40))
    ask(engine, prompt)
    engine.submit(Submit(10**9, "r", prompt, 1, Sampling(prompt_logprobs=0)))
    run_to_end(engine)
    assert engine.scheduler.prefix_hits == 0


def test_tokens_that_several_requests_share_are_held_once() -> None:
    engine = hash_engine(switches=CACHING)
    begin = list(range(48))
    ask(engine, [*begin, 1])
    for key in range(3):
        engine.submit(Submit(10**9 + key, "r", [*begin, 50 + key], 9))
    engine.step()
    assert engine.scheduler.prefix_hits == 3 * 48
    assert engine.stats().tokens_held == 48 + 3
    assert engine.stats().blocks_allocated == 3 + 3
    run_to_end(engine)
    assert engine.stats().tokens_held == 0


@pytest.mark.parametrize("first", [[1, 2, 3, 4, 5, 5, 5, 5], [1, 2, 3, 4, 0]], ids=["other beginning", "other tokens"])
def test_block_of_the_right_hash_is_not_taken_for_another(first: list[int]) -> None:
    blocks = BlockManager(40, 4, PrefixCache(4, hash_of=lambda parent, tokens: 0))
    engine = Engine(Scheduler(blocks, 200, 8, 30), HashRunner(4))
    ask(engine, first, 1)  # the last block published is what every hash finds
    prompt = [5, 5, 5, 5, 9]
    assert ask(engine, prompt, 1) == (expected_output(prompt, 1), 0)
