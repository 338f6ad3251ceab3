"""Synthetic runs of a known schedule (`tests.results.simulation`), written as a real run folder, and cells by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from results.clock import NS_PER_S
from results.events import write_table
from results.records import CellRecord, Fault, SessionRecord
from results.schema import CHUNKS, REQUESTS, SAMPLES, TRUTH_SCHEDULED, TRUTH_STEPS, TRUTH_TOKENS
from results.store import RunStore, RunWriter
from tests.results.simulation import (
    BLOCK_SIZE,
    KV_BYTES_PER_TOKEN,
    MODEL_CONFIG,
    POOL_TOKENS,
    Schedule,
    Simulation,
    chunk_rows,
    request_rows,
    sample_rows,
    simulate,
)


def columns_of(schema: Any, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns of `schema`; what a row lacks is null."""
    return {name: [row.get(name) for row in rows] for name in schema.names}


def write_cell_files(
    folder: Path,
    requests: Sequence[Mapping[str, Any]],
    chunks: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]],
) -> None:
    for name, schema, rows in (
        ("requests", REQUESTS, requests),
        ("chunks", CHUNKS, chunks),
        ("samples", SAMPLES, samples),
    ):
        write_table(folder / f"{name}.parquet", schema, columns_of(schema, rows))


def write_truth(folder: Path, sims: Sequence[Simulation]) -> None:
    steps = [step for sim in sims for step in sim.steps]
    tokens = [token for sim in sims for token in sim.tokens]
    write_table(folder / "steps.parquet", TRUTH_STEPS, columns_of(TRUTH_STEPS, steps))
    write_table(folder / "truth.parquet", TRUTH_TOKENS, columns_of(TRUTH_TOKENS, tokens))
    taken = [row for sim in sims for row in sim.scheduled]
    write_table(folder / "scheduled.parquet", TRUTH_SCHEDULED, columns_of(TRUTH_SCHEDULED, taken))


@dataclass(slots=True)
class CellEdit:
    """What a test may change in a cell before it is written (`edit` of `synthetic_run`)."""

    record: CellRecord
    requests: list[dict[str, Any]]
    chunks: list[dict[str, Any]]
    samples: list[dict[str, Any]]


def synthetic_run(
    tmp_path: Path,
    engines: Sequence[str] = ("ref-a", "ref-b"),
    batches: Sequence[int] = (1, 4),
    input_lens: Sequence[int] = (128,),
    output_len: int = 16,
    *,
    blocks: int = 1,
    mode: str = "batch",
    truth: bool = True,
    schedule: Schedule | None = None,
    edit: Callable[[CellEdit], None] | None = None,
    name: str = "synthetic",
    model: str = "synthetic-llama",
) -> RunStore:
    """A complete, plausible small run at `tmp_path/name`. Each further engine is 1.25 times slower than the one before.

    `edit` is called with every cell before it is written: change rows, add faults. `truth=False` leaves the step log
    out, as of an engine that has none.
    """
    schedule = schedule or Schedule()
    workloads = [_workload(n, output_len) for n in input_lens]
    loads = [_load(mode, value) for value in batches]
    writer = RunWriter.start(
        tmp_path / name, _experiment(model, engines, workloads, loads, blocks), _manifest(model, name, tmp_path)
    )
    with writer:
        clock = 1_000 * NS_PER_S
        for block in range(blocks):
            for position, engine in enumerate(engines):
                pace = schedule.slower(1.25**position)
                session, folder = writer.new_session(engine, block)
                record = _session(session, engine, block, model, clock)
                (folder / "server.log").write_text("ready\n", encoding="utf-8")
                clock += 5 * NS_PER_S
                sims: list[Simulation] = []
                for workload in workloads:
                    for load in loads:
                        cell = _cell_record(engine, session, block, model, workload, load)
                        pairs = _lengths(workload, load, seed=cell.seed)
                        sim = simulate(load, pairs, pace, clock, f"{cell.id}-", sum(len(s.steps) for s in sims))
                        cell.started, cell.ended = sim.started, sim.ended
                        cell.client = {
                            "cpu_s": 1e-5 * len(sim.tokens),
                            "wall_s": (sim.ended - sim.started) / NS_PER_S,
                            "receive_stamps": "kernel",
                        }
                        parts = CellEdit(cell, request_rows(sim), chunk_rows(sim), sample_rows(sim))
                        if edit:
                            edit(parts)
                        write_cell_files(writer.begin_cell(cell.id), parts.requests, parts.chunks, parts.samples)
                        writer.commit_cell(parts.record)
                        sims.append(sim)
                        clock = sim.ended + NS_PER_S
                if truth:
                    write_truth(folder, sims)
                record.timeline["stopped"] = record.ended = clock
                record.exit_code = 0
                writer.write_session(record)
                clock += 2 * NS_PER_S
    return RunStore.open(tmp_path / name)


