"""`dyno profile`: one cell of a run once more, under a profiler.

What a profiler watches is slower than what the run measured, so it is no cell of the run: it lies in a run of its own inside
the run's folder, `profiles/<cell>-<hash>/`, and its cell is INVALID with the code `profiled` wherever it is taken from there.
"""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.base import get_backend
from harness.cell_run import run_cell
from harness.experiment import Cell, EngineSpec, Experiment, cells_of
from harness.find_cell import find_cell
from harness.manifest import make_manifest
from harness.model_parts import model_parts
from harness.observer import Observer
from harness.profile_tools import NsysTool, ProfileTool, TorchTool, nsys_there
from harness.session_open import open_session
from harness.telemetry.choose import choose
from results.errors import EngineError, UsageError
from results.files import write_atomic
from results.records import CellRecord
from results.store import RunStore, RunWriter
from results.summary import build_summary
from workloads.base import canonical

# A profiler writes what it saw when its server is told to stop.
_STOP_S = 300.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A cell to profile, by which tool, and where that goes."""

    run: RunStore
    record: CellRecord
    cell: Cell
    experiment: Experiment
    tool: ProfileTool
    folder: Path


def ask_profile(run: Path, name: str, steps: int, operators: bool) -> Asked:
    """Make out the cell and its profiler. Raises UsageError: no such cell, a server that is not started from here, a
    container (its processes are out of a profiler's sight)."""
    store, experiment, record, cell = find_cell(run, name)
    backend = get_backend(cell.engine.backend)
    if not backend.capabilities.launches:
        raise UsageError(
            f"Engine {record.engine!r} was attached to at {cell.engine.url}: a profiler has to start the server. Start it yourself "
            "under nsys or with its own profiler, and send the load with `dyno sweep --url`."
        )
    if cell.engine.container is not None:
        raise UsageError(
            f"Engine {record.engine!r} runs in a container, where a profiler of the host does not see it. Put nsys into the image "
            "and name it first in the container's command, or install the engine on the host."
        )
    is_reference = backend.name == "reference"
    if operators and not is_reference:
        raise UsageError(
            f"--operators is of the reference engine; {backend.name} is profiled by nsys, which shows kernels."
        )
    what = [cell.model_dump(mode="json"), steps, operators] if is_reference else [cell.model_dump(mode="json")]
    digest = hashlib.sha256(canonical(what).encode()).hexdigest()[:8]
    folder = store.path / "profiles" / f"{record.id}-{digest}"
    tool: ProfileTool = TorchTool(steps, operators) if is_reference else NsysTool(f"dyno-{digest}")
    return Asked(store, record, cell, _experiment(experiment, cell, tool, folder), tool, folder)


def run_profile(asked: Asked, observer: Observer, command: list[str]) -> dict[str, Any]:
    """Run the cell under its profiler, unless that was done before, and tell what was seen.

    Raises EngineError where the server or the profiler fails, KeyboardInterrupt as it comes.
    """
    (cell,) = cells_of(asked.experiment)
    parts = model_parts(asked.experiment.model, asked.experiment.tokenizer, needs_folder=True)
    manifest = make_manifest(
        command, asked.experiment.model, parts.folder, parts.config, choose(asked.experiment.telemetry)
    )
    asked.folder.parent.mkdir(exist_ok=True)
    with RunWriter.start(asked.folder, asked.experiment.to_yaml(), manifest) as store:
        if store.has_cell(cell.id) and asked.tool.found(asked.folder) is None:
            store.set_aside(cell.id, "no-trace")
        if not store.has_cell(cell.id):
            observer.run_started([cell], ())
            session = open_session(
                cell.engine, 0, asked.experiment, store, parts.model, observer, wrapper=asked.tool.wrapper()
            )
            try:
                watch = asked.tool.watch(asked.folder, session.url)
                run_cell(cell, session, asked.experiment, store, parts.vocabulary, observer, watch)
            finally:
                session.close(store)
                observer.session_ended(cell.engine.label)
        store.write_summary(build_summary(store))
    found = asked.tool.found(asked.folder)
    if found is None:
        raise EngineError(
            f"{asked.tool.name} wrote nothing to {asked.folder}. See the server's log in {asked.folder / 'sessions'}."
        )
    return {**_about(asked), **found}


def paste(asked: Asked) -> list[str]:
    """The same by hand, for a machine with nsys: the server under it, the recording, the load, the end. The load is written to
    a file that attaches to that server."""
    assert isinstance(asked.tool, NsysTool)
    session = next((s for s in asked.run.sessions() if s["id"] == asked.record.session), {})
    engine = EngineSpec(label=asked.record.engine, backend="openai", url=str(session.get("url")))
    attached = asked.experiment.model_copy(update={"engines": (engine,)})
    file = asked.folder.parent / f"{asked.folder.name}.yaml"
    file.parent.mkdir(exist_ok=True)
    write_atomic(file, attached.to_yaml().encode())
    env = [f"{name}={value}" for name, value in (session.get("env") or {}).items()]
    return [
        shlex.join([*(["env", *env] if env else []), *asked.tool.wrapper(), *(session.get("argv") or [])]),
        shlex.join(asked.tool.start(asked.folder.parent)),
        shlex.join(["dyno", "sweep", str(file), "--out", str(asked.folder)]),
        shlex.join(asked.tool.stop()),
    ]


def can_run(asked: Asked) -> bool:
    """Whether the profiler is on this machine."""
    return not isinstance(asked.tool, NsysTool) or nsys_there()


def _about(asked: Asked) -> dict[str, Any]:
    return {
        "run": asked.run.name,
        "cell": asked.record.id,
        "engine": asked.record.engine,
        "tool": asked.tool.name,
        "folder": str(asked.folder),
        "kernels": _kernels(asked.folder),
    }


def _kernels(folder: Path) -> str | None:
    """The form of the reference engine's kernels in the profiled session; None for other engines."""
    sessions = RunStore(folder).sessions()
    settings = (sessions[-1].get("settings") or {}) if sessions else {}
    value = (settings.get("kernels") or {}).get("value")
    return None if value is None else str(value)


def _experiment(experiment: Experiment, cell: Cell, tool: ProfileTool, folder: Path) -> Experiment:
    engine = cell.engine.model_copy(update={"options": (*cell.engine.options, *tool.options(folder))})
    timeouts = experiment.timeouts.model_copy(update={"stop_s": max(_STOP_S, experiment.timeouts.stop_s)})
    update: dict[str, Any] = {"engines": (engine,), "workloads": (cell.workload,), "loads": (cell.load,), "blocks": 1}
    return experiment.model_copy(
        update={**update, "timeouts": timeouts, "until_ci": None, "budget_s": None, "slo": None}
    )
