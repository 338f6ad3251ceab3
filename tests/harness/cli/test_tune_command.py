"""`dyno tune` as it is typed, with a fake engine in the reference engine's place."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from results.store import RunStore
from tests.harness.fake_sessions import FAKE

COMMAND = shlex.join([sys.executable, "-S", "-E", str(FAKE)])
FAKE_ENGINE = f"label=fake,backend=reference,command={COMMAND},options=--chatter 1"
ARGS = ("--model", "random-tiny", "--concurrency", "2", "--requests", "16", "--input-len", "8", "--output-len", "8")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_tuning_ends_with_a_table_a_verdict_and_a_command_and_is_not_measured_twice(
    dyno: Callable[..., Any],
) -> None:
    words = ("tune", "--engine", FAKE_ENGINE, *ARGS, "--vary", "options=--chatter 0", "--blocks", "1", "--out", "r")
    result = dyno(*words, "--json")
    assert result.code == 3, result.err
    answer = json.loads(result.out)
    assert json.loads(Path("r/tune.json").read_text()) == answer
    (engine,) = answer["engines"]
    assert engine["verdict"] == "inconclusive"
    assert engine["best"]["settings"] == {"options": ["--chatter", "0"]}
    assert "about 4 blocks more" in engine["words"]
    assert f"{FAKE} " in engine["command"]
    assert [(t["label"], t["verdict"] != "", t["ended"]) for t in answer["trials"]] == [
        ("its defaults", True, "what the others are held against"),
        ("options=chatter+0", True, "the best, to be confirmed"),
    ]
    confirmation = RunStore.open(Path(answer["confirmation"]))
    assert {cell.engine for cell in confirmation.cells()} == {"fake", "fake-options=chatter+0"}
    assert confirmation.manifest["tuned"] == ["fake-options=chatter+0"]
    assert confirmation.manifest["planned"] == {"cells": 2, "blocks": 1}
    told = {run: dyno("report", run).out for run in ("r", str(confirmation.path))}
    assert not any("incomplete" in text for text in told.values())
    assert ["no evidence that it is faster" in " ".join(text.split()) for text in told.values()] == [True, False]
    assert "--blocks 5" not in told["r"], "more blocks of a search are no way to a verdict"
    assert [t["share"] for t in answer["trials"]] == [0.25, 0.25]
    (listed,) = json.loads(dyno("runs", "--json", ".").out)
    assert (listed["run"], listed["cells_planned"]) == ("r", None)
    assert Path("r/report.html").is_file()
    assert (confirmation.path / "report.html").is_file()
    sessions = len(RunStore.open(Path("r")).sessions())
    again = dyno(*words)
    assert again.code == 3, again.err
    assert len(RunStore.open(Path("r")).sessions()) == sessions == 2
    assert len(confirmation.sessions()) == 2
    assert "fake: inconclusive. The best other, fake-options=chatter+0" in again.out
    assert "To run fake as it was measured:" in again.out
    other = dyno(*words[:-4], "--vary", "block_size=16,32", "--out", "r")
    assert other.code == 2
    assert "holds another search" in other.err


def test_trials_that_do_not_start_are_part_of_the_answer(dyno: Callable[..., Any]) -> None:
    crash = "options=--exit-at-spawn 3"
    words = ("tune", "--engine", FAKE_ENGINE, *ARGS, "--vary", crash, "--blocks", "1", "--out", "r", "--quiet")
    result = dyno(*words)
    assert result.code == 3, result.err
    assert "fake: no trial beside the defaults gave a number." in result.out
    assert "failed" in result.out
    assert len(RunStore.open(Path("r")).sessions()) == 2
    assert dyno(*words).code == 3
    assert len(RunStore.open(Path("r")).sessions()) == 2, "a trial that failed is not started again"


def test_a_budget_that_ends_with_the_defaults_is_too_short_and_no_answer(dyno: Callable[..., Any]) -> None:
    words = ("tune", "--engine", FAKE_ENGINE, *ARGS, "--vary", "options=--chatter 0", "--budget", "0.1s", "--out", "r")
    result = dyno(*words)
    assert result.code == 3, result.err
    assert "fake: the budget of 0.10 s is too short" in result.out
    assert "The search:" in result.out
    assert "The confirmation:" not in result.out
    assert "no twin" not in result.out


def test_the_plan_names_what_is_varied_and_starts_nothing(dyno: Callable[..., Any], tmp_path: Path) -> None:
    engine = f"label=fake,backend=reference,command={COMMAND},max_num_seqs=2/4"
    both = ("tune", "--engine", engine, "--backend", "reference", *ARGS, "--vary", "block_size=16,32,cuda_graphs")
    result = dyno(*both[:-1], "block_size=16..64", "--vary", "cuda_graphs=on", "--dry-run", "--json")
    assert result.code == 0, result.err
    plan = json.loads(result.out)
    assert [(e["engine"], e["varied"]) for e in plan["engines"]] == [
        ("reference", {"block_size": [16, 32, 64]}),
        ("fake", {"block_size": [16, 32, 64], "max_num_seqs": [2, 4]}),
    ]
    assert result.err.count("no way to set cuda_graphs: not varied there") == 2
    assert [e["refused"] for e in plan["engines"]] == [{"n": 0, "of": 3}, {"n": 0, "of": 11}]
    assert plan["trials"] == 8
    budgets = ("--vary", "max_num_batched_tokens=2,512")
    shown = dyno("tune", "--engine", engine, *ARGS, *budgets, "--budget", "10m", "--dry-run")
    assert "8 combinations beside the defaults (1 cannot be started" in shown.out, "4 requests in a step of 2 tokens"
    assert "max_num_seqs: 2 and 4" in shown.out
    assert "as many as fit into half of 10 min" in shown.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--engine", "label=a,backend=openai,url=http://127.0.0.1:1"), "a server that somebody else started"),
        (("--backend", "reference", "--vary", "cuda_graphs=on"), "Nothing of engine 'reference'.*is to be varied"),
        (("--backend", "reference", "--vary", "max_num_seq=4"), "Did you mean 'max_num_seqs'"),
        (("--backend", "reference", "--trials", "0"), "--trials: '0'"),
        (("--backend", "reference", "--slo", "ttft<=3"), "is not an objective"),
        (
            ("--engine", "label=a,backend=reference,chunked_prefill=off,max_num_batched_tokens=16"),
            "cannot be started as it is: without chunked prefill",
        ),
        ((), "No engine named"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_a_sentence(
    dyno: Callable[..., Any], words: tuple[str, ...], message: str
) -> None:
    import re

    result = dyno("tune", *words, *ARGS)
    assert result.code == 2, result.err
    assert re.search(message, result.err, re.S), result.err
    assert "Traceback" not in result.err
