"""What a report shows of a cell: a table of measures, each with its place in the cell's summary, and the mean over blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from results.arrivals import OPEN_LOOPS
from results.report_readings import PHASES, Readings, batch_readings, load_mode, phase

SCOPE = "scope"
_SCHEDULED = {"ttft_ms": "scheduled_ttft_ms", "e2e_ms": "scheduled_e2e_ms"}


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a cell. `path` leads to it in the cell's summary; `scope` stands for the scope being shown."""

    id: str
    words: str
    unit: str
    path: tuple[str, ...]


MEASURES: tuple[Measure, ...] = (
    Measure("output_tokens_per_s", "Output tokens/s", "tok/s", (SCOPE, "output_tokens_per_s")),
    Measure("total_tokens_per_s", "Input + output tokens/s", "tok/s", (SCOPE, "total_tokens_per_s")),
    Measure("requests_per_s", "Requests/s", "1/s", (SCOPE, "requests_per_s")),
    Measure("prefill_tokens_per_s", "Prefill tokens/s", "tok/s", (SCOPE, "prefill_tokens_per_s")),
    Measure("decode_tokens_per_s", "Decode tokens/s", "tok/s", (SCOPE, "decode_tokens_per_s")),
    Measure("ttft_ms_p50", "TTFT p50", "ms", (SCOPE, "ttft_ms", "p50")),
    Measure("ttft_ms_p90", "TTFT p90", "ms", (SCOPE, "ttft_ms", "p90")),
    Measure("tpot_ms_p50", "TPOT p50", "ms", (SCOPE, "tpot_ms", "p50")),
    Measure("tpot_ms_p90", "TPOT p90", "ms", (SCOPE, "tpot_ms", "p90")),
    Measure("e2e_ms_p50", "End to end p50", "ms", (SCOPE, "e2e_ms", "p50")),
    Measure("e2e_ms_p90", "End to end p90", "ms", (SCOPE, "e2e_ms", "p90")),
    Measure("batch_realised", "Realised batch", "requests", ("batch", "realised")),
    Measure("batch_offered", "Offered batch", "requests", ("batch", "offered")),
    Measure("batch_in_flight", "In flight at the client", "requests", ("batch", "in_flight")),
    Measure("batch_running", "Running at the server", "requests", ("batch", "running")),
    Measure("batch_decodes_per_step", "Decodes per step", "requests", ("batch", "decodes_per_step")),
    Measure("kv_bytes_predicted", "KV bytes predicted", "B", ("arithmetic", "kv_bytes_predicted")),
    Measure(
        "kv_bytes_predicted_blocks",
        "KV bytes predicted, in whole blocks",
        "B",
        ("arithmetic", "kv_bytes_predicted_blocks"),
    ),
    Measure("kv_bytes_engine", "KV bytes the engine holds", "B", ("arithmetic", "kv_bytes_engine")),
    Measure("kv_bytes_per_token", "KV bytes per token", "B", ("arithmetic", "kv_bytes_per_token")),
    Measure("kv_allocated_bytes", "KV bytes in allocated blocks", "B", ("arithmetic", "kv_allocated_bytes")),
    Measure("kv_pool_bytes", "KV pool", "B", ("server", "kv_pool_bytes")),
    Measure("weight_bytes", "Weights", "B", ("server", "weight_bytes")),
    Measure("kv_reserved_bytes", "KV bytes reserved", "B", ("server", "kv_reserved_bytes_max")),
    Measure("rss_bytes", "Server memory in all", "B", ("server", "rss_bytes_max")),
    Measure("other_bytes", "Server memory beside weights and KV pool", "B", ("arithmetic", "memory", "other_bytes")),
    Measure("mfu", "MFU", "", ("arithmetic", "mfu")),
    Measure("mbu", "MBU", "", ("arithmetic", "mbu")),
    Measure("mfu_prefill", "MFU of steps that only prefill", "", ("arithmetic", "prefill", "mfu")),
    Measure("mbu_prefill", "MBU of steps that only prefill", "", ("arithmetic", "prefill", "mbu")),
    Measure("mfu_decode", "MFU of full batches that decode", "", ("arithmetic", "decode", "mfu")),
    Measure("mbu_decode", "MBU of full batches that decode", "", ("arithmetic", "decode", "mbu")),
    Measure("ceiling_flops_per_s", "Measured ceiling of FLOP/s", "FLOP/s", ("arithmetic", "ceilings", "flops_per_s")),
    Measure("ceiling_bytes_per_s", "Measured ceiling of bytes/s", "B/s", ("arithmetic", "ceilings", "bytes_per_s")),
    Measure("requests_issued", "Requests issued", "", ("requests", "issued")),
    Measure("requests_ok", "Requests answered in full", "", ("requests", "ok")),
    Measure("client_lag_ms_p99", "Client lag p99", "ms", ("client", "lag_ms_p99")),
    Measure(
        "client_error_ms_p99", "Client's error p99, by the engine's log", "ms", ("client", "truth", "arrival_ms", "p99")
    ),
    Measure("duration_s", "Duration", "s", (SCOPE, "duration_s")),
    Measure("device_bandwidth_gb_per_s", "Device memory bandwidth", "GB/s", ("device", "bandwidth_gb_per_s")),
    Measure("device_bandwidth_fraction", "Device memory bandwidth of the peak", "", ("device", "bandwidth_fraction")),
    Measure("device_power_w", "Device power", "W", ("device", "power_w")),
    Measure("device_energy_j_per_token", "Energy an output token", "J", ("device", "energy_j_per_output_token")),
    Measure("device_sm_clock_mhz", "SM clock", "MHz", ("device", "sm_clock_mhz", "mean")),
    Measure("device_memory_bytes", "Device memory in use", "B", ("device", "memory_used_bytes_max")),
)
PER_USER = Measure("user_tokens_per_s", "Tokens/s per user", "tok/s", ())
PER_GPU = Measure("output_tokens_per_s_per_gpu", "Output tokens/s per GPU", "tok/s", ())
MEASURE: dict[str, Measure] = {m.id: m for m in (*MEASURES, PER_USER, PER_GPU)}


