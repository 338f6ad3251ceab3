"""From the files of one cell to its entry in summary.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from results.batch import batch_numbers, lock_index
from results.clock import NS_PER_MS
from results.errors import StoreError
from results.events import (
    MISSING,
    Chunks,
    Floats,
    Ints,
    Requests,
    Samples,
    read_chunks,
    read_requests,
    read_samples,
)
from results.kv_use import bytes_per_token, kv_numbers
from results.metrics import ScopeData, decode_rate, measure, prefill_rate, scope_data
from results.reasons import CellFacts, Reason, reasons_of, verdict
from results.records import CellRecord, Fault
from results.schema import Outcome
from results.store import RunStore
from results.tokens import TokenChunks, delivered_tokens, token_chunks
from results.truth import Steps, read_steps

# Stamps of one machine from two sources (the kernel's wall clock, our monotonic one) agree to well under this.
_ORDER_TOLERANCE_NS = NS_PER_MS
_IN_ORDER = ("intended", "queued", "sent", "first_byte", "first_token", "last_token", "end")

_SERVER_MAXIMA = {
    "kv_usage_max": ("server", "kv_usage"),
    "kv_pool_bytes": ("server", "kv_pool_bytes"),
    "kv_capacity_tokens": ("server", "kv_capacity_tokens"),
    "kv_allocated_bytes_max": ("server", "kv_allocated_bytes"),
    "kv_held_bytes_max": ("server", "kv_held_bytes"),
    "running_max": ("server", "running"),
    "waiting_max": ("server", "waiting"),
    "weight_bytes": ("server", "weight_bytes"),
    "rss_bytes_max": ("host", "server_rss_bytes"),
}
_SERVER_DELTAS = {
    "preemptions": ("server", "preemptions_total"),
    "prompt_tokens": ("server", "prompt_tokens_total"),
    "generation_tokens": ("server", "generation_tokens_total"),
    "cpu_s": ("host", "server_cpu_s"),
}


def cell_summary(store: RunStore, record: CellRecord, session: Mapping[str, Any]) -> dict[str, Any]:
    """A cell as it stands in summary.json. `session` is its session.json (or {}).

    Raises StoreError when the cell's event files or the manifest cannot be read.
    """
    steps, faults = session_steps(store, record.session)
    return summarise_cell(store, record, session, steps, faults)


def session_steps(store: RunStore, session_id: str) -> tuple[Steps | None, list[Fault]]:
    """The engine's step log of a session, and a fault where there is one that cannot be read."""
    try:
        return read_steps(store.session_dir(session_id)), []
    except StoreError as error:
        return None, [Fault("truth_unreadable", str(error))]


def summarise_cell(
    store: RunStore, record: CellRecord, session: Mapping[str, Any], steps: Steps | None, faults: list[Fault]
) -> dict[str, Any]:
    """`cell_summary` for a caller who has the session's steps already."""
    folder = store.cell_dir(record.id)
    config = (store.manifest.get("model") or {}).get("config")
    record = replace(record, faults=[*record.faults, *faults])
    return summarise(record, session, config, read_requests(folder), read_chunks(folder), read_samples(folder), steps)


