"""Cells of a made-up machine whose step times are known: simulated by the twin's own parts, kept as a real run keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from backends.base import EngineSettings
from backends.http_probe import ServerURL
from harness.cell_plan import planned_requests
from harness.experiment import Cell, EngineSpec, Experiment
from harness.load.build import mode_of
from harness.load.plan import LoadPlan
from harness.loads import Load
from harness.twin.delays import Delays, Line
from harness.twin.observed import Observed
from harness.twin.settings import scheduler_settings
from harness.twin.simulate import START, Simulated, plan_of, simulate
from harness.twin.step_model import StepModel
from results.clock import NS_PER_S
from results.events import Requests, write_table
from results.logged_steps import LoggedSteps
from results.records import CellRecord, SessionRecord
from results.schema import CHUNKS, REQUESTS, SAMPLES, TRUTH_STEPS, TRUTH_TOKENS
from results.step_log import write_logged
from results.store import RunWriter
from results.truth import Steps, Tokens
from workloads.base import Vocabulary
from workloads.lengths import FixedLength, UniformLength
from workloads.random import RandomWorkload

VOCABULARY = Vocabulary(512)
RESOLVED: Mapping[str, Any] = {
    "max_model_len": 2048,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "block_size": 16,
    "kv_cache_tokens": 65536,
    "admission": "on-demand",
    "batching": "continuous",
    "kv_layout": "paged",
    "kv_cache": True,
    "chunked_prefill": True,
    "prefix_caching": False,
    "threads": 2,
    "kv_bytes_per_token": 512,
}
# 10 ms a step, flat to 8 tokens, 0.4 ms for each one more, 0.1 ms a decode, 1 us a token of context.
TRUTH = StepModel((8.0, 1e9), (0.01, 0.0, 0.0004, 0.0001, 0.0005, 1e-6, 0.0), (0.9, 1.0, 1.1), (0.95, 1.0, 1.05), 1000)
DELAYS = Delays(Line(0.0001), Line(0.001, 0.0001), Line(0.0002), Line(0.0003, 1e-5))
LENGTHS = UniformLength(low=32, high=96)
# Cells of a session lie so far apart.
LONGEST = 1000 * NS_PER_S


def cell_of(load: Load, inputs: Any = LENGTHS, output: int = 24, **settings: Any) -> Cell:
    engine = EngineSpec(label="ref", backend="reference", settings=EngineSettings(**settings))
    workload = RandomWorkload(input_len=inputs, output_len=FixedLength(tokens=output))
    return Cell(
        engine=engine, model="m", tokenizer=None, workload=workload, load=load, block=0, seed=1, temperature=0.0
    )  # fmt: skip


def real(cell: Cell, seed: int = 0, pace: float = 1.0) -> Simulated:
    """What a machine whose steps take TRUTH would do, in a session where everything takes `pace` times as long."""
    requests = list(planned_requests(cell, VOCABULARY))
    plan = LoadPlan(ServerURL("http", "h", 0), mode_of(cell.load, len(requests)), plan_of(requests), "")
    settings = scheduler_settings("reference", RESOLVED, cell.engine.settings.asked())
    return simulate(plan, requests, settings, TRUTH.at(pace), DELAYS.at(pace), seed)


def observed(cell: Cell, seed: int = 0, session: str = "s", pace: float = 1.0) -> Observed:
    return _observed(cell, real(cell, seed, pace), session)


def _observed(cell: Cell, made: Simulated, session: str, start: int = START) -> Observed:
    steps = Steps(*np.array(made.steps, dtype=np.int64).T)
    by_end = {int(end): int(step) for step, end in zip(steps.step, steps.end, strict=True)}
    rows = []
    for number, chunk in enumerate(made.chunks):
        end = max(e for e in by_end if e <= chunk["t"])
        rows.append((number, by_end[end], end, chunk["t"]))
    columns = np.array(rows, dtype=np.int64).T
    tokens = Tokens(np.array([c["request_id"] for c in made.chunks], dtype=object), *columns)
    record = CellRecord(
        cell.id, cell.engine.label, "reference", "m", session, cell.block, 1,
        cell.workload.model_dump(mode="json"), cell.load.model_dump(mode="json"), start, made.ended,
    )  # fmt: skip
    asked = cell.engine.settings.asked()
    return Observed(record, asked, {**RESOLVED, **asked}, Requests.of(made.requests), steps, tokens)


def write_run(
    folder: Path, experiment: Experiment, cells: Sequence[Cell], truth: bool = True, paces: Sequence[float] = (1.0,)
) -> None:
    """The cells as a sweep of that experiment would leave them, a session for each engine and block, the sessions at `paces` in
    turn; without `truth` as one of engines that only log what each step held and when it ended."""
    sessions: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        sessions.setdefault((cell.engine.label, cell.block), []).append(cell)
    with RunWriter.start(folder, experiment.to_yaml(), {"start": {"command": ["test"]}}) as store:
        for number, ((label, block), own) in enumerate(sessions.items()):
            _write_session(store, label, block, own, truth, paces[number % len(paces)])


def _write_session(store: RunWriter, label: str, block: int, cells: Sequence[Cell], truth: bool, pace: float) -> None:
    session_id, session = store.new_session(label, block)
    all_seen = []
    for number, cell in enumerate(cells):
        made = _later(real(cell, seed=number, pace=pace), number * LONGEST)
        seen = _observed(cell, made, session_id, START + number * LONGEST)
        all_seen.append(seen)
        place = store.begin_cell(cell.id)
        requests = {n: [row.get(n) for row in made.requests] for n in REQUESTS.names}
        _write(place / "requests.parquet", REQUESTS, requests)
        _write(place / "chunks.parquet", CHUNKS, {n: [row.get(n) for row in made.chunks] for n in CHUNKS.names})
        _write(place / "samples.parquet", SAMPLES, {n: [] for n in SAMPLES.names})
        if not truth:
            write_logged(place, _told(seen.steps), 0)
        store.commit_cell(seen.record)
    settings = {name: {"value": value, "source": "endpoint"} for name, value in all_seen[0].settings.items()}
    asked = dict(all_seen[0].asked)
    store.write_session(SessionRecord(session_id, label, "reference", block, "m", "", asked=asked, settings=settings))
    if truth:
        _write_truth(session, all_seen)


def _later(made: Simulated, by: int) -> Simulated:
    """The same cell, so many ns later."""
    stamps = ("intended", "queued", "sent", "first_byte", "first_token", "last_token", "end")
    return Simulated(
        [{**row, **{name: row[name] + by for name in stamps if name in row}} for row in made.requests],
        [{**row, "t": row["t"] + by} for row in made.chunks],
        [(step, start + by, end + by, *held) for step, start, end, *held in made.steps],
        made.ended + by,
        made.preemptions,
    )


def _write_truth(session: Path, cells: Sequence[Observed]) -> None:
    zeros = np.zeros(sum(len(seen.steps) for seen in cells))

    def column(name: str, of: str) -> Any:
        parts = [getattr(getattr(seen, of), name, None) for seen in cells]
        return zeros if parts[0] is None else np.concatenate(parts)

    # Steps are numbered through a session.
    steps = {name: column(name, "steps") for name in TRUTH_STEPS.names} | {"step": np.arange(len(zeros))}
    _write(session / "steps.parquet", TRUTH_STEPS, steps)
    _write(session / "truth.parquet", TRUTH_TOKENS, {name: column(name, "tokens") for name in TRUTH_TOKENS.names})


def _told(steps: Steps) -> LoggedSteps:
    ends = steps.end.tolist()
    nothing: list[int | None] = [None] * len(ends)
    counts = (steps.prefills.tolist(), steps.prefill_tokens.tolist(), steps.decodes.tolist())
    return LoggedSteps(steps.step.tolist(), [None, *ends[:-1]], ends, nothing, *counts, nothing)


def _write(path: Path, schema: pa.Schema, columns: Mapping[str, Any]) -> None:
    arrays = {n: pa.array(values).cast(schema.field(n).type) for n, values in columns.items()}
    write_table(path, schema, arrays)
