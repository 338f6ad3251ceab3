"""The parent's end of the load worker: start it, follow it, stop it, and read what it wrote.

`start` from a thread that lives as long as the worker is to: the kernel ends the worker with the thread that made it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson

from harness.load.plan import RESULT_FILE, LoadPlan
from results.errors import EXIT_ENVIRONMENT, DynoError
from results.files import read_json

_STDERR_TAIL = 4000
_REQUIRED = ("issued", "done", "ok", "failed", "in_flight", "tokens", "elapsed_s")


class LoadWorkerError(DynoError):
    """The load worker could not do its work, died, or spoke nonsense. `stderr` is the end of what it wrote there."""

    def __init__(self, message: str, *, exit_code: int = EXIT_ENVIRONMENT, stderr: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.stderr = stderr


class LoadWorkerDiedError(LoadWorkerError):
    """The worker ended, hung or spoke nonsense, as opposed to one that said in words what is wrong."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the load stands; `tokens` are output tokens of finished requests."""

    issued: int
    done: int
    ok: int
    failed: int
    in_flight: int
    tokens: int
    elapsed_s: float
    finished: bool = False


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What the worker says of its run: `started` and `ended` (ns) enclose all requests; `client` is for cell.json."""

    started: int
    ended: int
    stopped: bool
    issued: int
    outcomes: dict[str, int]
    client: dict[str, Any] = field(default_factory=dict)


class LoadProcess:
    """One run of the load worker. Used as a context manager it leaves no process behind."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._held = b""
        self._errors = b""
        self._last: Progress | None = None
        self._finished = False
        self._ready = False
        self._out_dir = Path()

    def start(self, plan: LoadPlan, out_dir: Path) -> None:
        """Write the plan and start the worker; its event files will be in `out_dir`. Raises LoadWorkerError, StoreError."""
        if self._child is not None:
            raise LoadWorkerError("This load worker was started already; one LoadProcess carries out one plan.")
        plan.api_key()  # a missing key is the user's to mend, so say so before anything starts
        self._out_dir = out_dir
        path = plan.save(out_dir)
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "harness.load.worker", str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                # Out of the terminal's foreground group: Ctrl-C is the parent's to decide about, from the first instant.
                start_new_session=True,
            )
        except OSError as error:
            raise LoadWorkerError(f"The load worker could not be started: {error.strerror or error}.") from error
        for stream in (self._child.stdout, self._child.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def poll(self) -> Progress | None:
        """The newest progress, or None when there was none yet. Never waits. Raises LoadWorkerError."""
        self._drain()
        child = self._started()
        if child.poll() is not None:
            self._drain()
            if not self._finished:
                raise self._died(child.returncode)
        return self._last

    @property
    def finished(self) -> bool:
        """Has the worker said that it is through? (`poll` keeps this up to date.)"""
        return self._finished

    @property
    def ready(self) -> bool:
        """Has it said that it waits for `begin`? (`poll` keeps this up to date.)"""
        return self._ready

    def begin(self, at_ns: int) -> None:
        """Tell a worker whose plan has `wait_for_start` when to begin (monotonic ns)."""
        self._tell(b"start %d\n" % at_ns)

    def stop(self) -> None:
        """Ask it to cancel what is in flight, write what was measured and end. Does not wait."""
        self._tell(b"stop\n")

    def _tell(self, line: bytes) -> None:
        child = self._started()
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            child.stdin.write(line)

    def wait(self, timeout_s: float) -> LoadResult:
        """Until the worker has ended; what it wrote. Raises LoadWorkerError (also when it takes longer)."""
        child = self._started()
        deadline = time.monotonic() + timeout_s
        while child.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                self.kill()
                raise LoadWorkerDiedError(
                    f"The load worker did not end within {timeout_s:g} s and was killed; what it measured is lost. Stop it earlier, "
                    "or give it shorter time limits.",
                    stderr=self._stderr(),
                )
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(min(left, 0.05))
            self._drain()
        self._drain()
        if child.returncode != 0 or not self._finished:
            raise self._died(child.returncode)
        self._close()
        try:
            return LoadResult(**read_json(self._out_dir / RESULT_FILE))
        except TypeError as error:
            raise LoadWorkerError(
                f"{self._out_dir / RESULT_FILE} is not the result of a load worker: {error}."
            ) from error

    def kill(self) -> None:
        """End it at once; nothing is written. Harmless when it has ended or never started."""
        if self._child is None:
            return
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        self._drain_errors()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise LoadWorkerError("The load worker was not started.")
        return self._child

    def _close(self) -> None:
        assert self._child is not None
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _drain(self) -> None:
        """Take in what the worker wrote, without waiting."""
        self._drain_errors()
        child = self._started()
        if child.stdout is None or child.stdout.closed:
            return
        while data := child.stdout.read(65536):
            self._held += data
        *lines, self._held = self._held.split(b"\n")
        for line in lines:
            self._take(line)

    def _drain_errors(self) -> None:
        child = self._child
        if child is None or child.stderr is None or child.stderr.closed:
            return
        while data := child.stderr.read(65536):
            self._errors = (self._errors + data)[-_STDERR_TAIL:]

    def _take(self, line: bytes) -> None:
        try:
            message = orjson.loads(line)
            if "ready" in message:
                self._ready = True
                return
            if "error" in message:
                raise LoadWorkerError(str(message["error"]), exit_code=int(message["exit_code"]), stderr=self._stderr())
            self._last = Progress(
                **{name: message[name] for name in _REQUIRED}, finished=bool(message.get("finished", False))
            )
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            self.kill()
            raise LoadWorkerDiedError(
                f"The load worker wrote something that is not progress: {line[:200]!r}. It was ended; what it measured is lost.",
                stderr=self._stderr(),
            ) from error
        self._finished = self._finished or self._last.finished

    def _stderr(self) -> str:
        return self._errors.decode("utf-8", "replace").strip()

    def _died(self, code: int) -> LoadWorkerDiedError:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        tail = self._stderr()
        last = f" It said: {tail.splitlines()[-1]}" if tail else ""
        self._close()
        return LoadWorkerDiedError(
            f"The load worker {how} before it was through; what it measured is lost.{last}", stderr=tail
        )
