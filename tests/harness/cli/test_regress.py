"""`dyno regress`, `dyno baseline` and `dyno history`: what they print and write, and their exit codes."""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from harness.child import die_with_parent
from results.events import read_table, write_table
from results.regression import Gate, GateRow
from results.regression_metrics import GATE_METRICS
from results.regression_words import notes
from results.schema import TRUTH_STEPS
from results.store import RunStore
from tests.harness.cli.conftest import Result
from tests.harness.cli.test_compare import run_of
from tests.results.builders import fail_requests, synthetic_run

Dyno = Callable[..., Result]
COUNT = ("--metric", "computed_tokens_per_token")


def doubled_prefill(store: RunStore, engine: str) -> None:
    """As if each prompt token of this engine had been computed twice, in the same time."""
    for session in store.sessions():
        if session["engine"] == engine:
            path = store.session_dir(session["id"]) / "steps.parquet"
            table = read_table(path, TRUTH_STEPS.names)
            columns = {name: table[name].to_pylist() for name in TRUTH_STEPS.names}
            columns["prefill_tokens"] = [2 * n for n in columns["prefill_tokens"]]
            write_table(path, TRUTH_STEPS, columns)


@pytest.fixture
def slow(tmp_path: Path) -> RunStore:
    """ref-b is 1.25 times slower than ref-a."""
    return run_of(tmp_path, "one")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """Read only."""
    return synthetic_run(tmp_path_factory.mktemp("small"), batches=(1,))


def test_a_slower_engine_is_suspected_and_fails_once_new_sessions_show_it_again(
    slow: RunStore, tmp_path: Path, dyno: Dyno
) -> None:
    sides = (f"{slow.path}:ref-a", f"{slow.path}:ref-b")
    first = dyno("regress", *sides, "--metric", "output_tokens_per_s")
    assert (first.code, first.err) == (3, "")
    assert "not confirmed" in first.out
    assert "with --confirm" in " ".join(first.out.split())
    again = run_of(tmp_path, "again")
    found = dyno("regress", *sides, "--metric", "output_tokens_per_s", "--confirmation", str(again.path), "--json")
    document = json.loads(found.out)
    assert (found.code, document["verdict"], document["mode"]) == (1, "regression", "paired")
    assert all(point["confirmed"] for point in document["points"])
    # The other way round the candidate is faster; one RUN of two engines has its first as the base.
    assert dyno("regress", *reversed(sides), "--metric", "output_tokens_per_s").code == 0
    assert dyno("regress", str(slow.path), "--metric", "output_tokens_per_s").code == 3
    itself = dyno("regress", *sides, "--confirmation", str(slow.path))
    assert itself.code == 2


