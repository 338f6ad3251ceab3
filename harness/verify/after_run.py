"""`verify` for a run: its engines, as its cells were measured, and the answer kept in its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.experiment import EngineSpec, Experiment
from harness.model_parts import ModelParts
from harness.verify.compare import Questions, Say, compare_what_can_be, comparison_of
from results.errors import DynoError, StoreError, UsageError
from results.store import RunStore
from results.verification import covers, measured_fingerprints, read_verification, write_verification

# Enough to tell rounding from another model, and short beside the cells.
QUESTIONS = Questions(prompts=6, output_len=24)
NOT_MEASURED = "no cell of it is committed"


def verify_run(
    experiment: Experiment,
    parts: ModelParts,
    store: RunStore,
    failed: Mapping[str, DynoError],
    say: Say,
    tell: Callable[[str, str], None],
) -> dict[str, Any] | None:
    """Compare the run's engines and write its verify.json, unless that is there and about the same engines.

    Returns None where nothing was done. An engine that cannot be asked does not end it: its pairs have no class but the
    reason, and `tell` hears (label, words). Raises UsageError where no prompt can be drawn, StoreError where the answer
    cannot be written.
    """
    measured = measured_fingerprints(store.sessions(), (cell.session for cell in store.cells()))
    if covers(_kept(store.path), {e.label: measured.get(e.label) for e in experiment.engines}):
        return None
    absent = {e.label: NOT_MEASURED for e in experiment.engines if e.label not in measured}
    absent |= {label: str(error).splitlines()[0] for label, error in failed.items()}
    comparison = comparison_of(
        parts, experiment.model, QUESTIONS, store.path / "verify", experiment.timeouts, say
    )  # fmt: skip
    engines: list[EngineSpec] = list(experiment.engines)
    document = compare_what_can_be(engines, comparison, absent, tell)
    write_verification(store.path, document)
    return document


def _kept(folder: Path) -> dict[str, Any] | None:
    try:
        return read_verification(folder)
    except StoreError:
        return None  # damaged, or of a newer program: it is made anew


def run_at(out: Path | None, model: str, labels: Sequence[str]) -> RunStore | None:
    """The run in `out`, None where that is no run. Raises UsageError where the run is of other engines, or another model."""
    if out is None or not (out / "manifest.json").is_file():
        return None
    store = RunStore.open(out)
    asked = store.experiment
    known = [str(e.get("label")) for e in asked.get("engines") or [] if isinstance(e, Mapping)]
    if strangers := [label for label in labels if label not in known]:
        raise UsageError(
            f"{out} is a run of the engines {', '.join(known)}, not of {', '.join(strangers)}. Name them as the run does "
            "(--engine label=..), or another folder with --out."
        )
    if asked.get("model") != model:
        raise UsageError(
            f"{out} is a run of model {asked.get('model')!r}, not of {model!r}. Name its model with --model, or another "
            "folder with --out."
        )
    return store
