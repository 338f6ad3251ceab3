"""Launching an engine's server from an engine spec, and asking a ready server how it is set. Sessions, checks and
comparisons all start servers through here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from backends.base import Backend, LaunchContext, LaunchPlan
from backends.container import find_image, inner_command, sweep, wrap
from backends.container_process import ContainerProcess
from backends.container_spec import ContainerSpec
from backends.devices import DeviceProbe
from backends.http_probe import ProbeError, get
from backends.process import ServerProcess, free_port
from harness.experiment import EngineSpec, Timeouts
from harness.models import ModelRef
from results.errors import UsageError

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Launched:
    """A server that was started and may not be ready yet."""

    plan: LaunchPlan
    url: str
    process: ServerProcess
    # What it runs in, as versions: the image and its digest. {} on the host itself.
    versions: Mapping[str, str] = field(default_factory=dict)


def launch(
    backend: Backend,
    engine: EngineSpec,
    model: ModelRef | None,
    model_name: str,
    folder: Path,
    timeouts: Timeouts,
    devices: DeviceProbe | None = None,
    cpus: Iterable[int] = (),
    wrapper: tuple[str, ...] = (),
) -> Launched:
    """Start the engine's server on a free port, its log and files in `folder`. The caller stops `process`, whose end
    includes that the memory of `devices` is back. `cpus` are those it may use from its first instant (engines make as many
    threads as they see); () for all. `wrapper` are words before the whole command line, of a server outside containers.

    Raises UsageError (no model, a setting that cannot be honoured) and StartupError (the command cannot be executed).
    """
    if model is None:
        raise UsageError(f"Engine {engine.label!r} launches a server, so it needs a model: name one with --model.")
    port = free_port(HOST)
    context = LaunchContext(
        model=model.folder,
        served_name=model_name,
        settings=engine.settings,
        session_dir=folder.resolve(),
        host=HOST,
        port=port,
        command=() if engine.container is not None else backend.command(engine.command),
        options=engine.options,
        env=engine.env,
        cpus=tuple(sorted(cpus)),
    )
    if engine.container is not None:
        return _launch_container(backend, engine, engine.container, context, timeouts, devices)
    plan = replace(backend.launch_plan(context), cpus=context.cpus)
    plan = replace(plan, argv=(*wrapper, *plan.argv))
    process = ServerProcess.start(plan, folder / "server.log", timeouts.stop_s, host=HOST, port=port, devices=devices)
    return Launched(plan, f"http://{HOST}:{port}", process)


def _launch_container(
    backend: Backend,
    engine: EngineSpec,
    spec: ContainerSpec,
    context: LaunchContext,
    timeouts: Timeouts,
    devices: DeviceProbe | None,
) -> Launched:
    """The same in a container: what an earlier harness left is swept away, the image has to be there."""
    inner = inner_command(backend, spec, engine.command)
    digest = find_image(spec)
    sweep(spec.runtime)
    host = HOST if spec.network == "host" else "0.0.0.0"
    context = replace(context, model=context.model.resolve(), host=host, command=inner.command, image=spec.image)
    draft = engine.settings.speculative_model
    models = [context.model, *([Path(draft).resolve()] if draft and Path(draft).is_dir() else [])]
    plan, box = wrap(backend.launch_plan(context), spec, inner, models, context.session_dir, context.port, digest)
    log = context.session_dir / "server.log"
    process = ContainerProcess.start(plan, log, timeouts.stop_s, host=HOST, port=context.port, devices=devices)
    process.box = box
    return Launched(plan, f"http://{HOST}:{context.port}", process, box.versions())


def fetch_documents(backend: Backend, url: str) -> dict[str, Any]:
    """What the server tells of itself: each of the backend's settings paths as JSON, or as text where it is not JSON."""
    documents: dict[str, Any] = {}
    for path in backend.settings_paths():
        try:
            reply = get(url, path, timeout_s=10, key_env=backend.api_key_env())
        except ProbeError:
            continue
        if reply.status == 200:
            documents[path] = reply.document()
    return documents
