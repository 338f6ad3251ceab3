"""Loads as a file names them: what is whole, what is refused, and what they plan."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from harness.loads import BatchLoad, ConcurrencyLoad, Load, RampLoad, RateLoad, ScheduleLoad

ADAPTER: TypeAdapter[Load] = TypeAdapter(Load)

WHOLE: list[dict[str, Any]] = [
    {"mode": "batch", "batch": 4, "waves": 3},
    {"mode": "batch", "batch": 4, "duration_s": 2.0},
    {"mode": "concurrency", "concurrency": 4, "requests": 8},
    {"mode": "concurrency", "concurrency": 4, "duration_s": 2.0},
    {"mode": "rate", "rate": 0.5, "arrival": "poisson", "requests": 3},
    {"mode": "rate", "rate": 5.0, "arrival": "constant", "duration_s": 2.0, "max_in_flight": 7},
    {"mode": "rate", "rate": 5.0, "arrival": "gamma", "burstiness": 0.5, "duration_s": 2.0, "requests": 4},
    {"mode": "ramp", "from_rate": 1.0, "to_rate": 8.0, "arrival": "poisson", "duration_s": 9.0},
    {"mode": "schedule", "times_s": [0.0, 0.5, 0.5, 2.0], "speed": 2.0},
    {"mode": "schedule", "speed": 1.0, "requests": 100},
]


@pytest.mark.parametrize("data", WHOLE, ids=lambda d: d["mode"])
def test_a_load_is_written_as_it_was_asked_and_nothing_else(data: dict[str, Any]) -> None:
    load = ADAPTER.validate_python(data)
    dumped = load.model_dump(mode="json")
    assert dumped == data
    assert next(iter(dumped)) == "mode"
    assert ADAPTER.validate_python(dumped) == load


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"mode": "rate", "rate": 0, "requests": 1}, "greater than 0"),
        ({"mode": "rate", "rate": -5, "requests": 1}, "greater than 0"),
        ({"mode": "rate", "rate": float("inf"), "requests": 1}, "finite"),
        ({"mode": "rate", "rate": float("nan"), "requests": 1}, "finite"),
        ({"mode": "rate", "rate": 1}, "needs requests or duration_s"),
        ({"mode": "rate", "rate": 1, "requests": 1, "arrival": "gamma"}, "burstiness"),
        ({"mode": "rate", "rate": 1, "requests": 1, "arrival": "gamma", "burstiness": 0}, "greater than or equal"),
        ({"mode": "rate", "rate": 1, "requests": 1, "arrival": "constant", "burstiness": 2}, "burstiness"),
        ({"mode": "rate", "rate": 1000, "duration_s": 86400}, "86,400,000 requests are more than one cell may hold"),
        ({"mode": "rate", "rate": 1, "requests": 1, "max_in_flight": 0}, "greater than 0"),
        ({"mode": "ramp", "from_rate": 1, "to_rate": 2}, "either requests or duration_s"),
        ({"mode": "ramp", "from_rate": 1, "to_rate": 2, "requests": 2, "duration_s": 2}, "either"),
        ({"mode": "ramp", "from_rate": 0, "to_rate": 2, "requests": 2}, "greater than 0"),
        ({"mode": "schedule", "times_s": [1.0, 0.5]}, "0.5 comes after 1.0"),
        ({"mode": "schedule", "times_s": [-1.0]}, "-1.0 is negative"),
        ({"mode": "schedule", "times_s": []}, "at least 1"),
        ({"mode": "schedule", "times_s": [0.0], "speed": 0}, "greater than 0"),
        ({"mode": "batch", "batch": 2}, "waves or duration_s"),
        ({"mode": "concurrency", "concurrency": 2}, "requests or duration_s"),
        ({"mode": "concurrency", "concurrency": 2, "duration_s": 0}, "greater than 0"),
    ],
)
def test_what_makes_no_load_is_refused_in_words(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ADAPTER.validate_python(data)


def test_a_schedule_is_played_faster_and_cut_at_its_end() -> None:
    times = (0.0, 1.0, 2.0, 3.0)
    assert ScheduleLoad(times_s=times, speed=2).arrivals(0) == [0, 500_000_000, 1_000_000_000, 1_500_000_000]
    assert ScheduleLoad(times_s=times, speed=2, duration_s=1).arrivals(0) == [0, 500_000_000]
    assert ScheduleLoad(times_s=times, requests=1).arrivals(0) == [0]
    assert ScheduleLoad().arrivals(0) is None
    assert (ScheduleLoad(times_s=times, speed=2).value, ScheduleLoad().value) == (2.0, None)


@given(st.floats(0.1, 500), st.floats(0.1, 20), st.integers(0, 2**32))
def test_a_rate_of_a_time_has_about_as_many_requests_as_it_says(rate: float, seconds: float, seed: int) -> None:
    load = RateLoad.of(rate, duration_s=seconds)
    times = load.arrivals(seed)
    assert all(0 <= t < seconds * 1e9 + 1 for t in times)
    # One at the start, and a Poisson number after it: beyond six deviations it would be another rate.
    mean = rate * seconds
    assert abs(len(times) - 1 - mean) <= 6 * mean**0.5 + 6
    assert abs(load.expected_requests - mean) <= 1


def test_defaults_of_the_loads() -> None:
    assert RateLoad.of(0.1).duration_s == 160
    assert RateLoad.of(4).duration_s == 60
    assert RampLoad.of(1, 3).expected_requests == 120
    assert BatchLoad.of(3, duration_s=5).waves is None
    assert ConcurrencyLoad.of(3, duration_s=5).requests is None
    assert ConcurrencyLoad.of(3, 9, 5).requests == 9


@pytest.mark.parametrize(
    ("load", "most"),
    [
        (RateLoad.of(0.2), 1),
        (RateLoad.of(8), 8),
        (RateLoad.of(900), 32),
        (RateLoad.of(900, max_in_flight=4), 4),
        (RampLoad.of(1, 6), 6),
        (ScheduleLoad(max_in_flight=2), 1),
        (ConcurrencyLoad.of(4), 4),
        (BatchLoad.of(16), 16),
    ],
)
def test_the_warm_up_sends_no_more_at_once_than_the_load_may(load: Any, most: int) -> None:
    assert load.in_flight == most


def test_a_closed_loop_that_ends_by_time_plans_more_requests_than_it_can_use() -> None:
    loop = ConcurrencyLoad.of(8, duration_s=10)
    # 8 slots, 64 tokens at a millisecond each and 5 ms: 1,160 in 10 s.
    assert 1100 < loop.ahead(100, 64) < 1200
    # Prompts of 100,000 tokens at half a million a second: 50, and the slots' own.
    assert loop.ahead(100_000, 64) == 50 + 16
    batch = BatchLoad.of(8, duration_s=10)
    assert batch.ahead(100, 64) % 8 == 0
    assert ConcurrencyLoad.of(8, 40, 10).ahead(100, 64) == 40
