"""A run as one flat table, a row a cell: for spreadsheets, notebooks and databases.

Names are those of summary.json, joined by underscores (`whole_ttft_ms_p50`). Unknown is empty, never 0.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from results.errors import UsageError
from results.report_shapes import workload_info

FORMATS = ("csv", "parquet", "json")
_SCOPES = ("whole", "window")
_PLAIN = (
    "start_s",
    "duration_s",
    "input_tokens",
    "output_tokens",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "requests_per_s",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
)
_DISTRIBUTIONS = ("ttft_ms", "scheduled_ttft_ms", "tpot_ms", "itl_pooled_ms", "e2e_ms", "scheduled_e2e_ms")
_POINTS = ("n", "mean", "p50", "p90", "p95", "p99")
_BATCH = ("offered", "in_flight", "running", "decodes_per_step")


def export_rows(
    summary: Mapping[str, Any], gpu_hour: float | None = None, gpus: int | None = None
) -> list[dict[str, Any]]:
    """A row for each cell of a summary. With `gpu_hour` (dollars) also what a million tokens cost; `gpus` is how many an engine
    uses where its settings do not say (tensor_parallel)."""
    settings = {str(e.get("label")): e.get("settings") or {} for e in summary.get("engines") or []}
    rows = []
    for cell in summary.get("cells") or []:
        own = gpus
        if own is None and cell.get("device"):  # a machine where no GPU was seen has none to be paid for
            own = gpus_of(settings.get(str(cell.get("engine")), {}))
        rows.append({**_identity(summary, cell), **_numbers(cell), **_economy(cell, own, gpu_hour)})
    return rows


def _identity(summary: Mapping[str, Any], cell: Mapping[str, Any]) -> dict[str, Any]:
    load, requests = cell.get("load") or {}, cell.get("requests") or {}
    return {
        "run": summary.get("run"),
        "source": cell.get("source") or "measured",
        "cell": cell.get("id"),
        "engine": cell.get("engine"),
        "backend": cell.get("backend"),
        "model": cell.get("model"),
        "session": cell.get("session"),
        "block": cell.get("block"),
        "workload": workload_info(cell.get("workload") or {}).label,
        "workload_json": json.dumps(cell.get("workload") or {}, sort_keys=True),
        "load_mode": load.get("mode"),
        "load_value": load.get("value"),
        "verdict": cell.get("verdict"),
        "reasons": " ".join(str(reason.get("code")) for reason in cell.get("reasons") or []),
        "requests_issued": requests.get("issued"),
        "requests_ok": requests.get("ok"),
    }


def _numbers(cell: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for scope in _SCOPES:
        found = cell.get(scope) or {}
        out |= {f"{scope}_{name}": found.get(name) for name in _PLAIN}
        for name in _DISTRIBUTIONS:
            values = found.get(name) or {}
            out |= {f"{scope}_{name}_{point}": values.get(point) for point in _POINTS}
    batch = cell.get("batch") or {}
    return out | {f"batch_{name}": batch.get(name) for name in _BATCH}


def _economy(cell: Mapping[str, Any], gpus: int | None, gpu_hour: float | None) -> dict[str, Any]:
    """Throughput a GPU against speed a user, and dollars a million tokens; of the steady window where there is one.

    `tokens_per_s_per_user` is 1 / mean TPOT: how fast one stream comes once it has begun. `system_tokens_per_s_per_user` is the
    throughput over the requests in flight: prefill and waiting count. An INVALID cell has none of them.
    """
    scope = "window" if cell.get("window") else "whole"
    found = (cell.get(scope) or {}) if cell.get("verdict") != "INVALID" else {}
    output, total = found.get("output_tokens_per_s"), found.get("total_tokens_per_s")
    tpot = (found.get("tpot_ms") or {}).get("mean")
    in_flight = (cell.get("batch") or {}).get("in_flight")
    return {
        "economy_scope": scope if found else None,
        "gpus": gpus,
        "output_tokens_per_s_per_gpu": output / gpus if output and gpus else None,
        "total_tokens_per_s_per_gpu": total / gpus if total and gpus else None,
        "tokens_per_s_per_user": 1000 / tpot if tpot else None,
        "system_tokens_per_s_per_user": output / in_flight if output and in_flight else None,
        "usd_per_gpu_hour": gpu_hour,
        "usd_per_m_output_tokens": _dollars(output, gpus, gpu_hour),
        "usd_per_m_total_tokens": _dollars(total, gpus, gpu_hour),
    }


def _dollars(tokens_per_s: float | None, gpus: int | None, gpu_hour: float | None) -> float | None:
    if not tokens_per_s or not gpus or gpu_hour is None:
        return None
    return gpu_hour * gpus / 3600 / tokens_per_s * 1e6


def gpus_of(settings: Mapping[str, Any]) -> int | None:
    """How many GPUs an engine's settings name; None where they name none."""
    found = settings.get("tensor_parallel")
    value = found.get("value") if isinstance(found, Mapping) else found
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def encode_rows(rows: Sequence[Mapping[str, Any]], format_: str) -> bytes:
    """The rows as a file of one of the `FORMATS`. Raises UsageError."""
    if format_ == "json":
        return json.dumps(list(rows), indent=1, allow_nan=False).encode() + b"\n"
    if format_ == "csv":
        return _csv(rows)
    if format_ == "parquet":
        return _parquet(rows)
    raise UsageError(f"Unknown format {format_!r}. Known: {', '.join(FORMATS)}.")


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    import csv

    out = io.StringIO(newline="")
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell_text(value) for name, value in row.items()})
    return out.getvalue().encode()


def _cell_text(value: Any) -> Any:
    """Text that a spreadsheet takes for a formula is marked as text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value


_WHOLE = ("block", "requests_issued", "requests_ok", "gpus")
_TEXT = (
    *(
        "run",
        "source",
        "cell",
        "engine",
        "backend",
        "model",
        "session",
        "workload",
        "workload_json",
        "load_mode",
        "verdict",
    ),
    *("reasons", "economy_scope"),
)


def _parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Every column has its type, also where all of it is unknown: files of several runs can be read as one table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in rows for name in row))
    kinds = {name: pa.float64() for name in names}
    kinds |= {name: pa.int64() for name in names if name in _WHOLE or name.endswith("_ms_n")}
    kinds |= {f"{scope}_{name}": pa.int64() for scope in _SCOPES for name in ("input_tokens", "output_tokens")}
    kinds |= {name: pa.string() for name in _TEXT}
    columns = [pa.array([row.get(name) for row in rows], type=kinds[name]) for name in names]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(columns, names=names), sink)
    return sink.getvalue()
