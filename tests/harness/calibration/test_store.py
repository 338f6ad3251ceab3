"""Calibrations by host, and what cells carry of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.calibration import store
from harness.calibration.error import Spread
from harness.calibration.level import Level, LevelResult
from harness.cli.commands import app
from tests.harness.calibration.support import calibration, result


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_without_a_calibration_a_cell_carries_none() -> None:
    assert store.load_calibration() is None
    assert store.cell_ceiling() is None


def test_a_cell_carries_ceilings_floor_and_date() -> None:
    store.save_calibration(calibration().to_dict())
    carried = store.cell_ceiling()
    assert carried is not None
    assert round(carried["chunks_per_s"]["value"]) == 20_000
    assert carried["chunks_per_s"]["met"]
    assert carried["streams"] == {"value": 256.0, "met": False, "passed_at": None}
    assert carried["floor_ttft_ms_p50"] == 0.0
    assert (carried["date"], carried["version"]) == ("2026-01-02T03:04:05Z", "1.2.3")


def test_the_client_in_python_has_a_calibration_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "reader_name", lambda: "compiled")
    store.save_calibration(calibration().to_dict())
    assert store.cell_ceiling() is not None
    monkeypatch.setattr(store, "reader_name", lambda: "python")
    assert store.cell_ceiling() is None


def test_a_calibration_of_before_there_was_a_compiled_reader_is_of_the_client_in_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = calibration().to_dict()
    del stored["machine"]["reader"]
    store.save_calibration(stored)
    for reader, found in (("python", True), ("compiled", False)):
        monkeypatch.setattr(store, "reader_name", lambda name=reader: name)
        assert (store.cell_ceiling() is not None) is found


def test_another_machine_of_the_same_name_has_a_calibration_of_its_own() -> None:
    here = store.machine()
    paths = {
        store.calibration_path({**here, **other})
        for other in ({}, {"cpus": 999}, {"cpu": "x"}, {"host": "y/../z"}, {"reader": "another"})
    }
    assert len(paths) == 5
    assert len({path.parent for path in paths}) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 99}'])
def test_a_file_that_cannot_be_understood_is_no_calibration(content: str) -> None:
    path = store.save_calibration(calibration().to_dict())
    path.write_text(content)
    assert store.cell_ceiling() is None


@pytest.mark.parametrize(("floor_ms", "code"), [(0.3, 0), (40.0, 1)])
def test_the_command_measures_stores_and_judges_the_floor(
    monkeypatch: pytest.MonkeyPatch, floor_ms: float, code: int
) -> None:
    def measured(server: object, level: Level) -> LevelResult:
        found = result(level, 0.1 if (level.tokens_per_s or 0) < 50_000 else 9.0)
        ttft = Spread(floor_ms, floor_ms, floor_ms)
        return replace(found, error=replace(found.error, ttft_ms=ttft, true_ttft_ms=ttft))

    monkeypatch.setattr("harness.calibration.calibrate.run_level", measured)
    ran = CliRunner().invoke(app, ["calibrate", "--quick", "--json"])
    assert ran.exit_code == code
    stored = json.loads(ran.stdout)
    assert round(stored["ceilings"]["chunks_per_s"]["5_ms"]["value"]) == 30_000
    assert stored["floor_ttft_ms"]["p50"] == floor_ms
    assert Path(stored["path"]).exists()
    assert store.cell_ceiling() is not None


def test_the_stored_one_is_shown() -> None:
    runner = CliRunner()
    assert "Run dyno calibrate" in str(runner.invoke(app, ["calibrate", "--show"]).exception)
    store.save_calibration(calibration().to_dict())
    shown = runner.invoke(app, ["calibrate", "--show"]).output
    assert "20,000 chunks/s with an error of 5 ms" in shown
    assert "10,000 chunks/s with an error of 1 ms" in shown
    assert "at least 256 streams" in shown
    stored = json.loads(runner.invoke(app, ["calibrate", "--show", "--json"]).output)
    assert stored["ceilings"]["streams"]["5_ms"] == {"met": False, "value": 256.0, "passed_at": None}
