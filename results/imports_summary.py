"""An imported cell as it stands in summary.json: SUSPECT, since its numbers follow other definitions than ours."""

from __future__ import annotations

from typing import Any

from results.cell_summary import finite, unreadable
from results.imports import IMPORTED, Imported
from results.reasons import reason
from results.records import CellRecord


def imported_cell(record: CellRecord, imported: Imported) -> dict[str, Any]:
    """The cell's entry, `source` imported; what the tool does not say is null."""
    version = f" {imported.tool_version}" if imported.tool_version else ""
    evidence = f"{imported.file} of {imported.tool}{version}. {imported.words}"
    failed = imported.failed or 0
    ok = imported.requests
    cell: dict[str, Any] = {
        **unreadable(record, [reason(IMPORTED, evidence)]),
        "source": IMPORTED,
        "definitions": imported.words,
        "requests": {
            "issued": None if ok is None else ok + failed,
            "ok": ok,
            "by_outcome": {} if ok is None else {"ok": ok, **({"failed": failed} if failed else {})},
        },
        "whole": imported.scope,
    }
    clean: dict[str, Any] = finite(cell)
    return clean
