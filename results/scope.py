"""One scope of one cell, as metrics read it, and the per-request times in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from results.clock import NS_PER_MS, NS_PER_S
from results.events import MISSING, Bools, Floats, Ints, Requests
from results.schema import Outcome
from results.tokens import TokenChunks
from results.truth import Steps


@dataclass(slots=True)
class ScopeData:
    """All a metric may read: one scope of one cell. `steps` are the engine's own, inside the scope, or None."""

    requests: Requests
    chunks: TokenChunks
    steps: Steps | None
    start: int
    end: int
    cell_started: int
    mode: str
    width: int

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
