"""What is larger than what ran out of memory is left out, with the reason, whatever the order."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.experiment import Cell, Experiment
from harness.planner import GridPlanner, LeavesOut
from harness.planner_memory import MemoryPlanner
from harness.planners import planner_for
from results.report_data import load_report_data
from results.store import RunStore
from tests.harness.fake_sessions import Runs, fake_engine, grid

OOM = {"reasons": [{"code": "out_of_memory", "severity": "invalid"}], "verdict": "INVALID"}
SOME_OOM = {"reasons": [{"code": "out_of_memory", "severity": "suspect"}], "verdict": "SUSPECT"}
FINE: dict[str, Any] = {"reasons": [], "verdict": "VALID"}


class Ordered(GridPlanner):
    """The cells of a grid in an order of the test's."""

    def __init__(self, experiment: Experiment, order: random.Random) -> None:
        super().__init__(experiment)
        order.shuffle(self._order)


def size(cell: Cell) -> tuple[int, int]:
    return cell.workload.longest, cell.load.in_flight


def run(planner: MemoryPlanner, fits: Mapping[str, int]) -> dict[str, Mapping[str, Any]]:
    """Every cell that the planner wants; those with more tokens in all than fit on their engine run out of memory."""
    results: dict[str, Mapping[str, Any]] = {}
    while (cell := planner.next_cell(results)) is not None:
        assert cell.id not in results
        tokens, batch = size(cell)
        results[cell.id] = OOM if tokens * batch > fits[cell.engine.label] else FINE
    return results


@settings(max_examples=30)
@given(st.randoms(use_true_random=False), st.integers(10, 3000), st.integers(10, 3000))
def test_only_what_is_no_smaller_than_a_failed_cell_of_its_engine_is_left_out(
    order: random.Random, a: int, b: int
) -> None:
    experiment = grid(fake_engine(label="a"), fake_engine(label="b"), batches=(1, 2, 8), inputs=(4, 60, 250), output=4)
    planner = MemoryPlanner(Ordered(experiment, order))
    results = run(planner, {"a": a, "b": b})
    cells = {cell.id: cell for cell in planner.planned()}
    left_out = {entry["id"] for entry in planner.skipped()}
    assert left_out | results.keys() == cells.keys()
    assert not left_out & results.keys()
    for cell in cells.values():
        tokens, batch = size(cell)
        if tokens * batch <= {"a": a, "b": b}[cell.engine.label]:
            assert results.get(cell.id) is FINE, "a cell that fits was left out"
        if cell.id in left_out:
            smaller = [c for key, c in cells.items() if results.get(key) is OOM and c.engine.label == cell.engine.label]
            assert any(size(c)[0] <= tokens and size(c)[1] <= batch for c in smaller)


def test_a_run_that_is_completed_later_leaves_out_the_same() -> None:
    experiment = grid(fake_engine(), batches=(1, 8), inputs=(4, 250), output=4)
    first = MemoryPlanner(GridPlanner(experiment))
    results = run(first, {"fake": 500})
    again = MemoryPlanner(GridPlanner(experiment))
    assert again.next_cell(results) is None
    assert again.skipped() == first.skipped()


def test_a_few_refusals_are_no_reason_to_leave_anything_out() -> None:
    experiment = grid(fake_engine(), batches=(1, 8))
    planner = MemoryPlanner(GridPlanner(experiment))
    first = planner.next_cell({})
    assert first is not None
    assert planner.next_cell({first.id: SOME_OOM}) is not None
    assert planner.skipped() == []


def test_everything_is_tried_on_request() -> None:
    experiment = grid(fake_engine())
    assert isinstance(planner_for(experiment), LeavesOut)
    assert not isinstance(planner_for(experiment, try_all=True), LeavesOut)


class InOrder(GridPlanner):
    """The cells of a grid as they are written down."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self._order.sort(key=lambda cell: cell.workload.longest)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, dict[str, Any]]:
    """Prompts of 8, 64 and 200 tokens on an engine that has memory for 32, and lives on when it has not."""
    runs = Runs(tmp_path_factory.mktemp("memory"))
    experiment = grid(fake_engine("--most-prompt", "32"), inputs=(8, 64, 200), output=2)
    outcome = runs.run(experiment, MemoryPlanner(InOrder(experiment)))
    assert outcome.failed_engines == {}
    return runs, outcome.summary


def test_a_sweep_stores_no_number_for_them_and_says_why(swept: tuple[Runs, dict[str, Any]]) -> None:
    _, summary = swept
    fits, fails = sorted(summary["cells"], key=lambda cell: cell["workload"]["input_len"]["tokens"])
    (left_out,) = summary["skipped"]
    assert fits["verdict"] != "INVALID"
    reasons = {r["code"]: r["evidence"] for r in fails["reasons"] if r["severity"] == "invalid"}
    assert "CUDA out of memory" in reasons["out_of_memory"]
    assert fails["whole"]["output_tokens_per_s"] is None
    assert left_out["workload"]["input_len"]["tokens"] == 200
    assert left_out["skipped"]["code"] == "skipped_after_oom"
    assert "batch 1 with 66 tokens a request ran out of memory" in left_out["skipped"]["words"]
    assert "whole" not in left_out


def test_the_report_tells_them(swept: tuple[Runs, dict[str, Any]]) -> None:
    runs, summary = swept
    data = load_report_data(RunStore(Path(runs.folder / "run")), summary)
    (sentence,) = [s for s in data.answer if s.topic == "Left out"]
    assert sentence.caution
    assert "1 cell without numbers" in sentence.text
