"""One scope of one cell, as metrics read it, and the per-request times in it.

Every event counts by its own time: a token where it arrived, TTFT where the first token did, E2E and TPOT where the last one
did, a request where it ended. The whole scope holds all of them; a window those in (start, end].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from results.clock import NS_PER_MS, NS_PER_S
from results.events import MISSING, Bools, Floats, Ints, Requests
from results.schema import Outcome
from results.tokens import TokenChunks, delivered_tokens, slot_first
from results.truth import Steps

WHOLE, WINDOW = "whole", "window"
T = TypeVar("T")


@dataclass(slots=True)
class ScopeData:
    """All a metric may read: one scope of one cell. `steps` are the engine's own, inside the scope, or None.

    `requests` and `chunks` are always those of the whole cell: `holds` tells which of their events lie in the scope.
    """

    requests: Requests
    chunks: TokenChunks
    steps: Steps | None
    start: int
    end: int
    cell_started: int
    mode: str
    width: int
    name: str = WHOLE
    _known: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, name: str, compute: Callable[[], T]) -> T:
        """What several metrics need and ten million chunks make dear, computed once. The data must not change after."""
        if name not in self._known:
            self._known[name] = compute()
        found: T = self._known[name]
        return found

    def window(self, start: int, end: int) -> ScopeData:
        """The same cell seen through (start, end] (ns)."""
        steps = self.steps.between(start, end) if self.steps is not None else None
        return replace(
            self, steps=steps if steps is not None and len(steps) else None, start=start, end=end, name=WINDOW
        )

    def holds(self, stamps: Ints) -> Bools:
        """Which events belong to the scope, by their stamps."""
        if self.name == WHOLE:
            return np.ones(len(stamps), dtype=bool)
        out: Bools = (stamps > self.start) & (stamps <= self.end)
        return out

    @property
    def delivered(self) -> Ints:
        """Output tokens that reached the client inside the scope, per request, failed ones included."""
        return self.once("delivered", self._delivered)

    def _delivered(self) -> Ints:
        if self.name == WHOLE:
            return delivered_tokens(self.requests, self.chunks)
        return np.rint(self._tokens_of(self.holds(self.chunks.t))).astype(np.int64)

    @property
    def after_first(self) -> Floats:
        """The same without the tokens of each first chunk. One of unknown count counts as one."""
        if self.name == WHOLE:
            first = np.where(self.requests.tokens_in_first_chunk > 0, self.requests.tokens_in_first_chunk, 1)
            return np.maximum(self.requests.output_tokens - first, 0).astype(np.float64)
        return self._tokens_of(self.holds(self.chunks.t) & ~self.chunks.first)

    @property
    def uncounted(self) -> Bools:
        """Requests answered in full of which nobody tells how many tokens (or, in a window, which of them) came here."""
        return self.once("uncounted", self._uncounted)

    def _uncounted(self) -> Bools:
        in_chunks = np.bincount(self.chunks.request, minlength=len(self.requests)) > 0
        known = self.requests.output_tokens >= 0
        if self.name == WINDOW:
            known &= self.requests.output_tokens == 0
        out: Bools = self.ok & ~known & ~in_chunks
        return out

    @property
    def prefilled(self) -> Bools:
        """Requests whose prompt was processed here: their first token came, or tokens without a time did."""
        first = self.requests.first_token
        out: Bools = np.where(first != MISSING, self.holds(first), self.delivered > 0)
        return out

    @property
    def shortened(self) -> Bools:
        """First requests of the slots of a closed loop, where they were cut short so that it does not lock in phase.

        All of them or none: one that drew its full length by chance must not stand for the others.
        """
        none = np.zeros(len(self.requests), dtype=bool)
        if self.mode != "concurrency":
            return none
        first, asked = slot_first(self.requests), self.requests.output_tokens_asked
        cut = first.any() and not first.all() and asked[first].min() < asked[~first].min()
        return first if cut else none

    def _tokens_of(self, chunks: Bools) -> Floats:
        weights = np.where(chunks, self.chunks.weight, 0.0)
        out: Floats = np.bincount(self.chunks.request, weights=weights, minlength=len(self.requests)).astype(np.float64)
        return out

    @property
    def ok(self) -> Bools:
        out: Bools = self.requests.outcome == str(Outcome.OK)
        return out

    @property
    def answered(self) -> Bools:
        """In full, or with fewer tokens than asked: the server did its work."""
        short: Bools = self.requests.outcome == str(Outcome.SHORT)
        return self.ok | short

    @property
    def seconds(self) -> float | None:
        return (self.end - self.start) / NS_PER_S if self.end > self.start else None

    @property
    def input_tokens(self) -> Ints:
        """Prompt tokens per request: as the server counted them, else as planned, else 0."""
        counted = np.where(
            self.requests.input_tokens_counted >= 0,
            self.requests.input_tokens_counted,
            self.requests.input_tokens_planned,
        )
        return np.maximum(counted, 0)

    @property
    def dependent(self) -> str | None:
        """Why values of different requests are not independent, if they are not."""
        if self.mode == "batch" and self.width > 1:
            return "the requests of a wave share their steps, so they are not independent values"
        return None


def scope_data(
    requests: Requests,
    chunks: TokenChunks,
    steps: Steps | None,
    *,
    cell: tuple[int, int],
    mode: str,
    width: int,
) -> ScopeData | None:
    """The whole scope of a cell, first send to last end; None when nothing was sent. `cell` is [started, ended] of its
    record."""
    sent = requests.sent[requests.sent != MISSING]
    if not len(sent):
        return None
    ends = requests.end[(requests.end != MISSING) & (requests.sent != MISSING)]
    start, end = int(sent.min()), int(ends.max()) if len(ends) else int(sent.max())
    # A server may begin a step before the client has stamped its send: the whole scope's steps are the cell's.
    inside = steps.between(*cell) if steps is not None else None
    if inside is not None and not len(inside):
        inside = None
    return ScopeData(requests, chunks, inside, start, max(end, start), cell[0], mode, width)


def span_ms(start: Ints, end: Ints, which: Bools) -> Floats:
    """end - start in ms; NaN where not in `which`, where a stamp is missing, or where it would be negative."""
    known = which & (start != MISSING) & (end != MISSING)
    known &= np.where(known, end, 0) >= np.where(known, start, 0)
    out = np.full(len(start), np.nan)
    out[known] = (end[known] - start[known]) / NS_PER_MS
    return out


def tpot_ms(requests: Requests, which: Bools) -> Floats:
    """TPOT per request, NaN where it is undefined."""
    span = span_ms(requests.first_token, requests.last_token, which)
    first = np.where(requests.tokens_in_first_chunk > 0, requests.tokens_in_first_chunk, 1)
    after = requests.output_tokens - first
    usable = (requests.output_tokens > 1) & (after > 0) & np.isfinite(span)
    out = np.full(len(requests), np.nan)
    out[usable] = span[usable] / after[usable]
    return out
