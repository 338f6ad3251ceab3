"""Result files of other tools as runs of ours: shown with their definitions, never paired and never gated.

Read are the JSON files of `vllm bench serve` and `vllm bench throughput`, AIPerf's JSON and CSV exports and `trtllm-bench`'s
report. Nothing is computed that a file does not say; times in ms, unknown is None.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from results.aiperf_file import from_csv, from_json, is_aiperf_csv, is_aiperf_json
from results.definitions import TOOLS
from results.errors import UsageError
from results.files import read_json, to_json, write_atomic
from results.records import CellRecord
from results.store import RunStore, RunWriter

IMPORT_FILE = "imported.json"
IMPORTED = "imported"
_MOST_BYTES = 256 << 20
_POINTS = ("p50", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Imported:
    """One load as its tool reports it. `scope` has the names of summary.json, `numbers` the tool's own. `http` says whether the
    requests went over HTTP: without it nothing of a server's front is in the numbers."""

    tool: str
    words: str
    model: str
    http: bool
    requests: int | None
    failed: int | None
    load: dict[str, Any]
    workload: dict[str, Any]
    scope: dict[str, Any]
    numbers: dict[str, Any]
    tool_version: str | None = None
    file: str = ""
    sha256: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Format:
    words: str
    fits: Callable[[Any], bool]
    read: Callable[[Any], Imported]


