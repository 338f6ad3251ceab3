"""Opening a session: launch a server (or attach to one), wait until it generates, read back how it is set."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

from backends.base import Backend, get_backend
from backends.http_probe import ServerURL
from backends.keeper import descendants
from backends.ports import listener
from backends.process import ServerProcess, public_argv, public_environment, relevant_environment
from backends.server_log import read_log
from harness.experiment import EngineSpec, Experiment
from harness.first_token import await_first_token, first_token_elsewhere, one_token
from harness.health import HealthWatch
from harness.launch import fetch_documents, launch
from harness.models import ModelRef
from harness.observer import Observer
from harness.placement import ClientCores, Machine, Placement, ThisMachine, found_placement, plan_placement, settle
from harness.session import AttachedServer, Server, Session, failure_record, hide_secrets, session_secrets
from harness.session_checks import (
    fingerprint,
    refuse_long_prompts,
    refuse_other_fingerprint,
    refuse_too_long,
    told_phases,
)
from harness.start_phase import StartPhase
from harness.telemetry.choose import SessionTelemetry, session_telemetry
from harness.telemetry.device_config import DeviceConfig
from harness.telemetry.process import SamplerProcess
from harness.telemetry.sampler import SamplerConfig
from results.clock import NS_PER_S, now_ns
from results.records import SessionRecord
from results.store import RunWriter


def open_session(
    engine: EngineSpec,
    block: int,
    experiment: Experiment,
    store: RunWriter,
    model: ModelRef | None,
    observer: Observer,
    machine: Machine | None = None,
    wrapper: tuple[str, ...] = (),
    workers: int = 1,
) -> Session:
    """Launch the engine's server (or attach to it), wait until it is ready, and read back how it is set. `machine` is asked
    for the CPUs; this one by default. `wrapper` are words before the server's command line (a profiler's),
    `workers` the most processes that will share a load.

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
    machine = machine or ThisMachine()
    placement = _placement(machine, experiment, backend, workers)
    cores = ClientCores(machine, placement)
    sampler: SamplerProcess | None = None
    try:
        telemetry = session_telemetry(experiment.telemetry, engine.env, engine.url)
        if backend.capabilities.launches:
            server = _launch(backend, engine, experiment, model, record, folder, telemetry, placement, wrapper)
        else:
            record.url = str(ServerURL.parse(engine.url or ""))
        cores.hold()
        record.telemetry = telemetry.record()
        _wait_ready(backend, server, record, experiment, observer)
        documents = fetch_documents(backend, record.url)
        served_name = backend.served_name(experiment.model, documents)
        resolved = backend.resolved_settings(engine.settings, documents, read_log(folder / "server.log"))
        record.settings = {name: asdict(value) for name, value in resolved.items()}
        record.versions |= backend.versions(documents, read_log(folder / "server.log"))
        record.timeline |= told_phases(backend, read_log(folder / "server.log"))
        record.fingerprint = fingerprint(record, resolved)
        refuse_other_fingerprint(store, record)
        refuse_too_long(experiment, engine.label, resolved.get("max_model_len"))
        refuse_long_prompts(experiment, engine.label, resolved.get("max_prompt_len"))
        _await_first_token(backend, server, served_name, record, experiment, observer)
        front = _settle(machine, placement, server, record)
        health = _health_watch(backend, server, served_name, record, experiment, log)
        sampler = _start_sampler(backend, server, record, experiment, folder, telemetry, front)
        store.write_session(record)
    except BaseException as error:
        if sampler is not None:
            sampler.stop()
        hide_secrets(error, engine, log)
        try:
            record.exit_code = server.stop()
        finally:
            cores.release()
            record.timeline |= server.timeline
            record.ended = record.timeline["ended"] = now_ns()
            record.failure = failure_record(error, engine)
            store.write_session(record)
        raise
    observer.session_ready(engine.label, (record.timeline["first_token"] - record.timeline["spawn"]) / NS_PER_S)
    return Session(engine, record, folder, backend, served_name, server, sampler, health, cores)


def _placement(machine: Machine, experiment: Experiment, backend: Backend, workers: int) -> Placement:
    if not backend.capabilities.launches:
        return Placement(why="the server was started by somebody else: on which CPUs it runs is not known")
    if experiment.placement == "none":
        return Placement(why="no CPUs of their own were asked for client, API server and engine")
    return plan_placement(machine, backend.capabilities.own_api_process, workers)


