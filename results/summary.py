"""summary.json: every cell of a run with its numbers, verdict and reasons, and the engines they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from results.audit import audit_run
from results.cell_steps import session_steps
from results.cell_summary import finite, load_value, summarise_cell, unreadable
from results.errors import StoreError
from results.imports import imported_of
from results.imports_summary import imported_cell
from results.reasons import reason
from results.records import CellRecord, Fault, last_told
from results.schema import SUMMARY_SCHEMA
from results.slo import slo_of
from results.slo_points import slo_summary
from results.store import RunStore
from results.truth import Steps


def build_summary(store: RunStore, processes: int = 1) -> dict[str, Any]:
    """Compute the summary of a run from its files. One damaged cell is INVALID; it does not end the summary.

    A large run is worked out by so many `processes`: never while something is being measured.
    """
    records, damaged = _records(store)
    sessions = session_records(store)
    cells: dict[str, dict[str, Any]] = {}
    for found in _by_session(store, records, sessions, processes if _is_large(store) else 1):
        cells |= found
    listed = [*(cells[r.id] for r in records), *damaged]
    audit = audit_run(store.experiment, sessions.values(), listed, _manifest(store))
    slo = slo_of(store.experiment)
    return {
        "schema": SUMMARY_SCHEMA,
        "run": store.name,
        "engines": _engines(store, list(sessions.values())),
        "cells": listed,
        # Planned and left out, each with its reason; one that was run after all is no such cell.
        "skipped": finite([entry for entry in store.skipped() if not store.has_cell(str(entry.get("id")))]),
        # Null for a single engine: there is nothing to be unlike.
        "audit": finite(audit.to_dict()) if audit else None,
        "slo": finite(slo_summary(listed, slo, _tops(store.experiment))) if slo else None,
    }


# Of chunk files, from which on a second process earns what its start costs.
_LARGE_BYTES = 32 * 2**20


def _is_large(store: RunStore) -> bool:
    return sum(path.stat().st_size for path in (store.path / "cells").glob("*/chunks.parquet")) > _LARGE_BYTES


def _by_session(
    store: RunStore, records: list[CellRecord], sessions: Mapping[str, Mapping[str, Any]], processes: int
) -> Iterator[dict[str, dict[str, Any]]]:
    """The cells of one session after the other, so that its step log is read once and only one is held at a time."""
    ids = list(dict.fromkeys(r.session for r in records))
    work = [(store, [r for r in records if r.session == id_], sessions.get(id_, {})) for id_ in ids]
    if min(processes, len(work)) < 2:
        yield from map(_session_cells, work)
        return
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    done = 0
    try:
        with ProcessPoolExecutor(min(processes, len(work)), mp_context=get_context("spawn")) as pool:
            for found in pool.map(_session_cells, work):
                yield found
                done += 1
    except BrokenProcessPool:
        # A process was ended from outside (memory, most likely): what is left is done here, one at a time.
        yield from map(_session_cells, work[done:])


def _session_cells(work: tuple[RunStore, list[CellRecord], Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The cells of one session by their id."""
    store, records, session = work
    steps, faults = session_steps(store, records[0].session)
    return {record.id: _cell(store, record, session, steps, faults) for record in records}


def _tops(experiment: Mapping[str, Any]) -> dict[str, float]:
    """The highest load asked about, by mode."""
    tops: dict[str, float] = {}
    for load in experiment.get("loads") or []:
        value = load_value(load) if isinstance(load, Mapping) else None
        if value is not None:
            mode = str(load.get("mode"))
            tops[mode] = max(tops.get(mode, 0.0), float(value))
    return tops


def _records(store: RunStore) -> tuple[list[CellRecord], list[dict[str, Any]]]:
    """Every committed cell in the order they ran, and an INVALID entry for each whose record cannot be read."""
    damaged = []
    for cell_id, why in store.damaged_cells().items():
        blank = CellRecord(cell_id, "unknown", "unknown", "unknown", "", 0, 0, {}, {}, 0, 0)
        damaged.append(unreadable(blank, [reason("unreadable_cell", why)]))
    return store.cells(), damaged


def session_records(store: RunStore) -> dict[str, dict[str, Any]]:
    """Session records by id, oldest first; one that cannot be read tells nothing (its cells keep their events)."""
    return {session["id"]: session for session in store.sessions()}


def _cell(
    store: RunStore, record: CellRecord, session: Mapping[str, Any], steps: Steps | None, faults: list[Fault]
) -> dict[str, Any]:
    try:
        if (imported := imported_of(store, record.id)) is not None:
            return imported_cell(record, imported)
        return summarise_cell(store, record, session, steps, faults)
    except StoreError as error:
        return unreadable(record, [reason("unreadable_cell", str(error))])


def _manifest(store: RunStore) -> Mapping[str, Any]:
    """Empty where it cannot be read: every cell says so."""
    try:
        return store.manifest
    except StoreError:
        return {}


def _engines(store: RunStore, sessions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every engine that was asked for or met: its sessions, and versions and settings as the last one that got to tell."""
    asked = {str(e.get("label")): e for e in store.experiment.get("engines") or [] if isinstance(e, Mapping)}
    labels = list(dict.fromkeys([*asked, *(str(s["engine"]) for s in sessions if s.get("engine"))]))
    engines = []
    for label in labels:
        own = [s for s in sessions if s.get("engine") == label]
        last = last_told(own)
        engines.append(
            {
                "label": label,
                "backend": last.get("backend") or asked.get(label, {}).get("backend"),
                "sessions": [s.get("id") for s in own],
                "versions": last.get("versions") or {},
                "settings": last.get("settings") or {},
            }
        )
    clean: list[dict[str, Any]] = finite(engines)
    return clean
