"""Sessions of the harness with a fake engine in the reference engine's place: quick to start, with faults at will."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.experiment import EngineSpec, Experiment, Timeouts
from harness.loads import BatchLoad
from harness.models import ModelRef
from harness.observer import Observer
from harness.planner import Planner
from harness.planners import planner_for
from harness.runner import Runner, RunOutcome
from harness.session import Session
from harness.session_open import open_session
from results.store import RunWriter
from tests.waiting import LONG_S
from workloads.base import Vocabulary
from workloads.lengths import FixedLength
from workloads.random import RandomWorkload

FAKE = Path(__file__).parents[1] / "servers" / "engine_fake.py"
VOCABULARY = Vocabulary(512)


def fake_engine(*faults: str, label: str = "fake") -> EngineSpec:
    command = (sys.executable, "-S", "-E", str(FAKE))
    return EngineSpec(label=label, backend="reference", command=command, options=faults)


def attached(url: str) -> EngineSpec:
    return EngineSpec(label="there", backend="openai", url=url)


def grid(
    *engines: EngineSpec,
    batches: tuple[int, ...] = (1,),
    inputs: tuple[int, ...] = (16,),
    output: int = 4,
    waves: int = 1,
    **limits: float,
) -> Experiment:
    """Every batch with every input length."""
    length = FixedLength(tokens=output)
    return Experiment(
        model="fake",
        engines=engines,
        workloads=tuple(RandomWorkload(input_len=FixedLength(tokens=n), output_len=length) for n in inputs),
        loads=tuple(BatchLoad(batch=n, waves=waves) for n in batches),
        timeouts=Timeouts(**{"stop_s": LONG_S, "connect_s": 20, "ready_s": LONG_S, **limits}),
    )


class Runs:
    """Run folders under one test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = ModelRef("fake", folder, {})

    @contextmanager
    def store(self, experiment: Experiment) -> Iterator[RunWriter]:
        with RunWriter.start(self.folder / "run", experiment.to_yaml(), {"start": {"command": ["test"]}}) as store:
            yield store

    @contextmanager
    def session(self, experiment: Experiment, observer: Observer | None = None) -> Iterator[Session]:
        """The session of the first engine; closed at the end."""
        with self.store(experiment) as store:
            session = open_session(experiment.engines[0], 0, experiment, store, self.model, observer or Observer())
            try:
                yield session
            finally:
                session.close(store)

    def run(
        self, experiment: Experiment, planner: Planner | None = None, observer: Observer | None = None
    ) -> RunOutcome:
        """The whole run."""
        with self.store(experiment) as store:
            planner = planner or planner_for(experiment)
            return Runner(experiment, planner, store, self.model, VOCABULARY, observer or Observer()).run()

    def log(self) -> str:
        """What the newest session's server wrote."""
        return max(self.folder.glob("run/sessions/*/server.log")).read_text()
