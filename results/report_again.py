"""How to do a run again: the command lines, how each server was launched, and each cell as an experiment of its own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from results.records import CellRecord, last_told
from results.report_shapes import CellRow
from results.store import RunStore

_MOST_BYTES = 64 * 1024
# A line that gives a secret its value; what a server was given by variables and flags is hidden when it is recorded.
_SECRET = re.compile(r"""(?im)^(\s*["']?[\w-]*(?:api[_-]?key|token|secret|password|credential)["']?\s*[:=]\s*)\S.*$""")
# What decides when a run has enough, and is no part of one cell.
_OF_THE_RUN = ("until_ci", "budget_s", "slo", "left_out")


@dataclass(frozen=True, slots=True)
class GeneratedFile:
    """A file that was written for a server; `text` is None where it is not there any more."""

    name: str
    text: str | None


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server was started, secrets taken out; `command` is empty for a server that was attached to. `notes`: what its
    adapter chose by itself (the image with its digest among it)."""

    engine: str
    session: str
    command: str
    env: dict[str, str]
    files: list[GeneratedFile]
    url: str
    notes: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        """What to type: the environment that was added, then the command; the URL of a server that was attached to."""
        added = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " ".join([*added, self.command]) if self.command else self.url


@dataclass(frozen=True, slots=True)
class CellAgain:
    """One cell: its server's launch, and the experiment that asks for nothing else, with the command that runs it."""

    label: str
    launch: Launch | None
    file: str
    experiment: str
    command: str
    note: str


@dataclass(slots=True)
class Reproduction:
    """What to type to do the run again. `starts` are the command lines it was started and completed with."""

    starts: list[str]
    folder: str | None
    launches: list[Launch]
    experiment: str
    cells: list[CellAgain] = field(default_factory=list)


def reproduction(
    store: RunStore,
    sessions: Sequence[Mapping[str, Any]],
    order: Sequence[str],
    rows: Sequence[CellRow],
    records: Mapping[str, CellRecord],
) -> Reproduction:
    """Command lines of the run's starts, the launch that each engine is described by, and every cell by itself; `records` are
    those of the cells, by id."""
    manifest, experiment = store.manifest, store.experiment
    starts = manifest.get("starts") or [manifest.get("start")]
    commands, folder = [], None
    for start in starts:
        if isinstance(start, Mapping) and start.get("command"):
            commands.append(_command(start["command"]))
            folder = folder or start.get("cwd")
    launches = {str(s.get("id")): _launch(store, s) for s in sessions}
    described = []
    for label in order:
        if own := [s for s in sessions if s.get("engine") == label]:
            described.append(launches[str(last_told(own).get("id"))])
    cells = [_cell(row, records.get(row.id), experiment, launches.get(row.session)) for row in rows]
    return Reproduction(
        list(dict.fromkeys(commands)), str(folder) if folder else None, described, store.experiment_text, cells
    )


def _launch(store: RunStore, session: Mapping[str, Any]) -> Launch:
    return Launch(
        engine=str(session.get("engine")),
        session=str(session.get("id")),
        command=_command(session.get("argv") or []),
        env={str(k): str(v) for k, v in (session.get("env") or {}).items()},
        files=[_file(store, str(session.get("id")), str(path)) for path in session.get("files") or []],
        url=str(session.get("url") or ""),
        notes=[str(note) for note in session.get("notes") or []],
    )


def _file(store: RunStore, session: str, path: str) -> GeneratedFile:
    """Looked for in the session's own folder alone, wherever the run lies now."""
    name = path.replace("\\", "/").rsplit("/", 1)[-1]
    try:
        with (store.session_dir(session) / name).open(encoding="utf-8") as file:
            text = file.read(_MOST_BYTES)
    except (OSError, UnicodeDecodeError):
        return GeneratedFile(name, None)
    return GeneratedFile(name, _SECRET.sub(r"\1***", text))


def _cell(row: CellRow, record: CellRecord | None, experiment: Mapping[str, Any], launch: Launch | None) -> CellAgain:
    alone = {key: value for key, value in experiment.items() if key not in _OF_THE_RUN}
    alone["engines"] = [
        e for e in experiment.get("engines") or [] if isinstance(e, Mapping) and e.get("label") == row.engine
    ]
    if record is not None:
        alone["workloads"], alone["loads"] = [record.workload], [record.load]
    alone["blocks"] = row.block + 1
    note = ""
    if row.block:
        note = f"The prompts of a block are its own: of the {row.block + 1} blocks this runs, the last is this cell."
    name = "".join(c if c.isalnum() else "-" for c in f"cell-{row.id[:8]}")
    text = yaml.safe_dump(alone, sort_keys=False, allow_unicode=True)
    return CellAgain(row.label, launch, f"{name}.yaml", text, f"dyno sweep {name}.yaml --out runs/{name}", note)


def _command(words: Any) -> str:
    return words if isinstance(words, str) else shlex.join(str(w) for w in words)
