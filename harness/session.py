"""A session: one server's life as the harness sees it, from launch (or attachment) to the last pid gone."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from backends.base import Backend
from backends.failure_table import GONE, TIMEOUT, FailureClass
from backends.failures import ServerError
from backends.redact import HIDDEN, known_secrets, public_text
from harness.experiment import Cell, EngineSpec
from harness.health import Ailment, HealthWatch
from harness.load.process import Progress
from harness.placement import ClientCores
from harness.step_log import StepLog
from harness.telemetry.process import SamplerProcess
from results.clock import now_ns
from results.errors import EngineError
from results.records import Fault, SessionRecord
from results.schema import Outcome
from results.store import RunWriter
from results.truth import seal

# How long after broken streams the keeper may tell of the server's end.
_DEATH_NOTICE_S = 1.0


class Server(Protocol):
    """The part of a server's supervision a session needs."""

    @property
    def pid(self) -> int | None: ...

    @property
    def timeline(self) -> Mapping[str, int]: ...

    def alive(self) -> bool: ...

    def failed(self, *, what: str | None = None, otherwise: FailureClass = TIMEOUT) -> EngineError: ...

    def stop(self) -> int | None: ...


class AttachedServer:
    """A server somebody else started: nothing to supervise, nothing to stop."""

    pid: int | None = None
    timeline: Mapping[str, int] = MappingProxyType({})

    def alive(self) -> bool:
        return True

    def failed(self, *, what: str | None = None, otherwise: FailureClass = TIMEOUT) -> EngineError:
        said = f"failed: {what}" if what else "may have failed"
        return EngineError(f"The server {said}. It was not started by this run: look into its own log.")

    def stop(self) -> int | None:
        return None


class Session:
    """An open session. Use `open_session`, then `close` exactly once."""

    def __init__(
        self,
        engine: EngineSpec,
        record: SessionRecord,
        folder: Path,
        backend: Backend,
        served_name: str,
        server: Server,
        sampler: SamplerProcess,
        health: HealthWatch,
        cores: ClientCores,
    ) -> None:
        self.engine, self.record, self.folder, self.backend = engine, record, folder, backend
        self.served_name, self.server, self.sampler, self.health = served_name, server, sampler, health
        self._cores = cores
        self.step_log = StepLog(backend, record, folder / "server.log")
        self._ailment: Ailment | None = None

    @property
    def url(self) -> str:
        return self.record.url

    def serves(self, cell: Cell) -> bool:
        """Whether that cell belongs to this server's life, which is over when the server has failed."""
        return self.record.engine == cell.engine.label and self.record.block == cell.block and self.healthy()

    def healthy(self, progress: Progress | None = None) -> bool:
        """Whether a load may go on: the server lives, and nothing ails it. Call it often while one runs; it never waits."""
        if self._ailment is None and self.server.alive() and progress is not None:
            self._ailment = self.health.look(progress)
        return self._ailment is None and self.server.alive()

    def faults(self, broken: Collection[str]) -> list[Fault]:
        """What the server has done while a load ran, once that is over; `broken` names outcomes of requests that failed.

        All streams may have broken before the keeper has told of the server's end: then wait a moment.
        """
        deadline = time.monotonic() + (_DEATH_NOTICE_S if broken else 0.0)
        while self.server.alive() and self._ailment is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if self.server.alive() and self._ailment is None and Outcome.TIMEOUT in broken:
            self._ailment = self.health.still_generates()
        if self.healthy():
            return []
        gone = self._ailment is not None and self._ailment.failure is GONE
        code = "server_failed" if self.server.alive() and not gone else "server_died"
        error = self.died()
        faults = [Fault(code, str(error))]
        if isinstance(error, ServerError) and error.failure.is_out_of_memory:
            faults.append(Fault("out_of_memory", error.failure.evidence))
        return faults

    def died(self) -> EngineError:
        """The error that tells how the server ended, or what ails it; kept in the session's record."""
        ailment = self._ailment if self.server.alive() else None
        error = (
            self.server.failed()
            if ailment is None
            else self.server.failed(what=ailment.words, otherwise=ailment.failure)
        )
        hide_secrets(error, self.engine, self.folder / "server.log")
        self.record.failure = failure_record(error, self.engine)
        return error

    def check_reachable(self, timeout_s: float) -> None:
        """Raise EngineError when a server that is not ours to supervise does not answer any more."""
        if not self.backend.capabilities.launches:
            self.backend.check_attached(self.url, timeout_s)

    def close(self, store: RunWriter) -> None:
        """Stop the sampler and the server, seal the truth log, and write the record's last form.

        Raises LeftBehindError when something of the server cannot be ended; the record is written all the same.
        """
        try:
            self.sampler.stop()
            if not self.server.alive() and self.record.failure is None:
                self.died()
        finally:
            try:
                self.record.exit_code = self.server.stop()
            finally:
                self._cores.release()
                self.record.timeline |= self.server.timeline
                self.record.ended = self.record.timeline["ended"] = now_ns()
                hide_secrets(None, self.engine, self.folder / "server.log")
                store.write_session(self.record)
                seal(self.folder)


def session_secrets(engine: EngineSpec) -> frozenset[str]:
    """The engine's own, and those it inherits: of the caller's environment, which may hold its command too."""
    return engine.secrets() | known_secrets(os.environ)


def hide_secrets(error: BaseException | None, engine: EngineSpec, log: Path) -> None:
    """Take the secrets of a session out of an error's words and out of its server's log, which may have echoed its own
    command line."""
    secrets = session_secrets(engine)
    if error is not None and error.args and isinstance(error.args[0], str):
        error.args = (public_text(error.args[0], secrets), *error.args[1:])
    if secrets and log.exists():
        text = log.read_bytes()
        clean = text
        for secret in secrets:
            clean = clean.replace(secret.encode(), HIDDEN.encode())
        if clean != text:
            log.write_bytes(clean)


def failure_record(error: BaseException, engine: EngineSpec) -> dict[str, str]:
    """An error as it is kept in session.json."""
    if isinstance(error, ServerError):
        return {key: public_text(value, session_secrets(engine)) for key, value in error.to_record().items()}
    return {"class": type(error).__name__, "words": str(error), "evidence": "", "advice": ""}
