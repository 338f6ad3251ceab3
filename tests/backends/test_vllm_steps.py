"""vLLM's lines of its steps: both places they have been written in, what they do not tell, and when none can be had."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.base import EngineSettings
from backends.server_log import lines_between, log_size
from backends.vllm_flags import STEP_LOG, translate, with_step_log
from backends.vllm_log import startup_phases
from backends.vllm_steps import STAMP_VARIABLE, logged_steps
from backends.vllm_version import Build
from results.clock import NS_PER_S
from results.logged_steps import LoggedSteps
from tests.backends.damage import damaged

CPU = ", CPU KV cache usage: 0.3%"


def line(
    at: str, number: int, context: tuple[int, int], generation: tuple[int, int], head: str = "", rest: str = CPU
) -> str:
    """As 0.32 writes it, from the API process."""
    return (
        f"{at}(APIServer pid=7) INFO 11-30 05:05:06 [loggers.py:203] {head or 'Engine 000: '}Iteration({number}): "
        f"{context[0]} context requests, {context[1]} context tokens, {generation[0]} generation requests, {generation[1]} "
        f"generation tokens, iteration elapsed time: 0.03 ms{rest}"
    )


def told(*lines: str) -> LoggedSteps:
    found = logged_steps(lines)
    assert isinstance(found, LoggedSteps), found
    return found


def test_a_line_tells_what_its_step_held_and_when_it_was_written() -> None:
    steps = told(
        line("1764479106.123456 ", 515, (1, 24), (20, 20)),
        "1764479106.130000 (APIServer pid=7) INFO 11-30 05:05:06 [loggers.py:310] Engine 000: Avg prompt throughput: 3.0 tokens/s",
        line("1764479106.223456 ", 516, (0, 0), (21, 21)),
    )
    assert steps.step == [515, 516]
    assert (steps.prefills, steps.prefill_tokens, steps.decodes) == ([1, 0], [24, 0], [20, 21])
    assert steps.end == [1_764_479_106_123_456_000, 1_764_479_106_223_456_000]
    assert steps.before == [None, steps.end[0]]


def test_older_versions_write_it_in_the_engine_with_their_process_in_front() -> None:
    steps = told(
        "(EngineCore_DP0 pid=20) 1764479107.000001 INFO 12-22 21:44:40 [core.py:349] Iteration(3): 0 context requests, 0 context "
        "tokens, 2 generation requests, 2 generation tokens, iteration elapsed time: 10.95 ms"
    )
    assert (steps.end, steps.decodes) == ([1_764_479_107_000_001_000], [2])


def test_what_a_preempted_request_computes_anew_is_prompt_again() -> None:
    steps = told(line("1764479106.123456 ", 1, (0, 0), (3, 130)))
    assert (steps.prefill_tokens, steps.decodes) == ([127], [3])


def test_a_dummy_step_is_none_and_a_clock_set_back_gives_no_negative_time() -> None:
    steps = told(
        line("1764479106.500000 ", 1, (1, 5), (0, 0)),
        line("1764479106.600000 ", 2, (0, 0), (0, 0), rest=" (dummy)" + CPU),
        line("1764479106.400000 ", 3, (0, 0), (1, 1)),
    )
    assert steps.step == [1, 3]
    within = steps.within(1_764_479_106 * NS_PER_S, 1_764_479_107 * NS_PER_S)
    assert within.end[1] == within.end[0] == within.before[1]


@pytest.mark.parametrize(
    ("part", "broken"),
    [
        ("24 context tokens", "1000000000000 context tokens"),
        ("24 context tokens", f"{'9' * 30} context tokens"),
        ("20 generation tokens", f"{'9' * 5000} generation tokens"),
        ("20 generation tokens", "5 generation tokens"),
        ("1 context requests", "25 context requests"),
        ("Iteration(2)", f"Iteration({'9' * 5000})"),
        ("1764479106.2", f"{'9' * 5000}.2"),
    ],
)
def test_a_line_of_what_no_step_holds_is_passed_over(part: str, broken: str) -> None:
    middle = line("1764479106.200000 ", 2, (1, 24), (20, 20))
    assert part in middle
    after = line("1764479106.300000 ", 3, (0, 0), (1, 1))
    steps = told(line("1764479106.100000 ", 1, (1, 24), (0, 0)), middle.replace(part, broken), after)
    assert steps.step == [1, 3]


def test_a_line_stamped_outside_the_cell_is_none_of_it_and_moves_no_other() -> None:
    lines = [
        line(f"{at}.000000 ", at, (0, 0), (1, 1)) for at in (1_764_479_106, 9_764_479_106, 1_764_479_107, 164_479_108)
    ]
    steps = told(*lines, line("1764479108.000000 ", 5, (0, 0), (1, 1))).within(
        1_764_479_105 * NS_PER_S, 1_764_479_110 * NS_PER_S
    )
    assert [at / NS_PER_S for at in steps.end] == [1_764_479_106, 1_764_479_107, 1_764_479_108]
    assert steps.before == [None, *steps.end[:2]]


@given(st.data())
def test_lines_damaged_in_any_way_are_never_an_error_nor_steps_that_cannot_be(data: st.DataObject) -> None:
    began = 1_764_479_106 * NS_PER_S
    lines = [line(f"1764479106.{n}00000 ", n, (n % 2, 8 * (n % 2)), (n, n)) for n in range(8)]
    found = logged_steps(damaged(data, lines))
    if isinstance(found, str):
        return
    steps = found.within(began, began + NS_PER_S)
    counts = [*steps.prefills, *steps.prefill_tokens, *steps.decodes]
    assert all(0 <= count < 2**31 for count in counts)
    assert all(began <= at <= began + NS_PER_S for at in steps.end)
    assert steps.end == sorted(steps.end)
    starts = [end if before is None else before for before, end in zip(steps.before, steps.end, strict=True)]
    assert all(start <= end for start, end in zip(starts, steps.end, strict=True))


def test_a_log_without_such_lines_tells_of_no_step() -> None:
    assert (
        len(told("1764479106.123456 (APIServer pid=7) INFO 11-30 05:05:06 [launcher.py:1] Available routes are:")) == 0
    )


def test_why_steps_cannot_be_told() -> None:
    assert STAMP_VARIABLE in str(logged_steps([line("", 1, (1, 5), (0, 0))]))
    beside = [line("1764479106.500000 ", n, (0, 0), (1, 1), f"Engine 00{n}: ") for n in (0, 1)]
    assert "2 engines" in str(logged_steps(beside))


class TestAsking:
    def test_is_done_where_the_version_is_known_to_have_it_and_nothing_else_was_said(self) -> None:
        def flags(settings: EngineSettings, build: Build) -> list[str]:
            return translate(with_step_log(settings, build), build, {}, cpu=False).flags

        assert STEP_LOG in flags(EngineSettings(), Build((0, 32, 0), "0.32.0"))
        assert not flags(EngineSettings(), Build((0, 11, 0), "0.11.0"))
        assert STEP_LOG not in flags(EngineSettings(), Build(None))
        off = STEP_LOG.replace("--", "--no-", 1)
        assert flags(EngineSettings(step_log=False), Build((0, 32, 0), "0.32.0")) == [off]

    def test_of_a_version_that_does_not_have_it_is_refused(self) -> None:
        with pytest.raises(Exception, match="no way to set 'step_log'"):
            translate(EngineSettings(step_log=True), Build((0, 11, 0), "0.11.0"), {}, cpu=False)


@pytest.mark.parametrize(
    "head", ["1764479106.123456 (APIServer pid=7)", "(APIServer pid=7) 1764479106.123456", "(APIServer pid=7)"]
)
def test_the_stamp_in_front_does_not_hide_the_phases_of_a_start(head: str) -> None:
    assert set(
        startup_phases(f"{head} INFO 11-30 05:05:06 [x.py:1] Graph capturing finished in 3 secs", 1_764_479_200 * 10**9)
    ) == {
        "log_first_line",
        "graphs_captured",
    }


def test_only_the_lines_between_two_sizes_of_the_log_are_read(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"before\n")
    start = log_size(log)
    with log.open("ab") as file:
        file.write(b"\x1b[32mone\x1b[0m\ntwo\xff\n")
    end = log_size(log)
    with log.open("ab") as file:
        file.write(b"after\n")
    assert list(lines_between(log, start, end)) == ["one", "two\N{REPLACEMENT CHARACTER}"]
    assert list(lines_between(tmp_path / "none", 0, 9)) == []
