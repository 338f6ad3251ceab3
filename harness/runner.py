"""The runner: takes cells from the planner, opens sessions for them, and leaves a run that can always be completed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from backends.base import Resolved, Source, get_backend
from harness.cell_plan import check_enough
from harness.cell_run import CellInterruptedError, run_cell
from harness.experiment import Cell, Experiment
from harness.launch import fetch_documents
from harness.load_workers import WorkerChoice
from harness.models import ModelRef
from harness.observer import Observer
from harness.planner import LeavesOut, Planner
from harness.session import Session, failure_record
from harness.session_checks import refuse_too_long
from harness.session_open import open_session
from results.cell_summary import cell_summary
from results.clock import ClockPair
from results.errors import EXIT_BAD_ANSWER, EXIT_INTERRUPTED, EXIT_OK, DynoError, EngineError, UsageError
from results.records import Fault
from results.rules_engine import OUT_OF_MEMORY
from results.store import RunWriter
from results.summary import build_summary
from workloads.base import Vocabulary

# A server that fails in cell after cell is not worth restarting for ever.
_MAX_DEATHS = 2


@dataclass(slots=True)
class RunOutcome:
    """How a sweep ended: engines that could not be measured to the end (label -> why), the error that ended the run early,
    whether Ctrl-C did, and the summary of what there is."""

    failed_engines: dict[str, DynoError] = field(default_factory=dict)
    error: DynoError | None = None
    interrupted: bool = False
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return EXIT_INTERRUPTED
        failures = [*self.failed_engines.values(), *([self.error] if self.error else [])]
        if failures:
            return max(error.exit_code for error in failures)
        invalid = any(cell["verdict"] == "INVALID" for cell in self.summary.get("cells", []))
        return EXIT_BAD_ANSWER if invalid else EXIT_OK


def check_asked(experiment: Experiment, config: dict[str, Any]) -> None:
    """Refuse what can be seen to fail from what was asked alone: unknown backends, settings that cannot be honoured,
    requests longer than the model. Raises UsageError."""
    own = config.get("max_position_embeddings")
    if not isinstance(own, int) or isinstance(own, bool) or own < 1:
        own = None  # what a config says wrongly of this the engine will say
    for workload in experiment.workloads:
        for load in experiment.loads:
            # A schedule is as long as its trace.
            check_enough(workload, None if load.mode == "schedule" else load.expected_requests)
    for engine in experiment.engines:
        backend = get_backend(engine.backend)
        backend.refuse_unsupported(engine.settings)
        asked = engine.settings.max_model_len
        limit = asked if asked is not None else own
        refuse_too_long(experiment, engine.label, None if limit is None else Resolved(limit, Source.ASKED))


def check_attached(experiment: Experiment) -> None:
    """Refuse what the servers that are there already would refuse. Raises UsageError, EngineError."""
    for engine in experiment.engines:
        backend = get_backend(engine.backend)
        if engine.url is not None:
            backend.check_attached(engine.url, experiment.timeouts.connect_s)
            backend.served_name(experiment.model, fetch_documents(backend, engine.url))


class Runner:
    """Runs a planner's cells into a store. One `run` per instance."""

    def __init__(
        self,
        experiment: Experiment,
        planner: Planner,
        store: RunWriter,
        model: ModelRef | None,
        vocabulary: Vocabulary,
        observer: Observer,
    ) -> None:
        self._experiment, self._planner, self._store = experiment, planner, store
        self._model, self._vocabulary, self._observer = model, vocabulary, observer
        # Before a session holds this process to the client's cores.
        self._workers = WorkerChoice(experiment)
        self._session: Session | None = None
        self._deaths: dict[str, int] = {}
        self._told = 0  # skipped cells that the observer knows of

    def run(self) -> RunOutcome:
        """Measure every cell that is not committed yet. Whatever happens, no server is left and the summary is written."""
        outcome = RunOutcome()
        results = {cell["id"]: cell for cell in build_summary(self._store)["cells"]}
        planned = self._planner.planned()
        self._observer.run_started(planned, {c.id for c in planned if c.id in results})
        try:
            with self._kept(outcome):
                while (cell := self._next_cell(results)) is not None:
                    results[cell.id] = self._result(cell, outcome)
        finally:
            with self._kept(outcome):  # a server may take a while to stop, and Ctrl-C may come then
                self._close_session(outcome)
            self._observer.run_ended()
        try:
            self._store.update_manifest(end=asdict(ClockPair.read()))
            outcome.summary = build_summary(self._store)
            self._store.write_summary(outcome.summary)
        except DynoError as error:
            outcome.error = outcome.error or error
        return outcome

    @contextmanager
    def _kept(self, outcome: RunOutcome) -> Iterator[None]:
        """What ends the run early is told in its outcome."""
        try:
            yield
        except (KeyboardInterrupt, CellInterruptedError):
            if not outcome.interrupted:
                outcome.interrupted = True
                self._observer.run_interrupted()
        except DynoError as error:
            outcome.error = outcome.error or error

    def _next_cell(self, results: Mapping[str, Mapping[str, Any]]) -> Cell | None:
        """What the planner wants next; what it leaves out is kept in the run and told."""
        cell = self._planner.next_cell(results)
        if isinstance(self._planner, LeavesOut):
            skipped = self._planner.skipped()
            if skipped != self._store.skipped():
                self._store.write_skipped(skipped)
            for entry in skipped[self._told :]:
                self._observer.cell_skipped(entry)
            self._told = len(skipped)
        return cell

    def _result(self, cell: Cell, outcome: RunOutcome) -> dict[str, Any]:
        """A measured cell as its entry of the summary, or {"failure": ...} for one whose engine cannot be measured."""
        label = cell.engine.label
        if label not in outcome.failed_engines:
            try:
                return self._measure(cell, self._session_for(cell, outcome))
            except (EngineError, UsageError) as error:
                outcome.failed_engines[label] = error
                self._observer.engine_failed(label, str(error))
        return {"failure": failure_record(outcome.failed_engines[label], cell.engine)}

    def _measure(self, cell: Cell, session: Session) -> dict[str, Any]:
        record = run_cell(
            cell,
            session,
            self._experiment,
            self._store,
            self._vocabulary,
            self._observer,
            workers=self._workers.of(cell),
        )
        summary = cell_summary(self._store, record, session.record.to_dict())
        self._observer.cell_done(cell, summary)
        self._count_deaths(cell.engine.label, record.faults)
        return summary

    def _count_deaths(self, label: str, faults: Sequence[Fault]) -> None:
        """Raise EngineError for an engine that fails in cell after cell. Being too small for a cell is no such failure: the
        planner leaves out what is larger."""
        codes = {fault.code for fault in faults}
        failed = bool(codes & {"server_died", "server_failed"}) and OUT_OF_MEMORY not in codes
        deaths = self._deaths[label] = self._deaths.get(label, 0) + 1 if failed else 0
        if deaths >= _MAX_DEATHS:
            raise EngineError(
                f"The server of engine {label!r} failed in {deaths} cells in a row. {faults[-1].evidence}"
            )

    def _session_for(self, cell: Cell, outcome: RunOutcome) -> Session:
        if self._session is not None and self._session.serves(cell):
            return self._session
        self._close_session(outcome)
        self._session = open_session(
            cell.engine,
            cell.block,
            self._experiment,
            self._store,
            self._model,
            self._observer,
            workers=self._workers.most(cell.engine),
        )
        return self._session

    def _close_session(self, outcome: RunOutcome) -> None:
        """Close the open session, if any. What goes wrong there is its own engine's, not that of the next cell."""
        session, self._session = self._session, None
        if session is None:
            return
        label = session.record.engine
        try:
            session.close(self._store)
        except EngineError as error:
            outcome.failed_engines[label] = error
            self._observer.engine_failed(label, str(error))
        except DynoError as error:
            outcome.error = outcome.error or error
        finally:
            self._observer.session_ended(label)
