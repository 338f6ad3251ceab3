"""What was measured, as columns, and its Parquet files.

Chunks are kept in arrays of machine integers (29 bytes each). Chunks and requests go to their files in groups, small ones
since nothing is read meanwhile, so a long run needs no more memory than a short one. Files appear under their final names
only when they are whole.
"""

from __future__ import annotations

import io
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.load.completion import UNKNOWN, StreamResult
from harness.load.exchange import Exchange
from harness.load.plan import LoadPlan
from results.errors import StoreError
from results.files import store_error
from results.schema import CHUNKS, REQUESTS, ChunkKind, Outcome

_KINDS = list(ChunkKind)
_CODES = {kind: code for code, kind in enumerate(_KINDS)}
_TEXT = ChunkKind.TEXT
_TEXT_CODE = _CODES[_TEXT]
# A group of chunks takes some milliseconds to write: less than there is between two tokens of most streams, so that no two of
# a stream come together for it. Where there is no quiet moment it is written all the same, before it takes longer than that.
_GROUP_ROWS = 32_768
_MAX_ROWS = 65_536
_GROUP_REQUESTS = 2_000
_MAX_REQUESTS = 4_000
# Stamps never repeat: to look for repetition costs more than all else, and their differences take less room.
_CHEAPLY: dict[str, Any] = {
    "use_dictionary": ["request_id", "kind", "tokens", "bytes"],
    "column_encoding": dict.fromkeys(("t", "lag"), "DELTA_BINARY_PACKED"),
}


class EventRecorder:
    """Collects requests and chunks of one run and writes them into `out_dir`. Raises StoreError when it cannot."""

    def __init__(self, plan: LoadPlan, out_dir: Path) -> None:
        self._plan, self._out_dir = plan, out_dir
        self._ids = pa.array([request.id for request in plan.requests], pa.string())
        self._clear_requests()
        self._clear()
        self._partial = out_dir / ".chunks.parquet.tmp"
        self._partial_requests = out_dir / ".requests.parquet.tmp"
        self.chunks = 0
        self.lags = 0  # chunks that came with a kernel stamp
        self.outcomes: dict[str, int] = {outcome.value: 0 for outcome in Outcome}
        try:
            self._writer = pq.ParquetWriter(self._partial, CHUNKS, **_CHEAPLY)
            self._request_writer = pq.ParquetWriter(self._partial_requests, REQUESTS)
        except (OSError, pa.ArrowException) as error:
            raise _error(self._partial, error) from error
        self._practise()

    def _clear_requests(self) -> None:
        self._waiting = 0
        self._requests: dict[str, list[Any]] = {name: [] for name in REQUESTS.names}

    def _clear(self) -> None:
        self._index, self._t, self._lag = array("i"), array("q"), array("q")
        self._kind, self._tokens, self._bytes = array("b"), array("i"), array("i")

    def add(self, exchange: Exchange, outcome: Outcome, error: str | None, result: StreamResult) -> None:
        """One finished request with its chunks."""
        self.outcomes[outcome.value] += 1
        plan, head = exchange.plan, exchange.head
        row = {
            "request_id": plan.id,
            "slot": self._plan.first_slot + exchange.slot * self._plan.slot_step,
            "worker": self._plan.worker,
            "intended": exchange.intended,
            "queued": exchange.queued,
            "connect_start": exchange.connect_start,
            "connect_end": exchange.connect_end,
            "sent": exchange.sent,
            "first_byte": exchange.first_byte,
            "first_token": result.first_token,
            "last_token": result.last_token,
            "end": exchange.end,
            "outcome": outcome.value,
            "http_status": head.status if head is not None else None,
            "error": error,
            "input_tokens_planned": plan.input_tokens,
            "input_tokens_counted": result.input_tokens,
            "output_tokens_asked": plan.output_tokens,
            "output_tokens": result.output_tokens if result.count_source is not None else None,
            "tokens_in_first_chunk": result.tokens_in_first_chunk,
            "count_source": result.count_source.value if result.count_source is not None else None,
            "finish_reason": result.finish_reason,
        }
        for name, column in self._requests.items():
            column.append(row[name])
        self._waiting += 1
        if self._waiting > _MAX_REQUESTS:
            self._write_requests()
        if result.chunks:
            chunks, count = result.chunks, len(result.chunks)
            self.chunks += count
            self.lags += count - chunks.lag.count(UNKNOWN)
            self._index += array("i", [exchange.index]) * count
            self._t += chunks.t
            self._lag += chunks.lag
            # The hash of an Enum's member is computed in Python, so the usual one is told by identity.
            self._kind.extend([_TEXT_CODE if value is _TEXT else _CODES[value] for value in chunks.kind])
            self._tokens += chunks.tokens
            self._bytes += chunks.bytes
            if len(self._t) > _MAX_ROWS:
                self._write_group()

    def tidy(self) -> None:
        """A quiet moment: hand a full group to its file."""
        if len(self._t) >= _GROUP_ROWS:
            self._write_group()
        elif self._waiting >= _GROUP_REQUESTS:
            self._write_requests()

    def _write_requests(self) -> None:
        if not self._waiting:
            return
        try:
            self._request_writer.write_table(pa.Table.from_pydict(self._requests, schema=REQUESTS))
        except (OSError, pa.ArrowException) as error:
            raise _error(self._partial_requests, error) from error
        self._clear_requests()

    def _write_group(self) -> None:
        if not self._t:
            return
        try:
            self._writer.write_table(self._group())
        except (OSError, pa.ArrowException) as error:
            raise _error(self._partial, error) from error
        self._clear()

    def _group(self) -> pa.Table:
        lag = np.frombuffer(self._lag, np.int64)
        tokens = np.frombuffer(self._tokens, np.int32)
        kinds = pa.array([kind.value for kind in _KINDS], pa.string())
        columns = [
            self._ids.take(pa.array(np.frombuffer(self._index, np.int32))),
            pa.array(np.frombuffer(self._t, np.int64)),
            pa.array(lag, mask=lag < 0),
            kinds.take(pa.array(np.frombuffer(self._kind, np.int8))),
            pa.array(tokens, mask=tokens < 0),
            pa.array(np.frombuffer(self._bytes, np.int32)),
        ]
        return pa.Table.from_arrays(columns, schema=CHUNKS)

    def _practise(self) -> None:
        """The first group takes several times as long as those after it: that is now, and not in the middle of a load."""
        with pq.ParquetWriter(io.BytesIO(), CHUNKS, **_CHEAPLY) as writer:
            writer.write_table(self._group())

    def commit(self) -> None:
        """Write what is left and give the files their names."""
        self._write_group()
        self._write_requests()
        try:
            self._writer.close()
            self._request_writer.close()
            self._partial.replace(self._out_dir / "chunks.parquet")
            self._partial_requests.replace(self._out_dir / "requests.parquet")
        except (OSError, pa.ArrowException) as error:
            raise _error(self._out_dir, error) from error


def _error(path: Path, error: Exception) -> StoreError:
    if isinstance(error, OSError):
        return store_error(path, error)
    return StoreError(f"Cannot write {path}: {error}.")