def fail_requests(outcome: str, count: int, *, error: str = "503 Service Unavailable") -> Callable[[CellEdit], None]:
    """An `edit` that makes the last `count` requests of every cell fail 10 ms after they were sent."""

    def apply(parts: CellEdit) -> None:
        for row in parts.requests[len(parts.requests) - count :]:
            row |= {
                "outcome": outcome,
                "error": error,
                "http_status": 503,
                "first_byte": None,
                "first_token": None,
                "last_token": None,
                "end": row["sent"] + 10_000_000,
                "output_tokens": None,
                "tokens_in_first_chunk": None,
                "input_tokens_counted": None,
                "finish_reason": None,
            }
            parts.chunks = [c for c in parts.chunks if c["request_id"] != row["request_id"]]

    return apply


def add_fault(code: str, evidence: str) -> Callable[[CellEdit], None]:
    """An `edit` that records something the runner saw."""

    def apply(parts: CellEdit) -> None:
        parts.record = replace(parts.record, faults=[*parts.record.faults, Fault(code, evidence)])

    return apply


def _workload(input_len: int, output_len: int) -> dict[str, Any]:
    return {
        "type": "random",
        "input_len": {"dist": "fixed", "tokens": input_len},
        "output_len": {"dist": "fixed", "tokens": output_len},
    }


