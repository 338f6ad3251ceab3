"""The truth log: when each request left the queue, when each token was sampled and written, and what every step was made of.

Arrow IPC *stream* files, so that they can be read while they grow and survive a kill: rows wait in memory for at most
`FLUSH_S` and are then written by a thread of their own. Engine and server only append tuples to lists.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Protocol

from results.errors import UsageError

FLUSH_S = 0.2
TOKENS_FILE = "truth.arrows"
STEPS_FILE = "steps.arrows"
SCHEDULED_FILE = "scheduled.arrows"


class TruthLog(Protocol):
    """Where the truth goes. Stamps are monotonic ns."""

    def token(self, request_id: str, index: int, step: int, sampled: int, written: int | None) -> None:
        """One generated token; `written` is None when its client was gone before."""

    def step(self, *row: int) -> None:
        """One step, in the order of results.schema.TRUTH_STEPS."""

    def scheduled(self, request_id: str, step: int, start: int) -> None:
        """A request left the queue for the first time, in a step that began at `start`."""

    def close(self) -> None:
        """Write what is left."""


class NoTruth:
    """The truth log that is off."""

    def token(self, request_id: str, index: int, step: int, sampled: int, written: int | None) -> None:
        """Forget it."""

    def step(self, *row: int) -> None:
        """Forget it."""

    def scheduled(self, request_id: str, step: int, start: int) -> None:
        """Forget it."""

    def close(self) -> None:
        """Nothing to write."""


class ArrowTruth:
    """Writes `truth.arrows`, `steps.arrows` and `scheduled.arrows` into a folder."""

    def __init__(self, folder: Path) -> None:
        from results.schema import TRUTH_SCHEDULED, TRUTH_STEPS, TRUTH_TOKENS

        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._tokens = _Stream(folder / TOKENS_FILE, TRUTH_TOKENS)
            self._steps = _Stream(folder / STEPS_FILE, TRUTH_STEPS)
            self._scheduled = _Stream(folder / SCHEDULED_FILE, TRUTH_SCHEDULED)
        except OSError as error:
            raise UsageError(f"The truth log cannot be written to {folder}: {error}.") from error
        self._streams = (self._tokens, self._steps, self._scheduled)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._flush_until_stopped, name="truth", daemon=True)
        self._thread.start()

    def token(self, request_id: str, index: int, step: int, sampled: int, written: int | None) -> None:
        """See TruthLog."""
        self._tokens.rows.append((request_id, index, step, sampled, written))

    def step(self, *row: int) -> None:
        """See TruthLog."""
        self._steps.rows.append(row)

    def scheduled(self, request_id: str, step: int, start: int) -> None:
        """See TruthLog."""
        self._scheduled.rows.append((request_id, step, start))

    def close(self) -> None:
        """Write what is left and end all files."""
        self._stopping.set()
        self._thread.join()
        for stream in self._streams:
            stream.close()

    def _flush_until_stopped(self) -> None:
        while not self._stopping.wait(FLUSH_S):
            for stream in self._streams:
                stream.flush()


class _Stream:
    """Rows waiting for one file. Appending and taking rows are single list operations, so they need no lock."""

    def __init__(self, path: Path, schema: Any) -> None:
        import pyarrow as pa

        self._arrow = pa
        self._schema = schema
        self._sink = pa.OSFile(str(path), mode="wb")
        self._writer = pa.ipc.new_stream(self._sink, schema)
        self.rows: list[tuple[Any, ...]] = []

    def flush(self) -> None:
        count = len(self.rows)
        if count == 0:
            return
        taken, self.rows[:count] = self.rows[:count], []
        columns = zip(*taken, strict=True)
        arrays = [
            self._arrow.array(column, type=kind) for column, kind in zip(columns, self._schema.types, strict=True)
        ]
        self._writer.write_batch(self._arrow.record_batch(arrays, schema=self._schema))
        self._sink.flush()

    def close(self) -> None:
        self.flush()
        self._writer.close()
        self._sink.close()
