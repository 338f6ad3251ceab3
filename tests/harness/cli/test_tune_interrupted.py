"""`dyno tune` whose confirmation is interrupted: no verdict is made of the blocks it did not get to."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.runner import RunOutcome
from harness.tune import tune
from tests.harness.fake_sessions import FAKE

ENGINE = f"label=fake,backend=reference,command={shlex.join([sys.executable, '-S', '-E', str(FAKE)])}"


def test_a_confirmation_that_was_interrupted_is_unfinished(
    dyno: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, outcomes = tune._run, list[RunOutcome]()

    def interrupted_at_last(*args: Any) -> RunOutcome:
        outcomes.append(run(*args))
        outcomes[-1].interrupted = len(outcomes) == 2
        return outcomes[-1]

    monkeypatch.setattr(tune, "_run", interrupted_at_last)
    shape = ("--concurrency", "2", "--requests", "16", "--input-len", "8", "--output-len", "8")
    words = ("--vary", "options=--chatter 1", "--blocks", "1", "--out", "r")
    result = dyno("tune", "--engine", ENGINE, "--model", "random-tiny", *shape, *words)
    assert result.code == 130, result.err
    (engine,) = json.loads(Path("r/tune.json").read_text())["engines"]
    assert (engine["verdict"], engine["run"]) == ("unfinished", "fake")
    assert "the confirmation did not come to its end (1 of 1 blocks)" in engine["words"]
    assert "would tell" not in result.out
