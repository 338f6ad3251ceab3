"""A cell of a run that is to be run again: which one is meant, and as it was asked for."""

from __future__ import annotations

from pathlib import Path

from backends.redact import HIDDEN
from harness.experiment import Cell, Experiment, cells_of, load_experiment
from results.cell_summary import load_value
from results.errors import UsageError
from results.records import CellRecord
from results.report_format import plural
from results.report_shapes import load_words, workload_info
from results.store import RunStore

# More than a screen of lines nobody reads.
_MOST_LINES = 20


def find_cell(run: Path, name: str) -> tuple[RunStore, Experiment, CellRecord, Cell]:
    """The run, its experiment, and the cell (`name`: its id, or the beginning of it) as it was measured and as it was asked.

    Raises UsageError: no such cell, an imported run, a cell of a search, an engine started with a secret that is not kept.
    """
    store = RunStore.open(run)
    if store.experiment.get("source") == "imported":
        raise UsageError(
            f"{store.path} holds results that another tool measured: no engine of them can be started from here. Measure the "
            "same load with `dyno sweep`, and ask about a cell of that run."
        )
    experiment = load_experiment(store.path / "experiment.yaml")
    record = _record(store, name)
    cell = _cell(experiment, record)
    if HIDDEN in str(cell.engine.env) or HIDDEN in " ".join([*cell.engine.options, *(cell.engine.command or ())]):
        raise UsageError(
            f"Engine {record.engine!r} was started with a secret that the run does not keep, so it cannot be started again from "
            "there. Put the secret into this command's environment and measure the cell in a run that does not name it."
        )
    return store, experiment, record, cell


def _record(store: RunStore, name: str) -> CellRecord:
    records = store.cells()
    found = [r for r in records if r.id == name] or [r for r in records if name and r.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{name!r} is the beginning of {len(found)} cells of {store.path}: {', '.join(r.id for r in found)}."
        )
    known = "\n".join(cell_lines(records)) or "  none: nothing was measured to its end."
    raise UsageError(
        f"Unknown cell {name!r} of {store.path}. Its cells, by the id (the beginning of it is enough):\n{known}"
    )


def cell_lines(records: list[CellRecord]) -> list[str]:
    """A line for each point of a run, with the id of one of its cells: `  0f3a...  vllm, 8 in flight, 128 in / 64 out (1 of 5
    blocks)`."""
    points: dict[str, list[CellRecord]] = {}
    for record in sorted(records, key=lambda r: r.block):
        load = load_words(str(record.load.get("mode")), load_value(record.load) or "?")
        words = f"{record.engine}, {load}, {workload_info(record.workload).label}"
        points.setdefault(words, []).append(record)
    lines = [
        f"  {of[0].id}  {words}{f' (1 of {len(of)} blocks)' if len(of) > 1 else ''}" for words, of in points.items()
    ]
    rest = len(lines) - _MOST_LINES
    return (
        lines if rest <= 0 else [*lines[:_MOST_LINES], f"  and {plural(rest, 'point')} more: `dyno report RUN --cells`"]
    )


def _cell(experiment: Experiment, record: CellRecord) -> Cell:
    """The cell as the experiment asks for it, whatever its block."""
    for cell in cells_of(experiment.model_copy(update={"blocks": 1})):
        same = cell.engine.label == record.engine
        if (
            same
            and cell.workload.model_dump(mode="json") == record.workload
            and cell.load.model_dump(mode="json") == record.load
        ):
            return cell
    raise UsageError(
        f"The experiment of the run does not ask for cell {record.id}: it was measured by a search or another version."
    )
