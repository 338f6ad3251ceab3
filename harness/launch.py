"""Launching an engine's server from an engine spec, and asking a ready server how it is set. Sessions, checks and
comparisons all start servers through here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.base import Backend, LaunchContext, LaunchPlan
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


def launch(
    backend: Backend, engine: EngineSpec, model: ModelRef | None, model_name: str, folder: Path, timeouts: Timeouts
) -> Launched:
    """Start the engine's server on a free port, its log and files in `folder`. The caller stops `process`.

    Raises UsageError (no model, a setting that cannot be honoured) and StartupError (the command cannot be executed).
    """
    if model is None:
        raise UsageError(f"Engine {engine.label!r} launches a server, so it needs a model: name one with --model.")
    port = free_port(HOST)
    plan = backend.launch_plan(
        LaunchContext(
            model=model.folder,
            served_name=model_name,
            settings=engine.settings,
            session_dir=folder.resolve(),
            host=HOST,
            port=port,
            command=backend.command(engine.command),
            options=engine.options,
            env=engine.env,
        )
    )
    process = ServerProcess.start(plan, folder / "server.log", timeouts.stop_s, host=HOST, port=port)
    return Launched(plan, f"http://{HOST}:{port}", process)


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
