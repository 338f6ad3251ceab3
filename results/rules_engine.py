"""Rules about the engine itself: it ran out of memory, or its API process ran out of the one core it can use."""

from __future__ import annotations

import re

from results.reason_rules import FAILED_SHARE_INVALID, CellFacts, Finding, Severity

OUT_OF_MEMORY = "out_of_memory"
# One thread serves all streams of most servers. From here on what is measured is that thread, not the engine.
API_CORE_SHARE = 0.85
_NO_MEMORY = re.compile(
    r"out of memory|out_of_memory|OutOfMemory|No available memory|not enough memory|bad_alloc|\bOOM\b", re.IGNORECASE
)


def out_of_memory(f: CellFacts) -> Finding | None:
    """What the server answered: a server that died of it is told by the runner."""
    if f.first_error is None or not _NO_MEMORY.search(f.first_error):
        return None
    failed = f.issued - f.ok
    few = f.issued and failed <= FAILED_SHARE_INVALID * f.issued
    return Finding(
        f"{failed} of {f.issued} requests failed; first error: {f.first_error}", Severity.SUSPECT if few else None
    )


def api_server_saturated(f: CellFacts) -> Finding | None:
    if f.api_server_cores is None or f.api_server_cores < API_CORE_SHARE:
        return None
    return Finding(f"the thread that answers requests used {f.api_server_cores:.2f} of the one core it can use")