def summarise(
    record: CellRecord,
    session: Mapping[str, Any],
    config: Mapping[str, Any] | None,
    requests: Requests,
    chunks: Chunks,
    samples: Samples,
    steps: Steps | None,
) -> dict[str, Any]:
    """The same from tables in memory: no files, no clock, no order of requests matters."""
    requests = requests.take(np.argsort(requests.request_id.astype(str), kind="stable"))
    tokens = token_chunks(requests, chunks)
    mode, value = str(record.load.get("mode", "unknown")), load_value(record.load)
    cell = (record.started, record.ended)
    data = scope_data(requests, tokens, steps, cell=cell, mode=mode, width=max(1, int(value or 1)))
    whole, notes = measure(data) if data else (None, {})
    span = (data.start, data.end) if data else cell
    inside = data.steps if data else None
    output = delivered_tokens(requests, tokens)
    input_tokens = data.input_tokens if data else np.zeros(len(requests), dtype=np.int64)
    per_token, why = bytes_per_token(config, session)
    if per_token is None:
        notes["kv_formula_unknown"] = why
    client = _client(record, chunks, int(output.sum()))
    server, fell = _server(samples, cell)
    facts = _facts(record, requests, tokens, output, samples, whole, client, server)
    facts.mode, facts.counter_fell = mode, fell
    if mode == "concurrency":
        facts.lock_index, facts.lock_phases = lock_index(requests)
    facts.found = _merged(notes, record)
    reasons = reasons_of(facts)
    summary = {
        **_identity(record, reasons),
        "requests": {"issued": facts.issued, "ok": facts.ok, "by_outcome": dict(facts.by_outcome)},
        "whole": whole,
        "window": None,
        "phases": _phases(data),
        "batch": {
            **batch_numbers(value, requests, samples, inside, span, cell),
            "lock_index": facts.lock_index,
        },
        "client": client,
        "server": server,
        "device": None,
        "arithmetic": kv_numbers(per_token, requests, input_tokens, output, samples, inside, session, cell),
    }
    clean: dict[str, Any] = finite(summary)
    return clean


def unreadable(record: CellRecord, reasons: list[Reason]) -> dict[str, Any]:
    """The entry of a cell whose files cannot be read: what was asked, and why there is nothing else."""
    empty = dict.fromkeys(("whole", "window", "phases", "batch", "client", "server", "device", "arithmetic"))
    return {**_identity(record, reasons), "requests": {"issued": None, "ok": None, "by_outcome": {}}, **empty}


def load_value(load: Mapping[str, Any]) -> float | int | None:
    """The one number a load is known by: what its mode names (batch, concurrency, rate), or `value`."""
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


def _phases(data: ScopeData | None) -> dict[str, Any] | None:
    """Where the two phase rates were read, the share of the tokens they rest on, and how mixed that time was."""
    if data is None:
        return None
    rates = (("prefill", prefill_rate(data)), ("decode", decode_rate(data)))
    return {name: {"source": r.source, "share": r.share, "mixed": r.mixed} for name, r in rates}


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
    }


def _server(samples: Samples, cell: tuple[int, int]) -> tuple[dict[str, Any], str | None]:
    """The server's maxima and counter differences over the cell; and the counter that fell, if one did."""
    server: dict[str, Any] = {}
    for name, where in _SERVER_MAXIMA.items():
        times, values = samples.series(*where)
        inside = values[(times >= cell[0]) & (times <= cell[1])]
        server[name] = _whole(float(inside.max())) if len(inside) else None
    fell = None
    for name, where in _SERVER_DELTAS.items():
        delta, down = counter_delta(*samples.series(*where), *cell)
        server[name] = _whole(delta) if delta is not None else None
        if down and where[0] == "server":
            fell = fell or where[1]
    return server, fell


def counter_delta(times: Ints, values: Floats, start: int, end: int) -> tuple[float | None, bool]:
    """(growth of a counter over [start, end], whether it ever fell there). From the last reading at or before the start
    (else the first) to the first at or after the end (else the last); None when it fell or was read once."""
    if len(times) < 2:
        return None, False
    first = max(int(np.searchsorted(times, start, side="right")) - 1, 0)
    last = min(int(np.searchsorted(times, end, side="left")), len(times) - 1)
    if last <= first:
        return None, False
    part = values[first : last + 1]
    fell = bool((np.diff(part) < 0).any())
    return (None if fell else float(part[-1] - part[0])), fell


