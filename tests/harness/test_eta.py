"""What a run will still take, by what it has taken: cells by their likes, sessions by what they cost beside their cells."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.eta import CostSoFar
from harness.experiment import Cell, EngineSpec, Experiment, cells_of
from harness.loads import BatchLoad
from workloads.lengths import FixedLength
from workloads.random import RandomWorkload


def planned(engines: int = 1, batches: tuple[int, ...] = (1, 8), blocks: int = 1) -> list[Cell]:
    workload = RandomWorkload(input_len=FixedLength(tokens=32), output_len=FixedLength(tokens=16))
    loads: Any = tuple(BatchLoad(batch=n, waves=1) for n in batches)
    specs = tuple(EngineSpec(label=f"e{n}", backend="reference") for n in range(engines))
    return cells_of(Experiment(model="random-tiny", engines=specs, workloads=(workload,), loads=loads, blocks=blocks))


def run(cost: CostSoFar, cell: Cell, at: float, took: float) -> float:
    cost.cell_began(at)
    cost.cell_ended(cell, at + took)
    return at + took


def test_nothing_is_said_before_the_first_cell_has_ended() -> None:
    cells = planned()
    cost = CostSoFar(cells)
    cost.session_began("e0", 0, 0.0)
    cost.cell_began(5.0)
    assert cost.seconds_left(6.0) is None


def test_a_cell_like_none_before_it_costs_their_mean_and_the_open_session_nothing_more() -> None:
    cells = planned(batches=(1, 8, 16))
    cost = CostSoFar(cells)
    cost.session_began("e0", 0, 0.0)
    at = run(cost, cells[0], 5.0, 10.0)
    at = run(cost, cells[1], at, 30.0)
    assert cost.seconds_left(at) == pytest.approx(20.0)


def test_the_same_load_on_another_engine_costs_what_it_cost_there_and_a_start_is_paid_anew() -> None:
    cells = planned(engines=2)
    cost = CostSoFar(cells)
    cost.session_began("e0", 0, 0.0)
    at = run(cost, cells[0], 5.0, 10.0)
    at = run(cost, cells[1], at, 40.0)
    cost.session_ended(at + 3.0)  # 5 s before its first cell and 3 s after its last
    assert cost.seconds_left(at + 3.0) == pytest.approx(10.0 + 40.0 + 8.0)


def test_the_time_of_the_cell_that_runs_is_taken_off() -> None:
    cells = planned(batches=(1, 8))
    cost = CostSoFar(cells)
    cost.session_began("e0", 0, 0.0)
    at = run(cost, cells[0], 0.0, 10.0)
    cost.cell_began(at)
    assert cost.seconds_left(at + 4.0) == pytest.approx(6.0)
    assert cost.seconds_left(at + 40.0) == 0.0  # late, never below nothing


def test_cells_that_are_committed_or_left_out_cost_nothing() -> None:
    cells = planned(batches=(1, 8, 16))
    cost = CostSoFar(cells, {cells[2].id})
    cost.session_began("e0", 0, 0.0)
    at = run(cost, cells[0], 0.0, 10.0)
    cost.left_out(cells[1].id)
    assert cost.seconds_left(at) == 0.0


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=6))
def test_a_run_whose_blocks_repeat_exactly_is_foretold_exactly_after_the_first(costs: list[float]) -> None:
    cells = planned(batches=tuple(range(1, len(costs) + 1)), blocks=3)
    cost = CostSoFar(cells)
    at = 0.0
    cost.session_began("e0", 0, at)
    at += 2.0
    by_load = dict(zip(range(1, len(costs) + 1), costs, strict=True))
    for cell in (c for c in cells if c.block == 0):
        at = run(cost, cell, at, by_load[int(cell.load.value or 0)])
    cost.session_ended(at)
    assert cost.seconds_left(at) == pytest.approx(2 * (sum(costs) + 2.0))
