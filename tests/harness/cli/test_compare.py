"""`dyno compare`: what it prints, its JSON, and its exit codes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.commands import app
from results.errors import UsageError
from results.store import RunStore
from tests.harness.cli.conftest import Result
from tests.results.builders import CellEdit, synthetic_run
from tests.results.simulation import Schedule


def run_of(
    tmp_path: Path, name: str, blocks: int = 5, slower: float = 1.0, batches: tuple[int, ...] = (1, 4)
) -> RunStore:
    """Engines ref-a and ref-b (1.25 times slower) whose cells differ a little from block to block."""
    draw = random.Random(name)

    def edit(parts: CellEdit) -> None:
        # A longer or shorter way to the end of each cell: sends stay, everything after them is stretched.
        factor = 1 + draw.gauss(0, 0.01)
        for row in parts.requests:
            for stamp in ("first_byte", "first_token", "last_token", "end"):
                row[stamp] = row["sent"] + round((row[stamp] - row["sent"]) * factor)
        parts.chunks = []

    schedule = Schedule().slower(slower)
    return synthetic_run(
        tmp_path,
        batches=batches,
        blocks=blocks,
        name=name,
        schedule=schedule,
        edit=edit,
        truth=False,
        mode="concurrency",
    )


def invoke(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["compare", *words])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, found.output


def test_engines_of_a_run_are_compared_by_blocks(tmp_path: Path) -> None:
    store = run_of(tmp_path, "one")
    code, text = invoke(str(store.path))
    assert code == 0
    assert "ref-b is slower than ref-a" in text
    assert "paired by block" in text
    assert "Not beaten in both" in text
    code, text = invoke(str(store.path), "--json")
    document = json.loads(text)
    found = document["comparisons"][0]
    assert (found["verdict"], found["paired"], len(found["points"]) % 2) == ("slower", True, 0)
    row = next(r for r in found["points"] if r["primary"])
    assert row["low"] < row["ratio"] < row["high"] < 1
    assert row["n_blocks"] == 5
    assert {p["front"] for p in document["pareto"]} == {True, False}
    code, text = invoke(str(store.path), "--markdown")
    assert "| point | metric | ratio |" in text


def test_settings_that_bear_on_the_cells_are_told_beside_the_verdict(tmp_path: Path) -> None:
    store = run_of(tmp_path, "one")
    assert "settings that bear" not in invoke(str(store.path))[1]
    for path in store.path.glob("sessions/*/session.json"):
        session = json.loads(path.read_text())
        threads = 1 if session["engine"] == "ref-b" else 2
        session["settings"]["threads"] = {"value": threads, "source": "endpoint"}
        path.write_text(json.dumps(session))
    line = "differs: settings that bear on these cells, or may: CPU threads {} / {}"
    assert line.format(2, 1) in invoke(str(store.path))[1]
    assert line.format(1, 2) in invoke(str(store.path), "--base", "ref-b")[1]
    assert f"- {line.format(2, 1)}" in invoke(str(store.path), "--markdown")[1]


def test_two_runs_are_compared_by_label_and_unpaired(tmp_path: Path) -> None:
    one, two = run_of(tmp_path, "one"), run_of(tmp_path, "two", slower=1.4)
    code, text = invoke(str(one.path), str(two.path), "--metric", "output_tokens_per_s", "--margin", "2%")
    assert code == 0
    assert "ref-a of two is slower than ref-a of one" in text
    assert "unpaired" in text
    code, text = invoke(str(one.path), str(two.path), "--base", "ref-a", "--other", "ref-b", "--json")
    assert [(c["base"], c["other"]) for c in json.loads(text)["comparisons"]] == [("ref-a", "ref-b")]


@pytest.mark.parametrize(
    ("words", "pair"),
    [
        (("--other", "tuned"), ("ref-a", "tuned")),
        (("--other", "ref-b"), ("ref-a", "ref-b")),
        (("--base", "ref-b"), ("ref-b", "ref-b")),
        (("--base", "ref-a"), ("ref-a", "tuned")),
        (("--base", "ref-b", "--other", "tuned"), ("ref-b", "tuned")),
    ],
)
def test_of_two_runs_one_engine_may_be_named(tmp_path: Path, words: tuple[str, ...], pair: tuple[str, str]) -> None:
    one = synthetic_run(tmp_path, ("ref-a", "ref-b"), (1,), name="one")
    two = synthetic_run(tmp_path, ("tuned", "ref-b"), (1,), name="two")
    code, text = invoke(str(one.path), str(two.path), *words, "--json")
    assert code == 3, "one block"
    assert [(c["base"], c["other"]) for c in json.loads(text)["comparisons"]] == [pair]


def test_an_unknown_engine_is_told_with_the_run_that_was_looked_in(tmp_path: Path) -> None:
    one, two = (synthetic_run(tmp_path, batches=(1,), name=name).path for name in ("one", "two"))
    for words, where in ((("--base", "x"), "one"), (("--other", "x"), "two")):
        with pytest.raises(UsageError, match=f"Unknown engine 'x'.*Looked in {where}"):
            invoke(str(one), str(two), *words)
    with pytest.raises(UsageError, match="Looked in one"):
        invoke(str(one), "--base", "x")


def test_runs_of_different_models_are_refused_with_their_exit_code(tmp_path: Path, dyno: Callable[..., Result]) -> None:
    one, two = (synthetic_run(tmp_path, batches=(1,), name=name, model=name).path for name in ("one", "two"))
    found = dyno("compare", str(one), str(two))
    assert (found.code, found.out) == (2, "")
    assert "model one / two" in found.err


def test_too_few_blocks_are_inconclusive_with_their_exit_code(tmp_path: Path) -> None:
    code, text = invoke(str(run_of(tmp_path, "few", blocks=3).path))
    assert code == 3
    assert "a verdict needs 5" in " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--metric", "vibes"), "Unknown metric 'vibes'"),
        (("--margin", "0"), "--margin: '0' is not a share"),
        (("--margin", "nan"), "--margin: 'nan' is not a share"),
        (("--confidence", "100%"), "--confidence: '100%' is not a share"),
        (("--base", "nobody"), "Unknown engine 'nobody'"),
        (("--other", "ref-b"), "give RUN2 with it"),
    ],
)
def test_what_cannot_be_compared_is_told(tmp_path: Path, words: tuple[str, ...], error: str) -> None:
    store = run_of(tmp_path, "one", blocks=1, batches=(1,))
    found = CliRunner().invoke(app, ["compare", str(store.path), *words])
    assert found.exit_code != 0
    assert error in str(found.exception)


def test_runs_of_other_loads_share_no_point(tmp_path: Path) -> None:
    one, two = run_of(tmp_path, "one", blocks=1, batches=(1,)), run_of(tmp_path, "two", blocks=1, batches=(2,))
    found = CliRunner().invoke(app, ["compare", str(one.path), str(two.path)])
    assert "no point in common" in str(found.exception)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["compare", str(tmp_path)])
    assert "is not a run" in str(found.exception)
