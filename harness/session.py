"""A session: one server's life as the harness sees it, from launch (or attachment) to the last pid gone."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from backends.base import Backend, Resolved, get_backend
from backends.failures import ServerError
from backends.http_probe import ServerURL
from backends.process import ServerProcess, public_argv, public_environment, relevant_environment
from backends.redact import HIDDEN, public_text
from backends.server_log import read_log
from harness.experiment import Cell, EngineSpec, Experiment
from harness.launch import fetch_documents, launch
from harness.models import ModelRef
from harness.observer import Observer
from harness.telemetry.process import SamplerProcess
from harness.telemetry.sampler import SamplerConfig
from results.clock import NS_PER_S, ClockPair, now_ns
from results.errors import EngineError, UsageError
from results.records import SessionRecord
from results.store import RunWriter
from results.truth import seal

# What of an engine's resolved settings may differ between two sessions of one run without making them unlike.
_VOLATILE_SETTINGS = frozenset({"url", "port"})
# Read back from what memory happened to be free, unless asked for: a few blocks more or less make no other engine.
_MEASURED_SETTINGS = frozenset({"kv_cache_tokens", "kv_cache_bytes"})


class Server(Protocol):
    """The part of a server's supervision a session needs."""

    @property
    def pid(self) -> int | None: ...

    @property
    def timeline(self) -> Mapping[str, int]: ...

    def alive(self) -> bool: ...

    def failed(self) -> EngineError: ...

    def stop(self) -> int | None: ...


class AttachedServer:
    """A server somebody else started: nothing to supervise, nothing to stop."""

    pid: int | None = None
    timeline: Mapping[str, int] = MappingProxyType({})

    def alive(self) -> bool:
        return True

    def failed(self) -> EngineError:
        return EngineError("The server was not started by this run: how it fares is not known.")

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
    ) -> None:
        self.engine, self.record, self.folder, self.backend = engine, record, folder, backend
        self.served_name, self.server, self.sampler = served_name, server, sampler

    @property
    def url(self) -> str:
        return self.record.url

    def serves(self, cell: Cell) -> bool:
        """Whether that cell belongs to this server's life."""
        return self.record.engine == cell.engine.label and self.record.block == cell.block and self.server.alive()

    def died(self) -> EngineError:
        """The error that tells how a server ended that is gone by itself; kept in the session's record."""
        error = self.server.failed()
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
                self.record.timeline |= self.server.timeline
                self.record.ended = self.record.timeline["ended"] = now_ns()
                hide_secrets(None, self.engine, self.folder / "server.log")
                store.write_session(self.record)
                seal(self.folder)


def hide_secrets(error: BaseException | None, engine: EngineSpec, log: Path) -> None:
    """Take the secrets of an engine's options and environment out of an error's words and out of its server's log, which
    may have echoed its own command line."""
    secrets = engine.secrets()
    if error is not None and secrets and error.args and isinstance(error.args[0], str):
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
        return {key: public_text(value, engine.secrets()) for key, value in error.to_record().items()}
    return {"class": type(error).__name__, "words": str(error), "evidence": "", "advice": ""}


def open_session(
    engine: EngineSpec, block: int, experiment: Experiment, store: RunWriter, model: ModelRef | None, observer: Observer
) -> Session:
    """Launch the engine's server (or attach to it), wait until it is ready, and read back how it is set.

    Raises EngineError (did not start, does not answer, does not serve the model) and UsageError (a setting that cannot be
    honoured, lengths the server refuses, another fingerprint than the run's earlier sessions). The session's folder keeps
    the log and the record whatever happens.
    """
    backend = get_backend(engine.backend)
    session_id, folder = store.new_session(engine.label, block)
    log = folder / "server.log"
    record = SessionRecord(
        id=session_id,
        engine=engine.label,
        backend=backend.name,
        block=block,
        model=experiment.model,
        url="",
        asked=engine.settings.asked(),
        timeline={"spawn": now_ns()},
    )
    observer.session_starting(engine.label, block, str(log) if backend.capabilities.launches else "")
    server: Server = AttachedServer()
    sampler: SamplerProcess | None = None
    try:
        if backend.capabilities.launches:
            server = _launch(backend, engine, experiment, model, record, folder)
        else:
            record.url = str(ServerURL.parse(engine.url or ""))
        ready_after = _wait_ready(backend, server, record, experiment, observer)
        documents = fetch_documents(backend, record.url)
        served_name = backend.served_name(experiment.model, documents)
        resolved = backend.resolved_settings(engine.settings, documents, read_log(folder / "server.log"))
        record.settings = {name: asdict(value) for name, value in resolved.items()}
        record.versions = backend.versions(documents, read_log(folder / "server.log"))
        record.timeline |= told_phases(backend, read_log(folder / "server.log"))
        record.fingerprint = fingerprint(record, resolved)
        _refuse_other_fingerprint(store, record)
        refuse_too_long(experiment, engine.label, resolved.get("max_model_len"))
        sampler = _start_sampler(backend, server, record, experiment, folder)
        store.write_session(record)
    except BaseException as error:
        if sampler is not None:
            sampler.stop()
        hide_secrets(error, engine, log)
        try:
            record.exit_code = server.stop()
        finally:
            record.timeline |= server.timeline
            record.ended = record.timeline["ended"] = now_ns()
            record.failure = failure_record(error, engine)
            store.write_session(record)
        raise
    observer.session_ready(engine.label, ready_after)
    return Session(engine, record, folder, backend, served_name, server, sampler)


