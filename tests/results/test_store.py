"""The store: a commit is whole or not there, a run is one experiment's, and one process writes it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from results import files
from results.errors import StoreError, UsageError
from results.files import check_writable
from results.records import CellRecord, Fault, SessionRecord
from results.store import CELL_FILES, RunStore, RunWriter, find_runs
from tests.waiting import LONG_S

EXPERIMENT = "model: m\nseed: 0\nengines: [{label: a}]\n"
MANIFEST: dict[str, Any] = {"host": {}, "start": {"command": ["dyno"], "wall_ns": 1, "monotonic_ns": 2}}


def record(cell_id: str, started: int = 1) -> CellRecord:
    return CellRecord(cell_id, "a", "reference", "m", "s", 0, 0, {}, {}, started, started + 1, {}, [Fault("c", "e")])


def fill(folder: Path) -> None:
    for name in CELL_FILES:
        (folder / name).write_bytes(b"x")


def test_a_cell_exists_from_the_commit_on_and_reads_back_equal(tmp_path: Path) -> None:
    with RunWriter.start(tmp_path / "r", EXPERIMENT, MANIFEST) as store:
        fill(store.begin_cell("c1"))
        assert not store.has_cell("c1")
        store.commit_cell(record("c1", started=9))
        fill(store.begin_cell("c0"))
        store.commit_cell(record("c0", started=3))
        assert RunStore.open(tmp_path / "r").cells() == [record("c0", 3), record("c1", 9)]


def test_a_committed_cell_is_never_begun_again(tmp_path: Path) -> None:
    with RunWriter.start(tmp_path / "r", EXPERIMENT, MANIFEST) as store:
        fill(store.begin_cell("c1"))
        store.commit_cell(record("c1"))
        with pytest.raises(StoreError, match="never run twice"):
            store.begin_cell("c1")


def test_a_cell_with_a_file_missing_is_not_committed(tmp_path: Path) -> None:
    with RunWriter.start(tmp_path / "r", EXPERIMENT, MANIFEST) as store:
        folder = store.begin_cell("c1")
        fill(folder)
        (folder / "chunks.parquet").unlink()
        with pytest.raises(StoreError, match=r"chunks\.parquet missing"):
            store.commit_cell(record("c1"))
        assert not store.has_cell("c1")


def test_what_an_unfinished_try_left_is_swept_aside(tmp_path: Path) -> None:
    with RunWriter.start(tmp_path / "r", EXPERIMENT, MANIFEST) as store:
        (store.begin_cell("c1") / "requests.parquet").write_bytes(b"half")
        assert list(store.begin_cell("c1").iterdir()) == []


def test_an_interrupted_cell_is_kept_out_of_the_way(tmp_path: Path) -> None:
    with RunWriter.start(tmp_path / "r", EXPERIMENT, MANIFEST) as store:
        for _ in range(2):
            fill(store.begin_cell("c1"))
            kept = store.set_aside("c1", "interrupted")
            assert sorted(p.name for p in kept.iterdir()) == sorted(CELL_FILES)
        assert len(list((tmp_path / "r" / "aside").iterdir())) == 2
        assert store.cells() == []


def test_the_same_experiment_is_resumed_and_each_start_is_kept(tmp_path: Path) -> None:
    RunWriter.start(tmp_path / "r", EXPERIMENT, MANIFEST).close()
    with RunWriter.start(tmp_path / "r", EXPERIMENT, {**MANIFEST, "start": {"wall_ns": 5}}) as store:
        assert [s["wall_ns"] for s in store.manifest["starts"]] == [1, 5]
        assert store.manifest["start"] == MANIFEST["start"]


def test_another_experiment_under_the_same_name_is_refused_and_named(tmp_path: Path) -> None:
    RunWriter.start(tmp_path / "r", EXPERIMENT, MANIFEST).close()
    with pytest.raises(UsageError, match=r"seed was 0, is now 3.*--out"):
        RunWriter.start(tmp_path / "r", EXPERIMENT.replace("seed: 0", "seed: 3"), MANIFEST)
    # A refused start leaves no lock behind.
    RunWriter.start(tmp_path / "r", EXPERIMENT, MANIFEST).close()


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="not a run"):
        RunWriter.start(tmp_path, EXPERIMENT, MANIFEST)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(UsageError, match="no manifest"):
        RunStore.open(tmp_path)
    assert list(find_runs(tmp_path)) == []


def test_what_is_no_run_tells_the_nearest_thing_to_do(tmp_path: Path) -> None:
    for name in ("a", "b"):
        RunWriter.start(tmp_path / "runs" / name, EXPERIMENT, MANIFEST).close()
    runs, run = tmp_path / "runs", tmp_path / "runs" / "a"
    (tmp_path / "file").touch()
    for path, words in (
        (run / "experiment.yaml", f"lies in one: name {run}."),
        (run / "cells", f"lies in one: name {run}."),
        (runs, f"name one of them, {run} and {runs / 'b'} (`dyno runs {runs}` lists them)."),
        (runs / "c", f"`dyno sweep --out {runs / 'c'}` makes one."),
        (tmp_path / "file", "has no manifest.json. `dyno runs` lists the runs here."),
    ):
        with pytest.raises(UsageError, match="is not a run") as refused:
            RunStore.open(path)
        assert str(refused.value).endswith(words)


@pytest.mark.parametrize(
    ("here", "path", "words"),
    [
        ("runs/a", "cells", "lies in one: name {run}."),
        ("runs/a/cells", ".", "lies in one: name {run}."),
        ("runs/a", "..", "holds some: name one of them, ../a (`dyno runs ..` lists them)."),
    ],
)
def test_a_run_is_found_from_within_it_too(
    here: str, path: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "a"
    RunWriter.start(run, EXPERIMENT, MANIFEST).close()
    monkeypatch.chdir(tmp_path / here)
    with pytest.raises(UsageError) as refused:
        RunStore.open(Path(path))
    assert str(refused.value).endswith(words.format(run=run))


def test_a_file_to_be_replaced_needs_its_folder_and_one_to_be_gone_on_with_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, locked = tmp_path / "there.xml", tmp_path / "locked"
    file.touch()
    locked.mkdir()
    (locked / "there.xml").touch()
    # Root may write everywhere: rights are told by hand.
    monkeypatch.setattr("results.files.os.access", lambda path, mode: Path(path) not in (file, locked))
    check_writable("--junit", file)
    check_writable("--markdown", locked / "there.xml", appended=True)
    check_writable("--json-file", Path("/dev/stdout"))
    for path, appended in ((file, True), (locked / "there.xml", False), (locked / "new.xml", True)):
        with pytest.raises(UsageError, match=r"--junit: .* permission denied"):
            check_writable("--junit", path, appended)


def test_a_start_that_was_cut_off_is_made_anew(tmp_path: Path) -> None:
    run = tmp_path / "r"
    for name in ("sessions", "cells"):
        (run / name).mkdir(parents=True)
    (run / "experiment.yaml").write_text("half: [")
    (run / ".manifest.json.77.tmp").write_text("{")
    with RunWriter.start(run, EXPERIMENT, MANIFEST) as store:
        assert store.experiment["model"] == "m"
    assert RunStore.open(run).manifest["starts"] == [MANIFEST["start"]]


def test_a_second_writer_is_kept_out_while_the_first_lives(tmp_path: Path) -> None:
    with RunWriter.start(tmp_path / "r", EXPERIMENT, MANIFEST), pytest.raises(UsageError, match="being written"):
        RunWriter.start(tmp_path / "r", EXPERIMENT, MANIFEST)
    RunWriter.start(tmp_path / "r", EXPERIMENT, MANIFEST).close()


def test_sessions_are_numbered_in_order_and_odd_labels_make_plain_folders(tmp_path: Path) -> None:
    with RunWriter.start(tmp_path / "r", EXPERIMENT, MANIFEST) as store:
        first, _ = store.new_session("../a b", 0)
        second, folder = store.new_session("../a b", 1)
        assert first < second
        assert folder.parent == tmp_path / "r" / "sessions"
        store.write_session(SessionRecord(second, "../a b", "reference", 1, "m", "http://x"))
        assert [s["id"] for s in store.sessions()] == [second]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_so_and_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = tmp_path / "a.json"
    files.write_atomic(path, b"old")

    def full(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StoreError, match=r"No space left.*MiB free.*same command"):
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_link_keeps_its_place_and_a_device_is_written_into(tmp_path: Path) -> None:
    real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(real)
    files.write_atomic(link, b"through")
    assert link.is_symlink()
    assert real.read_bytes() == b"through"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write_atomic(pipe, b"into")
    assert os.read(reader, 10) == b"into"
    assert pipe.is_fifo()
    os.close(reader)


@pytest.mark.parametrize("content", ["{", "[]", '{"id": 1}', '{"schema": 99}'])
def test_a_damaged_record_stands_for_itself_and_not_for_the_run(tmp_path: Path, content: str) -> None:
    with RunWriter.start(tmp_path / "r", EXPERIMENT, MANIFEST) as store:
        for name in ("good", "bad"):
            fill(store.begin_cell(name))
            store.commit_cell(record(name))
        (store.cell_dir("bad") / "cell.json").write_text(content)
        assert [c.id for c in store.cells()] == ["good"]
        assert list(store.damaged_cells()) == ["bad"]
        # It was committed, so it is not run again behind the user's back.
        assert store.has_cell("bad")


@pytest.mark.parametrize("content", ["[]", '{"schema": 99}', '{"schema": "x"}', '{"schema": true}', "{"])
def test_a_damaged_or_newer_manifest_is_refused_in_words(tmp_path: Path, content: str) -> None:
    RunWriter.start(tmp_path / "r", EXPERIMENT, MANIFEST).close()
    (tmp_path / "r" / "manifest.json").write_text(content)
    with pytest.raises(StoreError, match=r"manifest\.json"):
        RunWriter.start(tmp_path / "r", EXPERIMENT, MANIFEST)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": ')
    with pytest.raises(StoreError, match=r"x\.json is damaged"):
        files.read_json(tmp_path / "x.json")


KILLED = """
import os, sys
from pathlib import Path
from results import files, store
from tests.results.test_store import EXPERIMENT, MANIFEST, fill, record
run = store.RunWriter.start(Path(sys.argv[1]), EXPERIMENT, MANIFEST)
fill(run.begin_cell("done")); run.commit_cell(record("done"))
fill(run.begin_cell("half"))
countdown = int(sys.argv[2])
real = {name: getattr(os, name) for name in ("fsync", "replace", "rename")}
def counting(name):
    def call(*args, **kwargs):
        global countdown
        if countdown == 0:
            os.kill(os.getpid(), 9)
        countdown -= 1
        return real[name](*args, **kwargs)
    return call