def _load(mode: str, value: int) -> dict[str, Any]:
    if mode == "batch":
        return {"mode": "batch", "batch": value, "waves": max(3, -(-8 // value))}
    return {"mode": "concurrency", "concurrency": value, "requests": max(16, 4 * value)}


def _lengths(workload: Mapping[str, Any], load: Mapping[str, Any], seed: int) -> list[tuple[int, int]]:
    input_len, output_len = workload["input_len"]["tokens"], workload["output_len"]["tokens"]
    if load["mode"] == "batch":
        return [(input_len, output_len)] * (load["batch"] * load["waves"])
    draw = random.Random(seed)
    first = [(input_len, draw.randint(1, output_len)) for _ in range(load["concurrency"])]
    return (first + [(input_len, output_len)] * load["requests"])[: load["requests"]]


def _cell_record(
    engine: str, session: str, block: int, model: str, workload: dict[str, Any], load: dict[str, Any]
) -> CellRecord:
    value = load["batch"] if load["mode"] == "batch" else load["concurrency"]
    cell_id = (
        f"{''.join(c if c.isalnum() else '_' for c in engine)}-b{block}-i{workload['input_len']['tokens']}-v{value}"
    )
    return CellRecord(
        id=cell_id,
        engine=engine,
        backend="reference",
        model=model,
        session=session,
        block=block,
        seed=value,
        workload=workload,
        load=load,
        started=0,
        ended=0,
    )


def _session(session: str, engine: str, block: int, model: str, clock: int) -> SessionRecord:
    known = {
        "dtype": "bfloat16",
        "kv_dtype": "bfloat16",
        "block_size": BLOCK_SIZE,
        "kv_cache_tokens": POOL_TOKENS,
        "kv_bytes_per_token": KV_BYTES_PER_TOKEN,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 64,
        "max_model_len": 2048,
    }
    settings: dict[str, dict[str, Any]] = {k: {"value": v, "source": "endpoint"} for k, v in known.items()}
    settings["seed"] = {"value": 0, "source": "asked"}
    return SessionRecord(
        id=session,
        engine=engine,
        backend="reference",
        block=block,
        model=model,
        url="http://127.0.0.1:8000",
        argv=["python", "-m", "backends.reference", "/models/synthetic-llama", "--port", "8000"],
        env={"OMP_NUM_THREADS": "2"},
        asked={"block_size": BLOCK_SIZE},
        settings=settings,
        versions={"reference": "0.1.0", "torch": "2.13.0"},
        fingerprint={"engine": engine, "versions": {"reference": "0.1.0"}, "cpu": "Synthetic CPU"},
        timeline={
            "spawned": clock,
            "listening": clock + 1_500_000_000,
            "ready": clock + 3_000_000_000,
            "warm": clock + 4_000_000_000,
        },
    )


def _experiment(
    model: str, engines: Sequence[str], workloads: list[dict[str, Any]], loads: list[dict[str, Any]], blocks: int
) -> str:
    text: str = yaml.safe_dump(
        {
            "schema_version": 1,
            "model": model,
            "tokenizer": None,
            "engines": [
                {"label": e, "backend": "reference", "settings": {"block_size": BLOCK_SIZE}, "options": []}
                for e in engines
            ],
            "workloads": workloads,
            "loads": loads,
            "blocks": blocks,
            "seed": 0,
            "temperature": 0.0,
            "sample_interval_s": 0.25,
        },
        sort_keys=False,
    )
    return text


def _manifest(model: str, name: str, root: Path) -> dict[str, Any]:
    command = ["dyno", "sweep", "--backend", "reference", "--model", model, "--out", f"runs/{name}"]
    return {
        "start": {"monotonic_ns": 999 * NS_PER_S, "wall_ns": 1_767_225_600 * NS_PER_S, "command": command},
        "command": command,
        "model": {"name": model, "folder": str(root / "models" / model), "config": MODEL_CONFIG},
        "host": {"cpu": "Synthetic CPU", "cores": 2, "memory_bytes": 8 * 2**30, "system": "Linux 6.1"},
        "devices": [],
        "packages": {"llm-dyno": "0.1.0", "torch": "2.13.0", "numpy": "2.4.0"},
        "git": {"commit": "0123456789abcdef", "dirty": False},
    }


def request_row(
    request_id: str, sent_s: float, first_s: float | None, last_s: float | None, tokens: int | None, **changes: Any
) -> dict[str, Any]:
    """One request by hand, in seconds; answered in full unless `changes` says otherwise."""
    stamps = {"sent": _ns(sent_s), "first_token": _ns(first_s), "last_token": _ns(last_s)}
    return {
        "request_id": request_id,
        "slot": 0,
        "worker": 0,
        "intended": stamps["sent"],
        "queued": stamps["sent"],
        **stamps,
        "first_byte": stamps["first_token"],
        "end": stamps["last_token"] if last_s is not None else stamps["sent"],
        "outcome": "ok",
        "http_status": 200,
        "input_tokens_planned": 10,
        "input_tokens_counted": 10,
        "output_tokens_asked": tokens,
        "output_tokens": tokens,
        "tokens_in_first_chunk": 1 if tokens else None,
        "count_source": "ids",
        "finish_reason": "length",
        **changes,
    }


def text_chunk(request_id: str, t_s: float, tokens: int | None = 1) -> dict[str, Any]:
    return {"request_id": request_id, "t": _ns(t_s), "lag": 1_000, "kind": "text", "tokens": tokens, "bytes": 10}


def plain_record(load: Mapping[str, Any] | None = None, ended_s: float = 1_000.0, **changes: Any) -> CellRecord:
    """The record of a cell made by hand; it starts at 0."""
    return CellRecord(
        id="cell",
        engine="engine",
        backend="reference",
        model="synthetic-llama",
        session="session",
        block=0,
        seed=0,
        load=dict(load or {"mode": "concurrency", "concurrency": 1, "requests": 1}),
        **{
            "workload": _workload(10, 10),
            "started": 0,
            "ended": _ns(ended_s),
            "client": {"receive_stamps": "kernel"},
            **changes,
        },
    )


def _ns(seconds: float | None) -> Any:
    return None if seconds is None else round(seconds * NS_PER_S)
