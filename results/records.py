"""What is kept about a session and a cell beside their event files: session.json and cell.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from results.schema import SCHEMA_VERSION


@dataclass(slots=True)
class Fault:
    """Something the runner saw with its own eyes while the cell ran (`code` is a row of `results.reasons`)."""

    code: str
    evidence: str


@dataclass(slots=True)
class SessionRecord:
    """One server's life. `settings` maps a name to {"value", "source"}; `timeline` maps an event to monotonic ns.

    `argv` and `env` are what the server was started with, secrets taken out; `notes` say what its adapter chose by itself.
    `ended` stays null while it runs (or when the harness was killed). `fingerprint` is what makes two sessions of an
    engine alike enough to share a run. `placement` tells on which CPUs client, API server and engine were to run, and do.
    """

    id: str
    engine: str
    backend: str
    block: int
    model: str
    url: str
    argv: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    asked: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    fingerprint: dict[str, Any] = field(default_factory=dict)
    placement: dict[str, Any] = field(default_factory=dict)
    timeline: dict[str, int] = field(default_factory=dict)
    ended: int | None = None
    exit_code: int | None = None
    failure: dict[str, str] | None = None
    # Who told of the device, why not the others, which devices, and their memory before the launch.
    telemetry: dict[str, Any] | None = None
    schema: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def last_told(sessions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of an engine's session records, oldest first, the one to describe it by: the last that got as far as its settings
    (a server that never started tells none), else the last; empty where there is none."""
    told = [s for s in sessions if s.get("settings")] or list(sessions)
    return told[-1] if told else {}


@dataclass(slots=True)
class CellRecord:
    """One committed cell: what was asked, when it ran, and what the runner saw. Numbers are computed from the events.

    `started` and `ended` (monotonic ns) enclose all requests of the cell, warm-up not included. `client` is what the load
    worker says of itself: {"cpu_s", "wall_s", "receive_stamps": "kernel" | "mixed" | "read"} and counts; beside it
    `warm_up`, {"requests", "ok", "e2e_ms_p50", "ended_before_load"}, or null and the reason in `warm_up_why`.
    """

    id: str
    engine: str
    backend: str
    model: str
    session: str
    block: int
    seed: int
    workload: dict[str, Any]
    load: dict[str, Any]
    started: int
    ended: int
    client: dict[str, Any] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    schema: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CellRecord:
        faults = [Fault(**f) for f in data.get("faults", [])]
        return cls(**{**data, "faults": faults})
