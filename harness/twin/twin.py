"""The twin of a run's engines: fitted from measured cells, asked about cells that nobody has run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from backends.base import normalise_backend_name
from backends.http_probe import ServerURL
from backends.reference.admission import RefusedError
from harness.cell_plan import planned_requests
from harness.experiment import Cell
from harness.load.build import mode_of
from harness.load.plan import LoadPlan, OpenMode
from harness.twin.delays import Delays, fit_delays
from harness.twin.observed import STEP_SETTINGS, Observed, machine_of
from harness.twin.settings import scheduler_settings
from harness.twin.simulate import START, Simulated, plan_of, simulate
from harness.twin.step_model import Made, StepModel, fit_step_model
from results.cell_summary import summarise
from results.clock import NS_PER_S
from results.errors import UsageError
from results.events import Chunks, Floats, Requests, Samples
from results.records import CellRecord
from results.slo import Slo
from results.truth import Steps
from workloads.base import PlannedRequest, Vocabulary, request_seed

DRAWS = 3


@dataclass(frozen=True, slots=True)
class Prediction:
    """`entry` is what summary.json would hold of the cell, the numbers being the twin's; `steps` and `preemptions` of the
    simulated engine. `work` tells what each step held and when: settings that agree in it differ in nothing that binds."""

    entry: dict[str, Any]
    steps: int
    preemptions: int
    work: bytes


@dataclass(frozen=True, slots=True)
class _Fitted:
    """`paces` by session: how many times as long as usual everything took in it. Sessions of one cell are not in it."""

    model: StepModel
    delays: Delays
    paces: Mapping[str, float]


class Twin:
    """Step times and delays by what decides them (`machine_of`), and what engines resolved their settings to. `told`: cells of
    which only these settings are read, beside the `cells` it is fitted on."""

    def __init__(self, cells: Sequence[Observed], told: Sequence[Observed] = ()) -> None:
        self.cells, self._told = list(cells), [*cells, *told]
        groups: dict[tuple[Any, ...], list[Observed]] = {}
        for cell in cells:
            groups.setdefault(cell.machine, []).append(cell)
        self._fitted = {machine: _fit(group) for machine, group in groups.items()}

    @property
    def moves(self) -> float:
        """The part that step times and paces still moved by when fitting ended: SETTLED or more where they did not settle."""
        return max((f.model.moves for f in self._fitted.values() if not isinstance(f, str)), default=0.0)

    def predict(
        self, cell: Cell, vocabulary: Vocabulary, draws: int = DRAWS, slo: Slo | None = None, session: str = ""
    ) -> Prediction:
        """What the cell would measure: simulated `draws` times, each with another draw of how step times scatter; told is the
        middle one. `slo`: objectives that its requests are held against. In a `session` of which the twin knows several cells it is
        at the pace of those, else at the usual one. Raises UsageError with the reason where the twin cannot tell."""
        backend = normalise_backend_name(cell.engine.backend)
        asked = cell.engine.settings.asked()
        resolved = self._resolved(backend, cell.engine.label, asked)
        wanted = {**resolved, **asked}
        fitted = self._fitted.get(machine_of(backend, wanted))
        if fitted is None:
            raise UsageError(
                f"No measured cell of backend {backend} has the step times of {self._differs(backend, wanted)}."
            )
        if isinstance(fitted, str):
            raise UsageError(f"The step times of backend {backend} cannot be fitted: {fitted}.")
        settings = scheduler_settings(backend, resolved, asked)
        requests = _requests(cell, vocabulary, fitted.model)
        load = cell.load
        mode = mode_of(load, len(requests))
        ends = None if load.duration_s is None or isinstance(mode, OpenMode) else round(load.duration_s * NS_PER_S)
        plan = LoadPlan(ServerURL("http", "twin", 0, ""), mode, plan_of(requests), "", duration_ns=ends)
        pace = fitted.paces.get(session, 1.0)
        model, delays = fitted.model.at(pace), fitted.delays.at(pace)
        try:
            drawn = [
                simulate(plan, requests, settings, model, delays, request_seed(cell.seed, "twin", draw))
                for draw in range(draws)
            ]
        except RefusedError as error:
            raise UsageError(f"The engine would refuse a request of this cell: {error}") from error
        drawn.sort(key=lambda simulated: simulated.ended)
        middle = drawn[len(drawn) // 2]
        steps = _steps(middle)
        held = (steps.start, steps.end, steps.prefill_tokens, steps.prefills, steps.decodes, steps.context_tokens)
        work = np.stack(held).tobytes()
        return Prediction(as_measured(cell, backend, middle, slo), len(steps), middle.preemptions, work)

    def _resolved(self, backend: str, label: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the settings that are not asked come to: as in a session that was asked for nothing else, since what another engine
        was asked is not this one's. Of several the one that this engine is named after (a trial's label begins with that of the
        engine that it varies), then the one with the most asked alike, then with the least asked otherwise."""
        if not any(c.record.backend == backend for c in self.cells):
            raise UsageError(f"No cell of backend {backend} was measured with a log of its steps, so it has no twin.")
        own = [c for c in self._told if c.record.backend == backend]
        fitting = [c for c in own if c.asked.keys() <= asked.keys()]
        if not fitting:
            more = dict.fromkeys(name for c in own for name in c.asked if name not in asked)
            raise UsageError(
                f"How backend {backend} sets what {label} leaves open is not known: every measured engine was asked for something"
                f" besides ({', '.join(more)})."
            )

        def near(cell: Observed) -> tuple[int, int, int]:
            engine = cell.record.engine
            named = len(engine) if f"{label}-".startswith(f"{engine}-") else 0
            return named, sum(asked[name] == value for name, value in cell.asked.items()), -len(cell.asked)

        return max(fitting, key=near).settings

    def _differs(self, backend: str, wanted: Mapping[str, Any]) -> str:
        """The settings in which the nearest measured cell has other step times."""
        own = [c.settings for c in self.cells if c.record.backend == backend]
        others = [[name for name in STEP_SETTINGS if wanted.get(name) != settings.get(name)] for settings in own]
        return ", ".join(f"{name}={wanted.get(name)}" for name in min(others, key=len))


