"""From the files of one cell to its entry in summary.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from results.arrivals import arrival_numbers
from results.batch import batch_numbers, lock_index
from results.cell_facts import cell_facts
from results.cell_steps import logged_steps, session_steps, session_tokens
from results.client_load import client_load
from results.client_truth import client_truth
from results.clock import NS_PER_MS
from results.correlation_cells import inside_cell
from results.device_use import device_use
from results.efficiency import refuted
from results.events import Chunks, Requests, Samples, read_chunks, read_requests, read_samples
from results.invariants import breaches
from results.kv_use import kv_formula, kv_numbers
from results.limits import CellData, limit_numbers
from results.limits_batch import Load
from results.load_facts import load_facts
from results.metrics import decode_rate, measure, prefill_rate
from results.phases import decode_at_client, prefill_at_client
from results.prompt_counts import prompt_counts
from results.reasons import CEILING_REFUTED, Reason, reasons_of, verdict
from results.records import CellRecord, Fault
from results.scope import ScopeData, scope_data
from results.server_use import server_use
from results.slo import Slo, attainment, slo_of
from results.store import RunStore
from results.tokens import delivered_tokens, token_chunks
from results.truth import Steps, Tokens
from results.truth_check import missing_steps
from results.waves import wave_spread
from results.window import Window, steady_numbers, steady_window

# What the load worker counts of itself and what was before the load, handed on as it is.
_CLIENT_COUNTS = (
    "not_streamed",
    "retries",
    "stamps_disbelieved",
    "coalesced_events",
    "max_in_flight",
    "workers",
    "workers_why",
    "ended_by_plan",
    "endpoint",
    "stream",
    "no_done",
    "proxy_used",
    "nodes",
    "warm_up",
    "warm_up_why",
)


def cell_summary(store: RunStore, record: CellRecord, session: Mapping[str, Any]) -> dict[str, Any]:
    """A cell as it stands in summary.json. `session` is its session.json (or {}).

    Raises StoreError when the cell's event files or the manifest cannot be read.
    """
    steps, faults = session_steps(store, record.session)
    return summarise_cell(store, record, session, steps, faults)


def summarise_cell(
    store: RunStore, record: CellRecord, session: Mapping[str, Any], steps: Steps | None, faults: list[Fault]
) -> dict[str, Any]:
    """`cell_summary` for a caller who has the session's steps already."""
    folder = store.cell_dir(record.id)
    manifest = store.manifest
    config = (manifest.get("model") or {}).get("config")
    requests, chunks, samples = read_requests(folder), read_chunks(folder), read_samples(folder)
    tokens: Tokens | None = None
    if steps is not None:
        tokens, more = session_tokens(store, record)
    else:
        steps, more = logged_steps(folder, requests, (record.started, record.ended))
    record = replace(record, faults=[*record.faults, *faults, *more])
    machine, slo = manifest.get("ceilings"), slo_of(store.experiment)
    summary = summarise(record, session, config, requests, chunks, samples, steps, machine, slo)
    summary["client"]["truth"] = client_truth(requests, chunks, tokens)
    return summary


def summarise(
    record: CellRecord,
    session: Mapping[str, Any],
    config: Mapping[str, Any] | None,
    requests: Requests,
    chunks: Chunks,
    samples: Samples,
    steps: Steps | None,
    machine: Mapping[str, Any] | None = None,
    slo: Slo | None = None,
) -> dict[str, Any]:
    """The same from tables in memory: no files, no clock, no order of requests matters. `machine`: its measured ceilings.
    `slo`: the objectives that requests are held against."""
    requests = requests.take(np.argsort(requests.request_id.astype(str), kind="stable"))
    tokens = token_chunks(requests, chunks)
    mode, value = str(record.load.get("mode", "unknown")), load_value(record.load)
    cell = (record.started, record.ended)
    data = scope_data(requests, tokens, steps, cell=cell, mode=mode, width=max(1, int(value or 1)))
    gap = missing_steps(data, data.steps) if data and steps is not None else None
    if data and gap:
        data = replace(data, steps=None)
    whole, notes = measure(data) if data else (None, {})
    if gap:
        notes["truth_incomplete"] = gap
    span = (data.start, data.end) if data else cell
    inside = data.steps if data else None
    output = delivered_tokens(requests, tokens)
    input_tokens = data.input_tokens if data else np.zeros(len(requests), dtype=np.int64)
    formula, why = kv_formula(config, session)
    if formula is None:
        notes["kv_formula_unknown"] = why
    client = _client(record, chunks, int(output.sum()))
    client["arrivals"] = arrival_numbers(
        record.load, load_value(record.load), requests, record.client.get("descriptor_cap")
    )
    server = server_use(samples, cell)
    facts = cell_facts(requests, tokens, output, samples, whole, client, server)
    facts.mode = mode
    facts.load = load_facts(requests, record.client, client["arrivals"], whole)
    facts.client_load = client_load(record.client, tokens.t, requests.worker)
    facts.workload = str(record.workload.get("type", "random"))
    if mode == "concurrency":
        facts.lock_index, facts.lock_phases = lock_index(requests)
        facts.slots = int(value or 0)
    steady = steady_window(data, samples, facts.lock_index, facts.slots) if data else Window()
    inner = data.window(steady.start, steady.end) if data and steady.start and steady.end else None
    window = measure(inner)[0] if inner else None
    facts.has_window, facts.window_why = window is not None, steady.why
    facts.unsteady, facts.overload = steady.unsteady, steady.overload
    view = data.window(steady.start, steady.end) if data and window and steady.start and steady.end else data
    seen, delivered = ((view.start, view.end), int(view.delivered.sum())) if view else (cell, None)
    device = device_use(samples, session.get("telemetry"), seen, delivered, view.name if view else "whole")
    facts.device = device.facts
    spread = wave_spread(data) if data and whole else None
    if spread and (rates := spread["output_tokens_per_s"]):
        facts.wave_count, facts.wave_rates = spread["n"], (rates["min"], rates["max"])
    limits, arithmetic = limit_numbers(
        CellData(
            *(requests, tokens, samples, inside, input_tokens, session, config, machine),
            load=Load(mode, int(value) if value else None),
            cell=cell,
            span=seen,
            server=server.numbers,
            device=device.numbers,
            output_tokens=delivered or 0,
        )
    )
    if too_low := refuted(arithmetic):
        notes[CEILING_REFUTED] = too_low
    notes |= prompt_counts(requests, client["endpoint"]).notes
    facts.found = _merged(notes | breaches(requests, tokens, samples, inside, session, cell), record)
    reasons = reasons_of(facts)
    kv = kv_numbers(formula, requests, input_tokens, output, samples, inside, session, cell)
    summary = {
        **_identity(record, reasons),
        "requests": {
            "issued": facts.issued,
            "ok": facts.ok,
            "by_outcome": dict(facts.by_outcome),
            **({"timeouts": dict(facts.timeouts)} if facts.timeouts else {}),
        },
        "whole": {**whole, "waves": spread} if data and whole else None,
        "window": window,
        "steady": steady_numbers(steady),
        "slo": attainment(inner or data, slo) if data and slo else None,
        "phases": _phases(data, facts.preemptions),
        "batch": {
            **batch_numbers(value, requests, samples, inside, span, cell),
            "lock_index": facts.lock_index,
        },
        "client": client,
        "server": server.numbers,
        "device": device.numbers,
        "correlation": [c.to_dict() for c in inside_cell(view, samples, device.numbers)] if view else [],
        "arithmetic": {**kv, **arithmetic},
        "limits": limits,
    }
    clean: dict[str, Any] = finite(summary)
    return clean


