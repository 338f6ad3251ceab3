"""summary.json: every cell of a run with its numbers, verdict and reasons, and the engines they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results.audit import audit_run
from results.cell_summary import finite, session_steps, summarise_cell, unreadable
from results.errors import StoreError
from results.reasons import reason
from results.records import CellRecord, Fault, last_told
from results.schema import SUMMARY_SCHEMA
from results.store import RunStore
from results.truth import Steps


def build_summary(store: RunStore) -> dict[str, Any]:
    """Compute the summary of a run from its files. One damaged cell is INVALID; it does not end the summary."""
    records, damaged = _records(store)
    sessions = session_records(store)
    cells: dict[str, dict[str, Any]] = {}
    # Session by session, so that a session's step log is read once and only one is held at a time.
    for session_id in dict.fromkeys(r.session for r in records):
        session = sessions.get(session_id, {})
        steps, faults = session_steps(store, session_id)
        for record in (r for r in records if r.session == session_id):
            cells[record.id] = _cell(store, record, session, steps, faults)
    listed = [*(cells[r.id] for r in records), *damaged]
    audit = audit_run(store.experiment, sessions.values(), listed)
    return {
        "schema": SUMMARY_SCHEMA,
        "run": store.name,
        "engines": _engines(store, list(sessions.values())),
        "cells": listed,
        # Null for a single engine: there is nothing to be unlike.
        "audit": finite(audit.to_dict()) if audit else None,
    }


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
        return summarise_cell(store, record, session, steps, faults)
    except StoreError as error:
        return unreadable(record, [reason("unreadable_cell", str(error))])


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
