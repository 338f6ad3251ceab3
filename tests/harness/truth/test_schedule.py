"""A truth server's schedule: when what is due, by seed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.truth.schedule import Fault, Schedule
from results.errors import UnknownNameError, UsageError

_schedules = st.builds(
    Schedule,
    ttft_ms=st.floats(0, 1e4),
    gap_ms=st.floats(0, 1e3),
    tokens_per_chunk=st.integers(1, 9),
    jitter=st.floats(0, 1),
    seed=st.integers(0, 2**31),
)


@given(_schedules, st.integers(0, 10**6), st.integers(1, 60))
def test_times_never_fall_repeat_and_stay_within_the_jitter(schedule: Schedule, index: int, chunks: int) -> None:
    offsets = schedule.offsets(index, chunks)
    assert len(offsets) == chunks
    assert offsets == sorted(offsets)
    assert offsets == schedule.offsets(index, chunks)
    low, high = (1 - schedule.jitter) * 1e6, (1 + schedule.jitter) * 1e6
    assert low * schedule.ttft_ms - 1 <= offsets[0] <= high * schedule.ttft_ms + 1
    for a, b in itertools.pairwise(offsets):
        assert low * schedule.gap_ms - 2 <= b - a <= high * schedule.gap_ms + 2


def test_without_jitter_times_do_not_drift() -> None:
    assert Schedule(ttft_ms=100, gap_ms=10).offsets(0, 1001)[-1] == 10_100_000_000


def test_another_request_or_seed_has_other_times() -> None:
    schedule = Schedule(jitter=0.5)
    assert len({tuple(s.offsets(i, 5)) for s in (schedule, schedule.changed({"seed": 1})) for i in (0, 1)}) == 4


@given(st.integers(1, 500), st.integers(1, 40))
def test_tokens_fit_into_the_chunks(tokens: int, per_chunk: int) -> None:
    chunks = Schedule(tokens_per_chunk=per_chunk).chunks(tokens)
    assert (chunks - 1) * per_chunk < tokens <= chunks * per_chunk


def test_a_fault_comes_every_so_many_requests() -> None:
    schedule = Schedule(fault=Fault.RESET, fault_every=3)
    assert [schedule.fault_of(i) for i in range(6)] == [None, None, Fault.RESET] * 2


@pytest.mark.parametrize(
    "bad",
    [
        {"ttft_ms": -1},
        {"gap_ms": float("nan")},
        {"gap_ms": float("inf")},
        {"gap_ms": "10"},
        {"jitter": 1.1},
        {"tokens_per_chunk": 0},
        {"tokens_per_chunk": True},
        {"fault_every": 0},
        {"fault_after": -1},
        {"stall_s": None},
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(bad: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(bad))):
        Schedule().changed(bad)


@pytest.mark.parametrize("bad", [{"ttft": 1}, {"fault": "resett"}])
def test_an_unknown_name_is_refused_with_the_nearest(bad: dict[str, object]) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean"):
        Schedule().changed(bad)
