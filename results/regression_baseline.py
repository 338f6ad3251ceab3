"""Baselines: what a run measured on one machine, kept small and readable in the repository (`results/baselines/NAME.json`).

{"schema": 1, "name": "reference-tiny", "machines": {"amd-epyc-2-cores-24-gib": {
    "recorded": "2026-11-30", "commit", "scope", "versions", "fingerprint": {...},
    "points": [{"workload": {...}, "load": {...}, "words": "...", "metrics": {"output_tokens_per_s": [one a block]}}]}}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from results.comparison_points import PointKey, Side, SidePoint, by_point
from results.errors import StoreError, UsageError
from results.files import read_json, store_error, write_atomic
from results.regression_fingerprint import Fingerprint, machine_of, machine_words
from results.regression_metrics import GATE_METRICS
from results.report_format import number
from results.report_readings import Readings

BASELINE_SCHEMA = 1
_RESTORE = "Take the last good version from version control, or remove the file and record it anew: `dyno baseline make RUN --out FILE`."
# Six digits hold more than any machine repeats.
_DIGITS = 6


@dataclass(slots=True)
class Entry:
    """One machine's numbers: a list of values, one a block, for each metric at each point."""

    recorded: str
    commit: str | None
    scope: str
    versions: dict[str, Any]
    fingerprint: Fingerprint
    points: list[dict[str, Any]]

    @classmethod
    def of(
        cls,
        points: Mapping[PointKey, SidePoint],
        cells: Sequence[Mapping[str, Any]],
        *,
        scope: str,
        recorded: str,
        commit: str | None,
        versions: dict[str, Any],
        fingerprint: Fingerprint,
    ) -> Entry:
        """From the points of a side; `cells` are those of summary.json they were made of."""
        asked = {key: cell for cell in cells for key in _keys(cell)}
        rows = []
        for key, point in points.items():
            cell = asked[key]
            known = {metric: _known(point, metric) for metric in GATE_METRICS}
            rows.append(
                {
                    "words": point.label,
                    "workload": cell.get("workload"),
                    "load": cell.get("load"),
                    "metrics": {metric: values for metric, values in known.items() if values},
                }
            )
        return cls(recorded, commit, scope, versions, fingerprint, rows)


@dataclass(slots=True)
class Baseline:
    """A baseline file. `machines` maps the hardware's key to its entry."""

    name: str
    machines: dict[str, Entry] = field(default_factory=dict)

    def entry_for(self, fingerprint: Fingerprint, disregard: bool = False) -> Entry:
        """The entry of hardware like this. Raises UsageError where there is none; with `disregard` the only entry stands in."""
        key = machine_of(fingerprint)
        if key in self.machines:
            return self.machines[key]
        if disregard and len(self.machines) == 1:
            return next(iter(self.machines.values()))
        known = "; ".join(machine_words(entry.fingerprint) for entry in self.machines.values()) or "none"
        raise UsageError(
            f"Baseline {self.name} knows no machine like this one ({machine_words(fingerprint)}); it knows: {known}. Numbers of "
            "another machine say nothing about the code: record this one with `dyno baseline update FILE RUN`."
        )

    def put(self, entry: Entry) -> str:
        """Add an entry, or take the place of the one of the same hardware; its key."""
        key = machine_of(entry.fingerprint)
        self.machines[key] = entry
        return key


def read_baseline(path: Path) -> Baseline:
    """Raises UsageError where there is no such file, StoreError where it is damaged or of a newer schema."""
    if not path.is_file():
        raise UsageError(f"There is no baseline {path}. Make one: `dyno baseline make RUN --out {path}`.")
    try:
        data = read_json(path)
    except StoreError as error:
        raise StoreError(f"{error} {_RESTORE}") from error
    return parse_baseline(data, str(path))


def parse_baseline(data: Any, where: str) -> Baseline:
    """From the decoded file. Raises StoreError."""
    schema = data.get("schema") if isinstance(data, Mapping) else None
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise StoreError(f"{where} does not hold a baseline: its schema is {schema!r}. {_RESTORE}")
    if schema > BASELINE_SCHEMA:
        raise StoreError(
            f"{where} has schema {schema}, this program knows baselines of schema {BASELINE_SCHEMA}: update llm-dyno."
        )
    try:
        machines = {key: Entry(**entry) for key, entry in data["machines"].items()}
        for entry in machines.values():
            entry_points(entry)
        return Baseline(str(data["name"]), machines)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StoreError(f"{where} does not hold a baseline: {type(error).__name__} {error}. {_RESTORE}") from error


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Indented for people and diffs, with each metric's values on one line. Raises UsageError, StoreError."""
    document = {
        "schema": BASELINE_SCHEMA,
        "name": baseline.name,
        "machines": {key: asdict(baseline.machines[key]) for key in sorted(baseline.machines)},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(
            f"{path} cannot be written: {path.parent} lies in what is a file. Name another one."
        ) from error
    except OSError as error:
        raise store_error(path.parent, error) from error
    write_atomic(path, _lines(document).encode())


def entry_points(entry: Entry) -> dict[PointKey, SidePoint]:
    """The points of an entry as those of a run are: one value a block."""
    found: dict[PointKey, SidePoint] = {}
    for row in entry.points:
        bare = {"workload": row["workload"], "load": row["load"], "block": 0}
        for key, point in _points(bare).items():
            most = max((len(values) for values in row["metrics"].values()), default=0)
            point.values = {
                block: {m: float(v[block]) if block < len(v) else None for m, v in row["metrics"].items()}
                for block in range(most)
            }
            point.verdicts = dict.fromkeys(range(most), "VALID")
            found[key] = point
    return found


def difference(old: Entry | None, new: Entry) -> list[str]:
    """What an update changes, a line a metric and point: `output_tokens_per_s at 4 in flight, ...: 101 -> 97.3 (-3.7 %)`."""
    before = entry_points(old) if old else {}
    after = entry_points(new)
    lines = []
    for key, point in after.items():
        for metric in GATE_METRICS:
            now, was = _known(point, metric), _known(before[key], metric) if key in before else []
            if not now and not was:
                continue
            words = f"{metric} at {point.label}: {_middle(was)} -> {_middle(now)}"
            lines.append(f"{words} ({100 * (median(now) / median(was) - 1):+.1f} %)" if now and was else words)
    lines += [f"{point.label}: dropped" for key, point in before.items() if key not in after]
    return lines


def _keys(cell: Mapping[str, Any]) -> list[PointKey]:
    return list(_points(cell))


def _points(cell: Mapping[str, Any]) -> dict[PointKey, SidePoint]:
    return by_point(Side("", "", [cell]), "whole", Readings())


def _known(point: SidePoint, metric: str) -> list[float]:
    found = [values.get(metric) for values in point.values.values()]
    return [float(f"{value:.{_DIGITS}g}") for value in found if value is not None and value > 0]


def _middle(values: Sequence[float]) -> str:
    return number(median(values)) if values else "none"


def _lines(document: Any, indent: str = "") -> str:
    """JSON with a list of numbers on one line."""
    inner = indent + "  "
    if isinstance(document, Mapping) and document:
        rows = [f"{inner}{orjson.dumps(str(k)).decode()}: {_lines(v, inner)}" for k, v in document.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}" + ("\n" if not indent else "")
    if isinstance(document, list) and any(isinstance(item, Mapping) for item in document):
        return "[\n" + ",\n".join(inner + _lines(item, inner) for item in document) + f"\n{indent}]"
    if isinstance(document, list):
        return "[" + ", ".join(orjson.dumps(item).decode() for item in document) + "]"
    return orjson.dumps(document).decode()
