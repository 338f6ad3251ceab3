"""What the shell offers after <Tab>: names that are there, of the kind that the word stands for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import complete
from harness.cli.presets import preset_names
from tests.results.builders import synthetic_run


def test_backends_presets_and_models_are_those_there_are() -> None:
    assert {"reference", "vllm", "openai"} <= set(complete.backends(""))
    assert complete.backends("vl") == ["vllm"]
    assert complete.presets("") == sorted(preset_names())
    assert "smollm2-135m" in complete.models("smol")
    assert "llama-7b" in complete.planned_models("llama-7")


def test_runs_are_looked_for_where_the_word_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert complete.runs("") == []  # no folder runs/ yet
    for name in ("one", "other"):
        synthetic_run(tmp_path / "runs", ("e",), (1,), name=name)
    (tmp_path / "runs" / "no-run").mkdir()
    assert complete.runs("") == ["runs/one", "runs/other"]
    assert complete.runs("runs/ot") == ["runs/other"]
    assert complete.runs(f"{tmp_path}/runs/on") == [f"{tmp_path}/runs/one"]


def test_the_shell_is_offered_the_cells_of_the_run_that_was_named(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "runs", ("e",), (1, 4), name="one")
    asked = {"_DYNO_COMPLETE": "complete_bash", "COMP_WORDS": "dyno why runs/one ", "COMP_CWORD": "3"}
    command = [sys.executable, "-c", "import sys; sys.argv[0] = 'dyno'; from harness.cli.app import main; main()"]
    done = subprocess.run(
        command, env={**os.environ, **asked}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert sorted(done.stdout.split()) == sorted(cell.id for cell in run.cells()), done.stderr
