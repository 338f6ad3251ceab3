"""What a truth server knows of its own answers: when each request was in, when each chunk was due and when it was sent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from harness.truth.stream import DONE
from results.clock import NS_PER_MS, NS_PER_S
from results.events import Floats, Ints, Texts, read_table, write_table
from results.schema import REQUESTS

REQUESTS_FILE = "truth_requests.parquet"
CHUNKS_FILE = "truth_chunks.parquet"

_REQUESTS = pa.schema(
    [
        ("request_id", pa.string()),  # of the client's header; null where it sent none
        ("index", pa.int64()),
        ("received", pa.int64()),  # monotonic ns: when the last byte of the request came in
        ("input_tokens", pa.int64()),
        ("output_tokens", pa.int64()),  # handed to the kernel
        ("outcome", pa.string()),
        ("chunks", pa.int64()),  # rows of the other file, in the same order
    ],
    metadata=REQUESTS.metadata,
)
_CHUNKS = pa.schema(
    [("due", pa.int64()), ("sent", pa.int64()), ("tokens", pa.int64())],
    metadata=REQUESTS.metadata,
)


@dataclass(frozen=True, slots=True)
class Truth:
    """Requests in the order they came in (n of them); the chunks of request i are rows [start[i], start[i + 1])."""

    request_id: Texts
    index: Ints
    received: Ints
    input_tokens: Ints
    output_tokens: Ints
    outcome: Texts
    start: Ints  # n + 1
    due: Ints
    sent: Ints
    tokens: Ints

    def __len__(self) -> int:
        return len(self.request_id)

    @property
    def chunks(self) -> Ints:
        """Chunks of each request."""
        return np.diff(self.start)

    @property
    def whole(self) -> Truth:
        """Only the requests that were answered in full."""
        return self.take(np.flatnonzero(self.outcome == DONE))

    def take(self, rows: Ints) -> Truth:
        """Some requests, with their chunks."""
        counts = self.chunks[rows]
        start = np.concatenate(([0], np.cumsum(counts)))
        where = np.repeat(self.start[:-1][rows] - start[:-1], counts) + np.arange(start[-1])
        return Truth(
            request_id=self.request_id[rows],
            index=self.index[rows],
            received=self.received[rows],
            input_tokens=self.input_tokens[rows],
            output_tokens=self.output_tokens[rows],
            outcome=self.outcome[rows],
            start=start,
            due=self.due[where],
            sent=self.sent[where],
            tokens=self.tokens[where],
        )

    def last(self, count: int) -> Truth:
        """The last so many requests to come in: what a tool measured, where it sent others first to warm up."""
        return self.take(np.arange(max(0, len(self) - count), len(self)))

    @property
    def first_sent(self) -> Ints:
        """When the first chunk of each request was sent; each must have one."""
        return self.sent[self.start[:-1]]

    @property
    def last_sent(self) -> Ints:
        return self.sent[self.start[1:] - 1]

    def ttft_ms(self) -> Floats:
        """From the last byte of each request to the sending of its first chunk."""
        return (self.first_sent - self.received) / NS_PER_MS

    def tpot_ms(self) -> Floats:
        """Mean time a token after the first chunk, for requests that have more than it."""
        after = self.output_tokens - self.tokens[self.start[:-1]] if len(self) else self.output_tokens
        many = after > 0
        return (self.last_sent - self.first_sent)[many] / after[many] / NS_PER_MS

    def duration_s(self) -> float:
        """From the first request in to the last chunk out."""
        return float(self.last_sent.max() - self.received.min()) / NS_PER_S if len(self) else 0.0

    def late_ms(self) -> Floats:
        """How late each chunk was sent."""
        return (self.sent - self.due) / NS_PER_MS


def write_truth(folder: Path, requests: dict[str, list[Any]], chunks: dict[str, Any]) -> None:
    """Both files, columns as in the schemas. Raises StoreError."""
    write_table(folder / CHUNKS_FILE, _CHUNKS, chunks)
    write_table(folder / REQUESTS_FILE, _REQUESTS, requests)


def read_truth(folder: Path) -> Truth:
    """What `write_truth` wrote. Raises StoreError."""
    requests = read_table(folder / REQUESTS_FILE, _REQUESTS.names)
    chunks = read_table(folder / CHUNKS_FILE, _CHUNKS.names)

    def ints(table: Any, name: str) -> Ints:
        return np.asarray(table[name].to_numpy(), dtype=np.int64)

    def texts(name: str) -> Texts:
        return np.array(requests[name].to_pylist(), dtype=object)

    start = np.concatenate(([0], np.cumsum(ints(requests, "chunks")))).astype(np.int64)
    truth = Truth(
        request_id=texts("request_id"),
        index=ints(requests, "index"),
        received=ints(requests, "received"),
        input_tokens=ints(requests, "input_tokens"),
        output_tokens=ints(requests, "output_tokens"),
        outcome=texts("outcome"),
        start=start,
        due=ints(chunks, "due"),
        sent=ints(chunks, "sent"),
        tokens=ints(chunks, "tokens"),
    )
    # Answers end in another order than requests come in.
    return truth.take(np.argsort(truth.received, kind="stable"))
