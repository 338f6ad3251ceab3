"""How many processes share a load: as asked, else as many as the machine's calibration says that it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness import load_workers
from harness.calibration.store import save_calibration
from harness.experiment import EngineSpec, Experiment, cells_of
from harness.load_workers import ALONE, WorkerChoice, Workers
from harness.loads import BatchLoad, ConcurrencyLoad, Load, RampLoad, RateLoad, ScheduleLoad
from results.rules_client import NEAR_CEILING
from tests.harness.calibration.support import calibration
from tests.harness.fake_sessions import Runs, attached, fake_engine, grid
from tests.harness.test_placement import FakeMachine
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_tokens import TokenSchedule

# One worker is good for 700 streams, and for the 40,000 tokens/s that were the most tried.
CEILING: dict[str, Any] = {
    "streams": {"value": 1000.0, "met": True, "passed_at": 1400.0},
    "chunks_per_s": {"value": 40_000.0, "met": False},
    "date": "2026-11-30T05:00:00Z",
}


def asked(load: Load, engine: EngineSpec | None = None, output: int = 100, workers: int | None = None) -> Experiment:
    made = grid(engine or attached("http://127.0.0.1:9"), output=output)
    return made.model_copy(update={"loads": (load,), "workers": workers})


def chosen(experiment: Experiment, ceiling: dict[str, Any] | None = None, cores: int = 16) -> Workers:
    choice = WorkerChoice(experiment, CEILING if ceiling is None else ceiling, FakeMachine(cores))
    return choice.of(cells_of(experiment)[0])


@pytest.mark.parametrize(
    ("load", "count", "words"),
    [
        (ConcurrencyLoad.of(round(1000 * NEAR_CEILING)), 1, ""),
        (
            ConcurrencyLoad.of(701),
            2,
            "701 streams at once, one worker is good for 700 (calibrated 2026-11-30): 2 workers",
        ),
        (ConcurrencyLoad.of(5000), 8, "8 workers"),
        (RateLoad.of(400, duration_s=10), 1, ""),
        (RateLoad.of(401, duration_s=10), 2, "40,100 tokens/s, one worker is good for 40,000"),
        (RateLoad.of(10, duration_s=1000, max_in_flight=1500), 3, "1,500 streams at once at most"),
        (RateLoad.of(10, duration_s=10, max_in_flight=1500), 1, ""),  # a hundred requests are never 1,500 at once
        (RampLoad.of(1, 1000, duration_s=10), 3, "100,000 tokens/s"),
        (ScheduleLoad(), 1, ""),  # how fast a trace goes is in the trace
    ],
)
def test_more_workers_where_calibration_says_that_one_cannot_measure_it(load: Load, count: int, words: str) -> None:
    found = chosen(asked(load))
    assert found.count == count
    assert words in found.why
    assert bool(found.why) == (count > 1)


def test_a_batch_is_never_shared_and_it_is_said_that_it_should_be() -> None:
    found = chosen(asked(BatchLoad.of(2000)))
    assert found.count == 1
    assert "1 worker; 3 are wanted, but the load cannot be shared by more" in found.why


@pytest.mark.parametrize(("cores", "count"), [(2, 1), (4, 1), (8, 2), (64, 8)])
def test_an_engine_on_the_same_machine_keeps_most_of_its_cores(cores: int, count: int) -> None:
    found = chosen(asked(ConcurrencyLoad.of(5000), fake_engine()), cores=cores)
    assert found.count == count
    assert ("for them" in found.why) == (count < 8)


def test_what_was_asked_for_goes_before_what_calibration_says() -> None:
    assert chosen(asked(ConcurrencyLoad.of(5000), workers=1)) == ALONE
    assert chosen(asked(ConcurrencyLoad.of(8), workers=3)) == Workers(3, "as --workers asked")


@pytest.mark.parametrize("ceiling", [{}, {"streams": {"value": None, "met": True}}, {"streams": None}])
def test_a_calibration_that_tells_nothing_raises_nothing(ceiling: dict[str, Any]) -> None:
    assert chosen(asked(ConcurrencyLoad.of(5000)), ceiling or {"date": ""}) == ALONE


def test_the_plan_says_which_loads_are_shared_and_why() -> None:
    experiment = asked(ConcurrencyLoad.of(8)).model_copy(
        update={"loads": (ConcurrencyLoad.of(8), ConcurrencyLoad.of(2000))}
    )
    choice = WorkerChoice(experiment, CEILING, FakeMachine(16))
    (line,) = choice.plan()
    assert line.startswith("concurrency 2000: 2,000 streams at once")
    assert choice.most(experiment.engines[0]) == 3
    assert WorkerChoice(experiment.model_copy(update={"workers": 2}), CEILING).plan() == []


def test_an_experiment_of_before_and_one_that_says_nothing_are_the_same() -> None:
    experiment = asked(ConcurrencyLoad.of(8))
    assert "workers" not in experiment.to_yaml()
    assert "workers: 1" in experiment.model_copy(update={"workers": 1}).to_yaml()


def test_a_cell_is_shared_by_as_many_workers_as_the_stored_calibration_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # This machine may have one core only.
    monkeypatch.setattr(load_workers, "physical_cores", lambda machine: (0, 1))
    stored = calibration().to_dict()
    stored["ceilings"]["streams"]["5_ms"] = {"value": 4.0, "met": True, "passed_at": 6.0}
    save_calibration(stored)
    runs = Runs(tmp_path)
    with FakeServer(TokenSchedule(ttft_s=0.01, interval_s=0.002, model="fake")) as server:
        load = ConcurrencyLoad.of(4).model_copy(update={"requests": 16})
        outcome = runs.run(grid(attached(server.url)).model_copy(update={"loads": (load,)}))
    assert outcome.exit_code == 0
    (cell,) = outcome.summary["cells"]
    assert cell["requests"] == {"issued": 16, "ok": 16, "by_outcome": {"ok": 16}}
    assert cell["client"]["workers"] == 2
    assert cell["client"]["workers_why"] == (
        "4 streams at once, one worker is good for 3 (calibrated 2026-01-02): 2 workers"
    )
    rows = pq.read_table(tmp_path / "run" / "cells" / cell["id"] / "requests.parquet").to_pylist()
    assert {row["worker"] for row in rows} == {0, 1}
