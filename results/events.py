"""Reading and writing the event files of a cell: requests, chunks, samples.

Read tables are plain numpy arrays in small dataclasses. Stamps stay int64 ns with `MISSING` for null (a float would lose
nanoseconds); counts are int64 with -1 for null; values and lags are float64 with NaN for null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from results.errors import StoreError
from results.files import store_error

if TYPE_CHECKING:
    import pyarrow as pa

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Texts = NDArray[np.object_]

MISSING = np.iinfo(np.int64).min
UNKNOWN_COUNT = -1
_NOWHERE = np.zeros(0, dtype=np.int64)

_STAMPS = (
    "intended",
    "queued",
    "connect_start",
    "connect_end",
    "sent",
    "first_byte",
    "first_token",
    "last_token",
    "end",
)
_COUNTS = (
    "slot",
    "worker",
    "http_status",
    "input_tokens_planned",
    "input_tokens_counted",
    "output_tokens_asked",
    "output_tokens",
    "tokens_in_first_chunk",
)
_TEXTS = ("request_id", "outcome", "error", "count_source", "finish_reason")


@dataclass(slots=True)
class Requests:
    """The requests of a cell, one element each in every array (n of them)."""

    request_id: Texts
    slot: Ints
    worker: Ints
    intended: Ints
    queued: Ints
    connect_start: Ints
    connect_end: Ints
    sent: Ints
    first_byte: Ints
    first_token: Ints
    last_token: Ints
    end: Ints
    outcome: Texts
    http_status: Ints
    error: Texts
    input_tokens_planned: Ints
    input_tokens_counted: Ints
    output_tokens_asked: Ints
    output_tokens: Ints
    tokens_in_first_chunk: Ints
    count_source: Texts
    finish_reason: Texts

    def __len__(self) -> int:
        return len(self.request_id)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Self:
        """From plain rows; a column that a row lacks is null."""
        listed = list(rows)
        columns: dict[str, Any] = {}
        for name in _STAMPS:
            columns[name] = np.array([_or(row.get(name), MISSING) for row in listed], dtype=np.int64)
        for name in _COUNTS:
            columns[name] = np.array([_or(row.get(name), UNKNOWN_COUNT) for row in listed], dtype=np.int64)
        for name in _TEXTS:
            columns[name] = _texts([row.get(name) for row in listed])
        return cls(**columns)

    def take(self, which: NDArray[Any]) -> Self:
        """A subset or another order: a mask or indices."""
        return type(self)(**{f.name: getattr(self, f.name)[which] for f in fields(self)})


@dataclass(slots=True)
class Chunks:
    """The chunks of a cell (m of them). `request` indexes `request_ids`, and `kind` indexes `kinds`."""

    request_ids: Texts
    kinds: Texts
    request: Ints
    kind: Ints
    t: Ints
    lag: Floats
    tokens: Ints

    def __len__(self) -> int:
        return len(self.t)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Self:
        """From plain rows (tests and small cells)."""
        listed = list(rows)
        ids, request = np.unique(_texts([row["request_id"] for row in listed]), return_inverse=True)
        kinds, kind = np.unique(_texts([str(row["kind"]) for row in listed]), return_inverse=True)
        return cls(
            ids,
            kinds,
            request.astype(np.int64),
            kind.astype(np.int64),
            np.array([row["t"] for row in listed], dtype=np.int64),
            np.array([_or(row.get("lag"), np.nan) for row in listed], dtype=np.float64),
            np.array([_or(row.get("tokens"), UNKNOWN_COUNT) for row in listed], dtype=np.int64),
        )


@dataclass(slots=True)
class Samples:
    """Time series of a cell, one element a sample; `value` is NaN where unknown, `reason` then says why."""

    source: Texts
    metric: Texts
    device: Texts
    t0: Ints
    t1: Ints
    value: Floats
    reason: Texts
    # Where the readings of each (source, metric) stand, in time order; made when first asked for.
    _places: dict[tuple[str, str], Ints] | None = field(default=None, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.value)

    def _of(self, source: str, metric: str) -> Ints:
        if self._places is None:
            pairs: dict[tuple[str, str], list[int]] = {}
            for at, key in enumerate(zip(self.source.tolist(), self.metric.tolist(), strict=True)):
                pairs.setdefault(key, []).append(at)
            self._places = {}
            for key, places in pairs.items():
                here = np.array(places, dtype=np.int64)
                self._places[key] = here[np.argsort(self.t1[here], kind="stable")]
        return self._places.get((source, metric), _NOWHERE)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Self:
        listed = list(rows)
        return cls(
            source=_texts([row["source"] for row in listed]),
            metric=_texts([row["metric"] for row in listed]),
            device=_texts([row.get("device") for row in listed]),
            t0=np.array([row["t0"] for row in listed], dtype=np.int64),
            t1=np.array([row["t1"] for row in listed], dtype=np.int64),
            value=np.array([_or(row.get("value"), np.nan) for row in listed], dtype=np.float64),
            reason=_texts([row.get("reason") for row in listed]),
        )

    def series(self, source: str, metric: str) -> tuple[Ints, Floats]:
        """Known values of one metric in time order, with the end of the interval each belongs to."""
        _, t1, values = self.spans(source, metric)
        return t1, values

    def spans(self, source: str, metric: str) -> tuple[Ints, Ints, Floats]:
        """Known values of one metric in time order, with both ends of the interval each belongs to: (t0, t1, values)."""
        here = self._of(source, metric)
        here = here[np.isfinite(self.value[here])]
        return self.t0[here], self.t1[here], self.value[here]

    def unknown_because(self, source: str, metric: str) -> str | None:
        """Why a metric has no value, where the sampler said so."""
        here = self._of(source, metric)
        unknown = np.sort(here[~np.isfinite(self.value[here])])
        return next((str(reason) for reason in self.reason[unknown] if reason), None)


def write_table(path: Path, schema: pa.Schema, columns: Mapping[str, Sequence[Any] | NDArray[Any] | pa.Array]) -> None:
    """Write one event file. `columns` gives every column of `schema` (None is null); raises StoreError on a full disk."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    missing = sorted(set(schema.names) - set(columns))
    extra = sorted(set(columns) - set(schema.names))
    if missing or extra:
        raise StoreError(f"{path.name} does not fit its schema: missing columns {missing}, unknown columns {extra}.")
    arrays = [
        column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column, type=schema.field(name).type)
        for name, column in ((name, columns[name]) for name in schema.names)
    ]
    try:
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path, compression="zstd")
    except OSError as error:
        raise store_error(path, error) from error


