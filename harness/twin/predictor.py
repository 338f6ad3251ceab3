"""The twin as what chooses the trials of `dyno tune`: fitted anew whenever the run has more cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from pydantic import TypeAdapter

from harness.experiment import Cell, EngineSpec, Experiment, cells_of
from harness.loads import Load
from harness.model_parts import model_parts
from harness.tune.measure import Measurement, Results
from harness.twin.check import learn
from harness.twin.observed import Observed
from harness.twin.twin import Twin
from results.elasticity import throughput
from results.errors import DynoError, UsageError
from results.report_format import plural
from results.slo import slo_of
from results.store import RunStore
from workloads.base import Vocabulary

# A search for the highest load that meets objectives takes a few cells; one that does not end is given up.
_MOST_CELLS = 64


class TwinPredictor:
    """See harness.tune.predictor.Predictor. It simulates what a trial would run, a search of loads included, and reads the
    objective from it as the trial does."""

    def __init__(self, experiment: Experiment, run: RunStore) -> None:
        self._experiment, self._run = experiment, run
        self._measurement = Measurement(experiment)
        self._slo = slo_of(experiment.model_dump(mode="json"))
        self._vocabulary: Vocabulary | None = None
        self._twin = Twin([])
        self._learnt = -1
        self._known: dict[str, float | None] = {}
        self._asked: dict[str, EngineSpec] = {}
        self._errors: list[float] = []
        self._cannot = "no cell is measured yet"

    @property
    def words(self) -> str:
        """What it rests on, how far off it was so far, and what it could not tell."""
        if not self._twin.cells:
            return f"no twin ({self._cannot}): trials in the search's own order"
        words = f"the twin, the engine's scheduler on step times of {plural(len(self._twin.cells), 'measured cell')}"
        if self._errors:
            off = f"{100 * median(self._errors):.1f} %"
            words += f"; it was off by {off} (median) on {plural(len(self._errors), 'cell')} before they were measured"
        return f"{words}; it could not tell of {self._cannot}" if self._cannot else words

    def predict(
        self, engines: Sequence[EngineSpec], results: Mapping[str, Mapping[str, Any]]
    ) -> Sequence[float | None]:
        """See Predictor."""
        try:
            self._learn(results)
            return [self._objective(engine) for engine in engines]
        except DynoError as error:  # a run whose files cannot be read is told of elsewhere: here nothing is known of it
            self._cannot = str(error)
            return [None] * len(engines)

    def _learn(self, results: Results) -> None:
        if len(results) == self._learnt:
            return
        seen, left_out = learn(self._run)
        before = {cell.record.id for cell in self._twin.cells}
        self._errors += [off for cell in seen if cell.record.id not in before and (off := self._off(cell, results))]
        self._twin, self._learnt = Twin(seen), len(results)
        self._known.clear()
        self._cannot = "" if seen else next(iter(left_out.values()), "no cell is measured yet")

    def _off(self, measured: Observed, results: Results) -> float | None:
        """How far the twin of before is off on a cell that it has not seen, as a part of one; None where it cannot tell."""
        record = measured.record
        engine, entry = self._asked.get(record.engine), results.get(record.id)
        rate = throughput(entry) if entry else None
        if engine is None or not rate:
            return None
        load: Load = TypeAdapter[Load](Load).validate_python(record.load)
        cells = cells_of(self._experiment.model_copy(update={"engines": (engine,), "loads": (load,), "blocks": 1}))
        asked = next((c for c in cells if c.workload.model_dump(mode="json") == record.workload), None)
        try:
            whole = self._simulate(asked.model_copy(update={"block": record.block}))["whole"] if asked else None
        except UsageError:
            return None
        predicted = (whole or {}).get("output_tokens_per_s")
        return abs(predicted / rate - 1) if predicted else None

    def _objective(self, engine: EngineSpec) -> float | None:
        self._asked[engine.label] = engine
        key = engine.model_dump_json()
        if key not in self._known:
            self._known[key] = self._trial(engine)
        return self._known[key]

    def _trial(self, engine: EngineSpec) -> float | None:
        found: dict[str, Mapping[str, Any]] = {}
        try:
            while (look := self._measurement.look(engine, 0, found)).missing is not None and len(found) < _MOST_CELLS:
                found[look.missing.id] = self._simulate(look.missing)
        except UsageError as error:
            self._cannot = f"{engine.label}: {error}"
            return None
        value, _ = self._measurement.value(look)
        return value

    def _simulate(self, cell: Cell) -> Mapping[str, Any]:
        if self._vocabulary is None:
            experiment = self._experiment
            self._vocabulary = model_parts(experiment.model, experiment.tokenizer, needs_folder=False).vocabulary
        return self._twin.predict(cell, self._vocabulary, draws=1, slo=self._slo).entry
