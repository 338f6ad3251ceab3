"""Which runs, engines and baselines are held against each other by the gate, and when that is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from results.comparison import differing_versions
from results.comparison_runs import RunFacts
from results.errors import UnknownNameError, UsageError
from results.planned import KEY, planned_blocks
from results.regression import BASELINE, PAIRED, UNPAIRED, Gate, GateOptions, gate, gate_points
from results.regression_baseline import Baseline, Entry, entry_points
from results.regression_counters import with_counters
from results.regression_fingerprint import fingerprint_of, unlike
from results.report_format import listed
from results.report_readings import readings_of, shown_scope
from results.store import RunStore
from results.summary import build_summary


@dataclass(frozen=True, slots=True)
class GateRun:
    """A run as the gate reads it: cells with counters, and what was planned."""

    facts: RunFacts
    experiment: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, store: RunStore) -> GateRun:
        summary = with_counters(store, build_summary(store))
        return cls(RunFacts(store.name, summary, store.manifest), store.experiment)

    @property
    def planned_blocks(self) -> int | None:
        """How many blocks must be there; None where a budget may have left some out."""
        if KEY in self.facts.manifest:
            return planned_blocks(self.facts.manifest, self.experiment)
        blocks = self.experiment.get("blocks")
        return blocks if isinstance(blocks, int) and not self.experiment.get("budget_s") else None

    def engine(self, label: str | None, what: str) -> str:
        """A label of the run, its only one where none is named. Raises UsageError."""
        # An engine none of whose cells came about is one whose cells are missing, and no unknown name.
        labels = list(dict.fromkeys([*self.facts.labels, *self.asked]))
        if label is None:
            if len(labels) == 1:
                return labels[0]
            raise UsageError(
                f"{self.facts.name} has the engines {listed(labels) or 'none'}: name the {what} as {self.facts.name}:LABEL."
            )
        if label not in labels:
            raise UnknownNameError("engine", label, labels, f"Looked in {self.facts.name}.")
        return label

    @property
    def asked(self) -> list[str]:
        return [str(e.get("label")) for e in self.experiment.get("engines") or [] if isinstance(e, Mapping)]

    def fingerprint(self, label: str) -> dict[str, Any]:
        return fingerprint_of(self.facts.manifest, self.facts.engine(label), self.experiment)


def paired_gate(run: GateRun, base: str, cand: str, options: GateOptions, disregard: bool = False) -> Gate:
    """Two engines of one run, block by block. Raises UsageError where their settings are not the same (unless `disregard`)."""
    if base == cand:
        raise UsageError(f"{base} cannot be held against itself: name two engines of {run.facts.name}.")
    differences = _refused((base, cand), unlike(run.fingerprint(base), run.fingerprint(cand)), disregard)
    cells = [c for c in run.facts.cells if c.get("engine") in (base, cand)]
    readings, scope = readings_of(cells), shown_scope(cells)
    sides = [gate_points(run.facts.side(label), scope, readings) for label in (base, cand)]
    if not any(sides):
        raise UsageError(
            f"{run.facts.name} has no cell of {base} or {cand} yet: nothing was measured that could pass or fail. Give the "
            "command of its sweep again to complete it."
        )
    found = gate(sides[0], sides[1], (base, cand), PAIRED, options, run.planned_blocks)
    return replace(
        found, unlike=differences, differs=_differing(run.facts.engine(base).get("versions"), run, cand, (base, cand))
    )


def unpaired_gate(a: GateRun, base: str, b: GateRun, cand: str, options: GateOptions, disregard: bool = False) -> Gate:
    """Two runs: what their blocks share does not cancel, so the intervals are wider, and nothing is confirmed. Raises UsageError
    where their fingerprints differ (unless `disregard`)."""
    names = (f"{a.facts.name}:{base}", f"{b.facts.name}:{cand}")
    differences = _refused(names, unlike(a.fingerprint(base), b.fingerprint(cand)), disregard)
    cells = [*a.facts.cells, *b.facts.cells]
    readings, scope = readings_of(cells), shown_scope(cells)
    sides = [gate_points(run.facts.side(label), scope, readings) for run, label in ((a, base), (b, cand))]
    if not set(sides[0]) & set(sides[1]):
        raise UsageError(f"{names[0]} and {names[1]} have no point in common: workloads or loads differ.")
    found = gate(sides[0], sides[1], names, UNPAIRED, options)
    return replace(found, unlike=differences, differs=_differing(a.facts.engine(base).get("versions"), b, cand, names))


def baseline_gate(baseline: Baseline, run: GateRun, cand: str, options: GateOptions, disregard: bool = False) -> Gate:
    """A run against what was recorded on a machine like its own. Raises UsageError where there is no such machine in the
    baseline, or its entry was made of another model or under other settings (the latter unless `disregard`)."""
    mine = run.fingerprint(cand)
    entry = baseline.entry_for(mine, disregard)
    names = (f"baseline {baseline.name} of {entry.recorded}", f"{run.facts.name}:{cand}")
    differences = _refused(names, unlike(entry.fingerprint, mine), disregard)
    base = entry_points(entry)
    points = gate_points(run.facts.side(cand), entry.scope, readings_of(run.facts.cells))
    if not set(base) & set(points):
        raise UsageError(f"{names[0]} and {names[1]} have no point in common: workloads or loads differ.")
    found = gate(base, points, names, BASELINE, options, run.planned_blocks)
    return replace(found, unlike=differences, differs=_differing(entry.versions, run, cand, names))


def entry_of(run: GateRun, label: str, recorded: str) -> Entry:
    """What of an engine's run a baseline keeps. Raises UsageError where a cell is INVALID or missing: such a run is no base."""
    readings, scope = readings_of(run.facts.cells), shown_scope(run.facts.cells)
    side = run.facts.side(label)
    points = gate_points(side, scope, readings)
    bad = [p.label for p in points.values() if p.invalid or len(p.verdicts) < (run.planned_blocks or 1)]
    if bad or not points:
        raise UsageError(
            f"{run.facts.name}:{label} is no base: cells are INVALID or missing at {listed(bad) or 'every point'}. Measure it "
            "again, or complete the run by giving its command again."
        )
    git = run.facts.manifest.get("git") or {}
    return Entry.of(
        points,
        side.cells,
        scope=scope,
        recorded=recorded,
        commit=str(git.get("commit") or "")[:12] or None,
        versions=dict(run.facts.engine(label).get("versions") or {}),
        fingerprint=run.fingerprint(label),
    )


def _refused(names: tuple[str, str], differences: Sequence[str], disregard: bool) -> list[str]:
    if differences and not disregard:
        raise UsageError(
            f"{names[0]} and {names[1]} are not alike: {'; '.join(differences)}. A difference between them would say nothing "
            "about the code. --allow-differences gates all the same and says so with the result."
        )
    return list(differences)


def _differing(before: Mapping[str, Any] | None, run: GateRun, cand: str, names: tuple[str, str]) -> list[str]:
    return differing_versions(before or {}, run.facts.engine(cand).get("versions") or {}, names)
