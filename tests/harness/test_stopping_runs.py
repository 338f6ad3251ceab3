"""Runs that end before their plan, through the runner: a search for objectives, a budget, Ctrl-C while a server starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.experiment import SloAsked
from harness.loads import ConcurrencyLoad
from harness.observer import Observer
from results.report_data import load_report_data
from results.slo_points import SESSIONS
from results.store import RunStore
from tests.harness.fake_sessions import Runs, fake_engine, grid


@pytest.mark.parametrize(
    ("objective", "verdict", "loads"),
    [("ttft_ms.p50<=60000", "met", [1, *[2] * SESSIONS]), ("ttft_ms.p50<=0.0001", "not met", [1] * SESSIONS)],
)
def test_a_search_asks_what_it_must_and_the_run_tells_the_answer(
    tmp_path: Path, objective: str, verdict: str, loads: list[int]
) -> None:
    runs = Runs(tmp_path)
    asked = grid(fake_engine()).model_copy(
        update={
            "loads": tuple(ConcurrencyLoad.of(n, 8) for n in (1, 2)),
            "slo": SloAsked(objectives=(objective,)),
        }
    )
    outcome = runs.run(asked)
    assert outcome.error is None
    assert sorted(c["load"]["value"] for c in outcome.summary["cells"]) == loads
    slo = outcome.summary["slo"]
    assert slo["objectives"] == [objective]
    point = slo["points"][0]
    assert point["verdict"] == verdict
    assert point["highest"] == (2 if verdict == "met" else None)
    data = load_report_data(RunStore.open(tmp_path / "run"), outcome.summary)
    said = next(s for s in data.answer if s.topic == "Objectives")
    assert objective in said.text
    assert ("is met up to 2 in flight" in said.text) == (verdict == "met")
    if verdict == "met":
        assert data.headlines[0].words.startswith(f"output that meets {objective}")
        assert data.headlines[0].unit == "tok/s"
    # The same command again has nothing to add.
    again = runs.run(asked)
    assert [c["id"] for c in again.summary["cells"]] == [c["id"] for c in outcome.summary["cells"]]


def test_a_budget_that_is_spent_ends_the_run_after_its_block(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    outcome = runs.run(grid(fake_engine()).model_copy(update={"until_ci": 0.03, "budget_s": 0.001}))
    assert [c["block"] for c in outcome.summary["cells"]] == [0]
    assert outcome.exit_code in (0, 1)


def test_an_interrupted_start_ends_the_run_and_its_listener_hears_of_both(tmp_path: Path) -> None:
    heard: list[str] = []

    class Impatient(Observer):
        def session_starting(self, engine: str, block: int, log: str) -> None:
            raise KeyboardInterrupt

        def run_interrupted(self) -> None:
            heard.append("interrupted")

        def run_ended(self) -> None:
            heard.append("ended")

    outcome = Runs(tmp_path).run(grid(fake_engine()), observer=Impatient())
    assert (outcome.interrupted, outcome.exit_code) == (True, 130)
    assert heard == ["interrupted", "ended"]
