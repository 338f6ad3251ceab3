"""What the gate reads of a cell beside its summary: counts of the engine's own log, CPU time and bytes, each a unit of work asked.

Counts are divided by the tokens that were asked for and delivered, so that two runs whose lengths were drawn anew can be held
against each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results.cell_steps import logged_steps
from results.errors import StoreError
from results.events import read_requests, read_table
from results.store import RunStore
from results.truth import Steps, read_steps


def with_counters(store: RunStore, summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary with a `counters` mapping in each cell; what an engine does not tell is None in it."""
    spans = {record.id: (record.started, record.ended) for record in store.cells()}
    logs: dict[str, Steps | None] = {}
    cells = []
    for cell in summary.get("cells") or []:
        session = str(cell.get("session"))
        if session not in logs:
            logs = {session: _steps(store, session)}
        cells.append({**cell, "counters": _counters(store, cell, logs[session], spans.get(str(cell.get("id"))))})
    return {**summary, "cells": cells}


def counters(
    cell: Mapping[str, Any], steps: Steps | None, span: tuple[int, int] | None, received: int | None
) -> dict[str, float | None]:
    """The counters of one cell of summary.json. `steps`: its session's log, `span`: when the cell ran (ns), `received`: the
    bytes of its answers. None where a number is not known, or nothing was delivered."""
    whole, server = cell.get("whole") or {}, cell.get("server") or {}
    asked, output = _number(whole.get("input_tokens")), _number(whole.get("output_tokens"))
    total = asked + output if asked and output else None
    # A step log with gaps in it counts too little.
    complete = all(reason.get("code") != "truth_incomplete" for reason in cell.get("reasons") or [])
    ran = steps.between(*span) if steps is not None and span is not None and complete else None
    computed = float(ran.prefill_tokens.sum() + ran.decodes.sum()) if ran is not None and len(ran) else None
    blocks_told = ran is not None and ran.tells("blocks_allocated")
    cpu, seen, lasted = (
        _number(server.get("cpu_s")),
        _number(server.get("counter_span_s")),
        _number(whole.get("duration_s")),
    )
    # CPU time read over less than the cell is that of another amount of work.
    covered = cpu if seen and lasted and seen >= lasted else None
    return {
        "cpu_s_per_token": _share(covered, total),
        "computed_tokens_per_token": _share(computed, total),
        "steps_per_output_token": _share(float(len(ran)) if ran is not None and len(ran) else None, output),
        "kv_blocks_peak": float(ran.blocks_allocated.max()) if ran is not None and len(ran) and blocks_told else None,
        "received_bytes_per_token": _share(received, output),
        "weight_bytes": _number(server.get("weight_bytes")),
    }


def _counters(
    store: RunStore, cell: Mapping[str, Any], steps: Steps | None, span: tuple[int, int] | None
) -> dict[str, float | None]:
    try:
        column = read_table(store.cell_dir(str(cell.get("id"))) / "chunks.parquet", ["bytes"])["bytes"]
        received: int | None = sum(column.to_pylist()) if not column.null_count else None
    except StoreError:
        # Such a cell is INVALID (unreadable_cell): the gate fails for that.
        received = None
    if steps is None and span is not None:
        steps = _logged(store, str(cell.get("id")), span)
    return counters(cell, steps, span, received)


def _logged(store: RunStore, cell: str, span: tuple[int, int]) -> Steps | None:
    """What the log of an engine without a truth log told of a cell's steps."""
    folder = store.cell_dir(cell)
    try:
        return logged_steps(folder, read_requests(folder), span)[0]
    except StoreError:
        return None


def _steps(store: RunStore, session: str) -> Steps | None:
    try:
        return read_steps(store.session_dir(session))
    except StoreError:
        # The cell's summary says truth_unreadable.
        return None


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