for name in real:
    setattr(os, name, counting(name))
run.commit_cell(record("half"))
print("committed")
"""


@pytest.mark.parametrize("after", range(7))
def test_killed_at_any_step_of_a_commit_nothing_committed_is_lost(tmp_path: Path, after: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "r"), str(after)], capture_output=True, text=True, timeout=LONG_S
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    with RunWriter.start(tmp_path / "r", EXPERIMENT, MANIFEST) as store:
        ids = [c.id for c in store.cells()]
        assert ids == ["done", "half"] or (ids == ["done"] and done.returncode != 0)
        if "half" not in ids:
            fill(store.begin_cell("half"))
            store.commit_cell(record("half"))
        assert {c.id for c in store.cells()} == {"done", "half"}


def test_when_a_run_is_enough_may_be_asked_anew(tmp_path: Path) -> None:
    grid = "blocks: 1\nmodel: m\n"
    with RunWriter.start(tmp_path / "run", grid, MANIFEST):
        pass
    with RunWriter.start(tmp_path / "run", grid + "budget_s: 60\nuntil_ci: 0.03\n", MANIFEST) as again:
        assert again.experiment["until_ci"] == 0.03
    with pytest.raises(UsageError, match="blocks was 1, is now 2"):
        RunWriter.start(tmp_path / "run", "blocks: 2\nmodel: m\nuntil_ci: 0.03\n", MANIFEST)