def unreadable(record: CellRecord, reasons: list[Reason]) -> dict[str, Any]:
    """The entry of a cell whose files cannot be read: what was asked, and why there is nothing else."""
    empty = dict.fromkeys(("whole", "window", "phases", "batch", "client", "server", "device", "arithmetic", "limits"))
    return {**_identity(record, reasons), "requests": {"issued": None, "ok": None, "by_outcome": {}}, **empty}


def load_value(load: Mapping[str, Any]) -> float | int | None:
    """The one number a load is known by: what its mode names (batch, concurrency, rate), `value`, or the mean rate of a ramp
    or schedule."""
    mode, times = load.get("mode"), load.get("times_s")
    if mode == "ramp":
        value = (load.get("from_rate", 0) + load.get("to_rate", 0)) / 2
    elif mode == "schedule" and times and times[-1] > times[0]:
        value = (len(times) - 1) / (times[-1] - times[0]) * load.get("speed", 1.0)
    else:
        value = load.get("value", load.get(str(load.get("mode"))))
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def finite(value: Any) -> Any:
    """The same with NaN and infinities as None, numpy numbers as Python's: nothing else may reach the JSON."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _identity(record: CellRecord, reasons: list[Reason]) -> dict[str, Any]:
    return {
        "id": record.id,
        "engine": record.engine,
        "backend": record.backend,
        "model": record.model,
        "session": record.session,
        "block": record.block,
        "workload": record.workload,
        "load": {**record.load, "value": load_value(record.load)},
        "verdict": str(verdict(reasons)),
        "reasons": [r.to_dict() for r in reasons],
    }


def _phases(data: ScopeData | None, preemptions: float | None) -> dict[str, Any] | None:
    """Where the two phase rates were read, the share of the tokens they rest on, how mixed that time was; and, whatever
    the source, the client's estimate, which every engine has."""
    if data is None:
        return None
    rates = (
        ("prefill", prefill_rate(data), prefill_at_client(data)),
        ("decode", decode_rate(data), decode_at_client(data)),
    )
    # A request that was preempted in a wave is prefilled again while the others decode: how long, the client cannot tell.
    preempted = bool(preemptions) or (data.steps is not None and bool((data.steps.preempted > 0).any()))
    return {
        name: {
            "source": rate.source,
            "share": rate.share,
            "mixed": None if preempted and rate.source == "wave" else rate.mixed,
            "at_client": estimate.value,
        }
        for name, rate, estimate in rates
    }


def _client(record: CellRecord, chunks: Chunks, tokens: int) -> dict[str, Any]:
    lag = chunks.lag[np.isfinite(chunks.lag)] / NS_PER_MS
    cpu, wall = (_number(record.client.get(name)) for name in ("cpu_s", "wall_s"))
    return {
        "lag_ms_p50": float(np.quantile(lag, 0.5)) if len(lag) else None,
        "lag_ms_p99": float(np.quantile(lag, 0.99)) if len(lag) else None,
        "cpu_s": cpu,
        "cpu_share": cpu / wall if cpu is not None and wall else None,
        "cpu_us_per_token": cpu * 1e6 / tokens if cpu is not None and tokens else None,
        "receive_stamps": record.client.get("receive_stamps"),
        "ceiling": record.client.get("ceiling"),
        **{name: record.client.get(name) for name in _CLIENT_COUNTS},
    }


def _merged(notes: Mapping[str, str], record: CellRecord) -> dict[str, str]:
    """Codes found by metrics and by the runner; of one code the evidence is joined."""
    found = dict(notes)
    for fault in record.faults:
        found[fault.code] = "; ".join(e for e in (found.get(fault.code), fault.evidence) if e)
    return found


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
