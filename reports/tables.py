"""The tables of a report: which columns, and what stands in each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from results.report_background import definition
from results.report_data import ReportData
from results.report_format import UNKNOWN, number, size
from results.report_measures import MEASURE, Value
from results.report_shapes import VERDICTS, CellRow, load_words


@dataclass(frozen=True, slots=True)
class Column:
    """A numeric column: a measure under a heading of two short lines. Bytes are shown in MiB."""

    measure: str
    heading: str
    under: str

    @property
    def words(self) -> str:
        return MEASURE[self.measure].words

    @property
    def definition(self) -> str:
        """The same with how it is defined, a line each."""
        told = definition(self.measure)
        return f"{self.words}\n{told}" if told else self.words

    def show(self, value: Value, words: Callable[[float], str] = number) -> str:
        """The number alone; the unit stands in the heading."""
        if value.mean is None:
            return UNKNOWN
        return words(value.mean / 2**20 if MEASURE[self.measure].unit == "B" else value.mean)

    def spread(self, value: Value) -> str:
        """`low–high` of what the number is the mean of; empty where nothing differs."""
        if value.mean is None or value.n < 2:
            return ""
        low, high = (self.show(Value.of(v)) for v in (value.low or 0.0, value.high or 0.0))
        return "" if low == high else f"{low}–{high}"

    def sure(self, value: Value) -> str:
        """How sure a percentile of one cell is; empty where there is no interval."""
        if value.sure is None:
            return ""
        low, high = (self.show(Value.of(v)) for v in value.sure)
        return f"95 % sure of {low} to {high}, for this server's life"


COLUMNS: tuple[Column, ...] = (
    Column("batch_realised", "realised", "batch"),
    Column("output_tokens_per_s", "output", "tok/s"),
    Column("ttft_ms_p50", "TTFT", "p50 ms"),
    Column("ttft_ms_p90", "TTFT", "p90 ms"),
    Column("tpot_ms_p50", "TPOT", "p50 ms"),
    Column("tpot_ms_p90", "TPOT", "p90 ms"),
    Column("prefill_tokens_per_s", "prefill", "tok/s"),
    Column("decode_tokens_per_s", "decode", "tok/s"),
    Column("kv_bytes_engine", "KV held", "MiB"),
)


ESTIMATE = "~tok/s"


def columns_of(data: ReportData, columns: tuple[Column, ...] = COLUMNS, mark: str = "tok/s, estimate") -> list[Column]:
    """The columns as a run needs them: a rate that is the client's estimate says so under its heading."""
    return [replace(c, under=mark) if data.readings.estimated(c.measure) else c for c in columns]


# What fits beside engine, load and verdict in 80 columns.
SHORT: tuple[Column, ...] = tuple(
    c for c in COLUMNS if c.measure not in ("batch_realised", "ttft_ms_p90", "tpot_ms_p90")
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One field of the table: what is shown, what it is sorted by (None sorts last), why it is missing, its spread over the
    waves of the cell, what stands beside it where the table has no heading, and how sure it is."""

    text: str
    sort: float | None
    why: str | None = None
    spread: str = ""
    label: str = ""
    sure: str = ""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A cell in the table; `verdict_rank` sorts the worst last."""

    cell: CellRow
    load: str
    failed: int
    verdict_rank: int
    entries: list[Entry]


def table_rows(data: ReportData) -> list[TableRow]:
    """Every cell, INVALID ones included."""
    rows = []
    for cell in data.cells:
        entries = [
            Entry(
                c.show(v), v.mean, v.why if v.mean is None else None, c.spread(v), f"{c.heading} {c.under}", c.sure(v)
            )
            for c in columns_of(data)
            for v in [cell.values[c.measure]]
        ]
        failed = sum(n for outcome, n in cell.outcomes.items() if outcome != "ok")
        rank = VERDICTS.index(cell.verdict) if cell.verdict in VERDICTS else len(VERDICTS)
        rows.append(TableRow(cell, load_words(cell.load_mode, cell.load_value), failed, rank, entries))
    return rows


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """KV bytes of a point, in words."""

    engine: str
    workload: str
    load: str
    predicted: str
    engine_says: str
    ratio: str
    predicted_blocks: str
    allocated: str
    pool: str
    weights: str
    per_token: str


def memory_rows(data: ReportData) -> list[MemoryLine]:
    """Formula beside engine, point by point; over blocks each number is the mean."""

    def show(value: Value) -> str:
        return size(value.mean)

    return [
        MemoryLine(
            row.point.engine,
            row.point.workload.label,
            row.point.load_label,
            show(row.predicted),
            show(row.engine_says),
            f"{row.ratio:.3f}" if row.ratio is not None else UNKNOWN,
            show(row.point.values["kv_bytes_predicted_blocks"]),
            show(row.point.values["kv_allocated_bytes"]),
            size(row.point.values["kv_pool_bytes"].mean),
            size(row.point.values["weight_bytes"].mean),
            size(row.point.values["kv_bytes_per_token"].mean),
        )
        for row in data.memory
    ]
