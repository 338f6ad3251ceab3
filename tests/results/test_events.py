"""Event files: what is written is read back, and what cannot be trusted is refused in words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.errors import StoreError
from results.events import MISSING, Chunks, Requests, read_chunks, read_requests, read_samples, write_table
from results.schema import CHUNKS, REQUESTS, SAMPLES, SCHEMA_VERSION
from tests.results.builders import columns_of, request_row, text_chunk, write_cell_files

# Slow examples of a busy machine are no failures.
UNTIMED = settings(deadline=None, max_examples=60)
SAMPLE = {"source": "host", "metric": "server_cpu_s", "device": None, "t0": 1, "t1": 2, "value": 0.5, "reason": None}


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    failed = request_row("b", 2.0, None, None, None, outcome="reset", error="reset by peer", http_status=None)
    unknown = {**SAMPLE, "value": None, "reason": "not permitted"}
    write_cell_files(
        tmp_path,
        [request_row("a", 1.0, 1.5, 2.0, 3), failed],
        [text_chunk("a", 1.5), {**text_chunk("a", 2.0, None), "lag": None, "kind": "finish"}],
        [SAMPLE, unknown],
    )
    requests, chunks, samples = read_requests(tmp_path), read_chunks(tmp_path), read_samples(tmp_path)
    assert list(requests.request_id) == ["a", "b"]
    assert requests.sent.tolist() == [1_000_000_000, 2_000_000_000]
    assert requests.first_token.tolist() == [1_500_000_000, MISSING]
    assert requests.output_tokens.tolist() == [3, -1]
    assert list(requests.error) == [None, "reset by peer"]
    assert chunks.request_ids[chunks.request].tolist() == ["a", "a"]
    assert chunks.kinds[chunks.kind].tolist() == ["text", "finish"]
    assert chunks.tokens.tolist() == [1, -1]
    assert chunks.lag[0] == 1_000
    assert np.isnan(chunks.lag[1])
    assert samples.series("host", "server_cpu_s")[1].tolist() == [0.5]
    assert samples.unknown_because("host", "server_cpu_s") == "not permitted"


@UNTIMED
@given(st.integers(min_value=2**53, max_value=2**63 - 1))
def test_stamps_lose_no_nanosecond(stamp: int) -> None:
    assert Requests.of([{"request_id": "a", "outcome": "ok", "sent": stamp}]).sent[0] == stamp


def test_an_empty_cell_is_read(tmp_path: Path) -> None:
    write_cell_files(tmp_path, [], [], [])
    assert len(read_requests(tmp_path)) == len(read_chunks(tmp_path)) == len(read_samples(tmp_path)) == 0


def test_ids_survive_row_groups_with_different_dictionaries(tmp_path: Path) -> None:
    rows = [text_chunk(f"r{i % 7 if i < 50 else i % 11}", i) for i in range(100)]
    table = pa.table(columns_of(CHUNKS, rows), schema=CHUNKS)
    pq.write_table(table, tmp_path / "chunks.parquet", row_group_size=10)
    chunks = read_chunks(tmp_path)
    assert chunks.request_ids[chunks.request].tolist() == [row["request_id"] for row in rows]
    plain = Chunks.of(rows)
    assert plain.request_ids[plain.request].tolist() == [row["request_id"] for row in rows]


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    newer = SAMPLES.with_metadata({b"dyno_schema": str(SCHEMA_VERSION + 1).encode()})
    pq.write_table(pa.table(columns_of(SAMPLES, [SAMPLE]), schema=newer), tmp_path / "samples.parquet")
    with pytest.raises(StoreError, match=f"schema {SCHEMA_VERSION + 1}.*knows {SCHEMA_VERSION}.*[Uu]pdate"):
        read_samples(tmp_path)


def test_a_file_of_someone_else_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "samples.parquet")
    with pytest.raises(StoreError, match="no schema version"):
        read_samples(tmp_path)


def test_a_lacking_column_is_named(tmp_path: Path) -> None:
    schema = pa.schema([f for f in SAMPLES if f.name != "value"], metadata=SAMPLES.metadata)
    pq.write_table(pa.table(columns_of(schema, [SAMPLE]), schema=schema), tmp_path / "samples.parquet")
    with pytest.raises(StoreError, match="lacks the columns value"):
        read_samples(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"requests\.parquet.*No such file"):
        read_requests(tmp_path)


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.99])
def test_a_cut_off_file_is_damage_not_a_traceback(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "requests.parquet"
    rows = [request_row(f"r{i}", i, i + 1, i + 2, 5) for i in range(50)]
    write_table(path, REQUESTS, columns_of(REQUESTS, rows))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(StoreError, match=r"requests\.parquet is damaged"):
        read_requests(tmp_path)


def test_flipped_bytes_inside_are_damage_or_other_values_never_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "requests.parquet"
    write_table(path, REQUESTS, columns_of(REQUESTS, [request_row(f"r{i}", i, i + 1, i + 2, 5) for i in range(50)]))
    data = path.read_bytes()
    refused = 0
    for at in range(4, len(data) - 8, max(1, len(data) // 60)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        try:
            read_requests(tmp_path)
        except StoreError:
            refused += 1
    assert refused > 10


def test_columns_that_do_not_fit_the_schema_are_named(tmp_path: Path) -> None:
    columns = columns_of(SAMPLES, [SAMPLE])
    columns["colour"] = columns.pop("reason")
    with pytest.raises(StoreError, match=r"missing columns \['reason'\], unknown columns \['colour'\]"):
        write_table(tmp_path / "samples.parquet", SAMPLES, columns)


def test_a_folder_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Cannot write"):
        write_table(tmp_path / "none" / "samples.parquet", SAMPLES, columns_of(SAMPLES, [SAMPLE]))
