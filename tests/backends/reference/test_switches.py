"""The switches: legal combinations give the same tokens, others are refused, and each isolates its mechanism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.reference.config import read_model_config
from backends.reference.engine import Engine
from backends.reference.messages import Submit
from backends.reference.settings import parse_arguments, resolve
from backends.reference.switches import Switches, legal_combinations
from results.errors import UsageError
from results.schema import TRUTH_STEPS
from tests.backends.reference.hash_model import HashRunner, hash_engine, run_to_end
from tests.backends.reference.test_model import built, generate, random_prompts, save_llama

SMALL = {"vocab_size": 97, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}


class StepLog:
    """A truth log that keeps its steps."""

    def __init__(self) -> None:
        self.steps: list[dict[str, int]] = []

    def token(self, *row: Any) -> None:
        """Not needed here."""

    def scheduled(self, *row: Any) -> None:
        """Not needed here."""

    def step(self, *row: int) -> None:
        self.steps.append(dict(zip(TRUTH_STEPS.names, row, strict=True)))

    def close(self) -> None:
        """Nothing to close."""

    def total(self, column: str) -> int:
        return sum(step[column] for step in self.steps)

    def peak(self, column: str) -> int:
        return max(step[column] for step in self.steps)


def logged(switches: Switches, lengths: list[tuple[int, int]], **settings: int) -> StepLog:
    """Run requests of (prompt, output) tokens on the hash model."""
    engine = hash_engine(switches=switches, **settings)
    engine.truth = log = StepLog()
    for key, (prompt, output) in enumerate(lengths):
        engine.submit(Submit(key, f"r{key}", [(key * 31 + i) % 50 for i in range(prompt)], output))
    run_to_end(engine)
    return log


def test_every_legal_combination_gives_the_same_greedy_tokens(tmp_path: Path) -> None:
    save_llama(tmp_path, **SMALL)
    prompts = random_prompts((1, 16, 33, 40), SMALL["vocab_size"])
    prompts += [prompts[3][:20] + prompts[2][:9], prompts[2]]  # beginnings in common
    settings: dict[str, Any] = {"max_model_len": 56, "kv_cache_tokens": 120, "block_size": 8, "max_num_seqs": 4}
    expected = generate(built(tmp_path), prompts, 14)
    combinations = legal_combinations()
    hits = preemptions = 0
    for switches in combinations:
        budget = 17 if switches.chunked_prefill else 60
        tokens = 0 if switches.kv_cache == "off" else 120
        engine = built(
            tmp_path,
            **settings | {"kv_cache_tokens": tokens, "max_num_batched_tokens": budget, "switches": switches},
        )
        assert generate(engine, prompts, 14) == expected, switches
        hits += engine.engine.scheduler.prefix_hits
        preemptions += engine.engine.scheduler.num_preemptions
    assert hits > 0
    assert preemptions > 0
    assert len(combinations) == 4 * (3 + 2) * 2 + 3 * 2 + 3  # paged (not padded with prefixes), contiguous, no KV


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--kv-cache off --chunked-prefill", "--no-chunked-prefill"),
        ("--kv-cache off --prefix-caching", "nothing to share"),
        ("--batching static-pad --prefix-caching", "blocks that others share"),
        ("--kv-cache off --kv-layout contiguous", "nothing to lay out"),
        ("--kv-cache off --admission reserve-max", "no memory to reserve"),
        ("--kv-layout contiguous --prefix-caching", "cannot be shared"),
        ("--kv-layout contiguous --admission reserve-oracle", "itself reserves max_model_len"),
        ("--no-chunked-prefill --max-num-batched-tokens 100", "100 is less than the 512 tokens of the longest"),
        ("--batching static", "rgument --batching: invalid choice: 'static'"),
    ],
)
def test_switches_that_do_not_go_together_are_refused_with_the_reason(flags: str, reason: str, tiny_dir: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(parse_arguments([str(tiny_dir), "--max-model-len", "512", *flags.split()]), read_model_config(tiny_dir))
    assert reason in str(caught.value)


def test_without_kv_cache_prompts_are_whole_and_the_pool_is_empty(tiny_dir: Path) -> None:
    arguments = parse_arguments([str(tiny_dir), "--kv-cache", "off", "--max-model-len", "128"])
    settings = resolve(arguments, read_model_config(tiny_dir))
    assert (settings.kv_cache_tokens, settings.switches.chunked_prefill) == (0, False)
    log = logged(Switches(kv_cache="off", chunked_prefill=False), [(10, 5), (3, 5)])
    assert log.total("prefill_tokens") + log.total("decodes") == sum(range(10, 15)) + sum(range(3, 8))
    assert log.total("decodes") == 8  # each token but the first of its request
    assert log.peak("blocks_allocated") == log.peak("tokens_held") == log.peak("blocks_reserved") == 0


def test_contiguous_layout_reserves_the_longest_request_for_each() -> None:
    requests = [(20, 12)] * 8
    contiguous = logged(Switches(kv_layout="contiguous"), requests, num_blocks=25, block_size=4, max_model_len=40)
    assert contiguous.peak("running") == 2  # 25 blocks are two runs of ten, and five for nobody
    assert {step["blocks_allocated"] for step in contiguous.steps} <= {10, 20}
    paged = logged(Switches(), requests, num_blocks=25, block_size=4, max_model_len=40)
    assert paged.peak("running") > 2
    assert paged.peak("tokens_held") > contiguous.peak("tokens_held")


def test_reserving_admits_fewer_the_more_it_promises_and_never_preempts() -> None:
    requests = [(10, 17)] * 12
    running, preempted = {}, {}
    for name in ("on-demand", "reserve-oracle", "reserve-pow2", "reserve-max"):
        log = logged(Switches(admission=name), requests, num_blocks=32, block_size=4, max_model_len=60)
        running[name], preempted[name] = log.peak("running"), log.total("preempted")
        assert all(step["blocks_allocated"] <= step["blocks_reserved"] <= 32 for step in log.steps)
    # 26 tokens that need KV are 7 blocks, 10 + 32 are 11, and 60 are 15.
    assert running == {"on-demand": 10, "reserve-oracle": 4, "reserve-pow2": 2, "reserve-max": 2}
    assert preempted["on-demand"] > 0
    assert {preempted[name] for name in preempted if name != "on-demand"} == {0}


def test_promise_larger_than_the_pool_is_cut_to_it() -> None:
    log = logged(Switches(admission="reserve-pow2"), [(10, 17)] * 3, num_blocks=8, block_size=4, max_model_len=60)
    assert log.peak("running") == 1


@pytest.mark.parametrize("batching", ["static-drop", "static-pad"])
def test_static_batch_takes_nobody_in_before_all_in_it_finished(batching: str) -> None:
    lengths = [(5, 3), (5, 9), (40, 4), (5, 2), (5, 6)]
    engine = hash_engine(switches=Switches(batching=batching), max_num_seqs=3, max_num_batched_tokens=16, block_size=4)
    engine.truth = log = StepLog()
    for key, (prompt, output) in enumerate(lengths):
        engine.submit(Submit(key, f"r{key}", [key] * prompt, output))
    last_step = {key: max(token.step for token in tokens) for key, tokens in run_to_end(engine).items()}
    first_step = first_steps(engine)
    assert min(first_step[3], first_step[4]) == max(last_step[key] for key in (0, 1, 2)) + 1
    if batching == "static-pad":
        assert log.total("padding_tokens") > 0
        assert log.total("decodes") == sum(output - 1 for _, output in lengths)  # padding is not counted as decoding
    else:
        assert log.total("padding_tokens") == 0
    assert log.total("prefill_tokens") == sum(prompt for prompt, _ in lengths)


def test_padding_gives_way_before_anybody_is_preempted() -> None:
    # The first ends early with two blocks, and the second comes to need six of the seven.
    log = logged(Switches(batching="static-pad"), [(4, 2), (4, 20)], num_blocks=7, block_size=4, max_model_len=28)
    assert log.total("padding_tokens") > 0
    assert log.total("preempted") == 0


def first_steps(engine: Engine) -> dict[int, int]:
    assert isinstance(engine.runner, HashRunner)
    found: dict[int, int] = {}
    for number, batch in enumerate(engine.runner.batches):
        for key, _, _ in batch:
            found.setdefault(key, number)
    return found


def test_continuous_batching_needs_fewer_steps_where_lengths_differ() -> None:
    lengths = [(5, 4 + 40 * (key % 2)) for key in range(8)]
    steps = {
        batching: len(logged(Switches(batching=batching), lengths, max_num_seqs=2).steps)
        for batching in ("continuous", "static-drop")
    }
    assert steps["continuous"] < 0.7 * steps["static-drop"]


def test_whole_prompts_share_a_step_with_decodes_but_are_never_cut() -> None:
    lengths = [(5, 30), (90, 3), (90, 3)]
    log = logged(Switches(chunked_prefill=False), lengths, max_num_batched_tokens=100, max_model_len=100)
    assert [step["prefill_tokens"] for step in log.steps if step["prefill_tokens"]] == [95, 90]
    assert any(step["prefill_tokens"] and step["decodes"] for step in log.steps)
