"""What throughput goes together with: across the cells of a run, and inside one cell over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from results.clock import NS_PER_S
from results.correlation import THROUGHPUT, Correlation, over_time, within_strata
from results.device_series import Series, device_samples, update_period_s
from results.events import Floats, Ints, Samples
from results.report_shapes import workload_info
from results.scope import ScopeData

# Where each measure stands in a cell of summary.json.
_PLACES: dict[str, tuple[str, ...]] = {
    "batch": ("batch", "realised"),
    "kv_occupancy": ("server", "kv_usage_max"),
    "bandwidth_fraction": ("device", "bandwidth_fraction"),
    "sm_clock_mhz": ("device", "sm_clock_mhz", "mean"),
    "power_w": ("device", "power_w"),
}
# Inside a cell: (source or None for the device's, metric).
_SERIES: dict[str, tuple[str | None, str]] = {
    "batch": ("server", "running"),
    "kv_occupancy": ("server", "kv_usage"),
    "bandwidth_fraction": (None, "gpu.dram_active"),
    "sm_clock_mhz": (None, "gpu.sm_clock_mhz"),
    "power_w": (None, "gpu.power_instant_w"),
}
_LEAST_STEP_NS = NS_PER_S // 4


def across_cells(cells: Iterable[Mapping[str, Any]]) -> list[Correlation]:
    """By engine and workload, then together. INVALID cells stay out; blocks of one point are one point, their mean.

    A measure that no cell has is left out.
    """
    points: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for cell in cells:
        if cell.get("verdict") == "INVALID":
            continue
        stratum = (str(cell.get("engine")), workload_info(cell.get("workload") or {}).label)
        load = cell.get("load") or {}
        points.setdefault(stratum, {}).setdefault(f"{load.get('mode')} {load.get('value')}", []).append(cell)
    out: list[Correlation] = []
    for name in _PLACES:
        strata: dict[str, tuple[list[float], list[float]]] = {}
        for (engine, workload), loads in points.items():
            pairs = [pair for blocks in loads.values() if (pair := _pair(blocks, name)) is not None]
            if pairs:
                strata[f"{engine}, {workload}"] = ([x for x, _ in pairs], [y for _, y in pairs])
        out += within_strata(name, strata)
    return out


def _pair(blocks: Iterable[Mapping[str, Any]], name: str) -> tuple[float, float] | None:
    """(measure, throughput) of a point: means over the blocks that have both."""
    both = []
    for cell in blocks:
        scope = cell.get("window") or cell.get("whole") or {}
        x, y = _number(cell, _PLACES[name]), scope.get(THROUGHPUT)
        if x is not None and isinstance(y, int | float):
            both.append((x, float(y)))
    if not both:
        return None
    return float(np.mean([x for x, _ in both])), float(np.mean([y for _, y in both]))


def _number(cell: Mapping[str, Any], path: tuple[str, ...]) -> float | None:
    node: Any = cell
    for step in path:
        node = node.get(step) if isinstance(node, Mapping) else None
    return float(node) if isinstance(node, int | float) and not isinstance(node, bool) else None


def inside_cell(data: ScopeData, samples: Samples, device: Mapping[str, Any] | None) -> list[Correlation]:
    """Throughput with each series over the scope, on a grid as wide as the slower sensor's own period: a value polled faster
    than it changes would count as many. `device` is the cell's device part."""
    chunks, out = data.chunks, []
    inside = data.holds(chunks.t)
    t, weight = chunks.t[inside], chunks.weight[inside]
    one = device is not None and len(device.get("devices") or []) == 1
    told = device_samples(samples, str(device["source"])) if device is not None and one else None
    for name, (source, metric) in _SERIES.items():
        series = Series(*samples.spans(source, metric)) if source else None
        if told is not None and device is not None and not source:
            series = told.of(str(device["devices"][0]), metric)
        if series is None:
            continue
        if len(series) < 2:
            continue
        step = max(_LEAST_STEP_NS, int(np.median(np.diff(series.t1))), int((update_period_s(series) or 0) * NS_PER_S))
        edges = np.arange(data.start, data.end + 1, step, dtype=np.int64)
        if len(edges) < 3:
            continue
        place = (t - data.start) // step
        counted = (place >= 0) & (place < len(edges) - 1)
        tokens = np.bincount(place[counted], weights=weight[counted], minlength=len(edges) - 1)
        means = _means(series, edges)
        known = np.isfinite(means)
        out.append(over_time(name, means[known], tokens[known].astype(np.float64)))
    return out


def _means(series: Series, edges: Ints) -> Floats:
    """The mean in each step of the grid: means over intervals by what they add up to, instants by the line between them; not a
    number where no reading is near."""
    middle = (edges[:-1] + edges[1:]) / 2
    times = series.t1.astype(np.float64)
    if (series.t1 > series.t0).any():
        grown = np.concatenate([[0.0], np.cumsum(series.values * (series.t1 - series.t0))])
        nodes = np.concatenate([[float(series.t0[0])], times])
        out: Floats = np.diff(np.interp(edges.astype(np.float64), nodes, grown)) / np.diff(edges)
    else:
        out = np.interp(middle, times, series.values)
    after = np.minimum(np.searchsorted(times, middle), len(times) - 1)
    before = np.maximum(after - 1, 0)
    near = np.minimum(np.abs(times[after] - middle), np.abs(times[before] - middle)) <= 2 * np.diff(edges)
    inside = (edges[:-1] >= series.t0[0]) & (edges[1:] <= series.t1[-1])
    return np.where(near & inside, out, np.nan)