def _settle(machine: Machine, placement: Placement, server: Server, record: SessionRecord) -> int | None:
    """Give a server that is up its cores, and keep where its parts and the client really may run. Returns the process that
    answers requests; None for a server that is not ours."""
    front, below = 0, []
    if isinstance(server, ServerProcess):
        front = listener(server.pids(), server.port or 0) or server.pid
        below = [process.pid for process in descendants(front)]
        settle(machine, placement, front, below)
    record.placement = found_placement(machine, placement, front, below)
    record.notes.append(record.placement["words"])
    return front or None


def _launch(
    backend: Backend,
    engine: EngineSpec,
    experiment: Experiment,
    model: ModelRef | None,
    record: SessionRecord,
    folder: Path,
    telemetry: SessionTelemetry,
    placement: Placement,
    wrapper: tuple[str, ...],
) -> ServerProcess:
    launched = launch(
        backend,
        engine,
        model,
        experiment.model,
        folder,
        experiment.timeouts,
        telemetry.probe,
        placement.engine,
        wrapper,
    )
    secrets = session_secrets(engine)
    record.argv = public_argv(launched.plan.argv, secrets)
    record.env = relevant_environment(os.environ) | public_environment(launched.plan.env, secrets)
    record.files, record.notes = [str(path) for path in launched.plan.files], list(launched.plan.notes)
    record.url, record.versions = launched.url, dict(launched.versions)
    return launched.process


def _wait_ready(
    backend: Backend, server: Server, record: SessionRecord, experiment: Experiment, observer: Observer
) -> None:
    limit_s = experiment.timeouts.ready_s
    if isinstance(server, ServerProcess):
        phase = StartPhase(backend, server.log_path)
        server.wait_ready(
            record.url,
            backend.ready_path,
            limit_s,
            on_tick=lambda elapsed_s: observer.session_waiting(record.engine, elapsed_s, limit_s, phase()),
            patterns=backend.failures,
            key_env=backend.api_key_env(),
            stall_s=experiment.timeouts.stall_s,
        )
        record.timeline |= server.timeline
    else:
        backend.check_attached(record.url, experiment.timeouts.connect_s)
        record.timeline["ready"] = now_ns()


def _await_first_token(
    backend: Backend,
    server: Server,
    served_name: str,
    record: SessionRecord,
    experiment: Experiment,
    observer: Observer,
) -> None:
    """Only a server that has given a token is ready; the prompt is like none of the run's."""
    name, salt = f"{record.id}-first-token", (experiment.seed, record.block)
    fixed = _fixed_lengths(experiment)
    send = one_token(backend, record.url, experiment.endpoint, served_name, name, *salt, ignore_eos=fixed)
    if isinstance(server, ServerProcess):
        spent_s = (now_ns() - server.timeline["spawn"]) / NS_PER_S
        limit_s = max(experiment.timeouts.ready_s, spent_s + experiment.timeouts.first_token_s)

        def tick(elapsed_s: float) -> None:
            observer.session_waiting(record.engine, elapsed_s, limit_s, "it answers, but has given no token")

        await_first_token(server, send, served_name, experiment.timeouts, tick)
        record.timeline |= server.timeline
    else:
        at = first_token_elsewhere(send, record.url, backend.api_key_env(), experiment.timeouts)
        record.timeline["first_token"] = at


def _fixed_lengths(experiment: Experiment) -> bool:
    """Is any answer to be as long as asked, whatever the model would say?"""
    return not all(getattr(workload, "natural_eos", False) for workload in experiment.workloads)


def _health_watch(
    backend: Backend, server: Server, served_name: str, record: SessionRecord, experiment: Experiment, log: Path
) -> HealthWatch:
    name, salt = f"{record.id}-still-there", (experiment.seed, record.block, "again")
    fixed = _fixed_lengths(experiment)
    send = one_token(backend, record.url, experiment.endpoint, served_name, name, *salt, ignore_eos=fixed)
    path, tree = backend.ready_path, server.pids if isinstance(server, ServerProcess) else list
    return HealthWatch(backend, record.url, path, experiment.timeouts.unhealthy_s, send, log, tree)


def _start_sampler(
    backend: Backend,
    server: Server,
    record: SessionRecord,
    experiment: Experiment,
    folder: Path,
    telemetry: SessionTelemetry,
    front: int | None,
) -> SamplerProcess:
    config = SamplerConfig(
        out=str(folder / "samples.jsonl"),
        interval_s=experiment.sample_interval_s,
        root_pid=server.pid,
        url=record.url,
        metrics_path=backend.metrics_path if backend.capabilities.server_metrics else None,
        rules=tuple((rule.neutral, rule.names) for rule in backend.metrics),
        device=DeviceConfig.of(telemetry),
        key_env=backend.api_key_env(),
        reader=backend.metrics_reader,
        api_pid=front if backend.capabilities.api_in_main_thread else None,
    )
    return SamplerProcess(config, folder / "sampler.log")
