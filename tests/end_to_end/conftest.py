"""`dyno` as a user runs it: a process of its own, a real engine on a tiny model, a run folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.waiting import LONG_S, wait_until

SMALL = ("--batch", "1,3", "--input-len", "8,24", "--output-len", "6")


class Run:
    """One run folder and the commands that fill it."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model = folder, model
        self.children: list[subprocess.Popen[str]] = []

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """Launch `dyno` in a session of its own, so that a signal to its group is what Ctrl-C in a terminal is."""
        child = subprocess.Popen(
            [sys.executable, "-m", "harness.cli", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **env},
        )
        self.children.append(child)
        return child

    def sweep(self, *words: str, **env: str) -> subprocess.Popen[str]:
        return self.start(
            # One thread: several of these tests may share two cores, and threads that wait for each other do badly there.
            *("sweep", "--engine", "label=reference,backend=reference,threads=1", "--model", str(self.model)),
            *("--out", str(self.folder), *words),
            **env,
        )

    def summary(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return data

    def committed(self) -> dict[str, bytes]:
        return {p.parent.name: p.read_bytes() for p in self.folder.glob("cells/*/cell.json")}

    def workers(self) -> list[psutil.Process]:
        """Load workers that drive a cell (not its warm-up) now."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "harness.load.worker" in words and any(w.startswith(str(self.folder)) and "/load/" in w for w in words):
                found.append(process)
        return found

    def hold_a_worker(self, committed: int = 1) -> psutil.Process:
        """A load worker put aside in its cell, with so many cells committed before: until it is resumed that cell cannot end."""
        held: list[psutil.Process] = []

        def caught() -> bool:
            for worker in self.workers() if len(self.committed()) >= committed else []:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.suspend()
                    held.append(worker)
                    return True
            return False

        wait_until(caught, "a cell under way")
        return held[0]

    def processes(self) -> list[str]:
        """Command lines of everything that still works on this run (servers carry its folder in their arguments)."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = process.info["cmdline"] or []
            if any(str(self.folder) in word for word in words) and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(" ".join(words))
        return found


def finish(child: subprocess.Popen[str], seconds: float = LONG_S) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that must end by itself."""
    out, err = child.communicate(timeout=seconds)
    return child.returncode, out, err


@pytest.fixture
def run(tmp_path: Path, tiny_dir: Path) -> Iterator[Run]:
    made = Run(tmp_path / "run", tiny_dir)
    yield made
    for child in made.children:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
