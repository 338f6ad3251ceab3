"""The studies, in the order they are read. A new one is a row."""

from __future__ import annotations

from harness.studies import batch, batching, chunks, memory, paging, phases, prefixes, recompute
from harness.studies.study import Study
from results.errors import UnknownNameError

STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY for module in (phases, batch, recompute, memory, paging, batching, chunks, prefixes)
}


def chosen(name: str | None) -> list[Study]:
    """One by its name, or all. UnknownNameError."""
    if name is None:
        return list(STUDIES.values())
    if name not in STUDIES:
        raise UnknownNameError("study", name, STUDIES)
    return [STUDIES[name]]
