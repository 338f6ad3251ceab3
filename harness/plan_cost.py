"""What a plan will cost, by what earlier runs beside it took: sessions of the same backend and model, cells of the same ask."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harness.experiment import Cell
from results.clock import NS_PER_S

# Older runs than so many tell of another version.
_MOST_RUNS = 30


@dataclass(frozen=True, slots=True)
class PlanCost:
    """Seconds, null where no earlier run tells. `startup_s` is what a session costs beside its cells (start, warm-up, stop): the
    mean over the plan's sessions, for each the median of the earlier ones of its backend and model (`sessions_known` of
    `backends`; those of `backends_unknown` never started here, and nobody else's start stands for theirs). `cells_known` of
    `cells` are like `cells_measured` earlier ones (same backend, model, workload and load), and take `known_cells_s`; `total_s`
    needs both, and takes the mean of the known cells for the others."""

    sessions: int
    cells: int
    startup_s: float | None
    sessions_known: int
    backends: list[str]
    backends_unknown: list[str]
    cells_known: int
    cells_measured: int
    known_cells_s: float
    total_s: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan_cost(cells: Sequence[Cell], runs: Path) -> PlanCost:
    """The cost of planned cells by the runs in a folder."""
    overheads, seconds = _earlier(runs)
    sessions = list(dict.fromkeys((c.engine.label, c.engine.backend, c.block) for c in cells))
    model = cells[0].model if cells else ""
    backends = list(dict.fromkeys(backend for _, backend, _ in sessions))
    earlier = {backend: overheads.get((backend, model), []) for backend in backends}
    asked = [_asked(c.engine.backend, c.model, _plain(c)) for c in cells]
    known = [median(seconds[key]) for key in asked if key in seconds]
    startup = total = None
    if sessions and all(earlier.values()):
        starts = sum(median(earlier[backend]) for _, backend, _ in sessions)
        startup = starts / len(sessions)
        if known:
            total = starts + sum(known) + (len(cells) - len(known)) * sum(known) / len(known)
    return PlanCost(
        sessions=len(sessions),
        cells=len(cells),
        startup_s=startup,
        sessions_known=sum(map(len, earlier.values())),
        backends=backends,
        backends_unknown=[backend for backend in backends if not earlier[backend]],
        cells_known=len(known),
        cells_measured=sum(len(seconds[key]) for key in set(asked) if key in seconds),
        known_cells_s=sum(known),
        total_s=total,
    )


def _plain(cell: Cell) -> dict[str, Any]:
    return {"workload": cell.workload.model_dump(mode="json"), "load": cell.load.model_dump(mode="json")}


def _asked(backend: str, model: str, asked: dict[str, Any]) -> str:
    return json.dumps([backend, model, asked["workload"], asked["load"]], sort_keys=True, default=str)


def _earlier(runs: Path) -> tuple[dict[tuple[str, str], list[float]], dict[str, list[float]]]:
    """What sessions cost beside their cells by (backend, model), and how long cells took by what was asked."""
    overheads: dict[tuple[str, str], list[float]] = {}
    seconds: dict[str, list[float]] = {}
    manifests = sorted(runs.glob("*/manifest.json"), key=lambda p: p.stat().st_mtime)
    for manifest in manifests[-_MOST_RUNS:]:
        in_session: dict[str, float] = {}
        for cell in _documents(manifest.parent, "cells/*/cell.json"):
            took = (cell.get("ended", 0) - cell.get("started", 0)) / NS_PER_S
            key = _asked(str(cell.get("backend")), str(cell.get("model")), {"workload": 0, "load": 0, **cell})
            seconds.setdefault(key, []).append(took)
            in_session[str(cell.get("session"))] = in_session.get(str(cell.get("session")), 0.0) + took
        for session in _documents(manifest.parent, "sessions/*/session.json"):
            times = [t for t in (session.get("timeline") or {}).values() if isinstance(t, int)]
            if session.get("failure") or not session.get("ended") or not times:
                continue
            overhead = (session["ended"] - min(times)) / NS_PER_S - in_session.get(str(session.get("id")), 0.0)
            if overhead > 0 and str(session.get("id")) in in_session:
                key_of = (str(session.get("backend")), str(session.get("model")))
                overheads.setdefault(key_of, []).append(overhead)
    return overheads, seconds


def _documents(run: Path, pattern: str) -> Iterator[dict[str, Any]]:
    """What can be read of a run; what cannot only makes the estimate rest on less."""
    for path in run.glob(pattern):
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            yield found


def cost_sentence(cost: PlanCost) -> str:
    """`10 sessions, 40 cells: about 6 min 20 s, 42.0 s of starting and stopping (by 6 earlier sessions of vllm); 4 earlier cells of
    the same lengths and load tell of 40 of them.`"""
    from results.report_format import listed, plural, seconds

    head = f"{plural(cost.sessions, 'session')}, {plural(cost.cells, 'cell')}"
    if cost.startup_s is None:
        return (
            f"{head}: no earlier session of {listed(cost.backends_unknown)} with this model here tells what that costs."
        )
    earlier = f"{plural(cost.sessions_known, 'earlier session')} of {listed(cost.backends)}"
    starts = f"{seconds(cost.startup_s * cost.sessions)} of starting and stopping (by {earlier})"
    if cost.total_s is None:
        return f"{head}: {starts}, and the cells; none of the same lengths and load was measured here before."
    tells = "tell" if cost.cells_measured > 1 else "tells"
    like = f"{plural(cost.cells_measured, 'earlier cell')} of the same lengths and load {tells} of {cost.cells_known} of them"
    return f"{head}: about {seconds(cost.total_s)}, {starts}; {like}."
