"""The seam to whoever can say beforehand what a trial will give: such a one decides which trials are run first.

A prediction chooses, it never counts: what is reported of an engine was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness.experiment import EngineSpec, Experiment
from results.store import RunStore


class Predictor(Protocol):
    """Predicts the objective of engines that were not measured."""

    @property
    def words(self) -> str:
        """What it is and what it rests on, for the user; also why it cannot tell."""
        ...

    def predict(
        self, engines: Sequence[EngineSpec], results: Mapping[str, Mapping[str, Any]]
    ) -> Sequence[float | None]:
        """The objective of each engine (output tokens/s; higher is better), None where it cannot tell.

        `engines` are of one backend. `results` maps the ids of the run's finished cells, in their order, to their entries of
        summary.json; one whose engine could not be measured has {"failure": ...} instead. It is asked again before every
        trial, so that it may learn from the ones before.
        """
        ...


@dataclass(frozen=True, slots=True)
class NoTwin:
    """Nobody who can tell: trials go in the search's own order."""

    words: str = "no twin: trials in the search's own order"

    def predict(
        self, engines: Sequence[EngineSpec], results: Mapping[str, Mapping[str, Any]]
    ) -> Sequence[float | None]:
        return [None] * len(engines)


def predictor_for(experiment: Experiment, run: RunStore) -> Predictor:
    """Who predicts the trials of this search; `experiment` has its model, workloads, loads and objectives, `run` keeps its
    cells, samples and step logs while they come in."""
    # Under objectives it simulates the search for the highest load, and reads the number as a trial does.
    from harness.twin.predictor import TwinPredictor  # loads the engine's scheduler, which only a search needs

    return TwinPredictor(experiment, run)
