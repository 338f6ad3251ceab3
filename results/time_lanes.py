"""The requests of a cell as bars in lanes: no two bars of a lane overlap, and of too many bars those that are drawn are told."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from results.clock import NS_PER_S
from results.events import MISSING, Bools, Floats, Ints, Requests
from results.schema import Outcome

_MOST_LANES = 48
NOT_TOLD: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Lanes:
    """One element a drawn request, in the order they begin; times are s after the start of the axis, NaN where a moment is
    not known. A bar begins when the request was due (`due`), is sent, leaves the engine's queue (`scheduled`, where the engine
    tells), gets its first and its last token, and ends.

    `lane` counts from 0; `drawn` of `total` requests and `lanes` of `all_lanes` are there; `every` > 1 says that of a drawn
    lane only every so many-th request is.
    """

    lane: Ints
    due: Floats
    sent: Floats
    scheduled: Floats
    first: Floats
    last: Floats
    end: Floats
    tokens: Ints
    input_tokens: Ints
    ok: Bools
    outcome: tuple[str, ...]
    lanes: int
    all_lanes: int
    total: int
    every: int = 1

    @property
    def drawn(self) -> int:
        return len(self.lane)

    @property
    def queue_told(self) -> bool:
        """Whether waiting in the engine's queue is told from prefill."""
        return bool(np.isfinite(self.scheduled).any())


def request_lanes(requests: Requests, start: int, most: int, scheduled: Mapping[str, int] = NOT_TOLD) -> Lanes:
    """Lay the requests of a cell into lanes and pick at most about `most` of them. `scheduled`: when the engine first took them
    up (ns, by request id).

    Whole lanes are left out first, evenly, never those of the shortest and longest TTFT, the longest request, or the first
    failure; where a single lane holds too many, every so many-th of its requests stays.
    """
    due = _first_known(requests.intended, requests.queued, requests.sent)
    usable = np.flatnonzero(due != MISSING)
    usable = usable[np.argsort(due[usable], kind="stable")]
    ends = _first_known(requests.end, requests.last_token, requests.first_token, requests.sent)[usable]
    lane = _packed(due[usable], ends)
    all_lanes = int(lane.max()) + 1 if len(lane) else 0
    notable = _notable(requests, usable)
    shown = _some_lanes(lane, all_lanes, lane[notable], most)
    kept = np.isin(lane, shown)
    every = max(1, -(-int(kept.sum()) // max(most, 1)))
    if every > 1:
        spared = np.zeros(len(usable), dtype=bool)
        spared[notable] = True
        kept &= (np.cumsum(kept) % every == 0) | spared
    at = usable[kept]
    renumbered = np.searchsorted(shown, lane[kept])

    def seconds(stamps: Ints) -> Floats:
        return np.where(stamps == MISSING, np.nan, (stamps - start) / NS_PER_S)

    taken = [scheduled.get(str(name), MISSING) for name in requests.request_id[at]]

    return Lanes(
        lane=renumbered.astype(np.int64),
        due=seconds(due[at]),
        sent=seconds(requests.sent[at]),
        scheduled=seconds(np.array(taken, dtype=np.int64)),
        first=seconds(requests.first_token[at]),
        last=seconds(requests.last_token[at]),
        end=seconds(requests.end[at]),
        tokens=requests.output_tokens[at],
        input_tokens=np.where(
            requests.input_tokens_counted >= 0, requests.input_tokens_counted, requests.input_tokens_planned
        )[at],
        ok=np.isin(requests.outcome[at].astype(str), [str(Outcome.OK), str(Outcome.SHORT)]),
        outcome=tuple(str(o) for o in requests.outcome[at]),
        lanes=len(shown),
        all_lanes=all_lanes,
        total=len(usable),
        every=every,
    )


def _first_known(*columns: Ints) -> Ints:
    out = columns[0].copy()
    for column in columns[1:]:
        out = np.where(out == MISSING, column, out)
    return out


def _packed(start: Ints, end: Ints) -> Ints:
    """The lane of each bar, `start` ascending: the lowest one that is free."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    out = np.zeros(len(start), dtype=np.int64)
    lanes = 0
    for at, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, lanes = lanes, lanes + 1
        out[at] = lane
        heapq.heappush(busy, (max(stop, begin), lane))
    return out


def _notable(requests: Requests, usable: Ints) -> Ints:
    """Places in `usable` that are never thinned away: extremes of TTFT and duration, and the first failure."""
    sent, first, end = (c[usable] for c in (requests.sent, requests.first_token, requests.end))
    places: list[int] = []
    for low, high, both in ((sent, first, True), (sent, end, False)):
        known = np.flatnonzero((low != MISSING) & (high != MISSING))
        if len(known):
            span = (high - low)[known]
            places.append(int(known[np.argmax(span)]))
            places += [int(known[np.argmin(span)])] if both else []
    failed = np.flatnonzero(~np.isin(requests.outcome[usable].astype(str), [str(Outcome.OK), str(Outcome.SHORT)]))
    places += failed[:1].tolist()
    return np.array(sorted(set(places)), dtype=np.int64)


def _some_lanes(lane: Ints, lanes: int, always: Ints, most: int) -> Ints:
    """The lanes to draw, ascending."""
    if not lanes:
        return np.zeros(0, dtype=np.int64)
    wanted = min(_MOST_LANES, lanes, max(1, most * lanes // max(len(lane), 1)))
    if wanted >= lanes:
        return np.arange(lanes)
    spread = np.linspace(0, lanes - 1, max(wanted - len(np.unique(always)), 1)).round().astype(np.int64)
    return np.unique(np.concatenate([spread, always]))
