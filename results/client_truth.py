"""How wrong the client was on this very run: its arrivals against the engine's own stamps of when each token was written."""

from __future__ import annotations

from typing import Any

import numpy as np

from results.clock import NS_PER_MS
from results.events import MISSING, Chunks, Floats, Requests
from results.schema import Outcome
from results.tokens import token_chunks
from results.truth import Tokens


def client_truth(requests: Requests, chunks: Chunks, truth: Tokens | None) -> dict[str, Any] | None:
    """The cell's `client.truth`; None without the engine's token log.

    `ttft_ms` is the first token's arrival less its writing, `arrival_ms` the same for each chunk and its last token: what
    lies between is the transport and the client's error, never the engine. Requests that were answered in full and whose
    tokens both sides count alike are joined by id; `requests` says how many, `disagree` how many were counted otherwise.
    """
    if truth is None or not len(truth):
        return None
    row_of = {request_id: row for row, request_id in enumerate(requests.request_id)}
    row = np.array([row_of.get(request_id, -1) for request_id in truth.request_id], dtype=np.int64)
    order = np.lexsort((truth.index, row))
    order = order[(row[order] >= 0) & (truth.written[order] != MISSING)]
    counted = np.bincount(row[order], minlength=len(requests))
    start = np.concatenate(([0], np.cumsum(counted)))[:-1]
    written = truth.written[order]

    tokens = token_chunks(requests, chunks)
    told = np.bincount(tokens.request[tokens.tokens < 0], minlength=len(requests)) == 0
    delivered = np.bincount(tokens.request, weights=np.maximum(tokens.tokens, 0), minlength=len(requests))
    ok = (requests.outcome == str(Outcome.OK)) & told & (delivered > 0) & (counted > 0)
    joined = ok & (delivered == counted)
    result = {"requests": int(joined.sum()), "disagree": int((ok & ~joined).sum())}
    if not joined.any():
        return {**result, "chunks": 0, "ttft_ms": None, "arrival_ms": None}
    mine = joined[tokens.request]
    request = tokens.request[mine]
    total = np.cumsum(tokens.tokens[mine])
    first = tokens.first[mine]
    before = (total - tokens.tokens[mine])[first]
    position = total - np.repeat(before, np.diff(np.append(np.flatnonzero(first), len(request)))) - 1
    late = (tokens.t[mine] - written[start[request] + position]) / NS_PER_MS
    ttft = (requests.first_token[joined] - written[start[joined]]) / NS_PER_MS
    return {**result, "chunks": len(late), "ttft_ms": _spread(ttft), "arrival_ms": _spread(late)}


def _spread(values_ms: Floats) -> dict[str, float]:
    p50, p99 = np.quantile(values_ms, (0.5, 0.99))
    return {"p50": float(p50), "p99": float(p99), "max": float(values_ms.max())}
