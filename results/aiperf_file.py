"""AIPerf's result files, JSON and CSV, in one form: its JSON's names, and every time and rate in the unit that is said here.

The unit stands in the file beside each number; one that is not known, or not there, is an error and never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# What a time and a rate are read in; counts have no unit to mistake.
_UNITS = {
    "time_to_first_token": "ms",
    "inter_token_latency": "ms",
    "inter_chunk_latency": "ms",
    "request_latency": "ms",
    "benchmark_duration": "s",
    "output_token_throughput": "tokens/s",
    "output_token_throughput_per_user": "tokens/s/user",
    "total_token_throughput": "tokens/s",
    "request_throughput": "requests/s",
}
# Micro is written with either of two letters.
_NS = {
    "ns": 1,
    "us": 10**3,
    "\u00b5s": 10**3,
    "\u03bcs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "sec": 10**9,
    "min": 60 * 10**9,
}
_KNOWN = ", ".join(unit for unit in _NS if unit.isascii())
_CSV_NAMES = {
    "Time to First Token": "time_to_first_token",
    "Inter Token Latency": "inter_token_latency",
    "Request Latency": "request_latency",
    "Output Token Throughput Per User": "output_token_throughput_per_user",
    "Output Token Throughput": "output_token_throughput",
    "Request Throughput": "request_throughput",
    "Request Count": "request_count",
    "Error Request Count": "error_request_count",
    "Benchmark Duration": "benchmark_duration",
    "Total Input Sequence Length": "total_isl",
    "Total Output Sequence Length": "total_osl",
}


def is_aiperf_json(content: Any) -> bool:
    return isinstance(content, dict) and {"time_to_first_token", "request_count"} <= content.keys()


def is_aiperf_csv(content: Any) -> bool:
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, list) and first[:2] == ["Metric", "avg"]


def from_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ValueError for a unit that is not known."""
    return {name: _read(name, name, said) if isinstance(said, Mapping) else said for name, said in content.items()}


def from_csv(rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    """It has one table of distributions and one of single values, the unit in parentheses after the name. Raises ValueError."""
    head = rows[0]
    content: dict[str, Any] = {}
    for row in rows[1:]:
        called, _, unit = row[0].partition(" (") if row else ("", "", "")
        if (name := _CSV_NAMES.get(called)) is None:
            continue
        keys = head[1:] if len(row) == len(head) else ["avg"]
        said = {key: float(value) for key, value in zip(keys, row[1:], strict=False) if value}
        content[name] = _read(name, called, {**said, "unit": unit.removesuffix(")")})
    return content


def _read(name: str, called: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """One metric; `called` is its name in the file."""
    numbers = {key: value for key, value in said.items() if type(value) in (int, float) and key != "count"}
    wanted = _UNITS.get(name)
    if wanted is None or not numbers:
        return dict(said)
    times = _factor(said.get("unit"), wanted, called)
    return {**said, **{key: value * times for key, value in numbers.items()}, "unit": wanted}


def _factor(said: Any, wanted: str, called: str) -> float:
    """What turns a number of the unit `said` into one of `wanted`."""
    ours, theirs = wanted.split("/"), str(said or "").lower().split("/")
    at = min(1, len(ours) - 1)  # where the time stands: alone, or second as in tokens/s/user
    time = theirs[at] if at < len(theirs) else ""
    if time not in _NS or [*theirs[:at], ours[at], *theirs[at + 1 :]] != ours:
        raise ValueError(
            f"{called} is in {said or 'no unit'!r}, and not in {wanted} or the like; times known are {_KNOWN}"
        )
    mine, other = _NS[ours[at]], _NS[time]
    return mine / other if at else other / mine
