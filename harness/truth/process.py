"""The parent's end of a truth server: start it, tell it what to do, fetch its stamps."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import orjson

from harness.truth.schedule import Schedule
from harness.truth.stamps import Truth, read_truth
from results.errors import EXIT_ENVIRONMENT, DynoError

_ANSWER_S = 120.0


class TruthServerError(DynoError):
    """The truth server could not start, died, or did not answer."""

    def __init__(self, message: str, exit_code: int = EXIT_ENVIRONMENT) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class TruthServer:
    """A truth server for as long as the `with` lasts.

    with TruthServer(Schedule(ttft_ms=100, gap_ms=10)) as server:
        ...  # send load to server.url
        truth = server.collect()
    """

    def __init__(self, schedule: Schedule | None = None, *, idle_close_s: float | None = None) -> None:
        self._schedule = schedule or Schedule()
        self._more = [] if idle_close_s is None else ["--idle-close-s", str(idle_close_s)]
        self._child: subprocess.Popen[bytes] | None = None
        self._held = b""
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "harness.truth", "--control", *self._more],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise TruthServerError(f"The truth server could not be started: {error.strerror or error}.") from error
        try:
            self.url = str(self._read()["url"])
            self.set_schedule(self._schedule)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://").rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def set_schedule(self, schedule: Schedule) -> None:
        """The schedule of requests to come."""
        self._do(do="schedule", schedule=schedule.to_dict())

    def keep_chunks(self, keep: bool) -> None:
        """Whether stamps are kept at all (counts always are)."""
        self._do(do="keep", chunks=keep)

    def state(self) -> dict[str, Any]:
        """Its counts since the start, CPU seconds among them."""
        return self._do(do="state")

    def collect(self) -> Truth:
        """The stamps of all answers that have ended since the last time."""
        with tempfile.TemporaryDirectory(prefix="dyno-truth-") as folder:
            self._do(do="collect", folder=folder)
            return read_truth(Path(folder))

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise TruthServerError("The truth server was not started.")
        return self._child

    def _do(self, **command: Any) -> dict[str, Any]:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(orjson.dumps(command) + b"\n")
        except (BrokenPipeError, ValueError) as error:
            raise self._died() from error
        return self._read()

    def _read(self) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        while b"\n" not in self._held:
            ready, _, _ = select.select([stdout], [], [], _ANSWER_S)
            if not ready:
                raise TruthServerError(f"The truth server did not answer within {_ANSWER_S:g} s.")
            data = stdout.read(65536)
            if not data:
                raise self._died()
            self._held += data
        line, self._held = self._held.split(b"\n", 1)
        answer: dict[str, Any] = orjson.loads(line)
        if "error" in answer:
            raise TruthServerError(answer["error"], answer["exit_code"])
        return answer

    def _died(self) -> TruthServerError:
        try:
            how = f"ended with status {self._process.wait(5)}"
        except subprocess.TimeoutExpired:
            how = "does not listen any more"
        return TruthServerError(f"The truth server {how}; what it had stamped is lost.")

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