def _fit(cells: Sequence[Observed]) -> _Fitted | str:
    def column(name: str) -> Floats:
        return np.concatenate([getattr(c.steps, name) for c in cells]).astype(np.float64)

    seconds = (column("end") - column("start")) / NS_PER_S
    some = seconds > 0  # a log of coarse stamps may give two steps the same
    # What a log does not tell (-1) has no part in the fit.
    made = Made(*(np.maximum(column(name), 0.0)[some] for name in Made.__slots__))
    # One cell does not tell a slow session from what its own steps held.
    times = Counter(c.record.session for c in cells)
    names = [name for name, cells_of_it in times.items() if cells_of_it > 1]
    number = {name: n for n, name in enumerate(names)}
    session = np.repeat([number.get(c.record.session, -1) for c in cells], [len(c.steps) for c in cells])[some]
    found = fit_step_model(made, seconds[some], session)
    if isinstance(found, str):
        return found
    model, paces = found
    by_session = dict(zip(names, map(float, paces), strict=True))
    return _Fitted(model, fit_delays(cells, [by_session.get(c.record.session, 1.0) for c in cells]), by_session)


def _requests(cell: Cell, vocabulary: Vocabulary, model: StepModel) -> list[PlannedRequest]:
    """The cell's own, drawn from its seed. Where time ends a closed loop, as many as even the shortest steps could answer."""
    drawn = iter(planned_requests(cell, vocabulary))
    load = cell.load
    if load.duration_s is not None and load.mode in ("batch", "concurrency"):
        shortest = model.seconds(1, 1, 0, 1) * max(cell.workload.expected_output, 1)
        drawn = islice(drawn, math.ceil(load.in_flight * (2 * load.duration_s / shortest + 2)))
    requests = list(drawn)
    if any(isinstance(request.prompt, str) for request in requests):
        raise UsageError("The prompts are text, of which only the engine's tokenizer knows how many tokens they are.")
    return requests


def as_measured(cell: Cell, backend: str, simulated: Simulated, slo: Slo | None = None) -> dict[str, Any]:
    """Measured as a real cell is: by the same code, from rows of the same columns."""
    record = CellRecord(
        cell.id,
        cell.engine.label,
        backend,
        cell.model,
        "twin",
        cell.block,
        cell.seed,
        cell.workload.model_dump(mode="json"),
        cell.load.model_dump(mode="json"),
        START,
        max(simulated.ended, simulated.steps[-1][2] if simulated.steps else START),
    )
    chunks = Chunks.of(simulated.chunks)
    requests = Requests.of(simulated.requests)
    return summarise(record, {}, None, requests, chunks, Samples.of([]), _steps(simulated), slo=slo)


def _steps(simulated: Simulated) -> Steps:
    return Steps(*np.array(simulated.steps, dtype=np.int64).reshape(len(simulated.steps), -1).T)
