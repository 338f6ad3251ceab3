"""What a report shows of single cells from their events: requests and tracks on one time axis, and each request's latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from results.arrivals import OPEN_LOOPS
from results.cell_steps import logged_steps
from results.clock import NS_PER_S
from results.errors import StoreError
from results.events import MISSING, Bools, Floats, Ints, Requests, read_requests, read_samples, read_token_arrivals
from results.records import CellRecord
from results.report_shapes import CellRow
from results.schema import Outcome
from results.scope import span_ms, tpot_ms
from results.store import RunStore
from results.time_lanes import Lanes, request_lanes
from results.time_tracks import CellEvents, Track, cell_tracks
from results.truth import Steps, read_scheduled, read_steps

# What all cells of a page may hold together, and what one holds at least and at most.
_ALL_COLUMNS, _COLUMNS = 8_000, (60, 240)
_ALL_BARS, _BARS = 10_000, (60, 400)
# More values than this are kept by even ranks, smallest and largest among them.
_MOST_VALUES = 20_000


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of one latency (ms), sorted; `n` is how many there were."""

    values: Floats
    n: int

    @classmethod
    def of(cls, values: Floats) -> Spread:
        known = np.sort(values[np.isfinite(values)])
        if len(known) > _MOST_VALUES:
            ranks = np.linspace(0, len(known) - 1, _MOST_VALUES).round().astype(np.int64)
            return cls(known[ranks], len(known))
        return cls(known, len(known))

    @classmethod
    def pooled(cls, parts: Sequence[Spread]) -> Spread:
        """Those of several cells together."""
        values = np.concatenate([p.values for p in parts]) if parts else np.zeros(0)
        return cls(np.sort(values), sum(p.n for p in parts))

    def at(self, share: float) -> float | None:
        """The quantile, None where fewer than one value lies beyond it on either side."""
        if self.n * min(share, 1 - share) < 1 - 1e-9:
            return None
        return float(np.quantile(self.values, share))


@dataclass(frozen=True, slots=True)
class CellTimes:
    """One cell on its time axis of `seconds`; `window` is its steady window (s, s) where it has one. `tokens_guessed`: chunks
    that do not say how many tokens they carry were counted as one."""

    cell: CellRow
    seconds: float
    window: tuple[float, float] | None
    lanes: Lanes
    tracks: list[Track]
    ttft_ms: Spread
    tpot_ms: Spread
    tokens_guessed: int = 0


@dataclass(slots=True)
class TimeReport:
    """The cells whose events could be read, in the order of the table; `missing` says why others are not there."""

    cells: list[CellTimes] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.cells)


def time_report(
    store: RunStore,
    rows: Sequence[CellRow],
    cells: Sequence[Mapping[str, Any]],
    scope: str,
    records: Mapping[str, CellRecord],
) -> TimeReport:
    """Read the events of every cell once, one cell at a time. `rows` are the cells as shown, `cells` those of the summary,
    `records` their records by id; latencies are those of `scope`."""
    summaries = {str(cell.get("id")): cell for cell in cells}
    columns, bars = _share(_ALL_COLUMNS, _COLUMNS, len(rows)), _share(_ALL_BARS, _BARS, len(rows))
    found: dict[str, CellTimes] = {}
    report = TimeReport()
    for session in dict.fromkeys(row.session for row in rows):
        here = [row for row in rows if row.session == session and row.id in records]
        steps = _steps(store, session) if here else None
        scheduled = _scheduled(store, session) if here else {}
        for row in here:
            summary = summaries.get(row.id, {})
            folder, span, device = store.cell_dir(row.id), _window(summary, scope), summary.get("device") or {}
            if not (folder / "requests.parquet").is_file():
                continue
            try:
                times = cell_times(folder, row, records[row.id], steps, scheduled, span, columns, bars, device)
            except StoreError as error:
                report.missing.append(f"{row.label}: {error}")
                continue
            if times is not None:
                found[row.id] = times
    report.cells = [found[row.id] for row in rows if row.id in found]
    return report


def cell_times(
    folder: Path,
    row: CellRow,
    record: CellRecord,
    steps: Steps | None,
    scheduled: Mapping[str, int],
    window: tuple[float, float] | None,
    columns: int,
    bars: int,
    device: Mapping[str, Any],
) -> CellTimes | None:
    """One cell, None where nothing was sent. `scheduled`: when requests left the queue, as the engine tells; `window` is in s after the
    cell's start; `device` is that of its summary. Raises StoreError."""
    requests = read_requests(folder)
    stamps = [getattr(requests, name) for name in ("intended", "queued", "sent", "last_token", "end")]
    known = np.concatenate([column[column != MISSING] for column in stamps])
    if not len(known):
        return None
    start, end = int(known.min()), max(int(known.max()), int(known.min()) + 1)
    t, tokens, guessed = read_token_arrivals(folder)
    if steps is None:
        # A log that cannot be read is told by the cell's reasons.
        steps, _ = logged_steps(folder, requests, (record.started, record.ended))
    mine = steps.between(start, end) if steps is not None else None
    events = CellEvents(t, tokens, read_samples(folder), mine, start, end, device)
    inside = _edges(window, record.started)
    return CellTimes(
        cell=row,
        seconds=(end - start) / NS_PER_S,
        window=None if inside is None else ((inside[0] - start) / NS_PER_S, (inside[1] - start) / NS_PER_S),
        lanes=request_lanes(requests, start, bars, scheduled),
        tracks=cell_tracks(events, columns),
        ttft_ms=_ttft(requests, row.load_mode, inside),
        tpot_ms=_tpot(requests, inside),
        tokens_guessed=guessed,
    )


def _share(of_all: int, bounds: tuple[int, int], cells: int) -> int:
    return int(np.clip(of_all // max(cells, 1), *bounds))


def _steps(store: RunStore, session: str) -> Steps | None:
    """A log that cannot be read is told by the cells' reasons."""
    try:
        return read_steps(store.session_dir(session))
    except StoreError:
        return None


def _scheduled(store: RunStore, session: str) -> Mapping[str, int]:
    """Like the steps: a log that cannot be read tells nothing."""
    try:
        return read_scheduled(store.session_dir(session))
    except StoreError:
        return {}


def _window(cell: Mapping[str, Any], scope: str) -> tuple[float, float] | None:
    """(start, end) in s after the cell's start of its steady window, where the report's numbers are those of windows."""
    found = cell.get("window")
    if scope != "window" or not isinstance(found, Mapping) or found.get("start_s") is None:
        return None
    return float(found["start_s"]), float(found["start_s"]) + float(found.get("duration_s") or 0.0)


def _edges(window: tuple[float, float] | None, started: int) -> tuple[int, int] | None:
    if window is None:
        return None
    return started + round(window[0] * NS_PER_S), started + round(window[1] * NS_PER_S)


def _ttft(requests: Requests, mode: str, inside: tuple[int, int] | None) -> Spread:
    """From the send; in an open loop from when the request was due, as everywhere in the report."""
    start = requests.intended if mode in OPEN_LOOPS else requests.sent
    return Spread.of(span_ms(start, requests.first_token, _counted(requests, requests.first_token, inside)))


def _tpot(requests: Requests, inside: tuple[int, int] | None) -> Spread:
    return Spread.of(tpot_ms(requests, _counted(requests, requests.last_token, inside)))


def _counted(requests: Requests, stamp: Ints, inside: tuple[int, int] | None) -> Bools:
    """Requests answered in full whose event lies in the scope."""
    ok: Bools = requests.outcome.astype(str) == str(Outcome.OK)
    return ok if inside is None else ok & (stamp > inside[0]) & (stamp <= inside[1])
