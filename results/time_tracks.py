"""What a cell did over time, on one grid: tokens/s, batch, KV occupancy and what the device said.

The grid has as many columns as a picture can show. Each column keeps the mean, the lowest and the highest of its readings,
so that thinning hides no peak; a column without a reading is unknown, not 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from results.clock import NS_PER_S
from results.events import Floats, Ints, Samples
from results.truth import Steps

# So many tokens a column at least, on average: fewer show nothing but single tokens.
_TOKENS_A_COLUMN = 8
_LEAST_COLUMNS = 16


@dataclass(frozen=True, slots=True)
class CellEvents:
    """What the tracks of one cell are read from; `start` and `end` (ns) are the edges of its time axis. `token_t` are the
    arrivals of chunks with tokens, `tokens` how many each held. `steps` are the engine's own, or None; `device` is the `device` part
    of the cell's summary, empty where it has none."""

    token_t: Ints
    tokens: Ints
    samples: Samples
    steps: Steps | None
    start: int
    end: int
    device: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Readings:
    """Readings of one thing in any order: from when to when each holds (ns; the same for an instant), the value, and by whom.
    `peak` is the value that is all there could be, 0 where none is known."""

    t0: Ints
    t1: Ints
    value: Floats
    source: str
    peak: float = 0.0


@dataclass(frozen=True, slots=True)
class Track:
    """One thing over time. Arrays have one element a column: the mean time (s after the start) and mean, lowest and highest
    value of its readings, NaN where it has none. `n` counts readings; `absent` says why there are none; `peak` is that of the
    readings."""

    id: str
    words: str
    unit: str
    t: Floats
    mean: Floats
    low: Floats
    high: Floats
    n: int
    source: str
    absent: str = ""
    peak: float = 0.0


@dataclass(frozen=True, slots=True)
class TrackSpec:
    """A row of the table: what is read, and in which unit. `read` gives readings, or why there are none. One that stands in
    (`stands_in_for`) is there only where it has readings and the other has none."""

    id: str
    words: str
    unit: str
    read: Callable[[CellEvents], Readings | str]
    stands_in_for: str = ""


def cell_tracks(events: CellEvents, columns: int) -> list[Track]:
    """Every track of the table over one cell; the first is output tokens/s."""
    found = {spec.id: _track(spec, events, columns) for spec in TRACKS}
    idle = {s.id for s in TRACKS if s.stands_in_for and (found[s.id].absent or not found[s.stands_in_for].absent)}
    return [_tokens(events, columns), *(track for track in found.values() if track.id not in idle)]


