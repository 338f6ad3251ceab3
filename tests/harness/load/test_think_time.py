"""A closed loop whose slots wait after each answer: a slower client, on purpose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load.build import mode_of
from harness.load.plan import ConcurrencyMode, RequestPlan
from harness.load.strategies import ClosedLoopStrategy
from harness.loads import ConcurrencyLoad
from tests.harness.load.test_strategies import LASTS, World


@given(st.lists(LASTS, min_size=1, max_size=30), st.integers(1, 5), st.integers(1, 400), st.integers(1, 40))
def test_each_slot_waits_that_long_and_everything_is_sent(lasts: list[int], slots: int, think: int, count: int) -> None:
    requests = [RequestPlan(f"r{i}", 1, 1, 0, 0) for i in range(count)]
    world = World(ClosedLoopStrategy(requests, slots, 0, think), lasts)
    world.play()
    assert world.order == list(range(count))
    free = dict.fromkeys(range(slots), 0)
    for now, due in world.sent:
        assert now >= due.intended == free[due.slot]
        free[due.slot] = now + lasts[due.index % len(lasts)] + think


def test_the_pause_is_carried_from_the_experiment_to_the_worker() -> None:
    mode = mode_of(ConcurrencyLoad(concurrency=2, requests=8, think_s=0.25), 8)
    assert mode == ConcurrencyMode(2, 250_000_000)
    assert mode_of(ConcurrencyLoad(concurrency=2, requests=8), 8) == ConcurrencyMode(2)


def test_a_load_without_it_is_named_as_before() -> None:
    assert "think_s" not in ConcurrencyLoad(concurrency=2, requests=8).model_dump()
    with pytest.raises(ValueError, match="greater than 0"):
        ConcurrencyLoad(concurrency=2, requests=8, think_s=0)
