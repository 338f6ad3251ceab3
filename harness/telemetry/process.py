"""The sampler as the runner sees it: a child that starts, is read by interval, and may die without ending the run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.telemetry.sampler import SamplerConfig
from results.clock import now_ns
from results.schema import SAMPLES

# A round of readings of eight boards is some 12 KB.
_TAIL_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Mark:
    """An instant in a session's samples, and where in the file to look for what came after it."""

    t: int = 0
    offset: int = 0


class SamplerProcess:
    """Owns the sampling child of one session. Absent samples are a reason on the cell, never an error of the run."""

    def __init__(self, config: SamplerConfig, stderr_path: Path) -> None:
        self._path = Path(config.out)
        self._seen: set[str] = set()
        with stderr_path.open("ab") as stderr:
            self._process = subprocess.Popen(
                # -P: a folder of the user's that happens to be called `results` is not ours.
                [sys.executable, "-P", "-m", "harness.telemetry.sampler"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                text=True,
                # Out of the terminal's foreground group: Ctrl-C is the parent's to decide about, from the first instant.
                start_new_session=True,
            )
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(asdict(config)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # It died at once: `alive` says so, and its samples are absent.

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def since(self, mark: Mark, t1: int) -> dict[str, list[Any]]:
        """Columns of `results.schema.SAMPLES`: every sample from `mark` on whose interval touches [mark.t, t1]."""
        rows = [row for row in self._rows(mark.offset) if row[4] >= mark.t and row[3] <= t1]
        if not self.alive:
            why = f"the sampler ended with code {self._process.returncode}"
            rows.append(["sampler", "alive", None, mark.t, t1, None, why])
        return columns(rows)

    def settle(self, timeout_s: float = 5.0) -> Mark:
        """Wait for a reading of every series that began after now; returns the mark from which readings count.

        Counters are differences of readings: without one before the load and one after it they would miss its edges. A
        sampler that is gone, or a server that does not answer, ends the wait after `timeout_s` at the latest.
        """
        mark, deadline = Mark(now_ns(), self._tail_offset()), time.monotonic() + timeout_s
        self._seen.update(row[0] for row in self._rows(mark.offset))
        known = self._seen
        while self.alive and time.monotonic() < deadline:
            fresh = {row[0] for row in self._rows(mark.offset) if row[3] >= mark.t}
            if fresh and fresh >= known:
                break
            time.sleep(0.02)
        return mark

    def latest(self) -> dict[str, float | None]:
        """The newest value of each metric, for the live view."""
        rows = self._rows(self._tail_offset())
        self._seen.update(row[0] for row in rows)
        return {row[1]: row[5] for row in rows}

    def latest_of_devices(self) -> dict[str, dict[str, float | None]]:
        """The same of each device that is told of, by its name; {} where none is."""
        found: dict[str, dict[str, float | None]] = {}
        for row in self._rows(self._tail_offset()):
            if row[2]:
                found.setdefault(str(row[2]), {})[row[1]] = row[5]
        return found

    def stop(self, timeout_s: float = 10) -> None:
        """End the child; a hung one is killed, and left behind where even that does not end it."""
        try:
            self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # a driver call can be beyond the reach of any signal
                self._process.communicate(timeout=timeout_s)

    def _tail_offset(self) -> int:
        """Where the last few rounds of readings begin, however long the session."""
        return max(0, self._path.stat().st_size - _TAIL_BYTES) if self._path.exists() else 0

    def _rows(self, offset: int = 0) -> list[list[Any]]:
        """Whole lines from `offset` on (which may lie inside a line)."""
        try:
            with self._path.open("rb") as file:
                file.seek(offset)
                if offset:
                    file.readline()
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]  # The last line may be half written.
        return [json.loads(line) for line in whole.splitlines()]


def columns(rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """Rows in schema order as columns by name."""
    return {name: [row[i] for row in rows] for i, name in enumerate(SAMPLES.names)}
