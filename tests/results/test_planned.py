"""How much of a run was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from results.planned import planned, planned_blocks, planned_cells

GRID = {"engines": [{}, {}], "workloads": [{}], "loads": [{}, {}, {}], "blocks": 4}


@pytest.mark.parametrize(
    ("manifest", "experiment", "cells", "blocks"),
    [
        ({}, GRID, 24, 4),
        ({}, GRID | {"blocks": None}, 6, 1),
        ({}, GRID | {"blocks": 1, "until_ci": {"width": 0.03}}, 30, 5),
        ({}, GRID | {"slo": {"limits": ["ttft_ms.p99<=9"]}}, None, 4),
        # A confirmation may go on to a thousand blocks, and five were asked for.
        (planned(10, 5), GRID | {"blocks": 1000}, 10, 5),
        (planned(None, 1), GRID, None, 1),
        ({"planned": "damaged"}, GRID, 24, 4),
        ({"planned": {"cells": True, "blocks": -1}}, GRID, None, None),
    ],
)
def test_the_manifest_says_what_was_asked_where_the_experiment_allows_for_more(
    manifest: dict[str, Any], experiment: dict[str, Any], cells: int | None, blocks: int | None
) -> None:
    assert planned_cells(manifest, experiment) == cells
    assert planned_blocks(manifest, experiment) == blocks