def _tokens(events: CellEvents, columns: int) -> Track:
    """Arrivals counted a column: a rate is a mean by nature and has no lowest and highest."""
    words, unit = "output tokens/s", ""
    total = int(events.tokens.sum())
    if not total or events.end <= events.start:
        return _absent("tokens", words, unit, "no token arrived")
    columns = int(np.clip(total // _TOKENS_A_COLUMN, _LEAST_COLUMNS, columns))
    width = (events.end - events.start) / columns / NS_PER_S
    column = np.clip((events.token_t - events.start) / NS_PER_S / width, 0, columns - 1).astype(np.int64)
    rate = np.bincount(column, weights=events.tokens, minlength=columns) / width
    middle: Floats = np.asarray((np.arange(columns) + 0.5) * width, dtype=np.float64)
    source = f"arrivals at the client, counted over {1000 * width:.3g} ms each"
    return Track("tokens", words, unit, middle, rate, rate, rate, len(events.token_t), source)


def _track(spec: TrackSpec, events: CellEvents, columns: int) -> Track:
    found = spec.read(events)
    if isinstance(found, str):
        return _absent(spec.id, spec.words, spec.unit, found)
    inside = (found.t1 >= events.start) & (found.t0 <= events.end) & np.isfinite(found.value)
    if not inside.any():
        return _absent(spec.id, spec.words, spec.unit, "no reading fell into the cell")
    span = events.end - events.start
    t0, t1 = (np.clip(t[inside] - events.start, 0, span) for t in (found.t0, found.t1))
    columns_of = _thinned(*_pieces(t0, t1, found.value[inside], max(span // columns, 1)), span, columns)
    return Track(spec.id, spec.words, spec.unit, *columns_of, int(inside.sum()), found.source, peak=found.peak)


def _pieces(t0: Ints, t1: Ints, value: Floats, width: int) -> tuple[Floats, Floats, Floats]:
    """(middle, weight, value): a reading that holds for longer than a column stands in each of them."""
    times = np.maximum((t1 - t0) // width, 1)
    which = np.repeat(np.arange(len(value)), times)
    place = np.arange(len(which)) - np.repeat(np.cumsum(times) - times, times)
    each = (t1 - t0)[which] / times[which]
    return t0[which] + (place + 0.5) * each, np.maximum(each, 1.0), value[which]


def _thinned(
    t: Floats, weight: Floats, value: Floats, span: int, columns: int
) -> tuple[Floats, Floats, Floats, Floats]:
    """(mean time in s, mean, lowest, highest) of each column."""
    order = np.argsort(t, kind="stable")
    t, weight, value = t[order], weight[order], value[order]
    column = np.minimum(t * columns / max(span, 1), columns - 1).astype(np.int64)
    which, begin = np.unique(column, return_index=True)
    total = np.add.reduceat(weight, begin)
    out = np.full((4, columns), np.nan)
    out[0, which] = np.add.reduceat(weight * t, begin) / total / NS_PER_S
    out[1, which] = np.add.reduceat(weight * value, begin) / total
    out[2, which], out[3, which] = np.minimum.reduceat(value, begin), np.maximum.reduceat(value, begin)
    return out[0], out[1], out[2], out[3]


def _absent(id_: str, words: str, unit: str, why: str) -> Track:
    none = np.zeros(0)
    return Track(id_, words, unit, none, none, none, none, 0, "", why)


def _batch(events: CellEvents) -> Readings | str:
    """Requests that run in the engine together, by its steps, else by its gauge: what waits there is not among them."""
    if events.steps is not None and len(events.steps):
        return _of_steps(events.steps, events.steps.running.astype(np.float64))
    return _gauge(events, "running", "the engine's gauge")


def _kv(events: CellEvents) -> Readings | str:
    """Blocks in use as a share of the pool, by the engine's steps, else by its gauge."""
    steps = events.steps
    if steps is not None and len(steps) and (steps.blocks_total > 0).all():
        return _of_steps(steps, 100.0 * steps.blocks_allocated / steps.blocks_total)
    found = _gauge(events, "kv_usage", "the engine's gauge")
    return found if isinstance(found, str) else replace(found, value=100 * found.value)


def _of_steps(steps: Steps, value: Floats) -> Readings:
    return Readings(steps.start, steps.end, value, "the engine's step log")


def _gauge(events: CellEvents, metric: str, words: str) -> Readings | str:
    t0, t1, values = events.samples.spans("server", metric)
    if not len(values):
        return events.samples.unknown_because("server", metric) or "the server does not tell"
    return Readings(t0, t1, values, words)


def _device(metrics: tuple[str, ...], scale: float = 1.0) -> Callable[[CellEvents], Readings | str]:
    """Of the first of these metrics that has readings, those of every device."""

    def read(events: CellEvents) -> Readings | str:
        samples = events.samples
        for metric in metrics:
            here = np.flatnonzero((samples.metric == metric) & np.isfinite(samples.value))
            if len(here):
                devices = len({str(d) for d in samples.device[here]})
                by = {str(s) for s in samples.source[here]}
                words = f"{', '.join(sorted(by))}{f', each of {devices} devices' if devices > 1 else ''}"
                return Readings(samples.t0[here], samples.t1[here], scale * samples.value[here], words)
        told = [str(r) for m, r in zip(samples.metric, samples.reason, strict=True) if r and m in (*metrics, _LOST)]
        return told[-1] if told else "no device was sampled"

    return read


_share = _device(("gpu.dram_active",), 100.0)


def _counted_share(events: CellEvents) -> Readings | str:
    """The share of the peak, unless the cell's summary refuses the counter."""
    refused = (events.device.get("why") or {}).get("dram_active")
    return str(refused) if refused else _share(events)


def _bandwidth(events: CellEvents) -> Readings | str:
    """Bytes a second: the share that a counter tells, of the peak that the cell's summary worked out for a device."""
    found = _counted_share(events)
    if isinstance(found, str):
        return found
    peak, devices = events.device.get("peak_gb_per_s"), len(events.device.get("devices") or ())
    if not peak or not devices:
        return str((events.device.get("why") or {}).get("peak_gb_per_s") or "the peak of the device is not known")
    each = [float(one["peak_gb_per_s"]) for one in events.device.get("each") or ()]
    if len(set(each)) > 1:
        return "the devices have different peaks"
    source = f"{events.device.get('bandwidth_source') or found.source}, of the peak by {events.device.get('peak_from')}"
    return replace(found, value=found.value / 100 * peak / devices, peak=peak / devices, source=source)


_LOST = "gpu.telemetry"
TRACKS: tuple[TrackSpec, ...] = (
    TrackSpec("batch", "requests running in the engine", "", _batch),
    TrackSpec("kv", "KV blocks in use", "%", _kv),
    TrackSpec("bandwidth", "device memory bandwidth", "GB/s", _bandwidth),
    TrackSpec("bandwidth_share", "device memory bandwidth, share of its peak", "%", _counted_share, "bandwidth"),
    TrackSpec("clock", "SM clock", "MHz", _device(("gpu.sm_clock_mhz",))),
    TrackSpec("power", "device power", "W", _device(("gpu.power_instant_w", "gpu.power_average_w"))),
)