def _facts(
    record: CellRecord,
    requests: Requests,
    tokens: TokenChunks,
    output: Ints,
    samples: Samples,
    whole: Mapping[str, Any] | None,
    client: Mapping[str, Any],
    server: Mapping[str, Any],
) -> CellFacts:
    outcomes, counts = np.unique(requests.outcome.astype(str), return_counts=True)
    by_outcome = {str(o): int(n) for o, n in zip(outcomes, counts, strict=True)}
    asked = np.maximum(requests.output_tokens_asked, 0)
    differ = (requests.input_tokens_counted >= 0) & (requests.input_tokens_planned >= 0)
    differ &= requests.input_tokens_counted != requests.input_tokens_planned
    disorder = _disordered(requests)
    # Chunks can be held against requests only where every chunk says how many tokens it carries.
    in_chunks = int(tokens.tokens.sum()) if len(tokens) and (tokens.tokens >= 0).all() else None
    streamed = len(np.unique(tokens.request)) == int((output > 0).sum())
    errors = [
        f"{o}: {e}" if e else o
        for o, e in zip(requests.outcome, requests.error, strict=True)
        if o not in ("ok", "short")
    ]
    read = {name: _both_sides(samples, where, record) for name, where in _SERVER_DELTAS.items()}
    here = (samples.source == "server") & np.isfinite(samples.value)
    facts = CellFacts(
        issued=len(requests),
        ok=by_outcome.get(str(Outcome.OK), 0),
        by_outcome=by_outcome,
        first_error=str(errors[0])[:200] if errors else None,
        output_asked=int(asked[output > 0].sum()),
        output_delivered=int(output.sum()),
        output_delivered_in_chunks=in_chunks if streamed else None,
        input_tokens=int((whole or {}).get("input_tokens") or 0),
        longest_output=int(asked.max()) if len(asked) else 0,
        longest_input=int(requests.input_tokens_planned.max()) if len(requests) else 0,
        prompts_differ=int(differ.sum()),
        disordered=len(disorder),
        disordered_example=next(iter(disorder.values()), ""),
        server_prompt_tokens=server["prompt_tokens"] if read["prompt_tokens"] else None,
        server_generation_tokens=server["generation_tokens"] if read["generation_tokens"] else None,
        server_samples=int(here.sum()),
        lag_ms_p99=client["lag_ms_p99"],
        receive_stamps=client["receive_stamps"],
        withheld=_withheld(whole),
    )
    if differ.any():
        at = int(np.flatnonzero(differ)[0])
        facts.prompts_difference = (
            f"e.g. {requests.input_tokens_planned[at]} sent, {requests.input_tokens_counted[at]} counted"
        )
    tpot = (whole or {}).get("tpot_ms")
    facts.tpot_ms_p50 = tpot["p50"] if tpot else None
    return facts


def _both_sides(samples: Samples, where: tuple[str, str], record: CellRecord) -> bool:
    """Whether a counter was read at or before the cell's start and at or after its end, so that its growth is the cell's."""
    times, _ = samples.series(*where)
    return bool(len(times) and times[0] <= record.started and times[-1] >= record.ended)


def _disordered(requests: Requests) -> dict[str, str]:
    """Requests with a stamp before an earlier event's, with the first such pair in words."""
    found: dict[str, str] = {}
    latest = np.full(len(requests), MISSING, dtype=np.int64)
    name_of = np.full(len(requests), "", dtype=object)
    for name in _IN_ORDER:
        stamps: Ints = getattr(requests, name)
        known = stamps != MISSING
        early = known & (latest != MISSING) & (latest - np.where(known, stamps, latest) > _ORDER_TOLERANCE_NS)
        for at in np.flatnonzero(early):
            text = (
                f"{requests.request_id[at]}: {name} {(latest[at] - stamps[at]) / NS_PER_MS:.1f} ms before {name_of[at]}"
            )
            found.setdefault(str(requests.request_id[at]), text)
        name_of[known & (stamps >= latest)] = name
        latest = np.where(known, np.maximum(latest, stamps), latest)
    return found


def _withheld(whole: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Percentiles of the headline latencies that are not shown although there are values, in words."""
    out = []
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        found = (whole or {}).get(name)
        hidden = [p for p in (found or {}).get("withheld", {}) if p != "intervals"]
        if found and found["n"] and hidden:
            out.append(f"{name} {', '.join(hidden)} (n = {found['n']})")
    return tuple(out)


def _merged(notes: Mapping[str, str], record: CellRecord) -> dict[str, str]:
    """Codes found by metrics and by the runner; of one code the evidence is joined."""
    found = dict(notes)
    for fault in record.faults:
        found[fault.code] = "; ".join(e for e in (found.get(fault.code), fault.evidence) if e)
    return found


def _whole(value: float) -> float | int:
    """Counts and bytes come as floats from the samples; whole ones are shown as what they are."""
    return int(value) if value.is_integer() else value


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