def read_import(path: Path) -> Imported:
    """A result file of a known tool. Raises UsageError."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} has {path.stat().st_size:,} bytes: that is no summary of a tool's results.")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror or error}.") from error
    known = ", ".join(dict.fromkeys(f.words for f in _FORMATS))
    try:
        content = (
            orjson.loads(data) if path.suffix != ".csv" else list(csv.reader(io.StringIO(data.decode("utf-8-sig"))))
        )
    except ValueError as error:
        raise UsageError(
            f"{path} is neither JSON nor a CSV file of UTF-8: {error}. Known are results of {known}."
        ) from error
    for form in _FORMATS:
        if form.fits(content):
            try:
                made = form.read(content)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                raise UsageError(
                    f"{path} looks like a result of {form.words}, but it cannot be understood ({type(error).__name__}: {error}). It may "
                    "be of a version that this one does not know."
                ) from error
            fields = {f: getattr(made, f) for f in made.__slots__}
            return Imported(**{**fields, "file": path.name, "sha256": hashlib.sha256(data).hexdigest()})
    raise UsageError(f"{path} is no result file of a known tool. Known are results of {known}.")


def write_import(folder: Path, imported: Imported, manifest: Mapping[str, Any]) -> RunStore:
    """A run that holds it. Raises UsageError where `folder` is something else, StoreError."""
    from results.events import write_table
    from results.schema import CHUNKS, REQUESTS, SAMPLES

    asked = {"source": IMPORTED, "tool": imported.tool, "model": imported.model, "sha256": imported.sha256}
    label = f"{imported.tool} (imported)"
    cell_id = imported.sha256[:16]
    record = CellRecord(
        *(cell_id, label, imported.tool, imported.model, "", 0, 0, imported.workload, imported.load, 0, 0),
        {"source": IMPORTED},
    )
    text = to_json({**asked, "engines": [{"label": label, "backend": imported.tool}]}).decode()
    with RunWriter.start(folder, text, dict(manifest)) as store:
        if not store.has_cell(cell_id):
            cell = store.begin_cell(cell_id)
            for name, schema in (("requests", REQUESTS), ("chunks", CHUNKS), ("samples", SAMPLES)):
                write_table(cell / f"{name}.parquet", schema, {column: [] for column in schema.names})
            write_atomic(cell / IMPORT_FILE, to_json(asdict(imported)))
            store.commit_cell(record)
    return RunStore.open(folder)


def imported_of(store: RunStore, cell_id: str) -> Imported | None:
    """What an imported cell holds; None where the cell was measured. Raises StoreError."""
    path = store.cell_dir(cell_id) / IMPORT_FILE
    return Imported(**read_json(path)) if path.is_file() else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else round(number)


def _distribution(n: int | None, mean: Any, points: Mapping[str, Any]) -> dict[str, Any] | None:
    found = {name: _number(points.get(name)) for name in _POINTS}
    if _number(mean) is None and not any(v is not None for v in found.values()):
        return None
    return {"n": n, "mean": _number(mean), **found, "intervals": {}, "withheld": {}}


def _scope(duration_s: Any, given: Any, output: Any, rates: Sequence[Any], **distributions: Any) -> dict[str, Any]:
    """`rates`: output tokens, all tokens, requests a second."""
    names = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
    return {
        "start_s": 0.0,
        "duration_s": _number(duration_s),
        "input_tokens": _count(given),
        "output_tokens": _count(output),
        **dict(zip(names, map(_number, rates), strict=True)),
        **{f"{phase}_tokens_per_s": None for phase in ("prefill", "decode")},
        **{name: distributions.get(name) for name in ("ttft_ms", "tpot_ms", "itl_pooled_ms", "e2e_ms")},
        "scheduled_ttft_ms": None,
        "scheduled_e2e_ms": None,
    }


def _lengths(tool: str, given: Any, output: Any, requests: int | None) -> dict[str, Any]:
    """The workload as far as a file tells: mean lengths."""
    if _number(given) is None or _number(output) is None or not requests:
        return {"type": IMPORTED, "label": f"as {tool} sent it"}
    return {
        "type": IMPORTED,
        "label": f"{given / requests:,.0f} in / {output / requests:,.0f} out in the mean ({tool})",
    }


def _vllm_serve(content: Mapping[str, Any]) -> Imported:
    n = _count(content["completed"])

    def figures(name: str) -> dict[str, Any] | None:
        points = {p: content.get(f"{p}_{name}_ms") for p in _POINTS}
        points["p50"] = points["p50"] if points["p50"] is not None else content.get(f"median_{name}_ms")
        return _distribution(n, content.get(f"mean_{name}_ms"), points)

    rate, cap = content.get("request_rate"), content.get("max_concurrency")
    load: dict[str, Any] = {"mode": IMPORTED}
    if isinstance(rate, int | float):
        load = {"mode": "rate", "rate": rate}
    elif isinstance(cap, int):
        load = {"mode": "concurrency", "concurrency": cap}
    given, output = content.get("total_input_tokens"), content["total_output_tokens"]
    rates = (content.get("output_throughput"), content.get("total_token_throughput"), content.get("request_throughput"))
    names = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "itl_pooled_ms", "e2el": "e2e_ms"}
    return Imported(
        tool="vllm",
        words=TOOLS["vllm"].words,
        model=str(content.get("model_id") or "unknown"),
        http=True,
        requests=n,
        failed=_count(content.get("failed")),
        load=load,
        workload=_lengths("vllm bench serve", given, output, n),
        scope=_scope(content.get("duration"), given, output, rates, **{ours: figures(k) for k, ours in names.items()}),
        numbers={k: v for k, v in content.items() if isinstance(v, int | float) and not isinstance(v, bool)},
    )


def _vllm_throughput(content: Mapping[str, Any]) -> Imported:
    n = _count(content["num_requests"])
    rates = (None, content["tokens_per_second"], content["requests_per_second"])
    return Imported(
        tool="vllm-throughput",
        words="`vllm bench throughput`: the engine in the process, all requests at once, no HTTP; tokens a second are of prompts and "
        "answers together, over the whole run.",
        model=str(content.get("model_id") or "unknown"),
        http=False,
        requests=n,
        failed=None,
        load={"mode": IMPORTED},
        workload={"type": IMPORTED, "label": "as vllm bench throughput sent it"},
        scope=_scope(content["elapsed_time"], None, None, rates),
        numbers=dict(content),
    )


def _trtllm(content: Mapping[str, Any]) -> Imported:
    request, speed, stream = content["request_info"], content["performance"], content.get("streaming_metrics") or {}
    n = _count(request["num_requests"])

    def figures(mean: Any, points: Any) -> dict[str, Any] | None:
        return _distribution(n, mean, points or {})

    given, output = (request.get(f"avg_{name}_length") for name in ("input", "output"))
    totals = [None if v is None or n is None else v * n for v in (_number(given), _number(output))]
    seconds = (_number(speed.get("total_latency_ms")) or 0.0) / 1000 or None
    rates = (
        speed.get("system_output_throughput_tok_s"),
        speed.get("system_total_throughput_tok_s"),
        speed.get("request_throughput_req_s"),
    )
    return Imported(
        tool="trtllm-bench",
        words="`trtllm-bench`: the engine in the process, no HTTP and no text; waiting for a free place is in no latency; percentiles by "
        "index rounded down; a TPOT of 0 for answers of one token.",
        model=str((content.get("engine") or {}).get("model") or "unknown"),
        http=False,
        requests=n,
        failed=None,
        load={"mode": IMPORTED},
        workload=_lengths("trtllm-bench", totals[0], totals[1], n),
        scope=_scope(
            seconds,
            totals[0],
            totals[1],
            rates,
            ttft_ms=figures(stream.get("avg_ttft_ms"), stream.get("ttft_percentiles")),
            tpot_ms=figures(stream.get("avg_tpot_ms"), stream.get("tpot_percentiles")),
            e2e_ms=figures(speed.get("avg_request_latency_ms"), speed.get("request_latency_percentiles_ms")),
        ),
        numbers={**speed, **stream},
        tool_version=(content.get("engine") or {}).get("version"),
        extra={"world": content.get("world_info")},
    )


def _aiperf(content: Mapping[str, Any]) -> Imported:
    def found(*names: str) -> Mapping[str, Any]:
        return next((content[name] for name in names if isinstance(content.get(name), Mapping)), {})

    def average(*names: str) -> Any:
        return found(*names).get("avg")

    n = _count(average("completed_request_count", "request_count"))
    given, output = average("total_isl"), average("total_osl", "total_output_tokens")
    output_rate = average("output_token_throughput")
    total = average("total_token_throughput")
    rates = (output_rate, total, average("request_throughput"))
    names = {"time_to_first_token": "ttft_ms", "inter_token_latency": "tpot_ms", "request_latency": "e2e_ms"}
    return Imported(
        tool="aiperf",
        words=TOOLS["aiperf"].words,
        model=_model_of(content),
        http=True,
        requests=n,
        failed=_count(average("error_request_count")),
        load=_aiperf_load(content),
        workload=_lengths("AIPerf", given, output, n),
        scope=_scope(
            average("benchmark_duration"),
            given,
            output,
            rates,
            **{ours: _distribution(n, found(k).get("avg"), found(k)) for k, ours in names.items()},
        ),
        numbers={k: dict(v) for k, v in content.items() if isinstance(v, Mapping) and "avg" in v},
        tool_version=content.get("aiperf_version"),
    )


def _model_of(content: Mapping[str, Any]) -> str:
    asked = (content.get("input_config") or {}).get("endpoint") or {}
    names = asked.get("model_names") or asked.get("model_name") or "unknown"
    return str(names[0] if isinstance(names, list) and names else names)


def _aiperf_load(content: Mapping[str, Any]) -> dict[str, Any]:
    asked = (content.get("input_config") or {}).get("loadgen") or {}
    if isinstance(rate := asked.get("request_rate"), int | float):
        return {"mode": "rate", "rate": rate}
    if isinstance(slots := asked.get("concurrency"), int):
        return {"mode": "concurrency", "concurrency": slots}
    return {"mode": IMPORTED}


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda content: isinstance(content, dict) and all(name in content for name in names)


_FORMATS = (
    _Format("vllm bench serve", _has("completed", "total_output_tokens"), _vllm_serve),
    _Format("vllm bench throughput", _has("elapsed_time", "num_requests", "tokens_per_second"), _vllm_throughput),
    _Format("trtllm-bench", _has("request_info", "performance"), _trtllm),
    _Format("AIPerf", is_aiperf_json, lambda content: _aiperf(from_json(content))),
    _Format("AIPerf", is_aiperf_csv, lambda rows: _aiperf(from_csv(rows))),
)
