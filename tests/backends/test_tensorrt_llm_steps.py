"""TensorRT-LLM's iteration lines: three versions' wording, what they hold, and when each step ended by whole seconds alone."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backends.tensorrt_llm_steps import logged_steps
from results.clock import NS_PER_S
from results.logged_steps import LoggedSteps
from tests.backends.damage import damaged

NOW = 1_784_721_600  # 2026-07-22 12:00:00 UTC
STATES = "states = {'num_ctx_requests': 1, 'num_ctx_tokens': 24, 'num_generation_tokens': 2}"
STAMP = "timestamp = 2026-07-22 11:59:58"
HEAD = "[07/22/2026-11:59:58] [TRT-LLM] [I] iter = 12, global_rank = 0, rank = 0, "
LINES = {
    "1.0": f"{HEAD}currank_total_requests = 1/1, elapsed_time = 0.005s, {STAMP}, num_scheduled_requests: 3, {STATES}",
    "1.2": f"{HEAD}currank_total_requests = 1/1, host_step_time = 5.0ms, prev_device_step_time = N/A, {STAMP}, "
    f"num_scheduled_requests: 3, {STATES}",
    "main": f"{HEAD}num_scheduled_requests = 3, kv_cache_util = 0.100, currank_total_requests = 1/1, host_step_time = 5.0ms, "
    f"prev_device_step_time = 4.9ms, {STAMP}, {STATES}",
}


def at(seconds: float, zone: int = 0) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds + zone, datetime.UTC):%Y-%m-%d %H:%M:%S}"


def line(
    number: int, end: float, host_ms: float, prompts: int = 0, decodes: int = 4, zone: int = 0, device: str = "N/A"
) -> str:
    states = {"num_ctx_requests": prompts, "num_ctx_tokens": 30 * prompts, "num_generation_tokens": decodes}
    return (
        f"[TRT-LLM] [I] iter = {number}, global_rank = 0, rank = 0, currank_total_requests = 1/1, host_step_time = {host_ms}ms, "
        f"prev_device_step_time = {device}, timestamp = {at(end, zone)}, num_scheduled_requests: {prompts + decodes}, states = {states}"
    )


def told(lines: list[str], now: float = NOW) -> LoggedSteps:
    found = logged_steps(lines, int(now * NS_PER_S))
    assert isinstance(found, LoggedSteps), found
    return found


def loop(times_ms: list[float], cost_ms: float = 0.0, zone: int = 0) -> tuple[list[str], list[float]]:
    """Lines of a loop that ends about now, and when each was written."""
    end, lines, ends = NOW - sum(times_ms) / 1000 - len(times_ms) * cost_ms / 1000, [], []
    for number, took in enumerate(times_ms):
        end += took / 1000
        ends.append(end)
        lines.append(line(number, end, took, zone=zone))
        end += cost_ms / 1000
    return lines, ends


@pytest.mark.parametrize("version", LINES)
def test_every_versions_wording_is_understood(version: str) -> None:
    one = LINES[version]
    lines = [
        one.replace("iter = 12", f"iter = {n}").replace(STAMP, f"timestamp = {at(NOW - 5 + n * 0.005)}")
        for n in range(1000)
    ]
    steps = told(lines)
    assert steps.step == list(range(1000))
    assert (steps.prefills[0], steps.prefill_tokens[0], steps.decodes[0]) == (1, 24, 2)
    assert np.allclose(np.diff(steps.end), 5e6, rtol=0.02)


def test_the_devices_time_belongs_to_the_step_before_and_empty_rounds_only_tell_when_the_next_began() -> None:
    lines = [line(n, NOW - 4 + 0.01 * (n + 1), 10, decodes=4, device=f"{n}.5ms") for n in range(400)]
    lines[200] = line(200, NOW - 4 + 2.01, 10, decodes=0, device="200.5ms")
    steps = told(lines)
    assert 200 not in steps.step
    assert steps.device_ns[:3] == [1_500_000, 2_500_000, 3_500_000]
    assert steps.device_ns[-1] is None
    after = steps.step.index(201)
    assert steps.before[after] == pytest.approx(steps.end[after - 1] + 10_000_000, abs=50_000, rel=0)


@given(
    times=st.lists(st.floats(1, 40), min_size=300, max_size=500),
    cost=st.floats(0, 1),
    zone=st.sampled_from([0, 7200, -34_200, 20_700]),
)
@settings(max_examples=25, deadline=None)
def test_ends_are_within_what_is_said_of_them_in_whatever_zone(times: list[float], cost: float, zone: int) -> None:
    # What the module takes for granted: with a larger part a cell of a second may fit a clock that is too slow.
    assume(cost * len(times) <= 0.25 * sum(times))
    lines, ends = loop(times, cost, zone)
    found = logged_steps(lines, NOW * NS_PER_S)
    if isinstance(found, str):
        # With steps of a few ms the whole cell may lie in a second or two.
        assert "whole seconds" in found
        return
    off = np.abs(np.array(found.end) / NS_PER_S - np.array(ends)).max()
    (uncertain,) = set(found.uncertain_ns)
    assert uncertain is not None
    assert off <= uncertain / NS_PER_S


def test_other_ranks_and_lines_that_lack_a_part_are_passed_over() -> None:
    lines, _ = loop([10.0] * 400)
    noise = [
        lines[5].replace("global_rank = 0", "global_rank = 1"),
        "iter = 5, broken",
        "Profiling started at iteration 5.",
    ]
    assert len(told([*lines[:9], *noise, *lines[9:]])) == 400
    assert len(told([])) == 0


BROKEN = [
    ("host_step_time = 10.0ms", "host_step_time = 5.0.5.0ms"),
    ("host_step_time = 10.0ms", "host_step_time = 1e999ms"),
    ("host_step_time = 10.0ms", "host_step_time = 1e17ms"),
    ("host_step_time = 10.0ms", "host_step_time = -ms"),
    ("timestamp = 2026-07", "timestamp = 2026-99"),
    ("timestamp = 2026", "timestamp = 0000"),
    ("iter = 5,", f"iter = {'9' * 5000},"),
]


@pytest.mark.parametrize(("part", "broken"), BROKEN)
def test_a_line_that_cannot_be_read_is_passed_over(part: str, broken: str) -> None:
    lines, _ = loop([10.0] * 400)
    assert part in lines[5]
    steps = told([*lines[:5], lines[5].replace(part, broken), *lines[6:]])
    assert steps.step == [*range(5), *range(6, 400)]


def test_a_time_of_the_device_that_cannot_be_read_is_not_told() -> None:
    lines = [line(n, NOW - 4 + 0.01 * (n + 1), 10, device="-ms" if n == 5 else f"{n}.5ms") for n in range(400)]
    assert told(lines).device_ns[3:6] == [4_500_000, None, 6_500_000]
    without = [lines[3], lines[4], *lines[6:]]
    assert told([*lines[:3], *without]).device_ns[3:6] == [4_500_000, None, 7_500_000], (
        "the next line's is of another step"
    )


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_lines_damaged_in_any_way_are_never_an_error_nor_steps_that_cannot_be(data: st.DataObject) -> None:
    found = logged_steps(damaged(data, loop([10.0] * 300)[0]), NOW * NS_PER_S)
    if isinstance(found, str):
        return
    began, ended = (NOW - 3) * NS_PER_S, NOW * NS_PER_S
    steps = found.within(began, ended)
    assert all(0 <= count < 2**31 for count in [*steps.prefills, *steps.prefill_tokens, *steps.decodes])
    assert all(began <= at <= ended for at in steps.end)
    assert steps.end == sorted(steps.end)
    assert all(took is None or 0 <= took <= 3600 * NS_PER_S for took in steps.device_ns)


def test_why_steps_cannot_be_told() -> None:
    def why(lines: list[str], now: float = NOW) -> str:
        found = logged_steps(lines, int(now * NS_PER_S))
        assert isinstance(found, str)
        return found

    lines, _ = loop([10.0] * 500)
    set_back = [*lines[:250], *(line(n, NOW - 60, 10) for n in range(250, 500))]
    assert "contradict each other" in why(set_back)
    within_a_second = [line(n, NOW - 0.8 + 0.01 * n, 10) for n in range(30)]
    assert "known to" in why(within_a_second)
    assert "in any zone" in why(lines, NOW + 40 * 86_400)
