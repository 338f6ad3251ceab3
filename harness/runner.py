"""The runner: takes cells from the planner, opens sessions for them, and leaves a run that can always be completed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from backends.base import Resolved, Source, get_backend
from harness.cell_run import CellInterruptedError, run_cell
from harness.experiment import Cell, Experiment
from harness.models import ModelRef
from harness.observer import Observer
from harness.planner import Planner
from harness.session import Session, fetch_documents, open_session, refuse_too_long
from results.cell_summary import cell_summary
from results.clock import ClockPair
from results.errors import EXIT_BAD_ANSWER, EXIT_ENVIRONMENT, EXIT_INTERRUPTED, EXIT_OK, EngineError
from results.store import RunWriter
from results.summary import build_summary
from workloads.base import Vocabulary

# A server that dies in cell after cell is not worth restarting for ever.
_MAX_DEATHS = 2


@dataclass(slots=True)
class RunOutcome:
    """How a sweep ended: engines that could not be measured (label -> why), whether Ctrl-C ended it, the summary."""

    failed_engines: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return EXIT_INTERRUPTED
        if self.failed_engines:
            return EXIT_ENVIRONMENT
        invalid = any(cell["verdict"] == "INVALID" for cell in self.summary.get("cells", []))
        return EXIT_BAD_ANSWER if invalid else EXIT_OK


def check_before_launch(experiment: Experiment, config: dict[str, Any]) -> None:
    """Refuse what can be seen to fail before any server is started: unknown backends, settings that cannot be honoured,
    requests longer than the model. Raises UsageError."""
    own = config.get("max_position_embeddings")
    for engine in experiment.engines:
        backend = get_backend(engine.backend)
        backend.refuse_unsupported(engine.settings)
        asked = engine.settings.max_model_len
        limit = asked if asked is not None else own
        refuse_too_long(experiment, engine.label, None if limit is None else Resolved(limit, Source.ASKED))
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
        self._session: Session | None = None
        self._deaths: dict[str, int] = {}

    def run(self) -> RunOutcome:
        """Measure every cell that is not committed yet. Whatever happens, no server is left and the summary is written."""
        outcome = RunOutcome()
        results: dict[str, dict[str, Any]] = {c.id: c.to_dict() for c in self._store.cells()}
        planned = self._planner.planned()
        self._observer.run_started(len(planned), sum(1 for c in planned if c.id in results))
        try:
            while (cell := self._planner.next_cell(results)) is not None:
                if cell.engine.label in outcome.failed_engines:
                    results[cell.id] = {"skipped": outcome.failed_engines[cell.engine.label]}
                    continue
                try:
                    results[cell.id] = self._measure(cell)
                except EngineError as error:
                    outcome.failed_engines[cell.engine.label] = str(error)
                    self._observer.engine_failed(cell.engine.label, str(error))
        except (KeyboardInterrupt, CellInterruptedError):
            outcome.interrupted = True
        finally:
            self._close_session()
        self._store.update_manifest(end=asdict(ClockPair.read()))
        outcome.summary = build_summary(self._store)
        self._store.write_summary(outcome.summary)
        return outcome

    def _measure(self, cell: Cell) -> dict[str, Any]:
        session = self._session_for(cell)
        record = run_cell(cell, session, self._experiment, self._store, self._vocabulary, self._observer)
        self._observer.cell_done(cell, cell_summary(self._store, record, session.record.to_dict()))
        if any(fault.code == "server_died" for fault in record.faults):
            label = cell.engine.label
            self._deaths[label] = self._deaths.get(label, 0) + 1
            if self._deaths[label] >= _MAX_DEATHS:
                raise EngineError(
                    f"The server of engine {label!r} died in {self._deaths[label]} cells. {record.faults[-1].evidence}"
                )
        return record.to_dict()

    def _session_for(self, cell: Cell) -> Session:
        if self._session is not None and self._session.serves(cell):
            return self._session
        self._close_session()
        self._session = open_session(
            cell.engine, cell.block, self._experiment, self._store, self._model, self._observer
        )
        return self._session

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close(self._store)
            self._observer.session_ended(session.record.engine)
