"""One cell: warm up with the same shape, drive the load, watch the server, and commit what was measured."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import orjson

from backends.base import CompletionRequest
from harness.experiment import BatchLoad, Cell, ConcurrencyLoad, Experiment
from harness.load.plan import LoadPlan, PlannedBody, anti_lock_lengths, build_plan
from harness.load.process import LoadProcess, LoadResult, LoadWorkerDiedError, Progress
from harness.observer import CellProgress, Observer
from harness.session import Session
from results.clock import now_ns
from results.errors import DynoError, EngineError
from results.events import write_table
from results.records import CellRecord, Fault
from results.schema import CHUNKS, REQUESTS, SAMPLES, Outcome
from results.store import RunWriter
from workloads.base import PlannedRequest, Vocabulary, request_seed

# How often the parent looks at its children. The clients' stamps do not depend on it.
_POLL_S = 0.1
# After its last request the worker parses and writes what is left; a long cell may need a while.
_END_S = 600.0
_DEATH_NOTICE_S = 1.0
_WARMUP_OUTPUT = 8


class CellInterruptedError(DynoError):
    """Ctrl-C while a cell ran: what it measured is set aside, and the cell is run anew next time."""

    exit_code = 130


def planned_requests(cell: Cell, vocabulary: Vocabulary) -> list[PlannedRequest]:
    """The requests of a cell: the same for every engine, since the engine is no part of the seed."""
    seed = _seed(cell)
    requests = cell.workload.requests(cell.load.requests, seed, vocabulary)
    if isinstance(cell.load, ConcurrencyLoad):
        outputs = anti_lock_lengths([r.output_len for r in requests], cell.load.concurrency, seed)
        requests = [r.with_output_len(length) for r, length in zip(requests, outputs, strict=True)]
    return requests


def warmup_requests(cell: Cell, vocabulary: Vocabulary) -> list[PlannedRequest]:
    """One request for each that is in flight at once: the workload's input lengths, other prompts, short outputs."""
    n = min(cell.load.in_flight, cell.load.requests)
    requests = cell.workload.requests(n, _seed(cell, "warm-up"), vocabulary)
    return [r.with_output_len(min(r.output_len, _WARMUP_OUTPUT)) for r in requests]


def _seed(cell: Cell, *salt: str) -> int:
    workload, load = cell.workload.model_dump(mode="json"), cell.load.model_dump(mode="json")
    return request_seed(cell.seed, workload, load, cell.block, *salt)


def run_cell(
    cell: Cell, session: Session, experiment: Experiment, store: RunWriter, vocabulary: Vocabulary, observer: Observer
) -> CellRecord:
    """Run and commit one cell. A server or a load worker that dies makes it a cell with that fault, not an error.

    Raises CellInterruptedError on Ctrl-C and EngineError when an attached server cannot be reached any more (both set the
    files aside, so that the cell is run anew), StoreError when the disk does not take it.
    """
    observer.cell_started(cell)
    folder = store.begin_cell(cell.id)
    faults: list[Fault] = []
    warm = warmup_requests(cell, vocabulary)
    warm_load = BatchLoad(batch=len(warm), waves=1)
    warm_dir, load_dir = folder / "warm-up", folder / "load"
    _drive(cell, _plan(cell, session, experiment, warm, warm_load, warm_dir), session, warm_dir, faults, None)
    mark = session.sampler.settle()
    if faults:
        result = nothing_sent(folder)
    else:
        plan = _plan(cell, session, experiment, planned_requests(cell, vocabulary), cell.load, load_dir)
        try:
            result = _drive(cell, plan, session, folder, faults, observer)
            if not result.outcomes.get(Outcome.OK):
                session.check_reachable(experiment.timeouts.connect_s)
        except (CellInterruptedError, EngineError) as error:
            store.set_aside(cell.id, "interrupted" if isinstance(error, CellInterruptedError) else "unreachable")
            raise
    session.sampler.settle()
    for spent in (warm_dir, load_dir):
        shutil.rmtree(spent, ignore_errors=True)  # Plans and bodies can be made again from the seed.
    write_table(folder / "samples.parquet", SAMPLES, session.sampler.since(mark, now_ns()))
    record = CellRecord(
        id=cell.id,
        engine=cell.engine.label,
        backend=session.backend.name,
        model=cell.model,
        session=session.record.id,
        block=cell.block,
        seed=cell.seed,
        workload=cell.workload.model_dump(mode="json"),
        load=cell.load.model_dump(mode="json"),
        started=result.started,
        ended=result.ended,
        client=result.client,
        faults=faults,
    )
    store.commit_cell(record)
    return record


