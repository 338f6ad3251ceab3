"""The points of one side of a comparison: its cells by workload and load, block by block."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from results.report_measures import read_cell
from results.report_readings import Readings
from results.report_shapes import load_words, workload_info, workload_key

# How much was sent at a load does not make it another load.
_AMOUNTS = frozenset({"requests", "waves", "duration_s", "value", "mode", "workers"})

PointKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: an engine of a run with its cells of summary.json."""

    run: str
    engine: str
    cells: Sequence[Mapping[str, Any]]
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.engine


@dataclass(slots=True)
class SidePoint:
    """The cells of one side at one point, by block."""

    workload: str
    load: str
    order: tuple[Any, ...]
    values: dict[int, dict[str, float | None]] = field(default_factory=dict)
    verdicts: dict[int, str] = field(default_factory=dict)
    codes: set[str] = field(default_factory=set)

    @property
    def label(self) -> str:
        return f"{self.load}, {self.workload}"

    def known(self, metric: str) -> dict[int, float]:
        """The metric by block, in the blocks whose cell counts."""
        found = {
            block: value
            for block, values in self.values.items()
            if self.verdicts[block] != "INVALID" and (value := values[metric]) is not None and value > 0
        }
        return dict(sorted(found.items()))

    @property
    def invalid(self) -> int:
        return sum(v == "INVALID" for v in self.verdicts.values())

    def suspect(self, blocks: Sequence[int]) -> int:
        return sum(self.verdicts[block] == "SUSPECT" for block in blocks)


def by_point(side: Side, scope: str, readings: Readings) -> dict[PointKey, SidePoint]:
    """All points of a side, in the order of workload and load."""
    found: dict[PointKey, SidePoint] = {}
    for cell in side.cells:
        workload, load = cell.get("workload") or {}, cell.get("load") or {}
        mode = str(load.get("mode") or "unknown")
        value = load.get("value", load.get(mode))
        number = float(value) if isinstance(value, int | float) else 0.0
        rest = {k: v for k, v in load.items() if k not in _AMOUNTS and k != mode}
        key = (workload_key(workload), json.dumps([mode, number, rest], sort_keys=True, default=str))
        info = workload_info(workload)
        point = found.setdefault(
            key, SidePoint(info.label, load_words(mode, number), (info.input_tokens or 0, info.label, mode, number))
        )
        block = int(cell.get("block") or 0)
        values = read_cell(cell, scope, readings)
        point.values[block] = {name: value.mean for name, value in values.items()}
        point.verdicts[block] = str(cell.get("verdict") or "SUSPECT")
        point.codes |= {
            str(r.get("code")) for r in cell.get("reasons") or [] if r.get("severity") not in ("note", "invalid")
        }
    return dict(sorted(found.items(), key=lambda item: item[1].order))
