"""The rows of a report: workloads, cells, points, lines, reasons, memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from results.report_format import count
from results.report_measures import Value

# Best first, so that the worst of several is the largest index.
VERDICTS = ("VALID", "SUSPECT", "INVALID")
SEVERITIES = ("note", "suspect", "invalid")


@dataclass(frozen=True, slots=True)
class WorkloadInfo:
    """A workload as shown. Token counts are nominal; None where the workload states none."""

    key: str
    label: str
    input_label: str
    input_tokens: int | None
    output_tokens: int | None
    index: int = 0

    def numbered(self, index: int) -> WorkloadInfo:
        return replace(self, index=index)


@dataclass(slots=True)
class CellRow:
    """One cell as measured; `values` by measure id. `coalesced`: the client found several tokens in one read. `among_blocks`: the
    run has more blocks than this one."""

    id: str
    engine: str
    workload: WorkloadInfo
    load_mode: str
    load_value: float
    block: int
    session: str
    verdict: str
    codes: list[str]
    outcomes: dict[str, int]
    values: dict[str, Value]
    coalesced: bool = False
    among_blocks: bool = False

    @property
    def label(self) -> str:
        """Short and unique within an experiment."""
        block = f", block {self.block}" if self.among_blocks else ""
        return f"{self.engine}, {self.workload.label}, {load_words(self.load_mode, self.load_value)}{block}"


@dataclass(slots=True)
class Point:
    """One (engine, workload, load) over its blocks; INVALID ones are counted but not in `values`."""

    engine: str
    workload: WorkloadInfo
    load_mode: str
    load_value: float
    verdict: str
    blocks: int
    blocks_invalid: int
    codes: list[str]
    values: dict[str, Value]
    coalesced: bool = False

    @property
    def load_label(self) -> str:
        return load_words(self.load_mode, self.load_value)

    @property
    def label(self) -> str:
        return f"{self.engine}, {self.workload.label}, {self.load_label}"


@dataclass(slots=True)
class Line:
    """The points of one engine and workload under one kind of load, smallest load first."""

    engine: str
    workload: WorkloadInfo
    load_mode: str
    points: list[Point]

    @property
    def label(self) -> str:
        return f"{self.engine}, {self.workload.label}"

    def usable(self, measure: str) -> list[Point]:
        """Points that count and for which this measure is known."""
        return [p for p in self.points if p.verdict != "INVALID" and p.values[measure].known]


@dataclass(slots=True)
class ReasonRow:
    """A reason code over all cells that carry it; `evidence` holds (cell label, what was seen)."""

    code: str
    words: str
    severity: str
    advice: str
    evidence: list[tuple[str, str]]


@dataclass(slots=True)
class MemoryRow:
    """KV bytes of a point: what the formula predicts beside what the engine says it holds."""

    point: Point
    predicted: Value
    engine_says: Value

    @property
    def ratio(self) -> float | None:
        """Engine over formula; None where either is unknown."""
        if not self.predicted.mean or self.engine_says.mean is None:
            return None
        return self.engine_says.mean / self.predicted.mean


def load_words(mode: str, value: float | str) -> str:
    """`batch 16`, `16 in flight`, `4 requests/s`; for several values, `batch 1 → 16`."""
    words = {"batch": "batch {}", "concurrency": "{} in flight", "rate": "{} requests/s"}
    words |= {"ramp": "a ramp, {} requests/s in the mean", "schedule": "a schedule of {} requests/s"}
    words |= {"imported": "a load of its own"}
    return words.get(mode, f"{mode} {{}}").format(value if isinstance(value, str) else count(value))


def workload_key(workload: Mapping[str, Any]) -> str:
    """One text for one workload."""
    return json.dumps(workload, sort_keys=True, separators=(",", ":"), default=str)


def workload_info(workload: Mapping[str, Any]) -> WorkloadInfo:
    """A workload of summary.json in words: `128 in / 64 out`, `about 128 in / about 64 out` where lengths vary."""
    (given, given_label), (asked, asked_label) = (_length(workload.get(k)) for k in ("input_len", "output_len"))
    if given_label is None or asked_label is None:
        name = _name(workload)
        return WorkloadInfo(workload_key(workload), name, name, given, asked)
    if isinstance(prefix := workload.get("prefix_len"), int):
        given = None if given is None else given + prefix
        given_label = f"{prefix:,} shared by {workload.get('hit_share', 0):.0%} + {given_label}"
    heat = workload.get("temperature")
    sampled = "" if heat is None else f", temperature {heat:g}"
    if turns := _length(workload.get("turns"))[1]:
        given_label = f"{turns} turns of {given_label}"
    return WorkloadInfo(
        workload_key(workload), f"{given_label} in / {asked_label} out{sampled}", given_label, given, asked
    )


def _name(workload: Mapping[str, Any]) -> str:
    """A workload without lengths of its own: the file's name where it is one."""
    path = workload.get("path")
    file = f"{str(path).rsplit('/', 1)[-1]} ({workload.get('format') or workload.get('type')})" if path else None
    return str(workload.get("label") or workload.get("name") or file or workload.get("type") or "workload")


def _length(length: Any) -> tuple[int | None, str | None]:
    if isinstance(length, int):
        return length, f"{length:,}"
    if not isinstance(length, Mapping):
        return None, None
    if isinstance(tokens := length.get("tokens"), int):
        return tokens, f"{tokens:,}"
    if isinstance(mean := length.get("mean"), int | float):
        return round(mean), f"about {round(mean):,}"
    low, high = length.get("low"), length.get("high")
    if isinstance(low, int) and isinstance(high, int):
        return (low + high) // 2, f"about {(low + high) // 2:,}"
    return None, str(length.get("dist", "varying"))
