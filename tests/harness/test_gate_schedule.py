"""The gate on a server whose schedule is known: equal schedules pass and one 10 % slower fails, ten times out of ten each.

What the truth server would send is computed, not sent: `benchmarks/gate.py truth` does the same over sockets and processes.
"""

from __future__ import annotations

import random
from statistics import median

import pytest

from harness.truth.schedule import Schedule
from results.regression import PASS, REGRESSION, GateOptions, judge
from results.regression_metrics import chosen

TPOT = "tpot_ms_p50"
GATES, BLOCKS, REQUESTS, TOKENS = 10, 5, 24, 32


def tpot_ms(schedule: Schedule) -> float:
    """The median TPOT of a cell that such a server answers."""
    due = [schedule.offsets(index, TOKENS) for index in range(REQUESTS)]
    return median((chunks[-1] - chunks[0]) / (TOKENS - 1) / 1e6 for chunks in due)


def verdict(number: int, factor: float) -> str:
    """A whole gate, new sessions and all: what each block's machine does to both sides cancels, the rest is jitter."""
    options = GateOptions(chosen([TPOT], {}))
    machine = random.Random(number)
    told = PASS
    for look in ("first", "again"):
        base: dict[int, float] = {}
        cand: dict[int, float] = {}
        for block in range(BLOCKS):
            pace = machine.gauss(1, 0.1)
            for side, times, slower in (("base", base, 1.0), ("cand", cand, factor)):
                seed = hash((number, look == "first", block, side == "base"))
                times[block] = tpot_ms(Schedule(30, 8 * pace * slower, jitter=0.2, seed=seed))
        told = judge(options.metrics[0], base, cand, True, options)[2]
        if told != REGRESSION:
            break
    return told


@pytest.mark.parametrize(("factor", "told"), [(1.0, PASS), (1.10, REGRESSION)])
def test_ten_gates_of_ten_tell_a_schedule_10_per_cent_slower_from_an_equal_one(factor: float, told: str) -> None:
    assert [verdict(number, factor) for number in range(GATES)] == [told] * GATES