def test_new_sessions_are_measured_in_a_run_beside_the_first(
    slow: RunStore, tmp_path: Path, dyno: Dyno, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    started: dict[str, object] = {}

    def sweep(words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        started.update(options)
        run_of(tmp_path, "one-confirm")
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr("harness.gate.subprocess.run", sweep)
    found = dyno("regress", str(slow.path), "--metric", "output_tokens_per_s", "--confirm")
    assert found.code == 1
    words = asked[0]
    assert words[words.index("--out") + 1] == str(tmp_path / "one-confirm")
    assert words[words.index("--seed") + 1] != str(slow.experiment.get("seed"))
    # Killed with -9 itself, the gate leaves no sweep behind that measures on and holds the folder.
    assert started["preexec_fn"] is die_with_parent


def test_a_doubled_prefill_is_caught_by_counters_alone(tmp_path: Path, dyno: Dyno) -> None:
    store = synthetic_run(tmp_path, blocks=2)
    equal = dyno("regress", str(store.path), *COUNT)
    assert equal.code == 0, equal.out
    doubled_prefill(store, "ref-b")
    found = dyno("regress", str(store.path), *COUNT, "--json")
    points = json.loads(found.out)["points"]
    assert (found.code, {p["verdict"] for p in points}) == (1, {"regression"})
    assert all(p["exact"] and p["ratio"] > 1.5 and p["kind"] == "counter" for p in points)


def test_every_output_says_the_same(slow: RunStore, tmp_path: Path, dyno: Dyno) -> None:
    page, junit, document = (tmp_path / name for name in ("gate.md", "gate.xml", "gate.json"))
    page.write_text("before\n")
    outputs = ("--markdown", str(page), "--junit", str(junit), "--json-file", str(document))
    found = dyno("regress", str(slow.path), *outputs)
    assert found.code == 3
    text, told = page.read_text(), json.loads(document.read_text())
    assert text.startswith("before\n### INCONCLUSIVE")
    assert "| point | metric |" in text
    assert "smallest worsening" in text
    suite = ElementTree.fromstring(junit.read_text())[0]
    assert int(suite.get("tests", "")) == len(told["points"]) + 1 == len(suite)
    assert int(suite.get("failures", "")) == 0
    assert int(suite.get("skipped", "")) == sum(p["verdict"] != "pass" for p in told["points"])
    assert "smallest worsening" in " ".join(found.out.split())


def test_a_file_that_cannot_be_written_after_all_does_not_lose_the_verdict(
    slow: RunStore, tmp_path: Path, dyno: Dyno, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("results.files.os.fsync", full)
    for flag in ("--junit", "--json-file"):
        found = dyno("regress", str(slow.path), flag, str(tmp_path / "gate"))
        assert found.code == 4
        assert "INCONCLUSIVE" in found.out
        assert "No space left while writing" in found.err


def test_nothing_is_measured_for_a_file_that_cannot_be_written(
    slow: RunStore, tmp_path: Path, dyno: Dyno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.gate.subprocess.run", lambda *_, **__: pytest.fail("measured"))
    for flag in ("--junit", "--markdown", "--json-file"):
        found = dyno("regress", str(slow.path), "--confirm", flag, str(tmp_path / "none" / "x"))
        assert (found.code, found.out) == (2, "")
        assert f"{flag}: " in found.err


def test_failed_requests_and_missing_cells_fail_the_gate(tmp_path: Path, dyno: Dyno) -> None:
    invalid = synthetic_run(tmp_path, blocks=2, edit=fail_requests("http_error", 99), name="invalid")
    junit = tmp_path / "gate.xml"
    found = dyno("regress", str(invalid.path), "--junit", str(junit))
    assert found.code == 1
    assert "INVALID" in found.out
    assert ElementTree.fromstring(junit.read_text())[0].get("failures") == "1"
    short = synthetic_run(tmp_path, blocks=2, name="short")
    for record in short.cells():
        if record.engine == "ref-b" and record.block == 1:
            (short.cell_dir(record.id) / "cell.json").unlink()
    found = dyno("regress", str(short.path), *COUNT)
    assert found.code == 1
    assert "missing" in found.out


def test_markup_in_names_stays_text(tmp_path: Path, dyno: Dyno) -> None:
    label = 'x"><svg onload=1> </testcase> | `a` \x07'
    store = synthetic_run(tmp_path, engines=("ref-a", label), blocks=2)
    page, junit = tmp_path / "gate.md", tmp_path / "gate.xml"
    dyno("regress", str(store.path), *COUNT, "--markdown", str(page), "--junit", str(junit))
    assert "<svg" not in page.read_text()
    assert "svg onload=1" in ElementTree.fromstring(junit.read_text())[0].get("name", "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nowhere",), "is not a run"),
        (("{run}:ref-a",), "Name both sides"),
        (("{run}:ref-a", "{run}:ref-c"), "Unknown engine"),
        (("{run}:ref-a", "{run}:ref-a"), "against itself"),
        (("{run}", "{run}", "{run}"), "two sides"),
        (("{run}", "--margin", "wal=3%"), "Did you mean 'wall'? The nearest"),
        (("{run}", "--margin", "speed=3%"), "Kinds: wall, cpu, counter;"),
        (("{run}", "--junit", "{run}"), "--junit: "),
        (("{run}", "--markdown", "{run}/none/x.md"), "--markdown: "),
        (("{run}", "--json-file", "{run}/manifest.json/x.json"), "--json-file: "),
        (("{run}", "--margin", "300%"), "--margin"),
        (("{run}", "--metric", "speed"), "Unknown metric"),
        (("{run}", "--confirm", "--confirmation", "{run}"), "one of them"),
        (("{run}", "--confirmation", "nowhere"), "is not a run"),
        (("{run}", "--confirmation", "{run}"), "is what is to be confirmed"),
        (("{run}", "--junit", "same", "--json-file", "./same"), "--junit and --json-file name one file twice"),
        (("{run}", "--baseline", "nowhere.json"), "There is no baseline"),
    ],
)
def test_what_cannot_be_asked_is_refused(small: RunStore, dyno: Dyno, words: tuple[str, ...], told: str) -> None:
    found = dyno("regress", *(word.format(run=small.path) for word in words))
    assert (found.code, found.out) == (2, "")
    assert told in found.err


def test_a_run_without_cells_is_refused_and_says_how_to_get_them(tmp_path: Path, dyno: Dyno) -> None:
    store = synthetic_run(tmp_path, batches=(1,))
    for cell in (store.path / "cells").iterdir():
        (cell / "cell.json").unlink()
    found = dyno("regress", f"{store.path}:ref-a", f"{store.path}:ref-b")
    assert (found.code, found.out) == (2, "")
    assert "no cell of ref-a or ref-b" in found.err
    assert "command of its sweep again" in " ".join(found.err.split())


def test_what_is_damaged_says_what_to_do_about_it(small: RunStore, tmp_path: Path, dyno: Dyno) -> None:
    file = tmp_path / "b.json"
    for text in ("{", '{"schema": "x"}', '{"schema": 1, "name": "x"}'):
        file.write_text(text)
        found = dyno("regress", f"{small.path}:ref-a", "--baseline", str(file))
        assert (found.code, found.out) == (4, "")
        assert "dyno baseline make" in " ".join(found.err.split())
    run = synthetic_run(tmp_path, batches=(1,), name="bad")
    for text in ("{", '{"schema": "x"}', "[]"):
        (run.path / "manifest.json").write_text(text)
        found = dyno("regress", str(run.path))
        assert (found.code, found.out) == (4, "")
        assert "Restore it" in " ".join(found.err.split())


def test_a_baseline_that_cannot_be_written_is_refused_before_anything_is_said(
    small: RunStore, tmp_path: Path, dyno: Dyno
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for path in (file / "x.json", file / "deep" / "x.json"):
        found = dyno("baseline", "make", f"{small.path}:ref-a", "--out", str(path))
        assert (found.code, found.out) == (2, "")
        assert "is a file" in " ".join(found.err.split())
    assert file.read_text() == "mine"


def test_an_engine_of_a_run_where_a_whole_run_is_wanted_is_told_apart_from_no_run(small: RunStore, dyno: Dyno) -> None:
    found = dyno("report", f"{small.path}:ref-a")
    assert found.code == 2
    assert f"name {small.path}" in " ".join(found.err.split()).replace("- ", "-")


def test_a_changed_default_is_refused_and_with_allow_differences_named_beside_the_verdict(
    tmp_path: Path, dyno: Dyno
) -> None:
    store = run_of(tmp_path, "pr", batches=(1,))
    for session in store.sessions():
        path = store.session_dir(session["id"]) / "session.json"
        record = json.loads(path.read_text())
        size = 16 if session["engine"] == "ref-a" else 32
        record["settings"]["block_size"] = {"value": size, "source": "endpoint"}
        path.write_text(json.dumps(record))
    refused = dyno("regress", str(store.path))
    assert refused.code == 2
    assert "block_size: 16 / 32" in " ".join(refused.err.split())
    gated = dyno("regress", str(store.path), "--allow-differences", "--json")
    document = json.loads(gated.out)
    assert gated.code in (0, 1, 3)
    assert document["unlike"] == ["block_size: 16 / 32"]


def test_a_counter_that_follows_the_batch_says_so_where_settings_were_allowed_to_differ() -> None:
    row = GateRow(
        "b", "128 in / 32 out", "8 in flight", "kv_blocks_peak", "blocks", "counter", "lower", 8.0, 16.0, 2.0, 1.9, 2.1, 5, 0.05,
        0.1, 0.1, None, "suspected",
    )  # fmt: skip
    gate = Gate("a", "b", "paired", 0.95, [row], unlike=["max_num_seqs: 4 / 64"])
    told = [note for note in notes(gate) if "how many requests run at once" in note]
    assert len(told) == 1
    assert "max_num_seqs: 4 / 64" in told[0]
    for other in (replace(gate, unlike=[]), replace(gate, unlike=["load_format: auto / dummy"])):
        assert not [note for note in notes(other) if "how many requests run at once" in note]
    better = replace(gate, points=[replace(row, verdict="pass")])
    assert not [note for note in notes(better) if "how many requests run at once" in note]


def test_the_table_breaks_no_name_at_80_columns_and_says_what_it_left_out(slow: RunStore, dyno: Dyno) -> None:
    narrow = dyno("regress", str(slow.path), columns=80).out.splitlines()
    wide = dyno("regress", str(slow.path), columns=120).out.splitlines()

    def rows(lines: list[str], metric: str) -> list[str]:
        return [line for line in lines if line.startswith(f"{metric} ") and not line.startswith(f"{metric} at ")]

    metrics = [metric for metric in GATE_METRICS if rows(wide, metric)]
    assert "output_tokens_per_s" in metrics
    for metric in metrics:
        found = rows(narrow, metric)
        assert len(found) == len(rows(wide, metric))
        # A line a row, its verdict at the end.
        assert all(row.split()[-1].rstrip("*") in ("pass", "suspected", "inconclusive") for row in found)
    assert any("margin" in line and "verdict" in line for line in wide)
    assert any(line.startswith("Margins: wall 5 %") for line in narrow)


def test_a_baseline_is_made_gated_updated_with_its_difference_and_told_over_commits(
    tmp_path: Path, dyno: Dyno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, slower = run_of(tmp_path, "night"), run_of(tmp_path, "later", slower=1.5)
    file = Path("results/baselines/night.json")
    made = dyno("baseline", "make", f"{run.path}:ref-a")
    assert (made.code, file.is_file()) == (0, True), made.err
    assert dyno("baseline", "make", f"{run.path}:ref-a").code == 2
    for words in (("init", "-q"), ("add", str(file)), ("commit", "-q", "-m", "a night")):
        git(*words)
    rate = ("--metric", "output_tokens_per_s", "--baseline", str(file))
    assert dyno("regress", f"{run.path}:ref-a", *rate).code == 0
    worse = dyno("regress", f"{slower.path}:ref-a", *rate)
    assert worse.code == 1
    assert "without confirmation" in " ".join(worse.out.split())
    before = file.read_bytes()
    shown = dyno("baseline", "update", str(file), f"{slower.path}:ref-a", "--dry-run")
    assert (shown.code, file.read_bytes()) == (0, before)
    assert "output_tokens_per_s at 4 in flight" in shown.out
    assert "(-3" in shown.out
    assert dyno("baseline", "update", str(file), f"{slower.path}:ref-a").code == 0
    assert file.read_bytes() != before
    told = json.loads(dyno("history", "output_tokens_per_s", "--json").out)["rows"]
    at = [row for row in told if row["point"].startswith("4 in flight")]
    assert [bool(row["commit"]) for row in at] == [True, False]
    assert at[1]["change"] == pytest.approx(1 / 1.5 - 1, abs=0.05)
    shown = dyno("history", "output_tokens_per_s")
    assert "not committed" in shown.out
    assert dyno("history", "weight_bytes", "--baselines", str(tmp_path / "none")).code == 2


def git(*words: str) -> None:
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *name, *words], check=True, capture_output=True)


def test_cpu_seconds_and_counters_are_read_from_a_run(tmp_path: Path, dyno: Dyno) -> None:
    store = synthetic_run(tmp_path, blocks=2)
    points = json.loads(dyno("regress", str(store.path), "--json").out)["points"]
    by_metric = {p["metric"]: p for p in points}
    steps = by_metric["steps_per_output_token"]
    assert (steps["ratio"], steps["verdict"], steps["exact"]) == (1.0, "pass", True)
    assert np.isfinite(by_metric["kv_blocks_peak"]["base"])
