"""How much of a run was asked for: as its experiment says, or its manifest where that allows for more than was asked.

A confirmation of `dyno tune` and an experiment of `dyno why` name more blocks than they run, so that the same run can be gone on
with; a search names fewer cells than it will choose. They keep under `planned` in the manifest what was asked for last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results.statistics import BLOCKS_FOR_A_VERDICT

KEY = "planned"
# True in the manifest of a tuning's search, whose cells are trials of many lengths.
SEARCH = "search"


def planned(cells: int | None, blocks: int | None) -> dict[str, Any]:
    """For `update_manifest`. None: nobody knows beforehand."""
    return {KEY: {"cells": cells, "blocks": blocks}}


def planned_cells(manifest: Mapping[str, Any], experiment: Mapping[str, Any]) -> int | None:
    """Cells that are known to be wanted, of blocks until intervals are narrow the fewest; None of a search."""
    if (own := _own(manifest)) is not None:
        return _count(own.get("cells"))
    if experiment.get("slo"):
        return None
    sizes = [len(experiment.get(key) or []) for key in ("engines", "workloads", "loads")]
    return sizes[0] * sizes[1] * sizes[2] * (planned_blocks(manifest, experiment) or 1)


def planned_blocks(manifest: Mapping[str, Any], experiment: Mapping[str, Any]) -> int | None:
    """Blocks that were asked for, the fewest of `until_ci`; None where that is not told."""
    if (own := _own(manifest)) is not None:
        return _count(own.get("blocks"))
    blocks = _count(experiment.get("blocks")) or 1
    return max(blocks, BLOCKS_FOR_A_VERDICT) if experiment.get("until_ci") else blocks


def _own(manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found = manifest.get(KEY)
    return found if isinstance(found, Mapping) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
