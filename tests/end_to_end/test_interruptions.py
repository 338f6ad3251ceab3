"""Kills, Ctrl-C, dying servers, full disks: what was committed stays, what was missing is run, no server is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.conftest import SMALL, Run, finish
from tests.harness.fake_sessions import FAKE
from tests.waiting import wait_until

# Long enough that a signal lands inside the sweep, not after it.
LONG = ("--batch", "1,2", "--input-len", "8,24", "--output-len", "120")
CELLS = 4


def interrupt(run: Run, number: int) -> tuple[int, dict[str, bytes], str]:
    """Send the signal to the whole foreground group once one cell is committed and another is under way."""
    child = run.sweep(*LONG)
    worker = run.hold_a_worker()
    os.killpg(child.pid, number) if number == signal.SIGINT else os.kill(child.pid, number)
    with contextlib.suppress(psutil.NoSuchProcess):  # a killed parent takes it along
        worker.resume()
    code, _, err = finish(child)
    before = run.committed()
    assert 0 < len(before) < CELLS, "the signal came too late to show anything"
    wait_until(lambda: not run.processes(), "the server and all children are gone")
    return code, before, err


def complete(run: Run, before: dict[str, bytes]) -> None:
    code, out, err = finish(run.sweep(*LONG))
    assert code == 0, err
    after = run.committed()
    assert len(after) == CELLS
    assert {k: after[k] for k in before} == before, "a committed cell was touched"
    assert f"{len(before)} of {CELLS} cells are committed already" in out
    assert not run.processes()


def test_a_killed_sweep_is_completed_by_the_same_command(run: Run) -> None:
    code, before, _ = interrupt(run, signal.SIGKILL)
    assert code == -signal.SIGKILL
    complete(run, before)


def test_ctrl_c_ends_with_130_and_keeps_what_was_measured(run: Run) -> None:
    code, before, err = interrupt(run, signal.SIGINT)
    assert code == 130, err
    assert "interrupted" in err
    assert "Traceback" not in err
    # The cell under way is kept aside, not committed; the summary of the rest is written.
    assert len(run.summary()["cells"]) == len(before)
    (aside,) = run.folder.glob("aside/*")
    assert (aside / "requests.parquet").exists()
    complete(run, before)


def test_a_terminated_sweep_ends_like_an_interrupted_one(run: Run) -> None:
    code, before, err = interrupt(run, signal.SIGTERM)
    assert code == 130, err
    assert len(run.summary()["cells"]) == len(before)


def test_ctrl_c_while_the_last_server_stops_ends_like_one_in_a_cell(run: Run) -> None:
    child = run.start(
        *("sweep", "--backend", "reference", "--model", str(run.model), "--out", str(run.folder)),
        *("--batch", "1,2", "--input-len", "8", "--output-len", "4"),
        DYNO_REFERENCE_COMMAND=f"{sys.executable} {FAKE} --ignore-term",
    )

    def told_to_end() -> bool:
        assert child.poll() is None, "it ended before its server was told to"
        return any("got SIGTERM" in log.read_text() for log in run.folder.glob("sessions/*/server.log"))

    wait_until(told_to_end, "the server is told to end")
    os.killpg(child.pid, signal.SIGINT)
    code, _, err = finish(child)
    assert code == 130, err
    assert "dyno: interrupted. Committed cells are kept" in err
    assert "Traceback" not in err
    assert len(run.summary()["cells"]) == len(run.committed()) == 2
    assert (run.folder / "report.html").exists()
    wait_until(lambda: not run.processes(), "the server is gone")


def test_a_server_that_dies_in_a_cell_makes_that_cell_invalid_and_the_rest_goes_on(run: Run) -> None:
    child = run.sweep(*LONG)
    held = run.hold_a_worker()
    victim = next(p for p in psutil.process_iter(["cmdline"]) if str(run.folder) in " ".join(p.info["cmdline"] or [])
                  and "backends.reference" in (p.info["cmdline"] or []))  # fmt: skip
    victim.kill()
    held.resume()
    code, _, err = finish(child)
    assert code == 1, err
    cells = run.summary()["cells"]
    invalid = [c for c in cells if c["verdict"] == "INVALID"]
    assert len(cells) == CELLS
    assert len(invalid) == 1
    (reason,) = [r for r in invalid[0]["reasons"] if r["code"] == "server_died"]
    assert "SIGKILL" in reason["evidence"]
    assert len(list(run.folder.glob("sessions/*"))) == 2
    assert not run.processes()


def test_a_server_that_does_not_start_is_explained_with_its_last_words(run: Run) -> None:
    code, _, err = finish(
        run.start(
            *("sweep", "--model", str(run.model), *SMALL, "--out", str(run.folder)),
            *("--engine", "label=wrong,backend=reference,options=--no-such-flag"),
            *("--engine", "label=right,backend=reference,threads=1"),
        )
    )  # fmt: skip
    assert code == 4
    assert "--no-such-flag" in err
    assert "server.log" in err
    assert "Traceback" not in err
    # The other engine is measured all the same.
    assert {c["engine"] for c in run.summary()["cells"]} == {"right"}
    failures = [json.loads(p.read_text())["failure"] for p in run.folder.glob("sessions/*wrong/session.json")]
    assert [f["class"] for f in failures] == ["bad_argument"]
    assert not run.processes()


def test_no_secret_of_an_engine_reaches_a_file_or_the_screen(run: Run) -> None:
    code, out, err = finish(
        run.start(
            *("sweep", "--model", str(run.model), "--batch", "1", "--output-len", "2", "--out", str(run.folder)),
            *("--engine", "label=echoes,backend=reference,options=--api-key=SECRET-key-77 --header 'Authorization: Bearer SECRET-b-1'"),
            *("--engine", "label=runs,backend=reference,threads=1,env.X_TOKEN=SECRET-token-33,env.DB=postgres://u:SECRET-pw-9@h/x"),
        )
    )  # fmt: skip
    assert code == 4, err
    assert {c["engine"] for c in run.summary()["cells"]} == {"runs"}
    assert "SECRET" not in out + err
    for path in run.folder.rglob("*"):
        assert not path.is_file() or b"SECRET" not in path.read_bytes(), path


def test_a_command_that_does_not_exist_is_named(run: Run) -> None:
    code, _, err = finish(run.sweep(*SMALL, DYNO_REFERENCE_COMMAND="/nowhere/engine --fast"))
    assert code == 4
    assert "/nowhere/engine" in err
    assert "DYNO_" in err


def test_a_kv_pool_too_small_for_a_request_is_refused_with_both_numbers(run: Run) -> None:
    code, _, err = finish(run.start(
        *("sweep", "--model", str(run.model), "--batch", "1", "--input-len", "64", "--output-len", "8", "--out", str(run.folder)),
        *("--engine", "label=tiny,backend=reference,threads=1,kv_cache_tokens=32"),
        *("--engine", "label=enough,backend=reference,threads=1,kv_cache_tokens=320"),
    ))  # fmt: skip
    assert code == 2
    assert "64 prompt tokens and 8 output tokens make 72, more than the 32 that engine 'tiny' takes" in err
    assert "Traceback" not in err
    # The engine that can is measured all the same.
    assert [c["engine"] for c in run.summary()["cells"]] == ["enough"]


def test_a_load_worker_that_dies_makes_that_cell_invalid_and_the_rest_goes_on(run: Run) -> None:
    child = run.sweep(*LONG)
    run.hold_a_worker().kill()
    code, _, err = finish(child)
    assert code == 1, err
    cells = run.summary()["cells"]
    (invalid,) = [c for c in cells if c["verdict"] == "INVALID"]
    assert len(cells) == CELLS
    assert "load_failed" in {r["code"] for r in invalid["reasons"]}
    assert (run.folder / "report.html").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting a small disk needs rights this user has not: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_ends_the_run_in_words_and_leaves_no_server(run: Run, small_disk: Path) -> None:
    run.folder = small_disk / "run"
    code, _, err = finish(run.sweep(*LONG))
    assert code == 4, err
    assert "No space left" in err
    assert "Traceback" not in err
    assert not run.processes()