def _launch(
    backend: Backend,
    engine: EngineSpec,
    experiment: Experiment,
    model: ModelRef | None,
    record: SessionRecord,
    folder: Path,
) -> ServerProcess:
    launched = launch(backend, engine, model, experiment.model, folder, experiment.timeouts)
    record.argv = public_argv(launched.plan.argv)
    record.env = relevant_environment(os.environ) | public_environment(launched.plan.env)
    record.files, record.notes = [str(path) for path in launched.plan.files], list(launched.plan.notes)
    record.url = launched.url
    return launched.process


def _wait_ready(
    backend: Backend, server: Server, record: SessionRecord, experiment: Experiment, observer: Observer
) -> float:
    if isinstance(server, ServerProcess):
        server.wait_ready(
            record.url,
            backend.ready_path,
            experiment.timeouts.ready_s,
            on_tick=lambda elapsed_s: observer.session_waiting(record.engine, elapsed_s),
            patterns=backend.failures,
            key_env=backend.api_key_env(),
        )
    else:
        backend.check_attached(record.url, experiment.timeouts.connect_s)
    record.timeline |= server.timeline
    record.timeline["ready"] = now_ns()
    return (record.timeline["ready"] - record.timeline["spawn"]) / NS_PER_S


def _start_sampler(
    backend: Backend, server: Server, record: SessionRecord, experiment: Experiment, folder: Path
) -> SamplerProcess:
    config = SamplerConfig(
        out=str(folder / "samples.jsonl"),
        interval_s=experiment.sample_interval_s,
        root_pid=server.pid,
        url=record.url,
        metrics_path=backend.metrics_path if backend.capabilities.server_metrics else None,
        rules=tuple((rule.neutral, rule.names) for rule in backend.metrics),
        key_env=backend.api_key_env(),
    )
    return SamplerProcess(config, folder / "sampler.log")


def fingerprint(record: SessionRecord, resolved: dict[str, Resolved]) -> dict[str, Any]:
    """What two sessions of an engine must share to be blocks of one run."""
    volatile = _VOLATILE_SETTINGS | (_MEASURED_SETTINGS - record.asked.keys())
    return {
        "backend": record.backend,
        "versions": record.versions,
        "settings": {k: v.value for k, v in sorted(resolved.items()) if k not in volatile},
        "machine": platform.machine(),
        "node": platform.node(),
    }


def told_phases(backend: Backend, log: str) -> dict[str, int]:
    """Phases of the start that the server's log tells, on our clock (the log's own are to the second)."""
    clocks = ClockPair.read()
    return {name: clocks.to_monotonic(at) for name, at in backend.startup_phases(log, clocks.wall_ns).items()}


def _refuse_other_fingerprint(store: RunWriter, record: SessionRecord) -> None:
    """Raise UsageError where cells of this engine in this run were measured on another thing under the same label.

    Only sessions that own a committed cell count: one that was refused here must not refuse the right engine later.
    """
    measured = {cell.session for cell in store.cells()}
    for earlier in store.sessions():
        if earlier["engine"] != record.engine or earlier["id"] not in measured or not earlier.get("fingerprint"):
            continue
        before, now = earlier["fingerprint"], json.loads(json.dumps(record.fingerprint))
        if before != now:
            parts = [
                f"{k}: {before.get(k)} before, {now.get(k)} now"
                for k in sorted({*before, *now})
                if before.get(k) != now.get(k)
            ]
            raise UsageError(
                f"Engine {record.engine!r} is not what it was in session {earlier['id']} of this run ({'; '.join(parts)}). Cells of "
                "two different engines do not belong under one label: measure into a new run with --out."
            )


def refuse_too_long(experiment: Experiment, engine: str, max_model_len: Resolved | None) -> None:
    """Raise UsageError where a prompt with its output cannot fit, with both numbers."""
    if max_model_len is None or max_model_len.value is None:
        return
    limit = int(max_model_len.value)
    for workload in experiment.workloads:
        if workload.longest > limit:
            raise UsageError(
                f"{workload.longest_input} prompt tokens and {workload.longest_output} output tokens make {workload.longest}, "
                f"more than the {limit} that engine {engine!r} takes. Ask for shorter --input-len or --output-len."
            )