@dataclass(frozen=True, slots=True)
class Value:
    """A number with its spread: smallest and largest of `n` blocks, or waves of one cell. Unknown is None with `why`. `sure` is
    the 95 % interval of a percentile of one cell, where there is one."""

    mean: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    why: str | None = None
    over: str = "blocks"
    sure: tuple[float, float] | None = None

    @property
    def known(self) -> bool:
        return self.mean is not None

    @classmethod
    def of(cls, value: float) -> Value:
        return cls(value, value, value, 1)


def read_cell(cell: Mapping[str, Any], scope: str, readings: Readings, gpus: int | None = None) -> dict[str, Value]:
    """Every measure of one cell of summary.json; `scope` is `whole` or `window`, `gpus` how many its engine uses. What cells may
    read from different places is read where `readings` says. Latencies of an open loop count from when a request was to be sent:
    what it waited for before that is part of them."""
    values = {m.id: _read(cell, m, scope) for m in MEASURES}
    batch = batch_readings(cell).get(readings.batch or "")
    values["batch_realised"] = _value(batch, "not read in a way that all cells were")
    for measure, name in PHASES.items():
        if (measure, load_mode(cell)) in readings.estimates and (found := phase(cell, name)):
            values[measure] = _value(found.get("at_client"), values[measure].why or "not known")
    if not values["kv_allocated_bytes"].known:
        # Older summaries have it from samples only.
        values["kv_allocated_bytes"] = _value(
            (cell.get("server") or {}).get("kv_allocated_bytes_max"), "the server does not tell"
        )
    values |= _over_waves(values, (cell.get(scope) or {}).get("waves"))
    tpot = values["tpot_ms_p50"]
    if not values["weight_bytes"].known:
        counted = ((cell.get("arithmetic") or {}).get("memory") or {}).get("weights_bytes")
        values["weight_bytes"] = _value(counted, values["weight_bytes"].why or "the server does not tell")
    values[PER_USER.id] = _inverse(tpot) if tpot.mean else Value(None, why=tpot.why)
    values[PER_GPU.id] = _per_gpu(values["output_tokens_per_s"], cell, gpus)
    return values


