"""A metric over the versions of committed baselines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from results.regression_baseline import Baseline, entry_points


@dataclass(frozen=True, slots=True)
class Version:
    """A baseline file as one commit left it; `commit` is None for what is not committed."""

    commit: str | None
    date: str
    baseline: Baseline


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """What one version recorded of a metric at a point of a machine: the median of its blocks, their range, and the change
    from the version before it (0.02 is 2 % more)."""

    baseline: str
    machine: str
    point: str
    recorded: str
    commit: str | None
    value: float
    low: float
    high: float
    n_blocks: int
    change: float | None


def metric_history(versions: Iterable[Version], metric: str) -> list[HistoryRow]:
    """Oldest version first, by baseline, machine and point. A version that did not change an entry adds no row."""
    rows: dict[tuple[str, str, object], list[HistoryRow]] = {}
    seen: dict[tuple[str, str, object], list[float]] = {}
    for version in versions:
        for machine, entry in version.baseline.machines.items():
            for key, point in entry_points(entry).items():
                values = [v for block in point.values.values() if (v := block.get(metric)) is not None]
                series = (version.baseline.name, machine, key)
                if not values or seen.get(series) == values:
                    continue
                seen[series] = values
                found = rows.setdefault(series, [])
                middle = median(values)
                found.append(
                    HistoryRow(
                        version.baseline.name,
                        machine,
                        point.label,
                        entry.recorded,
                        version.commit,
                        middle,
                        min(values),
                        max(values),
                        len(values),
                        middle / found[-1].value - 1 if found else None,
                    )
                )
    return [row for series in rows.values() for row in series]
