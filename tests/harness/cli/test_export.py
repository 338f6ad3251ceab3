"""`dyno export` refuses what makes no table, and writes what does."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from results.store import RunStore
from results.summary import build_summary
from tests.results.builders import synthetic_run

PAGE = Path(__file__).parents[3] / "docs" / "exports.md"


@pytest.mark.parametrize("words", [("--format", "xlsx"), ("--gpu-hour", "-1"), ("--gpu-hour", "nan"), ("--gpus", "0")])
def test_the_command_names_what_is_wrong(words: tuple[str, str], dyno: Callable[..., Any], tmp_path: Path) -> None:
    result = dyno("export", str(tmp_path), *words)
    assert result.code == 2
    assert words[0].strip("-") in result.err


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs in runs/, of two engines at two batches each, and this process beside them."""
    for name in ("a", "b"):
        synthetic_run(tmp_path / "runs", name=name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_three_formats_hold_the_same_rows(runs: Path, dyno: Callable[..., Any]) -> None:
    made = {}
    for form in ("csv", "parquet", "json"):
        out = runs / f"cells.{form}"
        result = dyno(
            "export", "runs/a", "runs/b", "--format", form, "--out", str(out), "--gpu-hour", "3.50", "--gpus", "1"
        )
        assert result.code == 0, result.err
        made[form] = out
    rows = json.loads(made["json"].read_text())
    assert len(rows) == 8
    table = pq.read_table(made["parquet"]).to_pylist()
    texts = list(csv.DictReader(made["csv"].open(newline="")))
    for row, columns, text in zip(rows, table, texts, strict=True):
        assert row.keys() == columns.keys() == text.keys()
        assert row["whole_output_tokens_per_s"] == pytest.approx(columns["whole_output_tokens_per_s"])
        assert float(text["whole_output_tokens_per_s"]) == pytest.approx(row["whole_output_tokens_per_s"])
        # $ an hour over the tokens of an hour.
        assert row["usd_per_m_output_tokens"] == pytest.approx(3.5e6 / 3600 / row["output_tokens_per_s_per_gpu"])


def test_the_documented_queries_answer_over_the_files_of_runs(runs: Path, dyno: Callable[..., Any]) -> None:
    assert dyno("export", "runs/a", "runs/b", "--format", "parquet", "--out", "cells.parquet").code == 0
    (block,) = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    queries = [query for query in block.split(";") if query.strip()]
    by_cell, by_engine, exported = (duckdb.sql(query).fetchall() for query in queries)
    files = sorted((runs / "runs").glob("*/cells/*/requests.parquet"))
    assert [(run, cell) for run, cell, *_ in by_cell] == [(f.parts[-4], f.parts[-2]) for f in files]
    summaries = {name: build_summary(RunStore.open(runs / "runs" / name)) for name in ("a", "b")}
    cells = {(name, c["id"]): c for name, summary in summaries.items() for c in summary["cells"]}
    for run, cell, n, ttft_ms in by_cell:
        assert n == cells[run, cell]["requests"]["ok"]
        assert ttft_ms == pytest.approx(cells[run, cell]["whole"]["ttft_ms"]["p50"])
    assert sum(tokens for *_, tokens in by_engine) == sum(c["whole"]["output_tokens"] for c in cells.values())
    assert {engine for engine, *_ in by_engine} == {"ref-a", "ref-b"} == {engine for engine, *_ in exported}
