"""The client's error on the very run: arrivals held against the engine's own stamps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from results.client_truth import client_truth
from results.clock import NS_PER_MS
from results.events import Chunks, Requests
from results.truth import Tokens


def truth_of(written_ms: dict[str, list[float]]) -> Tokens:
    rows = [(name, i, t) for name, times in written_ms.items() for i, t in enumerate(times)]
    n = len(rows)
    return Tokens(
        np.array([row[0] for row in rows], dtype=object),
        np.array([row[1] for row in rows]),
        np.arange(n),
        np.zeros(n, dtype=np.int64),
        np.array([round(row[2] * NS_PER_MS) for row in rows]),
    )


def request(name: str, first_ms: float, outcome: str = "ok") -> dict[str, Any]:
    return {"request_id": name, "sent": 0, "first_token": round(first_ms * NS_PER_MS), "outcome": outcome}


def chunk(name: str, t_ms: float, tokens: int | None) -> dict[str, Any]:
    return {"request_id": name, "t": round(t_ms * NS_PER_MS), "lag": 0.0, "kind": "text", "tokens": tokens}


def test_each_chunk_is_held_against_the_writing_of_its_last_token() -> None:
    requests = Requests.of([request("b", 11.0), request("a", 5.5)])
    # Two tokens of b come in one chunk, half a millisecond after the second of them was written.
    chunks = Chunks.of([chunk("b", 11.0, 1), chunk("b", 30.5, 2), chunk("a", 5.5, 1)])
    found = client_truth(requests, chunks, truth_of({"a": [5.0], "b": [10.0, 20.0, 30.0], "other cell": [1.0]}))
    assert found is not None
    assert (found["requests"], found["disagree"], found["chunks"]) == (2, 0, 3)
    assert found["arrival_ms"]["max"] == pytest.approx(1.0)
    assert found["arrival_ms"]["p50"] == pytest.approx(0.5)
    assert found["ttft_ms"]["p50"] == pytest.approx(0.75)


def test_what_the_two_count_otherwise_is_told_and_not_joined() -> None:
    requests = Requests.of([request("a", 1.0), request("failed", 1.0, "reset"), request("uncounted", 1.0)])
    chunks = Chunks.of([chunk("a", 1.0, 1), chunk("failed", 1.0, 1), chunk("uncounted", 1.0, None)])
    found = client_truth(requests, chunks, truth_of({"a": [1.0, 2.0], "failed": [1.0], "uncounted": [1.0]}))
    assert found == {"requests": 0, "disagree": 1, "chunks": 0, "ttft_ms": None, "arrival_ms": None}


def test_an_engine_without_a_token_log_gives_no_error() -> None:
    requests, chunks = Requests.of([request("a", 1.0)]), Chunks.of([chunk("a", 1.0, 1)])
    assert client_truth(requests, chunks, None) is None
    assert client_truth(requests, chunks, truth_of({})) is None
