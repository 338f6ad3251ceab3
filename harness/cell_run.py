"""One cell: warm up with the same shape, drive the load, watch the server, and commit what was measured."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from harness.calibration.store import cell_ceiling
from harness.cell_plan import make_plan, planned_requests, warmup_requests
from harness.experiment import Cell, Experiment
from harness.load.places import PLACES
from harness.load.plan import LoadPlan
from harness.load.process import LoadResult, LoadWorkerDiedError, Progress
from harness.load.workers import LoadWorkers
from harness.load_workers import ALONE, Workers
from harness.loads import BatchLoad
from harness.observer import CellProgress, Observer
from harness.session import Session
from harness.telemetry.process import Mark
from harness.warm_up import WarmUp
from results.clock import now_ns
from results.errors import DynoError, EngineError
from results.events import write_table
from results.files import to_json, write_atomic
from results.records import CellRecord, Fault
from results.schema import CHUNKS, REQUESTS, SAMPLES, Outcome
from results.store import RunWriter
from workloads.base import Vocabulary
from workloads.from_file import file_words, prompts_repeated

# How often the parent looks at its children. The clients' stamps do not depend on it.
_POLL_S = 0.1
# After its last request the worker parses and writes what is left; a long cell may need a while.
_END_S = 600.0


class CellInterruptedError(DynoError):
    """Ctrl-C while a cell ran: what it measured is set aside, and the cell is run anew next time."""

    exit_code = 130

    def __init__(self, message: str, result: LoadResult | None = None) -> None:
        super().__init__(message)
        self.result = result


# Around a load: enters before its first request, tells of what it did to the cell.
Watch = AbstractContextManager[Sequence[Fault]]
_UNWATCHED: Watch = nullcontext(())


def run_cell(
    cell: Cell,
    session: Session,
    experiment: Experiment,
    store: RunWriter,
    vocabulary: Vocabulary,
    observer: Observer,
    watch: Watch = _UNWATCHED,
    workers: Workers = ALONE,
) -> CellRecord:
    """Run and commit one cell, its load shared by `workers`. A server or a load worker that dies makes it a cell with that
    fault, not an error.

    Raises CellInterruptedError on Ctrl-C and EngineError when an attached server cannot be reached any more (both set the
    files aside, so that the cell is run anew), StoreError when the disk does not take it.
    """
    observer.cell_started(cell)
    folder = store.begin_cell(cell.id)
    faults: list[Fault] = []
    warm = warmup_requests(cell, vocabulary)
    warm_load = BatchLoad(batch=len(warm), waves=1)
    warm_dir, load_dir = folder / "warm-up", folder / "load"
    warm_plan = make_plan(cell, session, experiment, vocabulary, warm, warm_load, warm_dir)
    warmed = _drive(cell, warm_plan, session, warm_dir, faults, None)
    warm_up = WarmUp.of(warmed, warm_dir, [fault.code for fault in faults])
    mark = session.sampler.settle()
    session.step_log.begin()
    marks: Counter[str] = Counter()
    if faults:
        result = nothing_sent(folder)
    else:
        requests = planned_requests(cell, vocabulary)
        plan = make_plan(cell, session, experiment, vocabulary, requests, cell.load, load_dir, marks)
        try:
            with watch as told:
                result = _drive(cell, plan, session, folder, faults, observer, workers)
            result.client.update(workers=workers.count, workers_why=workers.why or None)
            result.client.update(prompts_repeated=prompts_repeated(marks))
            faults += told
            if not result.outcomes.get(Outcome.OK):
                session.check_reachable(experiment.timeouts.connect_s)
        except CellInterruptedError as error:
            _keep_interrupted(cell, session, store, mark, error, warm_up)
            raise
        except EngineError:
            store.set_aside(cell.id, "unreachable")
            raise
    session.sampler.settle()
    for spent in (warm_dir, load_dir):
        shutil.rmtree(spent, ignore_errors=True)  # Plans and bodies can be made again from the seed.
    write_table(folder / "samples.parquet", SAMPLES, session.sampler.since(mark, now_ns()))
    faults += session.step_log.keep(folder)
    faults += [Fault("workload_not_as_file", words) for words in [file_words(cell.workload, marks)] if words]
    record = _record(cell, session, result, faults, warm_up)
    store.commit_cell(record)
    return record


def _record(cell: Cell, session: Session, result: LoadResult, faults: list[Fault], warm_up: WarmUp) -> CellRecord:
    return CellRecord(
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
        client={
            "ceiling": cell_ceiling(),
            **result.client,
            **warm_up.client_facts(result),
            "endpoint": cell.endpoint,
            "stream": cell.stream,
        },
        faults=faults,
    )


def _keep_interrupted(
    cell: Cell, session: Session, store: RunWriter, mark: Mark, error: CellInterruptedError, warm_up: WarmUp
) -> None:
    """What an interrupted cell measured, whole and marked as such, out of the way of the next try."""
    kept = store.set_aside(cell.id, "interrupted")
    for spent in ("warm-up", "load"):
        shutil.rmtree(kept / spent, ignore_errors=True)
    if error.result is None:
        return
    write_table(kept / "samples.parquet", SAMPLES, session.sampler.since(mark, now_ns()))
    issued, ok = error.result.issued, error.result.outcomes.get(Outcome.OK, 0)
    fault = Fault("interrupted", f"{issued} requests were sent, {ok} of them answered in full before the interrupt")
    write_atomic(kept / "cell.json", to_json(_record(cell, session, error.result, [fault], warm_up).to_dict()))


def nothing_sent(folder: Path) -> LoadResult:
    """The event files of a cell whose server was gone before its first request."""
    write_table(folder / "requests.parquet", REQUESTS, {name: [] for name in REQUESTS.names})
    write_table(folder / "chunks.parquet", CHUNKS, {name: [] for name in CHUNKS.names})
    t = now_ns()
    return LoadResult(started=t, ended=t, stopped=True, issued=0, outcomes={})


def _drive(
    cell: Cell,
    plan: LoadPlan,
    session: Session,
    out_dir: Path,
    faults: list[Fault],
    observer: Observer | None,
    workers: Workers = ALONE,
) -> LoadResult:
    """Run one load to its end, or until the server is gone or ails (then a fault is noted, and what was measured is kept)."""
    out_dir.mkdir(parents=True, exist_ok=True)
    with LoadWorkers(workers.count, PLACES[workers.place]) as load:
        try:
            load.start(plan, out_dir)
            while not load.finished:
                progress = load.poll()
                if progress is not None and observer is not None:
                    observer.cell_progress(cell, _shown(progress, plan, session))
                if not session.healthy(progress):
                    load.stop()
                    break
                time.sleep(_POLL_S)
            result = load.wait(_END_S)
        except KeyboardInterrupt:
            kept = None
            if load.pid is not None:  # else the interrupt came before there was a worker
                load.stop()
                kept = load.wait(_END_S)
            raise CellInterruptedError("Interrupted.", kept) from None
        except LoadWorkerDiedError as error:
            faults.append(Fault("load_failed", str(error)))
            result = nothing_sent(out_dir)
        else:
            faults += [Fault("load_failed", words) for words in load.faults]
    broken = {outcome for outcome, n in result.outcomes.items() if n and outcome != Outcome.OK}
    faults += session.faults(broken)
    return result


def _shown(progress: Progress, plan: LoadPlan, session: Session) -> CellProgress:
    return CellProgress(
        done=progress.done,
        total=len(plan.requests) if plan.duration_ns is None else 0,
        in_flight=progress.in_flight,
        failed=progress.failed,
        tokens=progress.tokens,
        elapsed_s=progress.elapsed_s,
        server=session.sampler.latest(),
        devices=session.sampler.latest_of_devices(),
    )
