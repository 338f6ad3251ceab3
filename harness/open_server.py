"""A server for checks and comparisons: launched or attached to, ready, and told what it is. No run, no store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backends.base import Backend, LaunchPlan, Resolved, get_backend
from backends.process import ServerProcess
from backends.server_log import read_log
from harness.experiment import EngineSpec, Timeouts
from harness.launch import fetch_documents, launch
from harness.models import ModelRef
from results.errors import UsageError


@dataclass(slots=True)
class OpenServer:
    """A ready server. `process` is None for one that somebody else started; `plan` is how ours was started."""

    backend: Backend
    engine: EngineSpec
    url: str
    folder: Path
    served_name: str = ""
    settings: dict[str, Resolved] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    documents: dict[str, Any] = field(default_factory=dict)
    process: ServerProcess | None = None
    plan: LaunchPlan | None = None
    ready_s: float | None = None

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def max_model_len(self) -> int | None:
        """The longest prompt with its output, where the server tells it."""
        found = self.settings.get("max_model_len")
        return int(found.value) if found is not None and found.value is not None else None

    def check_alive(self) -> None:
        """Raise ServerDiedError when our server has ended."""
        if self.process is not None:
            self.process.check()


@contextmanager
def open_server(
    engine: EngineSpec,
    model: ModelRef | None,
    model_name: str,
    folder: Path,
    timeouts: Timeouts | None = None,
    on_tick: Callable[[float], None] | None = None,
    *,
    backend: Backend | None = None,
) -> Iterator[OpenServer]:
    """Launch the engine's server into `folder` (log and files), or attach where it has a url; stopped on leaving.

    `backend` is an adapter that is not registered (yet), in place of the one that the engine names.
    Raises what launching raises: UsageError for settings that cannot be honoured, EngineError for a server that does not
    start or does not answer.
    """
    timeouts = timeouts or Timeouts()
    backend = backend or get_backend(engine.backend)
    folder.mkdir(parents=True, exist_ok=True)
    if engine.url is not None:
        backend.check_attached(engine.url, timeouts.connect_s)
        server = OpenServer(backend, engine, engine.url.rstrip("/"), folder)
        _read_back(server, model_name)
        yield server
        return
    if not backend.capabilities.launches:
        raise UsageError(f"Backend {backend.name!r} attaches to a server: give --url http://HOST:PORT.")
    launched = launch(backend, engine, model, model_name, folder, timeouts)
    server = OpenServer(backend, engine, launched.url, folder, plan=launched.plan, versions=dict(launched.versions))
    with launched.process as process:
        server.process = process
        server.ready_s = process.wait_ready(
            server.url,
            backend.ready_path,
            timeouts.ready_s,
            on_tick=on_tick,
            patterns=backend.failures,
            key_env=backend.api_key_env(),
            stall_s=timeouts.stall_s,
        )
        _read_back(server, model_name)
        yield server


def _read_back(server: OpenServer, model_name: str) -> None:
    server.documents = fetch_documents(server.backend, server.url)
    log = read_log(server.log)
    server.served_name = server.backend.served_name(model_name, server.documents)
    server.settings = server.backend.resolved_settings(server.engine.settings, server.documents, log)
    server.versions |= server.backend.versions(server.documents, log)
