"""The engine's step log: read while it grows, after a kill in the middle of a batch, and after it was sealed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from results.errors import StoreError
from results.schema import TRUTH_SCHEDULED, TRUTH_STEPS, TRUTH_TOKENS
from results.truth import read_scheduled, read_steps, read_tokens, seal
from tests.results.builders import columns_of


def step_row(i: int) -> dict[str, Any]:
    zeros = dict.fromkeys(TRUTH_STEPS.names, 0)
    return {**zeros, "step": i, "start": 100 * i, "end": 100 * i + 90, "decodes": 3}


def token_row(i: int) -> dict[str, Any]:
    return {"request_id": f"r{i % 3}", "index": i // 3, "step": i, "sampled": 100 * i + 80, "written": 100 * i + 85}


def write_stream(path: Path, schema: pa.Schema, batches: list[list[dict[str, Any]]], *, finish: bool) -> None:
    with path.open("wb") as file:
        writer = pa.ipc.new_stream(file, schema)
        for rows in batches:
            writer.write_batch(pa.record_batch(columns_of(schema, rows), schema=schema))
        if finish:
            writer.close()


def batches_of(make: Any, count: int = 5, size: int = 4) -> list[list[dict[str, Any]]]:
    return [[make(b * size + i) for i in range(size)] for b in range(count)]


def test_an_engine_without_a_log_has_no_truth(tmp_path: Path) -> None:
    assert read_steps(tmp_path) is None
    assert read_tokens(tmp_path) is None
    assert read_scheduled(tmp_path) == {}
    seal(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_growing_stream_is_read_so_far(tmp_path: Path) -> None:
    write_stream(tmp_path / "steps.arrows", TRUTH_STEPS, batches_of(step_row), finish=False)
    steps = read_steps(tmp_path)
    assert steps is not None
    assert steps.step.tolist() == list(range(20))


def test_a_stream_cut_anywhere_gives_its_whole_batches(tmp_path: Path) -> None:
    path = tmp_path / "steps.arrows"
    write_stream(path, TRUTH_STEPS, batches_of(step_row), finish=False)
    data = path.read_bytes()
    lengths = []
    for cut in range(0, len(data) + 1, 7):
        path.write_bytes(data[:cut])
        steps = read_steps(tmp_path)
        lengths.append(0 if steps is None else len(steps))
        if steps is not None:
            assert len(steps) % 4 == 0
            assert steps.step.tolist() == list(range(len(steps)))
    assert lengths == sorted(lengths)
    assert set(lengths) >= {0, 4, 8, 12, 16}


def test_sealing_keeps_every_row_and_removes_the_stream(tmp_path: Path) -> None:
    write_stream(tmp_path / "steps.arrows", TRUTH_STEPS, batches_of(step_row), finish=True)
    write_stream(tmp_path / "truth.arrows", TRUTH_TOKENS, batches_of(token_row), finish=True)
    seal(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["steps.parquet", "truth.parquet"]
    seal(tmp_path)
    steps, tokens = read_steps(tmp_path), read_tokens(tmp_path)
    assert steps is not None
    assert tokens is not None
    assert steps.end.tolist() == [100 * i + 90 for i in range(20)]
    assert tokens.request_id.tolist() == [f"r{i % 3}" for i in range(20)]


def test_a_seal_cut_off_before_it_removed_the_stream_is_completed(tmp_path: Path) -> None:
    stream = tmp_path / "steps.arrows"
    write_stream(stream, TRUTH_STEPS, batches_of(step_row), finish=True)
    data = stream.read_bytes()
    seal(tmp_path)
    stream.write_bytes(data)
    steps = read_steps(tmp_path)
    assert steps is not None
    assert len(steps) == 20
    seal(tmp_path)
    assert not stream.exists()


def test_only_what_ran_inside_the_span_is_returned(tmp_path: Path) -> None:
    write_stream(tmp_path / "steps.arrows", TRUTH_STEPS, batches_of(step_row), finish=True)
    write_stream(tmp_path / "truth.arrows", TRUTH_TOKENS, batches_of(token_row), finish=True)
    steps, tokens = read_steps(tmp_path, 200, 489), read_tokens(tmp_path, 280, 480)
    assert steps is not None
    assert steps.step.tolist() == [2, 3]
    assert tokens is not None
    assert tokens.step.tolist() == [2, 3, 4]


def test_when_requests_left_the_queue_is_read_while_it_grows_and_sealed(tmp_path: Path) -> None:
    rows = [[{"request_id": f"r{i}", "step": i, "start": 100 * i} for i in range(3)]]
    write_stream(tmp_path / "scheduled.arrows", TRUTH_SCHEDULED, rows, finish=False)
    assert read_scheduled(tmp_path) == {"r0": 0, "r1": 100, "r2": 200}
    seal(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["scheduled.parquet"]
    assert read_scheduled(tmp_path) == {"r0": 0, "r1": 100, "r2": 200}


def test_a_newer_log_is_refused(tmp_path: Path) -> None:
    newer = TRUTH_STEPS.with_metadata({b"dyno_schema": b"99"})
    write_stream(tmp_path / "steps.arrows", newer, batches_of(step_row), finish=True)
    with pytest.raises(StoreError, match="schema 99"):
        read_steps(tmp_path)