def nothing_sent(folder: Path) -> LoadResult:
    """The event files of a cell whose server was gone before its first request."""
    write_table(folder / "requests.parquet", REQUESTS, {name: [] for name in REQUESTS.names})
    write_table(folder / "chunks.parquet", CHUNKS, {name: [] for name in CHUNKS.names})
    t = now_ns()
    return LoadResult(started=t, ended=t, stopped=True, issued=0, outcomes={})


def _plan(
    cell: Cell,
    session: Session,
    experiment: Experiment,
    requests: Sequence[PlannedRequest],
    load: BatchLoad | ConcurrencyLoad,
    folder: Path,
) -> LoadPlan:
    name, backend = folder.name, session.backend
    bodies = (
        PlannedBody(
            id=f"{cell.id}-{name}-{index}",
            body=orjson.dumps(
                backend.completion_body(
                    CompletionRequest(
                        session.served_name,
                        request.prompt,
                        request.output_len,
                        temperature=cell.temperature,
                        seed=index,
                    )
                )
            ),
            input_tokens=request.input_tokens,
            output_tokens=request.output_len,
        )
        for index, request in enumerate(requests)
    )
    return build_plan(
        load,
        bodies,
        url=session.url,
        folder=folder,
        timeouts=experiment.timeouts,
        api_key_env=backend.api_key_env(),
        ignore_eos=backend.capabilities.ignore_eos,
    )


def _drive(
    cell: Cell,
    plan: LoadPlan,
    session: Session,
    out_dir: Path,
    faults: list[Fault],
    observer: Observer | None,
) -> LoadResult:
    """Run one load to its end, or until the server is gone (then a fault is noted and what was measured is kept)."""
    out_dir.mkdir(parents=True, exist_ok=True)
    with LoadProcess() as load:
        try:
            load.start(plan, out_dir)
            while not load.finished:
                progress = load.poll()
                if progress is not None and observer is not None:
                    observer.cell_progress(cell, _shown(progress, plan, session))
                if not session.server.alive():
                    load.stop()
                    break
                time.sleep(_POLL_S)
            result = load.wait(_END_S)
        except KeyboardInterrupt:
            if load.pid is not None:  # else the interrupt came before there was a worker
                load.stop()
                load.wait(_END_S)
            raise CellInterruptedError("Interrupted.") from None
        except LoadWorkerDiedError as error:
            faults.append(Fault("load_failed", str(error)))
            result = nothing_sent(out_dir)
    if _server_died(session, broken=result.outcomes.keys() - {Outcome.OK}):
        faults.append(Fault("server_died", str(session.died())))
    return result


def _server_died(session: Session, broken: Collection[str]) -> bool:
    """Whether the server is gone. All streams may have broken before the keeper has told of it: then wait a moment."""
    deadline = time.monotonic() + (_DEATH_NOTICE_S if broken else 0.0)
    while session.server.alive():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _shown(progress: Progress, plan: LoadPlan, session: Session) -> CellProgress:
    return CellProgress(
        done=progress.done,
        total=len(plan.requests),
        in_flight=progress.in_flight,
        failed=progress.failed,
        tokens=progress.tokens,
        elapsed_s=progress.elapsed_s,
        server=session.sampler.latest(),
    )
