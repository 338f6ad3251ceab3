"""What was measured, as columns, and its Parquet files.

Chunks are kept in arrays of machine integers (29 bytes each) and go to the file in groups, so a long run needs no more
memory than a short one. Files appear under their final names only when they are whole.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.load.completion import StreamResult
from harness.load.exchange import Exchange
from harness.load.plan import LoadPlan
from results.errors import StoreError
from results.files import store_error
from results.schema import CHUNKS, REQUESTS, ChunkKind, Outcome

_KINDS = list(ChunkKind)
_CODES = {kind: code for code, kind in enumerate(_KINDS)}
_UNKNOWN = -1
_GROUP_ROWS = 500_000
_MAX_ROWS = 2_000_000


class EventRecorder:
    """Collects requests and chunks of one run and writes them into `out_dir`. Raises StoreError when it cannot."""

    def __init__(self, plan: LoadPlan, out_dir: Path) -> None:
        self._plan, self._out_dir = plan, out_dir
        self._ids = pa.array([request.id for request in plan.requests], pa.string())
        self._requests: dict[str, list[Any]] = {name: [] for name in REQUESTS.names}
        self._clear()
        self._partial = out_dir / ".chunks.parquet.tmp"
        self.chunks = 0
        self.lags = 0  # chunks that came with a kernel stamp
        self.outcomes: dict[str, int] = {outcome.value: 0 for outcome in Outcome}
        try:
            self._writer = pq.ParquetWriter(self._partial, CHUNKS)
        except (OSError, pa.ArrowException) as error:
            raise _error(self._partial, error) from error

    def _clear(self) -> None:
        self._index, self._t, self._lag = array("i"), array("q"), array("q")
        self._kind, self._tokens, self._bytes = array("b"), array("i"), array("i")

    def add(self, exchange: Exchange, outcome: Outcome, error: str | None, result: StreamResult) -> None:
        """One finished request with its chunks."""
        self.outcomes[outcome.value] += 1
        plan, head = exchange.plan, exchange.head
        row = {
            "request_id": plan.id,
            "slot": exchange.slot,
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
        if result.chunks:
            t, lag, kind, tokens, size = zip(*result.chunks, strict=True)
            self.chunks += len(t)
            self.lags += len(lag) - lag.count(None)
            self._index.extend([exchange.index] * len(t))
            self._t.extend(t)
            self._lag.extend([_UNKNOWN if value is None else value for value in lag])
            self._kind.extend([_CODES[value] for value in kind])
            self._tokens.extend([_UNKNOWN if value is None else value for value in tokens])
            self._bytes.extend(size)
            if len(self._t) > _MAX_ROWS:
                self._write_group()

    def tidy(self) -> None:
        """A quiet moment: hand a full group to the file."""
        if len(self._t) >= _GROUP_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        if not self._t:
            return
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
        try:
            self._writer.write_table(pa.Table.from_arrays(columns, schema=CHUNKS))
        except (OSError, pa.ArrowException) as error:
            raise _error(self._partial, error) from error
        del lag, tokens, columns  # they look into the arrays
        self._clear()

    def commit(self) -> None:
        """Write what is left and give the files their names."""
        self._write_group()
        requests = self._out_dir / ".requests.parquet.tmp"
        try:
            self._writer.close()
            pq.write_table(pa.Table.from_pydict(self._requests, schema=REQUESTS), requests)
            self._partial.replace(self._out_dir / "chunks.parquet")
            requests.replace(self._out_dir / "requests.parquet")
        except (OSError, pa.ArrowException) as error:
            raise _error(self._out_dir, error) from error


def _error(path: Path, error: Exception) -> StoreError:
    if isinstance(error, OSError):
        return store_error(path, error)
    return StoreError(f"Cannot write {path}: {error}.")
