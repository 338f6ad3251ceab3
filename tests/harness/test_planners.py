"""Planners: which cell comes next, and when it is enough."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.experiment import Cell, Experiment, SloAsked
from harness.plan_cost import cost_sentence, plan_cost
from harness.planner import GridPlanner, Planner, block_order
from harness.planner_ci import BlocksPlanner
from harness.planner_memory import MemoryPlanner
from harness.planner_slo import LAST_BLOCKS, MOST_BLOCKS, SloPlanner
from results.clock import NS_PER_S
from results.errors import UsageError
from results.files import to_json
from results.precision import precision
from results.slo import MET, NOT_MET, UNDETERMINED
from results.slo_points import SESSIONS, slo_points
from results.statistics import wilson

Results = dict[str, dict[str, Any]]


def experiment(engines: int = 2, loads: Sequence[int | dict[str, Any]] = (1, 4), **changes: Any) -> Experiment:
    data = {
        "model": "m",
        "engines": [{"label": f"e{i}", "backend": "reference"} for i in range(engines)],
        "workloads": [
            {
                "type": "random",
                "input_len": {"dist": "fixed", "tokens": 8},
                "output_len": {"dist": "fixed", "tokens": 4},
            }
        ],
        "loads": [
            c if isinstance(c, dict) else {"mode": "concurrency", "concurrency": c, "requests": max(16, 2 * c)}
            for c in loads
        ],
        **changes,
    }
    return Experiment.model_validate(data)


class Bench:
    """Runs a planner against made-up engines. Every cell takes `seconds`."""

    def __init__(self, answer: Callable[[Cell], dict[str, Any]], seconds: float = 10.0) -> None:
        self.answer, self.seconds = answer, seconds
        self.now = 0
        self.results: Results = {}
        self.order: list[Cell] = []

    def clock(self) -> int:
        return self.now

    def run(self, planner: Planner, most: int = 400) -> Bench:
        while (cell := planner.next_cell(self.results)) is not None:
            assert cell.id not in self.results, "a cell is never measured twice"
            assert len(self.order) < most, "a planner must come to an end"
            self.now += int(self.seconds * NS_PER_S)
            self.order.append(cell)
            self.results[cell.id] = self.answer(cell)
        return self

    @property
    def blocks(self) -> int:
        return len({cell.block for cell in self.order})


def rates(noise: float, seed: int = 1) -> Callable[[Cell], dict[str, Any]]:
    """Engines of equal speed whose sessions differ by so much."""
    draw = np.random.default_rng(seed)

    def answer(cell: Cell) -> dict[str, Any]:
        return {
            "engine": cell.engine.label,
            "block": cell.block,
            "workload": cell.workload.model_dump(mode="json"),
            "load": {**cell.load.model_dump(mode="json"), "value": cell.load.value},
            "verdict": "VALID",
            "window": None,
            "whole": {"output_tokens_per_s": 100 * math.exp(draw.normal(0, noise))},
        }

    return answer


def attains(limit: float, n: int | None = None, label: str = "") -> Callable[[Cell], dict[str, Any]]:
    """An engine of which 99.9 % of the requests meet an objective up to a load, and half above; with `n`, 93 % of so many
    requests within a tenth of it."""

    def answer(cell: Cell) -> dict[str, Any]:
        value = float(cell.load.value or 0)
        own = limit if not label or cell.engine.label == label else 2 * limit
        share, count = (0.999 if value <= own else 0.5), 1000
        if n is not None and abs(value / own - 1) < 0.1:
            share, count = 0.93, n
        found = wilson(share * count, count)
        low, high = found.low or 0.0, found.high or 1.0
        met = MET if low >= 0.95 else NOT_MET if high < 0.95 else UNDETERMINED
        row = {"objective": "ttft_ms.p95<=1", "needed": 0.95, "share": share, "effective_n": float(count), "met": met}
        return {**rates(0.0)(cell), "slo": {"met": met, "joint": None, "objectives": [row]}}

    return answer


def test_a_grid_alternates_engines_block_by_block_with_one_order_a_block() -> None:
    asked = experiment(engines=3, loads=(1, 2, 4, 8), blocks=3)
    bench = Bench(rates(0.0)).run(GridPlanner(asked))
    sessions = [(c.block, c.engine.label) for c in bench.order]
    turns = [s for i, s in enumerate(sessions) if i == 0 or s != sessions[i - 1]]
    assert turns == [(b, f"e{(b + i) % 3}") for b in range(3) for i in range(3)], "each engine goes first in turn"
    for block in range(3):
        orders = {
            tuple(c.load.value for c in bench.order if (c.block, c.engine.label) == (block, f"e{i}")) for i in range(3)
        }
        assert len(orders) == 1
    assert block_order(asked, 1) == [c for c in bench.order if c.block == 1]
    assert len({tuple(c.load.value for c in block_order(asked, b)) for b in range(8)}) > 1, (
        "blocks differ in their order"
    )


@pytest.mark.parametrize("engines", [1, 2])
def test_quiet_engines_end_after_five_blocks_and_noisy_ones_go_on_until_the_interval_is_narrow(engines: int) -> None:
    asked = experiment(engines, until_ci=0.03)
    quiet = Bench(rates(0.005)).run(BlocksPlanner(asked))
    assert quiet.blocks == 5
    noisy = Bench(rates(0.04)).run(BlocksPlanner(asked))
    assert noisy.blocks > 5
    found = precision(noisy.results.values(), 0.03)
    assert found.reached(0.03)
    assert (precision(noisy.results.values()).widest or 1) < (found.widest or 0), "it allows for having been looked at"
    before = precision([r for r in noisy.results.values() if r["block"] < noisy.blocks - 1], 0.03)
    assert (before.widest or 1) > 0.03, "it did not go on for nothing"


def test_a_budget_ends_between_blocks_and_leaves_room_for_none_that_would_not_fit() -> None:
    # 4 cells a block, 10 s each: two blocks fit into 100 s, a third would end at 120 s.
    asked = experiment(until_ci=0.001, budget_s=100)
    bench = Bench(rates(0.05))
    bench.run(BlocksPlanner(asked, bench.clock))
    assert bench.blocks == 2
    assert len(bench.order) == 8
    # The first block is measured whatever the budget: without it there is nothing to say.
    tight = Bench(rates(0.05))
    tight.run(BlocksPlanner(experiment(blocks=3, budget_s=1), tight.clock))
    assert tight.blocks == 1
    ample = Bench(rates(0.05))
    ample.run(BlocksPlanner(experiment(blocks=3, budget_s=1e6), ample.clock))
    assert ample.blocks == 3


def test_an_interrupted_block_is_completed_and_measured_ones_are_not_done_again() -> None:
    asked = experiment(until_ci=0.03)
    whole = Bench(rates(0.005)).run(BlocksPlanner(asked))
    half = Bench(rates(0.005))
    for cell in whole.order[:6]:
        half.results[cell.id] = half.answer(cell)
    half.run(BlocksPlanner(asked))
    assert [c.id for c in half.order] == [c.id for c in whole.order[6:]]


def test_an_engine_that_fails_does_not_keep_the_blocks_going() -> None:
    quiet = rates(0.005)

    def broken(cell: Cell) -> dict[str, Any]:
        return {"failure": {"class": "x"}} if cell.engine.label == "e1" else quiet(cell)

    assert Bench(broken).run(BlocksPlanner(experiment(until_ci=0.03))).blocks == 5
    assert Bench(rates(0.0)).run(BlocksPlanner(experiment(until_ci=0.03))).blocks == 5, "they agree to the last digit"
    assert Bench(lambda cell: {"failure": {}}).run(BlocksPlanner(experiment(until_ci=0.03))).blocks == 5


def test_loads_that_run_out_of_memory_end_a_search_below_them_and_keep_no_blocks_going() -> None:
    def answer(cell: Cell) -> dict[str, Any]:
        found = attains(100)(cell)
        if (cell.load.value or 0) > 20:
            found |= {"verdict": "INVALID", "slo": None, "whole": None}
            found["reasons"] = [{"code": "out_of_memory", "severity": "invalid"}]
        return found

    bench = Bench(answer).run(MemoryPlanner(SloPlanner(slo())))
    assert {19, 20} <= {c.load.value for c in bench.order} or 20 in {c.load.value for c in bench.order}
    assert len(bench.order) <= 20
    grid = Bench(answer).run(MemoryPlanner(BlocksPlanner(experiment(1, (1, 64), until_ci=0.03))))
    assert grid.blocks == 5
    nothing = Bench(lambda cell: {**rates(0.0)(cell), "verdict": "INVALID"})
    assert nothing.run(BlocksPlanner(experiment(until_ci=0.03))).blocks == 5
    # What did not fit with short requests is left out with long ones, once, and not of the further sessions of an answer.
    lengths = [
        {"type": "random", "input_len": {"dist": "fixed", "tokens": n}, "output_len": {"dist": "fixed", "tokens": 4}}
        for n in (8, 16)
    ]
    planner = MemoryPlanner(SloPlanner(slo(workloads=lengths)))
    Bench(answer).run(planner)
    left_out = [entry for entry in planner.skipped() if entry["workload"]["input_len"]["tokens"] == 16]
    assert {entry["block"] for entry in left_out} == {0}


def test_blocks_planned_are_the_fewest() -> None:
    assert len(BlocksPlanner(experiment(until_ci=0.03)).planned()) == 5 * 4
    assert len(BlocksPlanner(experiment(until_ci=0.03, blocks=7)).planned()) == 7 * 4
    assert len(BlocksPlanner(experiment(budget_s=5, blocks=2)).planned()) == 2 * 4


def test_what_a_run_says_of_itself_after_looking_at_each_block_holds() -> None:
    target = 0.05
    draw, inside = np.random.default_rng(1), []
    for _ in range(120):
        bench = Bench(rates(0.05, seed=int(draw.integers(2**32))))
        bench.run(BlocksPlanner(experiment(1, (1,), until_ci=target)))
        logs = np.log([r["whole"]["output_tokens_per_s"] / 100 for r in bench.results.values()])
        inside.append(abs(logs.mean()) <= math.log1p(target))
    assert np.mean(inside) >= 0.9


def slo(limit: str = "ttft_ms.p95<=1", **changes: Any) -> Experiment:
    return experiment(1, (1, 64), slo=SloAsked(objectives=(limit,)), **changes)


@settings(deadline=None, max_examples=30)
@given(st.floats(0.5, 80))
def test_the_search_finds_the_limit_in_few_cells(limit: float) -> None:
    bench = Bench(attains(limit)).run(SloPlanner(slo()))
    values = [c.load.value for c in bench.order if not c.block]
    assert len(set(values)) == len(values)
    assert len(values) <= 2 + math.ceil(math.log2(64)) + 1
    met = [v for v in values if v <= limit]
    failed = [v for v in values if v > limit]
    # Both ends that come out are asked of the further sessions that a verdict needs, and nothing else is.
    ends = [*([max(met)] if met else []), *([min(failed)] if failed else [])]
    assert [c.load.value for c in bench.order if c.block] == [end for end in ends for _ in range(SESSIONS - 1)]
    if limit >= 64:
        assert values == [1, 64]
    elif limit < 1:
        assert values == [1]
    else:
        best = max(met)
        above = min(v for v in values if v > limit)
        assert above - best == 1 or above <= best * 1.05
    assert all(c.load.requests >= 80 for c in bench.order), "enough of them to show 95 %"


def test_where_further_sessions_speak_against_the_answer_the_search_goes_on_below() -> None:
    def answer(cell: Cell) -> dict[str, Any]:
        return attains(20 if cell.block == 0 else 12)(cell)

    bench = Bench(answer).run(SloPlanner(slo()))
    (found,) = slo_points(bench.results.values(), {"concurrency": 64})
    assert (found.highest or 0) <= 12
    assert found.failed is None or found.failed > 12
    assert {c.load.value for c in bench.order if c.block} > {found.highest}


def test_where_further_sessions_speak_against_the_upper_end_the_search_goes_on_above() -> None:
    def answer(cell: Cell) -> dict[str, Any]:
        return attains(12 if cell.block == 0 else 20)(cell)

    bench = Bench(answer).run(SloPlanner(slo()))
    (found,) = slo_points(bench.results.values(), {"concurrency": 64})
    assert (found.verdict, found.failed_sessions) == (MET, SESSIONS)
    assert (found.highest or 0) <= 12 < 20 < (found.failed or 0)
    assert found.failed == max(found.undecided) + 1


def test_loads_that_were_named_are_asked_about_first() -> None:
    asked = experiment(1, (1, 8, 32, 64), slo=SloAsked(objectives=("ttft_ms.p95<=1",)))
    values = [c.load.value for c in Bench(attains(10)).run(SloPlanner(asked)).order]
    assert values[:4] == [1, 64, 8, 32]
    assert {10, 11} <= set(values)


def test_a_rate_is_searched_to_within_five_per_cent() -> None:
    loads = [{"mode": "rate", "rate": r, "duration_s": 10} for r in (0.5, 50)]
    asked = experiment(1, slo=SloAsked(objectives=("ttft_ms.p95<=1",)), loads=loads)
    bench = Bench(attains(7.3)).run(SloPlanner(asked))
    values = sorted(float(c.load.value or 0) for c in bench.order)
    met, failed = max(v for v in values if v <= 7.3), min(v for v in values if v > 7.3)
    assert failed <= met * 1.05
    assert len(values) <= 8 + 2 * SESSIONS


def test_a_load_that_is_not_decided_is_asked_again_in_further_blocks_and_no_more_than_three() -> None:
    bench = Bench(attains(10, n=60)).run(SloPlanner(slo()))
    again = Counter(float(cell.load.value or 0) for cell in bench.order)
    (found,) = slo_points(bench.results.values(), {"concurrency": 64})
    # The ends of the answer are asked as often as a verdict needs.
    assert (again.pop(found.highest or 0), again.pop(found.failed or 0)) == (SESSIONS, SESSIONS)
    assert 1 < max(again.values()) <= MOST_BLOCKS
    # What could not be decided is the resolution of the answer, and no reason to have none.
    assert (found.verdict, found.sessions, found.failed_sessions) == (MET, SESSIONS, SESSIONS)
    assert (found.highest or 0) < 10 < (found.failed or 0)
    assert found.failed == max(found.undecided) + 1, "the end above is looked for as well"


def test_a_search_without_an_answer_goes_on_to_ten_blocks_of_what_is_missing() -> None:
    # 93 % of so few requests, at the lowest load already: it takes many to say that they are not 95 %.
    lowest = Bench(attains(1, n=60)).run(SloPlanner(slo()))
    assert [c.load.value for c in lowest.order] == [1] * LAST_BLOCKS
    many = Bench(attains(1, n=300)).run(SloPlanner(slo()))
    assert MOST_BLOCKS < len(many.order) < LAST_BLOCKS
    assert slo_points(many.results.values(), {"concurrency": 64})[0].verdict == NOT_MET
    # The highest load asked about is neither met nor not: nothing bounds the answer.
    top = Bench(attains(64, n=60)).run(SloPlanner(slo()))
    assert [c.load.value for c in top.order].count(64) == LAST_BLOCKS

    def spoilt(cell: Cell) -> dict[str, Any]:
        return {**attains(10)(cell), "verdict": "INVALID" if cell.block == 1 else "VALID"}

    # A session that is INVALID is none: another takes its place.
    (found,) = slo_points(Bench(spoilt).run(SloPlanner(slo())).results.values(), {"concurrency": 64})
    assert (found.verdict, found.sessions, found.highest) == (MET, SESSIONS, 10)
    none = Bench(lambda cell: {**attains(10)(cell), "verdict": "INVALID"}).run(SloPlanner(slo()))
    assert [c.load.value for c in none.order] == [1] * MOST_BLOCKS


def test_cells_of_an_earlier_grid_are_used() -> None:
    grid = experiment(1, (1, 8, 16, 64))
    bench = Bench(attains(10))
    for cell in GridPlanner(grid).planned():
        bench.results[cell.id] = bench.answer(cell)
    bench.run(SloPlanner(slo()))
    assert {c.load.value for c in bench.order if not c.block} <= {9, 10, 11, 12, 13}
    assert {c.load.value for c in bench.order if c.block} == {10, 11}


def test_each_engine_is_searched_and_one_that_fails_ends_its_own_search() -> None:
    asked = experiment(2, (1, 64), slo=SloAsked(objectives=("ttft_ms.p95<=1",)))
    bench = Bench(attains(10, label="e0")).run(SloPlanner(asked))
    assert [c.engine.label for c in bench.order] == sorted(c.engine.label for c in bench.order), "one session an engine"
    assert {10, 11} <= {c.load.value for c in bench.order if c.engine.label == "e0"}
    assert {20, 21} <= {c.load.value for c in bench.order if c.engine.label == "e1"}

    def dies(cell: Cell) -> dict[str, Any]:
        fails = cell.engine.label == "e0" and (cell.load.value or 0) > 4
        return {"failure": {"class": "out_of_memory"}} if fails else attains(10)(cell)

    bench = Bench(dies).run(SloPlanner(asked))
    assert [c.load.value for c in bench.order if c.engine.label == "e0"] == [1, 64]
    assert {10, 11} <= {c.load.value for c in bench.order if c.engine.label == "e1"}


def test_the_budget_ends_a_search() -> None:
    bench = Bench(attains(10))
    bench.run(SloPlanner(slo(budget_s=35), bench.clock))
    assert len(bench.order) == 4


def test_a_search_varies_one_kind_of_load() -> None:
    loads = [{"mode": "batch", "batch": 1, "waves": 3}, {"mode": "concurrency", "concurrency": 2, "requests": 8}]
    with pytest.raises(UsageError, match="one kind of load"):
        SloPlanner(experiment(1, slo=SloAsked(objectives=("ttft_ms<=1",)), loads=loads))


def test_options_that_are_not_used_leave_no_trace_in_ids_and_files() -> None:
    assert "until_ci" not in experiment().to_yaml()
    asked = slo()
    first = SloPlanner(asked).planned()[0]
    again = Experiment.model_validate({**asked.model_dump(mode="json")})
    assert SloPlanner(again).planned()[0].id == first.id


def test_the_cost_of_a_plan_is_read_from_earlier_runs(tmp_path: Any) -> None:
    cells = GridPlanner(experiment(1, (1, 4), blocks=2)).planned()
    unknown = plan_cost(cells, tmp_path)
    assert (unknown.sessions, unknown.cells, unknown.startup_s, unknown.total_s) == (2, 4, None, None)
    assert "no earlier session" in cost_sentence(unknown)
    earlier = tmp_path / "earlier"
    for folder in ("sessions/s", "cells/c", "cells/broken"):
        (earlier / folder).mkdir(parents=True)
    (earlier / "manifest.json").write_text("{}")
    (earlier / "cells/broken/cell.json").write_text("{")
    cell = {
        "backend": "reference",
        "model": "m",
        "session": "s",
        "started": 5 * NS_PER_S,
        "ended": 11 * NS_PER_S,
        "workload": cells[0].workload.model_dump(mode="json"),
        "load": cells[0].load.model_dump(mode="json"),
    }
    (earlier / "cells/c/cell.json").write_bytes(to_json(cell))
    session = {
        "id": "s",
        "backend": "reference",
        "model": "m",
        "timeline": {"spawned": NS_PER_S},
        "ended": 13 * NS_PER_S,
    }
    (earlier / "sessions/s/session.json").write_bytes(to_json(session))
    known = plan_cost(cells, tmp_path)
    # 12 s of session, 6 of them in its cell; two of four cells were measured before.
    assert (known.startup_s, known.cells_known, known.total_s) == (6.0, 2, 2 * 6.0 + 4 * 6.0)
    assert cost_sentence(known) == (
        "2 sessions, 4 cells: about 36.0 s, 12.0 s of starting and stopping (by 1 earlier session of reference); 1 earlier cell "
        "of the same lengths and load tells of 2 of them."
    )
    # The start of one backend tells nothing of another's.
    other = [
        c.model_copy(update={"engine": c.engine.model_copy(update={"label": "v", "backend": "vllm"})}) for c in cells
    ]
    mixed = plan_cost([*cells, *other], tmp_path)
    assert (mixed.startup_s, mixed.total_s, mixed.backends_unknown) == (None, None, ["vllm"])
    assert "no earlier session of vllm" in cost_sentence(mixed)