def _over_waves(values: Mapping[str, Value], waves: Any) -> dict[str, Value]:
    """The measures that a cell knows for each of its waves, with their range."""
    n = waves.get("n") if isinstance(waves, Mapping) else None
    if not isinstance(n, int) or n < 2:
        return {}
    found = {}
    for measure in ("output_tokens_per_s", "ttft_ms_p50", "tpot_ms_p50"):
        span = waves.get(measure)
        if values[measure].known and isinstance(span, Mapping):
            found[measure] = replace(
                values[measure], low=float(span["min"]), high=float(span["max"]), n=n, over="waves"
            )
    return found


def _inverse(tpot: Value) -> Value:
    mean, low, high = (1000 / v if v else None for v in (tpot.mean, tpot.high, tpot.low))
    return replace(tpot, mean=mean, low=low, high=high)


def _per_gpu(output: Value, cell: Mapping[str, Any], gpus: int | None) -> Value:
    if not cell.get("device"):
        return Value(None, why="no device was sampled")
    if gpus is None or output.mean is None:
        return Value(None, why=output.why or "how many GPUs the engine uses is not told")
    mean, low, high = (None if v is None else v / gpus for v in (output.mean, output.low, output.high))
    return replace(output, mean=mean, low=low, high=high)


def _value(found: Any, why: str) -> Value:
    if isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found):
        return Value.of(float(found))
    return Value(None, why=why)


def _read(cell: Mapping[str, Any], measure: Measure, scope: str) -> Value:
    node: Any = cell
    path = [_SCHEDULED.get(step, step) for step in measure.path] if load_mode(cell) in OPEN_LOOPS else measure.path
    for step in path:
        parent, node = node, node.get(scope if step == SCOPE else step) if isinstance(node, Mapping) else None
    found = _value(node, _why(cell, measure, parent))
    intervals = parent.get("intervals") if isinstance(parent, Mapping) else None
    ends = intervals.get(measure.path[-1]) if isinstance(intervals, Mapping) else None
    if found.known and isinstance(ends, Sequence) and len(ends) == 2:
        return replace(found, sure=(float(ends[0]), float(ends[1])))
    return found


def _why(cell: Mapping[str, Any], measure: Measure, parent: Any) -> str:
    """Why a number is missing: what its distribution says, the cell's verdict, or that nobody tells."""
    last = measure.path[-1]
    withheld = parent.get("withheld") if isinstance(parent, Mapping) else None
    if isinstance(withheld, Mapping) and withheld.get(last):
        return f"withheld: {withheld[last]}"
    if isinstance(parent, Mapping) and parent.get("n") == 0:
        return "not known: no request gave one"
    if cell.get("verdict") == "INVALID":
        return "the cell is INVALID"
    if measure.path[0] == "device":
        device = cell.get("device")
        told = (device.get("why") or {}).get(measure.path[1]) if isinstance(device, Mapping) else None
        return str(told) if told else "no device was sampled" if device is None else "not known"
    if measure.path[0] == "server" or measure.id == "kv_bytes_engine":
        return "the server does not tell"
    return "not known"


def over_blocks(values: Sequence[Value]) -> Value:
    """The mean over blocks with its range. Unknown blocks are left out; unknown in all is unknown with the first reason; a
    single one keeps the range of its waves."""
    known = [v.mean for v in values if v.mean is not None]
    if not known:
        return Value(None, why=next((v.why for v in values if v.why), "not measured"))
    if len(known) == 1:
        return next(v for v in values if v.mean is not None)
    return Value(math.fsum(known) / len(known), min(known), max(known), len(known))
