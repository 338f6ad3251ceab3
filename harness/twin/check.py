"""How wrong the twin is: cells that were measured, predicted from other cells of the run, side by side.

Settings that differ in nothing that binds are the same work: a held-out one is then no news to a twin that was fitted on another. Such
are marked, and the bar is for the others.

A cell is predicted at the usual pace, as a session that nobody has seen would be: that is what a choice among settings rests on, and
what the bar is for. Beside it stands the same at the pace of its session, told by the session's other cells: what is left when it is
known how fast the machine was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import numpy as np

from harness.experiment import Cell, Experiment, cells_of
from harness.twin.observed import Observed, observe
from harness.twin.twin import Twin
from results.cell_summary import cell_summary
from results.errors import StoreError, UsageError
from results.reasons import Verdict
from results.store import RunStore
from workloads.base import Vocabulary

# The median error that a twin must not exceed to be believed, over settings that are new to it and metrics that it is for.
BAR = 0.10
# Metric -> where it stands in a scope: throughput, and percentiles of the times to the first and between tokens.
METRICS: Mapping[str, tuple[str, ...]] = {
    "output tokens/s": ("output_tokens_per_s",),
    **{f"TTFT {p}": ("ttft_ms", p) for p in ("p50", "p90", "p99")},
    **{f"ITL {p}": ("itl_pooled_ms", p) for p in ("p50", "p90", "p99")},
}
# Told, but not predicted: each step is drawn by itself, and what is rare comes in a row.
NOT_IN_BAR = frozenset({"TTFT p99", "ITL p99"})


@cache
def of_own(blocks: int) -> float:
    """How far the median of so many normal blocks is from the truth, in parts of how far one of them is from the median of the others
    (both as medians): 0.5 of two blocks, 0.47 of five."""
    drawn = np.random.default_rng(0).standard_normal((100_000, blocks))
    off = np.abs(np.median(drawn, axis=1))
    own = np.abs(drawn[:, 0] - np.median(drawn[:, 1:], axis=1))
    return float(np.median(off) / np.median(own))


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric of one held-out setting (engine, workload, load): one value a block, in the same order on all sides. `predicted`
    is at the usual pace, `paced` at that of the block's session. `like` is the engine of a setting that the twin was fitted on and
    that is the same work; None where there is none."""

    cell: Cell
    metric: str
    measured: tuple[float, ...]
    predicted: tuple[float, ...]
    paced: tuple[float, ...]
    like: str | None = None

    @property
    def error(self) -> float:
        """Predicted / measured - 1, of the medians over blocks."""
        return median(self.predicted) / median(self.measured) - 1

    @property
    def paced_error(self) -> float:
        """The same of what was predicted at the pace of the sessions."""
        return median(self.paced) / median(self.measured) - 1

    @property
    def floor(self) -> list[float]:
        """How far off a perfect prediction would be, for all that the blocks differ: one guess from each block, empty of one block.
        The distance of a block from the median of the setting's others, as errors are told, in the part that the median of all
        blocks is off by (`of_own`)."""
        blocks = self.measured
        if len(blocks) < 2:
            return []
        part = of_own(len(blocks))
        return [part * abs(median(blocks[:n] + blocks[n + 1 :]) / block - 1) for n, block in enumerate(blocks)]


@dataclass(frozen=True, slots=True)
class Held:
    """Everything that was compared, and why other cells were not, by cell id. `moves`: the most that a twin's fit still moved by
    when it ended, as a part."""

    compared: list[Compared]
    left_out: dict[str, str]
    moves: float = 0.0

    def errors(self, metric: str | None = None, new: bool = False) -> list[float]:
        """Sizes of the errors of one metric, or of all that are in the bar, the least first; `new`: of settings that are no other's
        work."""
        return sorted(abs(c.error) for c in self._of(metric) if not (new and c.like))

    def median_error(self, new: bool = False) -> float | None:
        """Over all settings, or those that are no other's work, and the metrics that are in the bar; None where there are none."""
        errors = self.errors(new=new)
        return median(errors) if errors else None

    def paced_error(self, metric: str | None = None) -> float | None:
        """As `median_error` over settings that are no other's work, of one metric or of all in the bar, at the pace of the sessions."""
        errors = [abs(c.paced_error) for c in self._of(metric) if not c.like]
        return median(errors) if errors else None

    def floor(self, metric: str | None = None) -> float | None:
        """What `median_error` over settings that are no other's work would be of a perfect twin (of one metric or of all in the bar),
        from how the blocks of a setting scatter. None where each setting has one block."""
        off = [guess for c in self._of(metric) if not c.like for guess in c.floor]
        return median(off) if off else None

    def _of(self, metric: str | None) -> list[Compared]:
        return [c for c in self.compared if (c.metric == metric if metric else c.metric not in NOT_IN_BAR)]

    def apart(self) -> float | None:
        """How far apart settings of the same work were measured, as errors are told (median over them and the metrics that are in the
        bar). Both are off: a perfect prediction would be so by 1 / sqrt(2) of that. None where there are none."""
        measured = {(c.cell.engine.label, _asked(c.cell), c.metric): median(c.measured) for c in self.compared}
        pairs = [
            (median(c.measured), measured.get((c.like, _asked(c.cell), c.metric)))
            for c in self.compared
            if c.like and c.metric not in NOT_IN_BAR
        ]
        apart = [abs(other / own - 1) for own, other in pairs if other is not None]
        return median(apart) if apart else None


