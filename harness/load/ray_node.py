"""What stands on a node of a Ray cluster for the harness: it reads the node's clock and keeps one load worker there.

Ray makes an actor of it. Its methods run on the actor's main thread, which is what the load worker's life hangs on, and none
of them waits for the load.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import tempfile
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from backends.http_probe import ServerURL
from harness.calibration.store import cell_ceiling
from harness.load.plan import BODIES_FILE, LoadPlan
from harness.load.process import LoadProcess, LoadResult, Progress
from results.clock import now_ns
from results.files import store_error

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# The name under which the load worker finds the server's key, whatever it is called where the harness runs.
_KEY_ENV = "DYNO_NODE_API_KEY"


def boot_id() -> str:
    """One text for as long as this machine runs; the same in all its containers. Empty where the system tells none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Seen:
    """Where the load worker stands."""

    progress: Progress | None
    ready: bool
    finished: bool
    pid: int | None


@dataclass(frozen=True, slots=True)
class Measured:
    """What a load worker wrote: its result and its two event files, stamps on the node's clock."""

    result: LoadResult
    requests: bytes
    chunks: bytes


class LoadNode:
    """One load worker on this node."""

    def __init__(self) -> None:
        self._process = LoadProcess()
        self._folder: Path | None = None

    def about(self) -> dict[str, Any]:
        """Which machine this is, which Dyno it has, and up to what load its client is known to be right."""
        return {
            "host": socket.gethostname(),
            "boot_id": boot_id(),
            "dyno": version("llm-dyno"),
            "python": platform.python_version(),
            "ceiling": cell_ceiling(),
        }

    def reach(self, url: ServerURL, timeout_s: float) -> str | None:
        """Why no connection to the server can be opened from here; None where one can."""
        try:
            socket.create_connection((url.host, url.port), timeout_s).close()
        except OSError as error:
            return error.strerror or str(error) or type(error).__name__
        return None

    def clock(self) -> int:
        """The monotonic clock of this node now, in ns."""
        return now_ns()

    def start(self, plan: bytes, bodies: bytes, key: str | None) -> None:
        """Begin to carry a plan out (as JSON, with the bodies it names). Raises LoadWorkerError, StoreError."""
        folder = self._folder = Path(tempfile.mkdtemp(prefix="dyno-load-"))
        made = replace(LoadPlan.from_json(plan), folder=str(folder))
        if key is not None:
            os.environ[_KEY_ENV] = key
            made = replace(made, api_key_env=_KEY_ENV)
        try:
            (folder / BODIES_FILE).write_bytes(bodies)
        except OSError as error:
            raise store_error(folder / BODIES_FILE, error) from error
        self._process.start(made, folder)

    def look(self) -> Seen:
        """Where it stands. Raises LoadWorkerError."""
        progress = self._process.poll()
        return Seen(progress, self._process.ready, self._process.finished, self._process.pid)

    def begin(self, at_ns: int) -> None:
        """Tell a worker that waits for it when to begin, on this node's clock."""
        self._process.begin(at_ns)

    def stop(self) -> None:
        """Ask it to cancel what is in flight, write what was measured and end."""
        self._process.stop()

    def collect(self, timeout_s: float) -> Measured:
        """What it wrote, once it is through. Raises LoadWorkerError, StoreError."""
        assert self._folder is not None
        result = self._process.wait(timeout_s)
        requests, chunks = (self._folder / f"{name}.parquet" for name in ("requests", "chunks"))
        try:
            return Measured(result, requests.read_bytes(), chunks.read_bytes())
        except OSError as error:
            raise store_error(self._folder, error) from error

    def close(self) -> None:
        """End the worker if it still runs, and leave nothing on the node's disk."""
        self._process.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
