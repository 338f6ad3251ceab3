"""A report of 100 cells and 10 million chunks: how long it takes and how much memory.

    python benchmarks/report.py [--cells 100] [--chunks 10000000] [--keep DIR] [--json]

The run is made up: two engines, one of which logs its steps, five loads, two lengths and five blocks, each request with its
stamps, each token a chunk, gauges four times and a device ten times a second. It is written through the store's own writers;
`dyno report` then runs in processes of its own, whose wall time, CPU time and peak resident memory are told. The aim is 20 s
and 1 GiB on two cores, and a page under 6 MiB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import yaml

from results.clock import NS_PER_S
from results.events import write_table
from results.records import CellRecord, SessionRecord
from results.schema import CHUNKS, REQUESTS, SAMPLES, TRUTH_STEPS
from results.store import RunWriter

ENGINES, LOADS, LENGTHS = ("logs-steps", "tells-gauges"), (1, 8, 32, 128, 512), (128, 1024)
OUTPUT, STEP_NS, SEQUENCE_NS, PREFILL_NS = 128, 8_000_000, 60_000, 20_000
MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
BOARD = "GPU-made-up"


@dataclass(frozen=True, slots=True)
class Found:
    """What one report took. `peak_mib` is the most resident memory of its processes together, read ten times a second; pages that
    they share count for each."""

    cells: int
    chunks: int
    seconds: float
    cpu_s: float
    peak_mib: float
    page_mib: float


@dataclass(frozen=True, slots=True)
class Made:
    """A made-up cell's columns."""

    requests: dict[str, Any]
    chunks: dict[str, Any]
    samples: dict[str, Any]
    steps: dict[str, Any]
    start: int
    end: int


def make_run(folder: Path, cells: int, chunks: int) -> int:
    """Write the run; returns how many chunks it really has."""
    blocks = max(1, cells // (len(ENGINES) * len(LOADS) * len(LENGTHS)))
    each = max(1, chunks // (blocks * len(ENGINES) * len(LOADS) * len(LENGTHS)) // OUTPUT)
    workloads = [_workload(length) for length in LENGTHS]
    loads = [{"mode": "concurrency", "concurrency": n, "requests": max(each, n)} for n in LOADS]
    written, clock = 0, 1_000 * NS_PER_S
    with RunWriter.start(folder, _experiment(workloads, loads, blocks), _manifest()) as writer:
        for block in range(blocks):
            for pace, engine in zip((1.0, 1.2), ENGINES, strict=True):
                session, where = writer.new_session(engine, block)
                record, steps = _session(session, engine, block, clock), []
                for workload in workloads:
                    for load in loads:
                        random = np.random.default_rng((block, len(steps), round(10 * pace)))
                        made = _cell(f"{session}-{len(steps)}", load, workload, pace, clock, random)
                        cell = _record(session, engine, block, workload, load, made)
                        here = writer.begin_cell(cell.id)
                        write_table(here / "requests.parquet", REQUESTS, made.requests)
                        write_table(here / "chunks.parquet", CHUNKS, made.chunks)
                        write_table(here / "samples.parquet", SAMPLES, made.samples)
                        writer.commit_cell(cell)
                        steps.append(made.steps)
                        written, clock = written + len(made.chunks["t"]), made.end + NS_PER_S
                if engine == ENGINES[0]:
                    columns = {name: np.concatenate([s[name] for s in steps]) for name in TRUTH_STEPS.names}
                    columns["step"] = np.arange(len(columns["step"]))
                    write_table(where / "steps.parquet", TRUTH_STEPS, columns)
                record.ended = clock
                writer.write_session(record)
                clock += NS_PER_S
    return written


def _cell(name: str, load: Any, workload: Any, pace: float, start: int, random: np.random.Generator) -> Made:
    """A closed loop: every slot sends its next request when the one before is answered."""
    slots, n, given = load["concurrency"], load["requests"], workload["input_len"]["tokens"]
    step = pace * (STEP_NS + SEQUENCE_NS * slots)
    slot, turn = np.arange(n) % slots, np.arange(n) // slots
    ttft = pace * PREFILL_NS * given * random.gamma(4.0, 0.25, n) + step
    gaps = step * random.gamma(25.0, 0.04, (n, OUTPUT - 1))
    # A slot's requests one after the other.
    length = ttft + gaps.sum(axis=1)
    sent = np.zeros(n)
    for at in range(1, int(turn.max()) + 1):
        here = np.flatnonzero(turn == at)
        sent[here] = sent[here - slots] + length[here - slots] + 100_000
    sent = (start + sent + random.uniform(0, step, slots)[slot]).astype(np.int64)
    first = sent + ttft.astype(np.int64)
    stamps = np.concatenate([first[:, None], first[:, None] + np.cumsum(gaps, axis=1).astype(np.int64)], axis=1)
    ids = pa.array([f"{name}-{i}" for i in range(n)])
    end = int(stamps.max())
    return Made(
        _requests(ids, slot, sent, stamps, given),
        _chunks(ids, stamps, random),
        _samples(start, end, slots, given, random),
        _steps(start, end, step, slots, given),
        start,
        end,
    )


def _requests(ids: pa.Array, slot: Any, sent: Any, stamps: Any, given: int) -> dict[str, Any]:
    n = len(ids)

    def all_alike(value: Any) -> Any:
        return [value] * n

    told = {
        "request_id": ids,
        "slot": slot,
        "worker": np.zeros(n, dtype=np.int64),
        "intended": sent,
        "queued": sent,
        "sent": sent,
        "first_byte": stamps[:, 0],
        "first_token": stamps[:, 0],
        "last_token": stamps[:, -1],
        "end": stamps[:, -1] + 50_000,
        "outcome": all_alike("ok"),
        "http_status": all_alike(200),
        "input_tokens_planned": all_alike(given),
        "input_tokens_counted": all_alike(given),
        "output_tokens_asked": all_alike(OUTPUT),
        "output_tokens": all_alike(OUTPUT),
        "tokens_in_first_chunk": all_alike(1),
        "count_source": all_alike("ids"),
        "finish_reason": all_alike("length"),
    }
    return {name: told.get(name, all_alike(None)) for name in REQUESTS.names}


def _chunks(ids: pa.Array, stamps: Any, random: np.random.Generator) -> dict[str, Any]:
    """Each request's chunks together, in time order, as the load worker writes them."""
    rows = stamps.size
    which = pa.array(np.repeat(np.arange(len(ids)), OUTPUT))
    return {
        "request_id": pa.DictionaryArray.from_arrays(which, ids).cast("string"),
        "t": stamps.ravel(),
        "lag": (random.exponential(20_000, rows)).astype(np.int64),
        "kind": pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int32)), ["text"]).cast("string"),
        "tokens": np.ones(rows, dtype=np.int32),
        "bytes": np.full(rows, 180, dtype=np.int32),
    }


