"""What is to be tuned, made ready: the engines, what may be varied of each, and why some settings cannot be started."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from backends.base import get_backend
from harness.experiment import EngineSpec, Experiment
from harness.model_parts import ModelParts, model_parts
from harness.models import ModelRef
from harness.runner import check_asked
from harness.telemetry.choose import choose
from harness.tune.command import refusal
from harness.tune.space import Facts, Space, facts_of, space_for
from results.errors import UsageError


@dataclass(frozen=True, slots=True)
class Asked:
    """`experiment` has the engines as they were given, the workloads, the full loads, the objectives, the blocks of the
    confirmation and the budget; `named` the values to vary, by engine label (none: the table's); `trials` how many each engine
    gets, its defaults among them."""

    experiment: Experiment
    named: Mapping[str, Mapping[str, Sequence[Any]]]
    trials: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The same with the model at hand and the space of each engine, by its label. `notes` tell what is not varied, and where."""

    asked: Asked
    parts: ModelParts
    model: ModelRef
    spaces: Mapping[str, Space]
    notes: Sequence[str]

    @property
    def experiment(self) -> Experiment:
        return self.asked.experiment

    @property
    def refuse(self) -> Callable[[EngineSpec], str | None]:
        """Why an engine cannot be started on this machine, or would not take the requests; None where it can."""
        return partial(refusal, model=self.model, name=self.experiment.model, longest=self._longest)

    def refused(self, base: EngineSpec) -> tuple[int, int]:
        """How many combinations of an engine's space cannot be started on this machine, and of how many that were looked at (of a
        large space a draw)."""
        space = self.spaces[base.label]
        found = [
            self.refuse(space.engine(base, values)) is not None for values in space.combinations(self.experiment.seed)
        ]
        return sum(found), len(found)

    def refuse_trial(self, base: EngineSpec) -> Callable[[EngineSpec], str | None]:
        """The same of a trial, which must also be another engine than its `base`."""
        return partial(refusal, model=self.model, name=self.experiment.model, base=base, longest=self._longest)

    @property
    def _longest(self) -> int:
        return max(workload.longest for workload in self.experiment.workloads)


def prepare(asked: Asked) -> Ready:
    """Resolve the model and the spaces. Raises UsageError for what cannot be tuned or started as it is, EngineError for an engine
    that is not installed."""
    experiment = asked.experiment
    attached = [e.label for e in experiment.engines if not get_backend(e.backend).capabilities.launches]
    if attached:
        raise UsageError(
            f"Engine {attached[0]!r} is a server that somebody else started: its settings cannot be changed from here. `dyno tune` "
            "needs a backend that launches (`dyno backends` lists them)."
        )
    parts = model_parts(experiment.model, experiment.tokenizer, needs_folder=True)
    if parts.model is None:
        raise UsageError("Tuning launches engines, so it needs a model's folder: name one with --model.")
    check_asked(experiment, parts.config)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    facts = facts_of(experiment, cores, bool(choose(experiment.telemetry).devices))
    notes: list[str] = []
    spaces = {
        engine.label: _space(engine, facts, asked.named.get(engine.label, {}), notes) for engine in experiment.engines
    }
    ready = Ready(asked, parts, parts.model, spaces, notes)
    for engine in experiment.engines:
        if why := ready.refuse(engine):
            raise UsageError(f"Engine {engine.label!r} cannot be started as it is: {why}")
    return ready


def _space(engine: EngineSpec, facts: Facts, named: Mapping[str, Sequence[Any]], notes: list[str]) -> Space:
    backend = get_backend(engine.backend)
    space, cannot = space_for(backend, engine, facts, named)
    if cannot:
        notes.append(f"{engine.label} has no way to set {', '.join(cannot)}: not varied there.")
    if not space.size:
        raise UsageError(
            f"Nothing of engine {engine.label!r} (backend {backend.name}) is to be varied. Name a setting that it understands: "
            f"{', '.join(sorted(backend.settings)) or 'it has none'}."
        )
    return space
