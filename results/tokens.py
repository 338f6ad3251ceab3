"""Token-bearing chunks in the order of their streams: what ITL, decode rates and token counts are read from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from results.events import MISSING, Bools, Chunks, Floats, Ints, Requests
from results.schema import TOKEN_KINDS, ChunkKind


@dataclass(slots=True)
class TokenChunks:
    """The chunks that carry generated tokens, by request, then by time.

    `request` indexes the cell's requests; `tokens` is -1 where a chunk's count is not known; `weight` is the count, or the
    request's remaining tokens shared evenly among its chunks of unknown count; `first` marks a request's first chunk,
    `reasoning` those that hold reasoning and no content (None: there are none).
    """

    request: Ints
    t: Ints
    tokens: Ints
    weight: Floats
    first: Bools
    reasoning: Bools | None = None

    def __len__(self) -> int:
        return len(self.t)

    def gaps(self) -> Ints:
        """ns since the chunk before it in the same stream; meaningless where `first`."""
        return np.diff(self.t, prepend=self.t[:1])

    def of(self, requests: Bools) -> Bools:
        """Mask of the chunks that belong to the requests of a mask."""
        out: Bools = requests[self.request]
        return out


def token_chunks(requests: Requests, chunks: Chunks) -> TokenChunks:
    """Pick and order the token-bearing chunks. Chunks of requests that are not there are left out."""
    index_of = {request_id: index for index, request_id in enumerate(requests.request_id)}
    index = np.array([index_of.get(request_id, -1) for request_id in chunks.request_ids], dtype=np.int64)
    bearing_kind = np.isin(chunks.kinds.astype(str), [str(kind) for kind in TOKEN_KINDS])
    if not len(chunks) or not len(index) or not bearing_kind.any():
        return _empty()
    request = np.where(chunks.request >= 0, index[chunks.request], -1)
    keep = bearing_kind[chunks.kind] & (chunks.kind >= 0) & (chunks.tokens != 0) & (request >= 0)
    request, t, tokens = request[keep], chunks.t[keep], chunks.tokens[keep]
    reasoning = None
    if (names := chunks.kinds.astype(str) == str(ChunkKind.REASONING)).any():
        reasoning = names[chunks.kind[keep]]
    if not _in_order(request, t):
        order = np.lexsort((t, request))
        request, t, tokens = request[order], t[order], tokens[order]
        reasoning = reasoning[order] if reasoning is not None else None
    first = np.diff(request, prepend=-1) != 0
    return TokenChunks(request, t, tokens, _weights(requests, request, tokens), first, reasoning)


def delivered_tokens(requests: Requests, chunks: TokenChunks) -> Ints:
    """Output tokens that reached the client, per request, failed ones included."""
    seen = np.bincount(chunks.request, weights=chunks.weight, minlength=len(requests))
    return np.where(requests.output_tokens >= 0, requests.output_tokens, np.rint(seen).astype(np.int64))


def slot_first(requests: Requests) -> Bools:
    """Mask of the first request that each slot sent."""
    out = np.zeros(len(requests), dtype=bool)
    usable = np.flatnonzero((requests.slot >= 0) & (requests.sent != MISSING))
    order = usable[np.lexsort((requests.sent[usable], requests.slot[usable]))]
    out[order[np.diff(requests.slot[order], prepend=-1) != 0]] = True
    return out


def _weights(requests: Requests, request: Ints, tokens: Ints) -> Floats:
    known = tokens >= 0
    weight = np.where(known, tokens, 0).astype(np.float64)
    if known.all():
        return weight
    counted = np.bincount(request, weights=weight, minlength=len(requests))
    blanks = np.bincount(request[~known], minlength=len(requests))
    left = np.where(requests.output_tokens >= 0, requests.output_tokens - counted, blanks)
    share = np.maximum(left, 0) / np.maximum(blanks, 1)
    return np.where(known, weight, share[request])


def _in_order(request: Ints, t: Ints) -> bool:
    """Whether each request's chunks stand together, in time order. (A worker writes them so; sorting is slow.)"""
    same = request[1:] == request[:-1]
    runs = len(request) - int(same.sum())
    return bool((t[1:][same] >= t[:-1][same]).all()) and runs == len(np.unique(request))


def _empty() -> TokenChunks:
    none = np.zeros(0, dtype=np.int64)
    return TokenChunks(none, none.copy(), none.copy(), np.zeros(0), np.zeros(0, dtype=bool))