def _samples(start: int, end: int, slots: int, given: int, random: np.random.Generator) -> dict[str, Any]:
    """Gauges four times a second, and a device ten times a second."""
    used = slots * (given + OUTPUT / 2) * 131_072
    server = {"running": slots, "kv_usage": min(used / 60e9, 1.0), "kv_pool_bytes": 60e9, "weight_bytes": 16e9}
    device = {
        "gpu.dram_active": 0.6,
        "gpu.sm_active": 0.9,
        "gpu.busy": 0.95,
        "gpu.sm_clock_mhz": 1900.0,
        "gpu.memory_clock_mhz": 3201.0,
        "gpu.power_instant_w": 520.0,
        "gpu.memory_used_bytes": 120e9,
    }
    rows: list[tuple[str, str, str | None, Any, Any]] = []
    for source, metrics, step, where in (("server", server, 0.25, None), ("nvml", device, 0.1, BOARD)):
        t = np.arange(start, end, int(step * NS_PER_S))
        rows += [
            (source, metric, where, t, value * random.normal(1.0, 0.02, len(t))) for metric, value in metrics.items()
        ]
    sizes = [len(t) for *_, t, _ in rows]
    t = np.concatenate([t for *_, t, _ in rows])

    def spread(place: int) -> list[Any]:
        return [row[place] for row, size in zip(rows, sizes, strict=True) for _ in range(size)]

    return {
        "source": spread(0),
        "metric": spread(1),
        "device": spread(2),
        "t0": t,
        "t1": t,
        "value": np.concatenate([values for *_, values in rows]),
        "reason": [None] * len(t),
    }


