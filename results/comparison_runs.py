"""Which sides of which runs are compared, and whether two runs may be compared at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from results.comparison import Comparison, Options, compare
from results.comparison_points import Side
from results.errors import UnknownNameError, UsageError
from results.report_audit import unlike_settings
from results.report_format import listed, plural
from results.report_readings import readings_of, shown_scope

# Settings of an engine under which the same tokens cost something else.
_PRECISION = ("dtype", "kv_dtype", "quantisation")
_HOST = {"cpu": "CPU", "cores_usable": "usable cores", "memory_bytes": "memory"}
_GIB = 2**30


class NotComparableError(UsageError):
    """Two runs that differ in what must be the same, or share no point: no number of blocks would give an answer."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What of a run a comparison needs: its summary and manifest."""

    name: str
    summary: Mapping[str, Any]
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cells(self) -> list[Mapping[str, Any]]:
        return list(self.summary.get("cells") or [])

    @property
    def labels(self) -> list[str]:
        asked = [str(e.get("label")) for e in self.summary.get("engines") or []]
        return [
            label
            for label in dict.fromkeys([*asked, *(str(c.get("engine")) for c in self.cells)])
            if any(c.get("engine") == label for c in self.cells)
        ]

    def engine(self, label: str) -> Mapping[str, Any]:
        engines = self.summary.get("engines") or []
        return next((e for e in engines if e.get("label") == label), {})

    def side(self, label: str, run: str | None = None) -> Side:
        own = [c for c in self.cells if c.get("engine") == label]
        if any(c.get("source") == "imported" for c in own):
            raise UsageError(
                f"{self.name}: {label} was read from another tool's result file. Its numbers follow that tool's definitions, so they are "
                "never paired and never gated. `dyno report RUN --beside` shows ours by the same definitions."
            )
        return Side(run or self.name, label, own, dict(self.engine(label).get("versions") or {}))


def compare_run(run: RunFacts, options: Options, base: str | None = None) -> list[Comparison]:
    """Every engine of a run against one of them, its first unless `base` names another. Raises UsageError for a run of a
    single engine and UnknownNameError."""
    labels = run.labels
    if base is not None and base not in labels:
        raise UnknownNameError("engine", base, labels, f"Looked in {run.name}.")
    first = base or (labels[0] if labels else "")
    others = [label for label in labels if label != first]
    if not others:
        raise UsageError(
            f"{run.name} has {plural(len(labels), 'engine')} with cells: there is nothing to compare it with. Name a second "
            "run, or measure several engines in one."
        )
    readings, scope = readings_of(run.cells), shown_scope(run.cells)
    found = [compare(run.side(first), run.side(label), scope, readings, options) for label in others]
    for result in found:
        result.differs += unlike_settings(run.summary.get("audit"), result.base, result.other)
    return found


def compare_runs(
    a: RunFacts,
    b: RunFacts,
    options: Options,
    engines: tuple[str | None, str | None] = (None, None),
    disregard: bool = False,
) -> list[Comparison]:
    """Two runs: engines of the same label, else the only engine of each; unpaired, since runs share no block. `engines` names one
    of each: where only one is named, the other is the first of its run, or of the same label in `b`.

    Raises NotComparableError where machine, device, model or precision differ (unless `disregard`, which is said with the
    result) or no point is common; UsageError where it is not plain which engines are meant.
    """
    pairs = _pairs(a, b, *engines)
    for run, label in [(a, pairs[0][0]), (b, pairs[0][1])]:
        if label not in run.labels:
            raise UnknownNameError("engine", label, run.labels, f"Looked in {run.name}.")
    cells = [*a.cells, *b.cells]
    readings, scope = readings_of(cells), shown_scope(cells)
    found = []
    for mine, theirs in pairs:
        unlike = [*unlike_runs(a, b), *_unlike_precision(a.engine(mine), b.engine(theirs))]
        if unlike and not disregard:
            raise NotComparableError(
                f"{a.name} and {b.name} are not comparable: {'; '.join(unlike)}. A difference between them would say nothing "
                "about the engines. --allow-differences compares all the same and says so with each result."
            )
        # The names may be the same (a copied folder): two runs are never one.
        names = (a.name, b.name) if a.name != b.name else (f"{a.name} (first)", f"{b.name} (second)")
        result = compare(a.side(mine, names[0]), b.side(theirs, names[1]), scope, readings, options)
        if not result.points:
            raise NotComparableError(
                f"{a.name} and {b.name} have no point in common: {listed(result.missing, 8)}. Points are compared where workload "
                "and load are the same."
            )
        result.unlike = unlike
        result.differs += _git(a.manifest, b.manifest)
        found.append(result)
    return found


def unlike_runs(a: RunFacts, b: RunFacts) -> list[str]:
    """What must be the same in two runs and is not, in words with both values."""
    found = []
    for name, words in _HOST.items():
        values = [(run.manifest.get("host") or {}).get(name) for run in (a, b)]
        if name == "memory_bytes":
            # A kernel keeps a little more or less of it for itself.
            values = [f"{round(v / _GIB)} GiB" if isinstance(v, int) else v for v in values]
        found += _unequal(words, values)
    for name, words in (("name", "device"), ("driver", "driver")):
        found += _unequal(words, [(run.manifest.get("device") or {}).get(name) for run in (a, b)])
    models = [run.manifest.get("model") for run in (a, b)]
    found += _unequal("model", [m.get("name") if isinstance(m, Mapping) else m for m in models])
    return found


def _pairs(a: RunFacts, b: RunFacts, base: str | None, other: str | None) -> list[tuple[str, str]]:
    if (base or other) and a.labels and b.labels:
        base = base or a.labels[0]
        return [(base, other or (base if base in b.labels else b.labels[0]))]
    same = [(label, label) for label in a.labels if label in b.labels]
    if same:
        return same
    if len(a.labels) == len(b.labels) == 1:
        return [(a.labels[0], b.labels[0])]
    raise UsageError(
        f"{a.name} has {listed(a.labels) or 'no engine'} and {b.name} {listed(b.labels) or 'none'}: no label is in both. Name "
        "the two with --base and --other."
    )


def _unlike_precision(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    found = []
    for name in _PRECISION:
        told = [(e.get("settings") or {}).get(name) for e in (a, b)]
        values = [t.get("value") if isinstance(t, Mapping) else t for t in told]
        # What one does not tell is not known to differ.
        if None not in values:
            found += _unequal(name, values)
    return found


def _unequal(words: str, values: Sequence[Any]) -> list[str]:
    a, b = (json.dumps(v, sort_keys=True, default=str) for v in values)
    return [f"{words} {_shown(values[0])} / {_shown(values[1])}"] if a != b else []


def _shown(value: Any) -> str:
    return "not known" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def _git(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    def commit(manifest: Mapping[str, Any]) -> str | None:
        git = manifest.get("git") or {}
        found = git.get("commit")
        return f"{str(found)[:12]}{' with changes' if git.get('dirty') else ''}" if found else None

    return [f"commit: {commit(a) or 'not known'} / {commit(b) or 'not known'}"] if commit(a) != commit(b) else []