def read_requests(folder: Path) -> Requests:
    """`requests.parquet` of a cell. Raises StoreError when it is missing, damaged or of a newer schema."""
    table = read_table(folder / "requests.parquet", [*_STAMPS, *_COUNTS, *_TEXTS])
    columns: dict[str, Any] = {name: _integers(table[name], MISSING) for name in _STAMPS}
    columns |= {name: _integers(table[name], UNKNOWN_COUNT) for name in _COUNTS}
    columns |= {name: _texts(table[name].to_pylist()) for name in _TEXTS}
    return Requests(**columns)


def read_chunks(folder: Path) -> Chunks:
    """`chunks.parquet` of a cell; ids and kinds stay dictionary codes, so ten million rows take a second or two."""
    table = read_table(
        folder / "chunks.parquet",
        ["request_id", "t", "lag", "kind", "tokens"],
        dictionaries=["request_id", "kind"],
    )
    ids, request = _codes(table["request_id"])
    kinds, kind = _codes(table["kind"])
    lag = table["lag"].cast("float64").to_numpy()
    return Chunks(ids, kinds, request, kind, _integers(table["t"], MISSING), lag, _integers(table["tokens"], -1))


def read_token_arrivals(folder: Path) -> tuple[Ints, Ints, int]:
    """(arrival, tokens, how many were guessed) of the chunks that hold tokens, whichever request they belong to: what a rate
    over time needs and no more. A chunk that does not say how many it holds counts as one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from results.schema import TOKEN_KINDS

    table = read_table(folder / "chunks.parquet", ["t", "kind", "tokens"], dictionaries=["kind"])
    kinds = pa.array([str(kind) for kind in TOKEN_KINDS])
    table = table.filter(pc.is_in(table["kind"].cast("string"), value_set=kinds))
    tokens = _integers(table["tokens"], UNKNOWN_COUNT)
    unknown = tokens == UNKNOWN_COUNT
    return _integers(table["t"], MISSING), np.where(unknown, 1, tokens), int(unknown.sum())


def read_samples(folder: Path) -> Samples:
    """`samples.parquet` of a cell."""
    table = read_table(folder / "samples.parquet", ["source", "metric", "device", "t0", "t1", "value", "reason"])
    return Samples(
        source=_texts(table["source"].to_pylist()),
        metric=_texts(table["metric"].to_pylist()),
        device=_texts(table["device"].to_pylist()),
        t0=_integers(table["t0"], MISSING),
        t1=_integers(table["t1"], MISSING),
        value=table["value"].to_numpy(),
        reason=_texts(table["reason"].to_pylist()),
    )


def read_table(path: Path, columns: Sequence[str], dictionaries: Sequence[str] = ()) -> pa.Table:
    """Some columns of a Parquet file of ours. Raises StoreError (missing, damaged, newer schema, column not there)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path, read_dictionary=list(dictionaries))
        check_schema(path, file.schema_arrow)
        absent = sorted(set(columns) - set(file.schema_arrow.names))
        if absent:
            raise StoreError(f"{path} lacks the columns {', '.join(absent)}: it was not written by this program.")
        return file.read(columns=list(columns))
    except OSError as error:
        # pyarrow reports damage as OSError too; only a real one carries an errno.
        if error.errno is None:
            raise StoreError(f"{path} is damaged: {_first_line(error)}.") from error
        raise StoreError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (pa.ArrowException, ValueError) as error:
        raise StoreError(f"{path} is damaged: {_first_line(error)}.") from error


def check_schema(path: Path, schema: pa.Schema) -> None:
    """Refuse a file of a newer schema than this program knows, and one that carries none."""
    from results.schema import SCHEMA_VERSION

    text = (schema.metadata or {}).get(b"dyno_schema", b"").decode(errors="replace")
    if not text.isdigit():
        raise StoreError(f"{path} carries no schema version: it was not written by this program.")
    if int(text) > SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema {text}, this program knows {SCHEMA_VERSION}: it was written by a newer version. Update "
            "llm-dyno to read it."
        )


def _integers(column: pa.ChunkedArray, null: int) -> Ints:
    filled = column.cast("int64").fill_null(null) if column.null_count else column.cast("int64")
    out: Ints = filled.to_numpy()
    return out


def _codes(column: pa.ChunkedArray) -> tuple[Texts, Ints]:
    """Dictionary values and codes of a dictionary-encoded column (row groups may differ in their dictionaries)."""
    import pyarrow as pa

    unified = column.unify_dictionaries().combine_chunks()
    if isinstance(unified, pa.ChunkedArray):  # no row groups at all
        return _texts([]), np.zeros(0, dtype=np.int64)
    codes: Ints = unified.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False)
    return _texts(unified.dictionary.to_pylist()), codes


def _texts(values: Sequence[Any]) -> Texts:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