def _steps(start: int, end: int, step: float, slots: int, given: int) -> dict[str, Any]:
    begin = np.arange(start, end, max(int(step), 1))
    n = len(begin)
    blocks = np.full(n, -(-slots * (given + OUTPUT // 2) // 16))
    told = {
        "start": begin,
        "end": begin + int(0.97 * step),
        "decodes": np.full(n, slots),
        "running": np.full(n, slots),
        "context_tokens": np.full(n, slots * (given + OUTPUT // 2)),
        "blocks_allocated": blocks,
        "blocks_reserved": blocks,
        "blocks_total": np.full(n, 60_000),
        "tokens_held": np.full(n, slots * (given + OUTPUT // 2)),
    }
    return {name: told.get(name, np.zeros(n, dtype=np.int64)) for name in TRUTH_STEPS.names}


def _workload(length: int) -> dict[str, Any]:
    fixed = {"input_len": length, "output_len": OUTPUT}
    return {"type": "random"} | {name: {"dist": "fixed", "tokens": tokens} for name, tokens in fixed.items()}


def _record(session: str, engine: str, block: int, workload: Any, load: Any, made: Made) -> CellRecord:
    tokens = len(made.chunks["t"])
    client = {"cpu_s": 15e-6 * tokens, "wall_s": (made.end - made.start) / NS_PER_S, "receive_stamps": "kernel"}
    id_ = f"{engine}-b{block}-i{workload['input_len']['tokens']}-c{load['concurrency']}"
    return CellRecord(
        *(id_, engine, "reference", "made-up-8b", session, block, 0, workload, load),
        *(made.start, made.end + NS_PER_S // 2, client),
    )


def _session(session: str, engine: str, block: int, clock: int) -> SessionRecord:
    told = {"dtype": "bfloat16", "kv_dtype": "bfloat16", "block_size": 16, "kv_bytes_per_token": 131_072}
    board = {"uuid": BOARD, "name": "NVIDIA H200", "memory_total_bytes": 141 << 30, "memory_bus_bits": 6144}
    return SessionRecord(
        *(session, engine, "reference", block, "made-up-8b", "http://127.0.0.1:8000"),
        argv=["python", "-m", "backends.reference", "/models/made-up-8b"],
        settings={name: {"value": value, "source": "endpoint"} for name, value in told.items()},
        timeline={"spawn": clock, "ready": clock + NS_PER_S // 2},
        telemetry={"source": "nvml", "devices": [board], "baseline_bytes": {BOARD: 0}},
    )


def _experiment(workloads: list[Any], loads: list[Any], blocks: int) -> str:
    engines = [{"label": label, "backend": "reference", "settings": {}, "options": []} for label in ENGINES]
    asked = {"schema_version": 1, "model": "made-up-8b", "engines": engines, "workloads": workloads, "loads": loads}
    text: str = yaml.safe_dump({**asked, "blocks": blocks, "seed": 0}, sort_keys=False)
    return text


def _manifest() -> dict[str, Any]:
    rate = {"best": 3.0e12, "median": 2.9e12, "n": 5}
    return {
        "start": {
            "monotonic_ns": 0,
            "wall_ns": 1_767_225_600 * NS_PER_S,
            "command": ["python", "benchmarks/report.py"],
        },
        "model": {"name": "made-up-8b", "config": MODEL},
        "host": {"cpu": "made up", "cores_usable": 2},
        "ceilings": {"made up": rate},
    }


def measure(folder: Path, cells: int, chunks: int) -> Found:
    """Run `dyno report` on it. Raises CalledProcessError where that fails."""
    command = [sys.executable, "-m", "harness.cli", "report", str(folder)]
    began = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    while child.poll() is None:
        peak = max(peak, _resident(child.pid))
        time.sleep(0.1)
    seconds = time.monotonic() - began
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    page = (folder / "report.html").stat().st_size / 2**20
    return Found(cells, chunks, seconds, cpu, peak / 2**20, page)


def _resident(pid: int) -> int:
    """Bytes of a process and all below it; those that end meanwhile count nothing."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += int(process.memory_info().rss)
    return total


def _folders(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "run"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--chunks", type=int, default=10_000_000)
    parser.add_argument("--keep", type=Path, help="make the run here and leave it; one that is there is used")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    for folder in _folders(asked.keep):
        chunks = asked.chunks
        if not (folder / "manifest.json").is_file():
            print("making the run ...", file=sys.stderr)
            chunks = make_run(folder, asked.cells, asked.chunks)
        found = measure(folder, len(list((folder / "cells").iterdir())), chunks)
        if asked.json:
            print(json.dumps(asdict(found)))
            continue
        print(
            f"{found.cells} cells, {found.chunks:,} chunks: {found.seconds:.1f} s ({found.cpu_s:.1f} s of CPU), peak "
            f"{found.peak_mib:.0f} MiB, page {found.page_mib:.2f} MiB (aims: 20 s, 1,024 MiB, 6 MiB)"
        )


if __name__ == "__main__":
    main()
