"""Cells as a table: the numbers of summary.json under flat names, prices by arithmetic, and unknown stays unknown."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pyarrow.parquet as pq
import pytest

from results.errors import UsageError
from results.exports import encode_rows, export_rows


def summary(**changes: Any) -> dict[str, Any]:
    latency = {"n": 10, "mean": 20.0, "p50": 19.0, "p90": None}
    scope = {"output_tokens_per_s": 2000.0, "total_tokens_per_s": 10_000.0, "tpot_ms": latency, "input_tokens": 5}
    cell = {
        "id": "c1",
        "engine": "a",
        "backend": "vllm",
        "model": "m",
        "session": "s",
        "block": 0,
        "verdict": "VALID",
        "workload": {
            "type": "random",
            "input_len": {"dist": "fixed", "tokens": 8},
            "output_len": {"dist": "fixed", "tokens": 4},
        },
        "load": {"mode": "rate", "rate": 4, "value": 4},
        "reasons": [{"code": "few_samples"}, {"code": "no_window"}],
        "requests": {"issued": 10, "ok": 10},
        "whole": scope,
        "window": None,
        "batch": {"in_flight": 50.0},
        "device": {"count": 2},
        **changes,
    }
    engines = [{"label": "a", "settings": {"tensor_parallel": {"value": 2, "source": "log"}}}]
    return {"schema": 1, "run": "r", "engines": engines, "cells": [cell]}


def row(gpu_hour: float | None = None, gpus: int | None = None, **changes: Any) -> dict[str, Any]:
    (made,) = export_rows(summary(**changes), gpu_hour, gpus)
    return made


def test_numbers_keep_their_names_and_unknown_is_empty() -> None:
    made = row()
    assert (made["whole_tpot_ms_p50"], made["whole_tpot_ms_p90"], made["whole_ttft_ms_p50"]) == (19.0, None, None)
    assert (made["workload"], made["load_mode"], made["load_value"]) == ("8 in / 4 out", "rate", 4)
    assert made["reasons"] == "few_samples no_window"
    assert made["window_output_tokens_per_s"] is None


def test_prices_follow_from_throughput_and_the_number_of_gpus() -> None:
    made = row(gpu_hour=3.6)
    # Two GPUs at 3.60 an hour are 0.002 $ a second, for 2,000 tokens.
    assert made["usd_per_m_output_tokens"] == pytest.approx(1.0)
    assert made["usd_per_m_total_tokens"] == pytest.approx(0.2)
    assert (made["output_tokens_per_s_per_gpu"], made["gpus"]) == (1000.0, 2)
    assert (made["tokens_per_s_per_user"], made["system_tokens_per_s_per_user"]) == (50.0, 40.0)
    assert row(gpu_hour=3.6, gpus=4)["usd_per_m_output_tokens"] == pytest.approx(2.0)


def test_the_steady_window_is_priced_where_there_is_one() -> None:
    window = {"output_tokens_per_s": 4000.0, "total_tokens_per_s": 20_000.0}
    made = row(gpu_hour=3.6, window=window)
    assert (made["economy_scope"], made["usd_per_m_output_tokens"]) == ("window", pytest.approx(0.5))


@pytest.mark.parametrize("changes", [{"device": {}}, {"verdict": "INVALID"}, {"whole": None}])
def test_nothing_is_priced_without_a_gpu_or_a_number_that_counts(changes: dict[str, Any]) -> None:
    made = row(gpu_hour=3.6, **changes)
    assert made["usd_per_m_output_tokens"] is None
    assert made["output_tokens_per_s_per_gpu"] is None


def test_all_formats_hold_the_same_table() -> None:
    rows = export_rows(summary(engine="=1+1", verdict="VALID"))
    plain = json.loads(encode_rows(rows, "json"))
    table = pq.read_table(io.BytesIO(encode_rows(rows, "parquet")))
    (written,) = csv.DictReader(io.StringIO(encode_rows(rows, "csv").decode()))
    assert plain == rows == table.to_pylist()
    assert list(written) == list(rows[0]) == table.column_names
    assert written["engine"] == "'=1+1"  # no formula for a spreadsheet
    assert written["whole_tpot_ms_p90"] == ""
    assert float(written["whole_tpot_ms_mean"]) == 20.0


def test_columns_of_parquet_have_their_types_also_where_all_is_unknown() -> None:
    some, none = (
        pq.read_table(io.BytesIO(encode_rows(export_rows(made), "parquet")))
        for made in (summary(), summary(whole=None, batch=None, load={}, requests={}, session=None))
    )
    assert some.schema == none.schema


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UsageError, match="csv, parquet, json"):
        encode_rows([], "xlsx")
