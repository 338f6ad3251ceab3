"""A search over engines that are made up: what they give is a function of their settings, and the clock is the test's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.experiment import Cell, Experiment
from harness.planner import Planner
from harness.planner_memory import MemoryPlanner
from harness.tune.ledger import Ledger
from harness.tune.measure import Measurement
from harness.tune.predictor import NoTwin, Predictor
from harness.tune.search import Arm, SearchPlanner
from harness.tune.space import Space
from results.clock import NS_PER_S

Answer = Callable[[Cell], Mapping[str, Any]]
# What the made-up engines tell of their defaults.
TOLD = {"max_num_seqs": 16, "max_num_batched_tokens": 512, "chunked_prefill": True, "block_size": 16}
SPACE = Space({"max_num_seqs": [8, 4, 32, 64], "max_num_batched_tokens": [2048, 128], "chunked_prefill": [False, True]})


def experiment(arms: int = 2, **changes: Any) -> Experiment:
    lengths = {"input_len": {"dist": "fixed", "tokens": 8}, "output_len": {"dist": "fixed", "tokens": 4}}
    data = {
        "model": "m",
        "engines": [{"label": f"e{i}", "backend": "reference"} for i in range(arms)],
        "workloads": [{"type": "random", **lengths}],
        "loads": [{"mode": "concurrency", "concurrency": 128, "requests": 1024}],
        **changes,
    }
    return Experiment.model_validate(data)


def settings_of(cell: Cell) -> dict[str, Any]:
    """With the defaults where nothing is asked."""
    return {**TOLD, **cell.engine.settings.asked()}


def entry(cell: Cell, rate: float | None, **more: Any) -> dict[str, Any]:
    """A finished cell as summary.json has it."""
    return {
        "id": cell.id,
        "engine": cell.engine.label,
        "block": cell.block,
        "workload": cell.workload.model_dump(mode="json"),
        "load": {**cell.load.model_dump(mode="json"), "value": cell.load.value},
        "verdict": "INVALID" if rate is None else "VALID",
        "window": None,
        "whole": None if rate is None else {"output_tokens_per_s": rate},
        **more,
    }


def out_of_memory(cell: Cell) -> dict[str, Any]:
    reasons = [{"code": "out_of_memory", "severity": "invalid", "words": "out of memory", "evidence": "none left"}]
    return entry(cell, None, reasons=reasons)


def died(kind: str = "unknown") -> dict[str, Any]:
    return {"failure": {"class": kind, "words": "it died", "evidence": "", "advice": ""}}


class Bench:
    """Runs a planner to its end, or until it was interrupted in the cell after so many; each cell takes `seconds`."""

    def __init__(self, answer: Answer, seconds: float = 10.0) -> None:
        self.answer, self.seconds, self.now = answer, seconds, 0
        self.results: dict[str, Mapping[str, Any]] = {}
        self.order: list[Cell] = []

    def clock(self) -> int:
        return self.now

    def run(self, planner: Planner, most: int = 2000, until: int | None = None) -> Bench:
        memory = MemoryPlanner(planner)
        while (cell := memory.next_cell(self.results)) is not None:
            if len(self.order) == until:
                break
            assert cell.id not in self.results, "a cell is never measured twice"
            assert len(self.order) < most, "a search must come to an end"
            self.now += int(self.seconds * NS_PER_S)
            self.order.append(cell)
            self.results[cell.id] = self.answer(cell)
        self.results |= {str(e["id"]): e for e in memory.skipped()}
        return self


def search(
    folder: Path,
    bench: Bench,
    asked: Experiment,
    trials: int,
    spaces: Sequence[Space] = (SPACE, SPACE),
    budget_s: float | None = None,
    predictor: Predictor | None = None,
    refuse: Callable[[Any], str | None] = lambda engine: None,
) -> SearchPlanner:
    folder.mkdir(exist_ok=True)
    ledger = Ledger.open(folder, {"varied": [str(space.axes) for space in spaces]})
    arms = [Arm(engine, space, refuse, lambda: TOLD) for engine, space in zip(asked.engines, spaces, strict=False)]
    return SearchPlanner(arms, Measurement(asked), ledger, predictor or NoTwin(), trials, budget_s, bench.clock)