def learn(store: RunStore) -> tuple[list[Observed], dict[str, str]]:
    """The cells of a run that a twin can be fitted from, and why the others are not among them, by cell id. Raises StoreError."""
    sessions = {session["id"]: session for session in store.sessions()}
    found, left_out = [], {}
    for record in store.cells():
        seen = observe(store, record, sessions.get(record.session, {}))
        if isinstance(seen, str):
            left_out[record.id] = seen
        else:
            found.append(seen)
    return found, left_out


def hold_out(
    store: RunStore,
    experiment: Experiment,
    vocabulary: Vocabulary,
    fit_on: Sequence[str] = (),
    say: Callable[[int, int], None] = lambda done, total: None,
) -> Held:
    """Each setting (engine, workload, load) predicted from all others; or, with `fit_on`, every other engine from those. What its
    engine told of its settings is known in either case: the numbers are held out.

    INVALID cells are neither fitted nor compared. Raises UsageError, StoreError.
    """
    seen, left_out = learn(store)
    sessions = {session["id"]: session for session in store.sessions()}
    entries: dict[str, dict[str, Any]] = {}
    for record in [c.record for c in seen]:
        try:
            entries[record.id] = cell_summary(store, record, sessions.get(record.session, {}))
        except StoreError as error:
            left_out[record.id] = str(error)
        else:
            if entries[record.id]["verdict"] == Verdict.INVALID:
                left_out[record.id] = "it is INVALID"
    seen = [c for c in seen if c.record.id not in left_out]
    asked = {cell.id: cell for cell in cells_of(experiment)}
    groups: dict[tuple[str, str, str], list[Observed]] = {}
    for observed in seen:
        if observed.record.engine not in fit_on:
            groups.setdefault(_setting(observed), []).append(observed)
    work = _work([asked[c.record.id] for c in seen if c.record.id in asked], Twin(seen), vocabulary)
    compared: list[Compared] = []
    moves = 0.0
    only = Twin([c for c in seen if c.record.engine in fit_on], seen) if fit_on else None
    for number, (setting, held) in enumerate(groups.items(), 1):
        known = [c for c in seen if (c.record.engine in fit_on if fit_on else _setting(c) != setting)]
        twin = only or Twin(known, held)
        moves = max(moves, twin.moves)
        like = next((c.record.engine for c in known if _same_work(c, held, work)), None)
        of_metric: dict[str, list[tuple[float, ...]]] = {}
        cells = [asked[c.record.id] for c in held if c.record.id in asked]
        for observed in held:
            cell = asked.get(observed.record.id)
            if cell is None:
                left_out[observed.record.id] = "the run's experiment does not ask for it"
                continue
            try:
                usual = twin.predict(cell, vocabulary).entry
                paced = twin.predict(cell, vocabulary, session=observed.record.session).entry
            except UsageError as error:
                left_out[observed.record.id] = str(error)
                continue
            for metric, values in _values(entries[observed.record.id], usual, paced):
                of_metric.setdefault(metric, []).append(values)
        for metric, rows in of_metric.items():
            measured, at_usual, at_its_pace = zip(*rows, strict=True)
            compared.append(Compared(cells[0], metric, measured, at_usual, at_its_pace, like))
        say(number, len(groups))
    return Held(compared, left_out, moves)


def _asked(cell: Cell) -> tuple[str, str]:
    return str(cell.workload), str(cell.load)


def _setting(observed: Observed) -> tuple[str, str, str]:
    record = observed.record
    return record.engine, str(record.workload), str(record.load)


def _work(cells: Sequence[Cell], twin: Twin, vocabulary: Vocabulary) -> dict[str, bytes]:
    """What each cell's engine would do, all with the same step times, by cell id; those that cannot be simulated are not in it."""
    found = {}
    for cell in cells:
        with suppress(UsageError):  # held out, it is told of
            found[cell.id] = twin.predict(cell, vocabulary, draws=1).work
    return found


def _same_work(other: Observed, held: Sequence[Observed], work: Mapping[str, bytes]) -> bool:
    theirs = work.get(other.record.id)
    return theirs is not None and any(work.get(c.record.id) == theirs for c in held)


def _values(*entries: Mapping[str, Any]) -> Iterator[tuple[str, tuple[float, ...]]]:
    """The metrics that all entries have, and the value of each."""
    for metric, path in METRICS.items():
        values = tuple(value for entry in entries if (value := _at(entry, path)))
        if len(values) == len(entries):
            yield metric, values


def _at(entry: Mapping[str, Any], path: Sequence[str]) -> float | None:
    value: Any = entry.get("whole")
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None
