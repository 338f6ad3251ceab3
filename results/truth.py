"""The reference engine's own word: what every step held, when each request left the queue, and when each token was sampled
and written.

While a server runs (or when it was killed) the log is an Arrow IPC stream that may end in the middle of a batch; once
sealed it is Parquet. Both are read alike. An engine without such a log has no truth: the readers return None.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from results.errors import StoreError
from results.events import Ints, Texts, check_schema, read_table
from results.files import store_error, sync_folder

if TYPE_CHECKING:
    import pyarrow as pa

STEPS, TOKENS, SCHEDULED = "steps", "truth", "scheduled"


@dataclass(slots=True)
class Steps:
    """One element a step, in the order they ran; columns as in `results.schema.TRUTH_STEPS`, -1 where a log does not tell."""

    # Whether what passes between two steps is seen, or each begins where the one before has ended.
    gaps_told: ClassVar[bool] = True
    # What numbers that are read from these steps name as their source: two definitions never share a figure.
    source: ClassVar[str] = "steps"

    step: Ints
    start: Ints
    end: Ints
    prefill_tokens: Ints
    decodes: Ints
    prefills: Ints
    running: Ints
    waiting: Ints
    preempted: Ints
    context_tokens: Ints
    blocks_allocated: Ints
    blocks_total: Ints
    tokens_held: Ints
    blocks_reserved: Ints

    def __len__(self) -> int:
        return len(self.step)

    def take(self, which: NDArray[Any]) -> Self:
        return type(self)(**{f.name: getattr(self, f.name)[which] for f in fields(self)})

    def between(self, t0: int, t1: int) -> Self:
        """The steps that ran wholly inside [t0, t1] (ns)."""
        return self.take((self.start >= t0) & (self.end <= t1))

    def tells(self, column: str) -> bool:
        """Whether the log tells this of every step."""
        return bool((getattr(self, column) >= 0).all())


@dataclass(slots=True)
class Tokens:
    """One element a generated token; columns as in `results.schema.TRUTH_TOKENS`."""

    request_id: Texts
    index: Ints
    step: Ints
    sampled: Ints
    written: Ints

    def __len__(self) -> int:
        return len(self.index)

    def take(self, which: NDArray[Any]) -> Tokens:
        return Tokens(**{f.name: getattr(self, f.name)[which] for f in fields(self)})


def read_steps(session_dir: Path, t0: int | None = None, t1: int | None = None) -> Steps | None:
    """The steps of a session that ran wholly inside [t0, t1]; None when the engine keeps no log."""
    table = _read(session_dir, STEPS, [f.name for f in fields(Steps)])
    if table is None:
        return None
    steps = Steps(**{f.name: _ints(table[f.name]) for f in fields(Steps)})
    steps = steps.take(np.argsort(steps.step, kind="stable"))
    if t0 is None and t1 is None:
        return steps
    return steps.between(_low(t0), _high(t1))


def read_tokens(session_dir: Path, t0: int | None = None, t1: int | None = None) -> Tokens | None:
    """The tokens of a session sampled inside [t0, t1]; None when the engine keeps no log."""
    table = _read(session_dir, TOKENS, [f.name for f in fields(Tokens)])
    if table is None:
        return None
    if t0 is not None or t1 is not None:
        sampled = _ints(table["sampled"])
        import pyarrow as pa

        inside = pa.array((sampled >= _low(t0)) & (sampled <= _high(t1)))
        table = table.filter(inside)  # before ids become objects, which is slow
    ids = np.array(table["request_id"].to_pylist(), dtype=object)
    return Tokens(ids, *(_ints(table[f.name]) for f in fields(Tokens) if f.name != "request_id"))


def read_scheduled(session_dir: Path) -> dict[str, int]:
    """When each request of a session was first scheduled: the beginning of that step (ns), by request id. Empty where the engine
    does not tell."""
    table = _read(session_dir, SCHEDULED, ["request_id", "start"])
    return {} if table is None else dict(zip(table["request_id"].to_pylist(), table["start"].to_pylist(), strict=True))


def seal(session_dir: Path) -> None:
    """Turn what a stopped server left (.arrows) into Parquet, each file by one rename. Safe to repeat after a kill."""
    import pyarrow.parquet as pq

    for stem in (STEPS, TOKENS, SCHEDULED):
        stream, sealed = session_dir / f"{stem}.arrows", session_dir / f"{stem}.parquet"
        if not stream.exists():
            continue
        temporary = sealed.with_name(f".{sealed.name}.{os.getpid()}.tmp")
        try:
            # Where the Parquet is already there, an earlier seal was cut off between its two acts.
            if not sealed.exists() and (table := _read_stream(stream)) is not None:
                pq.write_table(table, temporary, compression="zstd")
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                temporary.replace(sealed)
                sync_folder(session_dir)
            stream.unlink()
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise store_error(sealed, error) from error


def _read(session_dir: Path, stem: str, columns: list[str]) -> pa.Table | None:
    sealed = session_dir / f"{stem}.parquet"
    if sealed.exists():
        return read_table(sealed, columns)
    stream = session_dir / f"{stem}.arrows"
    table = _read_stream(stream) if stream.exists() else None
    if table is None:
        return None
    absent = sorted(set(columns) - set(table.column_names))
    if absent:
        raise StoreError(f"{stream} lacks the columns {', '.join(absent)}: it was not written by this program.")
    return table.select(columns)


def _read_stream(path: Path) -> pa.Table | None:
    """All whole batches of an Arrow IPC stream; None when not even its header was written."""
    import pyarrow as pa

    try:
        with path.open("rb") as file:
            try:
                reader = pa.ipc.open_stream(file)
            except (pa.ArrowInvalid, OSError, EOFError):
                return None
            check_schema(path, reader.schema)
            batches = []
            while True:
                try:
                    batches.append(reader.read_next_batch())
                except StopIteration:
                    break
                except (pa.ArrowInvalid, OSError, EOFError):
                    # The writer is in the middle of a batch, or died there.
                    break
            return pa.Table.from_batches(batches, schema=reader.schema)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"Cannot read {path}: {error.strerror or error}.") from error


def _ints(column: pa.ChunkedArray) -> Ints:
    out: Ints = column.cast("int64").fill_null(-1).to_numpy()
    return out


def _low(t: int | None) -> int:
    return int(np.iinfo(np.int64).min) if t is None else t


def _high(t: int | None) -> int:
    return int(np.iinfo(np.int64).max) if t is None else t
