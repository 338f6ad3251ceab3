"""What several workers measured, as one: their event files joined, and what they say of themselves added up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from results.errors import StoreError
from results.files import store_error
from results.schema import CHUNKS, REQUESTS

# Of a time the sum says nothing; what is allowed adds up only where every worker has a limit.
_LONGEST = ("wall_s",)
_HOW = ("reader", "receive_stamps")
_ALLOWED = ("descriptor_cap",)


def merge_events(parts: Sequence[Path], out_dir: Path) -> None:
    """requests.parquet and chunks.parquet of the folders `parts` as one pair in `out_dir`. Raises StoreError.

    Requests are in the order in which they were taken up. The chunks of a request stay together and in their order, as every
    reader expects them; they are handed on group by group, so that no more memory is needed than by one worker.
    """
    try:
        tables = [pq.read_table(part / "requests.parquet", schema=REQUESTS) for part in parts]
        requests = pa.concat_tables(tables) if tables else REQUESTS.empty_table()
        order = pc.sort_indices(requests, sort_keys=[("queued", "ascending"), ("request_id", "ascending")])
        chunks = out_dir / ".chunks.parquet.tmp"
        with pq.ParquetWriter(chunks, CHUNKS) as writer:
            for part in parts:
                file = pq.ParquetFile(part / "chunks.parquet")
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group).cast(CHUNKS))
        whole = out_dir / ".requests.parquet.tmp"
        pq.write_table(requests.take(order).cast(REQUESTS), whole)
        chunks.replace(out_dir / "chunks.parquet")
        whole.replace(out_dir / "requests.parquet")
    except OSError as error:
        raise store_error(out_dir, error) from error
    except pa.ArrowException as error:
        raise StoreError(f"The event files of the load workers cannot be joined in {out_dir}: {error}.") from error


def merge_clients(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the workers say of themselves as what one would: counts and CPU added up, receive stamps as good as the worst's.

    `max_in_flight` is an upper bound: not all workers need have had their most at the same time.
    """
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part.get(name) for part in parts]
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        if name in _HOW:
            merged[name] = values[0] if len(set(values)) == 1 else "mixed"
        elif name in _LONGEST:
            merged[name] = max(numbers, default=None)
        elif name in _ALLOWED and len(numbers) < len(values):
            merged[name] = min(numbers, default=None)
        elif all(isinstance(v, bool) for v in values):
            merged[name] = any(values)
        else:
            merged[name] = sum(numbers) if numbers else values[0]
    return merged


def add_counts(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Counts by name, added up."""
    total: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            total[name] = total.get(name, 0) + count
    return total
