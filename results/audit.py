"""Are the engines of a run set alike? What each was set to, where they differ, and whether that bears on what was measured.

Unequal settings are a label on a comparison, never a fault of it: *own defaults*, *equalised*, *tuned* (found by a search)
and *set by hand* are four honest questions. What an engine does not tell is unknown, and never counts as the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from results.audit_facts import ASKED, EngineFacts, Told, demand, engine_facts
from results.audit_kv import EqualBytes, equal_bytes
from results.audit_rows import AUDIT_ROWS, AuditRow
from results.audit_rules import NO, UNSURE, YES, Case
from results.report_format import listed, plural

SAME, DIFFERS, NOT_TOLD = "same", "differs", "unknown"
OWN_DEFAULTS, EQUALISED, TUNED, SET_BY_HAND = "own_defaults", "equalised", "tuned", "set_by_hand"
# Where likeness cannot be judged: asked for but not told, or a server that somebody else set.
UNPROVEN, ATTACHED = "unproven", "attached"
KIND_WORDS = {
    OWN_DEFAULTS: "own defaults",
    EQUALISED: "equalised",
    TUNED: "tuned",
    SET_BY_HAND: "set by hand",
    UNPROVEN: "not shown to be alike",
    ATTACHED: "set by others",
}
# The interpreter runs around the engine's steps, not in them.
_NOT_COMPARED = frozenset({"python"})


@dataclass(frozen=True, slots=True)
class AuditValue:
    """What one engine tells for a row. `also` holds what its other sessions told instead."""

    engine: str
    value: Any
    source: str
    also: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AuditResult:
    """A row judged. `status` is same, differs or unknown; `binding` (yes, no, unknown; None where all is the same) says
    whether a difference bears on the measured cells, `why` gives the numbers, `means` what the difference does."""

    id: str
    words: str
    setting: bool
    bytes: bool
    values: list[AuditValue]
    status: str
    means: str
    binding: str | None
    why: str

    @property
    def only_asked(self) -> bool:
        """Rests on what was asked for, at least in part."""
        return any(v.source == ASKED for v in self.values)


@dataclass(frozen=True, slots=True)
class AuditPair:
    """Two engines beside each other: what the comparison is to be called, and the rows that stand against likeness."""

    a: str
    b: str
    kinds: tuple[str, str]
    label: str
    differs: list[str]
    unknown: list[str]


@dataclass(frozen=True, slots=True)
class AuditEngine:
    """An engine and what kind it is among all others of the run; `asked` names what was asked of it."""

    label: str
    kind: str
    asked: list[str]


@dataclass(frozen=True, slots=True)
class Audit:
    """The audit of a run. `equal_kv` says whether the caches are equal in tokens and in bytes (None: not known); `equal_bytes`
    offers the latter where only the former holds."""

    engines: list[AuditEngine]
    rows: list[AuditResult]
    pairs: list[AuditPair]
    label: str
    verdict: str
    equal_kv: dict[str, bool | None]
    equal_bytes: EqualBytes | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "equal_bytes": self.equal_bytes.to_dict() if self.equal_bytes else None}

    @property
    def alike(self) -> bool:
        """Every row that bears on the cells is told by every engine, and the same."""
        return all(row.binding in (None, NO) for row in self.rows)

    def pair(self, a: str, b: str) -> AuditPair | None:
        """The comparison of two engines, in either order."""
        return next((p for p in self.pairs if {p.a, p.b} == {a, b}), None)

    def differing(self) -> list[AuditResult]:
        """Rows that differ; those that bear on the cells first."""
        rank = {YES: 0, UNSURE: 1, NO: 2}
        return sorted((r for r in self.rows if r.status == DIFFERS), key=lambda r: rank.get(r.binding or NO, 2))


def audit_run(
    experiment: Mapping[str, Any],
    sessions: Iterable[Mapping[str, Any]],
    cells: Sequence[Mapping[str, Any]],
    manifest: Mapping[str, Any],
) -> Audit | None:
    """The audit of a run from its experiment, session records (oldest first) and cells of the summary; None for one engine.

    Which engines a search has set, the `manifest` tells under `tuned`."""
    return audit(engine_facts(experiment, sessions, cells, manifest.get("tuned") or ()), cells)


def audit(engines: Sequence[EngineFacts], cells: Sequence[Mapping[str, Any]]) -> Audit | None:
    """Judge every row over all engines, and each pair of them by itself. None where there is nothing to compare."""
    if len(engines) < 2:
        return None
    rows = judge(engines, cells)
    pairs = [_pair(a, b, cells) for a, b in combinations(engines, 2)]
    kinds = {e.label: _kind_among(e.label, pairs) for e in engines}
    labels = list(dict.fromkeys(p.label for p in pairs))
    label = labels[0] if len(labels) == 1 else _mixed_label(kinds)
    equal = {
        name: {SAME: True, DIFFERS: False}.get(next(r.status for r in rows if r.id == row))
        for name, row in (("tokens", "kv_cache_tokens"), ("bytes", "kv_cache_bytes"))
    }
    audited = [AuditEngine(e.label, kinds[e.label], _asked(e)) for e in engines]
    offer = _equal_bytes(rows) if equal == {"tokens": True, "bytes": False} else None
    return Audit(audited, rows, pairs, label, _verdict(rows, len(engines)), equal, offer)


def _equal_bytes(rows: Sequence[AuditResult]) -> EqualBytes | None:
    tokens, sizes = (next(r.values for r in rows if r.id == name) for name in ("kv_cache_tokens", "kv_cache_bytes"))
    return equal_bytes([v.engine for v in tokens], [v.value for v in tokens], [v.value for v in sizes])


def judge(engines: Sequence[EngineFacts], cells: Iterable[Mapping[str, Any]]) -> list[AuditResult]:
    """Every row of the table for these engines and the cells that they ran."""
    labels = {e.label for e in engines}
    told = {row.id: [row.told(e) for e in engines] for row in AUDIT_ROWS}
    asked_for = demand(c for c in cells if c.get("engine") in labels)
    names = [e.label for e in engines]
    return [
        _judged(row, names, told[row.id], Case(row.id, told, asked_for))
        for row in AUDIT_ROWS
        if not row.optional or any(t.value is not None for t in told[row.id])
    ]


def _judged(row: AuditRow, engines: Sequence[str], told: Sequence[Told], case: Case) -> AuditResult:
    status = _status(row, told)
    bearing = None if status == SAME else row.bears(case)
    return AuditResult(
        id=row.id,
        words=row.words,
        setting=row.setting,
        bytes=row.bytes,
        values=[AuditValue(e, t.value, t.source, list(t.also)) for e, t in zip(engines, told, strict=True)],
        status=status,
        means="" if status == SAME else _means(row, engines, told) if status == DIFFERS else row.means,
        binding=bearing.bears if bearing else None,
        why=bearing.why if bearing else "",
    )


def _status(row: AuditRow, told: Sequence[Told]) -> str:
    """Two known values that differ settle it; else one that is not told leaves it open."""
    if row.id == "versions":
        return _versions_status([t.value or {} for t in told])
    values = [row.plain(v) for t in told if t.value is not None for v in (t.value, *t.also)]
    if any(not _alike(row, a, b) for a, b in combinations(values, 2)):
        return DIFFERS
    return SAME if values and all(t.known for t in told) else NOT_TOLD


def _alike(row: AuditRow, a: Any, b: Any) -> bool:
    if row.tolerance and isinstance(a, int | float) and isinstance(b, int | float):
        return abs(a - b) <= row.tolerance * max(abs(a), abs(b))
    return bool(a == b)


def _versions_status(versions: Sequence[Mapping[str, str]]) -> str:
    """Engines are different products; parts that two of them name can be held against each other."""
    shared = False
    for a, b in combinations(versions, 2):
        common = (a.keys() & b.keys()) - _NOT_COMPARED
        if any(a[name] != b[name] for name in common):
            return DIFFERS
        shared = shared or bool(common)
    return SAME if shared and all(versions) else NOT_TOLD


def _means(row: AuditRow, engines: Sequence[str], told: Sequence[Told]) -> str:
    ranked = [(row.rank(t.value), e) for e, t in zip(engines, told, strict=True) if t.known]
    known = [(r, e) for r, e in ranked if r is not None]
    if row.direction and len(known) == len(ranked) > 1:
        (least, less), (most, more) = min(known, key=lambda k: k[0]), max(known, key=lambda k: k[0])
        if least < most:
            return re.sub(r"\{(more|less)\}", lambda m: more if m[1] == "more" else less, row.direction)
    return row.means


def _asked(engine: EngineFacts) -> list[str]:
    """What was asked of an engine that a row compares, and the raw words given to it."""
    names = {name for row in AUDIT_ROWS for name in (row.id, *row.also_named)} | {"memory_fraction"}
    return [*sorted(name for name in engine.asked if name in names), *engine.raw]


def _pair(a: EngineFacts, b: EngineFacts, cells: Sequence[Mapping[str, Any]]) -> AuditPair:
    rows = [r for r in judge([a, b], cells) if r.setting and r.binding != NO]
    differs = [r.id for r in rows if r.status == DIFFERS]
    unknown = [r.id for r in rows if r.status == NOT_TOLD]
    kinds = (_kind(a, differs, unknown), _kind(b, differs, unknown))
    return AuditPair(a.label, b.label, kinds, _label(a.label, b.label, kinds), differs, unknown)


def _kind(engine: EngineFacts, differs: Sequence[str], unknown: Sequence[str]) -> str:
    """What an engine is in one comparison. One that nobody asked anything runs on its own defaults, whatever they are."""
    if not _asked(engine) and not engine.attached:
        return OWN_DEFAULTS
    if differs:
        return ATTACHED if engine.attached else TUNED if engine.tuned else SET_BY_HAND
    if unknown:
        return ATTACHED if engine.attached else UNPROVEN
    return EQUALISED


def _label(a: str, b: str, kinds: tuple[str, str]) -> str:
    if kinds[0] == kinds[1]:
        return KIND_WORDS[kinds[0]]
    if EQUALISED in kinds:
        return KIND_WORDS[EQUALISED]
    if UNPROVEN in kinds:
        return KIND_WORDS[UNPROVEN]
    return f"{a} ({KIND_WORDS[kinds[0]]}) against {b} ({KIND_WORDS[kinds[1]]})"


def _kind_among(label: str, pairs: Sequence[AuditPair]) -> str:
    """What an engine is among all: the kind furthest from proven likeness it has in any pair."""
    kinds = {p.kinds[(p.a, p.b).index(label)] for p in pairs if label in (p.a, p.b)}
    return next(kind for kind in (OWN_DEFAULTS, ATTACHED, SET_BY_HAND, TUNED, UNPROVEN, EQUALISED) if kind in kinds)


def _mixed_label(kinds: Mapping[str, str]) -> str:
    groups: dict[str, list[str]] = {}
    for label, kind in kinds.items():
        groups.setdefault(kind, []).append(label)
    return "; ".join(f"{KIND_WORDS[kind]}: {listed(labels, 6)}" for kind, labels in groups.items())


def _verdict(rows: Sequence[AuditResult], engines: int) -> str:
    """One sentence, then what it leaves out."""
    differ = {b: [r.words for r in rows if r.status == DIFFERS and r.binding == b] for b in (YES, UNSURE, NO)}
    open_rows = [r.words for r in rows if r.status == NOT_TOLD and r.binding != NO]
    both = "both engines" if engines == 2 else f"all {engines} engines"
    if differ[YES]:
        first = f"No: they differ in {_names(differ[YES])}, and that bears on these cells."
    elif differ[UNSURE]:
        first = f"Perhaps not: they differ in {_names(differ[UNSURE])}, and that may bear on these cells."
    elif open_rows:
        first = "Not known: no difference that bears on these cells shows, but not every engine tells its "
        first += f"{_names(open_rows)}."
    else:
        first = f"Yes: in all that bears on these cells {both} are set alike."
    rest = []
    if differ[YES] and differ[UNSURE]:
        rest.append(f"{_names(differ[UNSURE], True)} may bear on them too.")
    if differ[NO]:
        n = len(differ[NO])
        rest.append(f"{plural(n, 'further difference')} {'is' if n == 1 else 'are'} not in play in these cells.")
    if open_rows and (differ[YES] or differ[UNSURE]):
        rest.append(f"Not told by every engine: {_names(open_rows)}.")
    return " ".join([first, *rest])


def _names(words: Sequence[str], start: bool = False) -> str:
    text = listed([w if w.isupper() or w[:2].isupper() else w[:1].lower() + w[1:] for w in words], 6)
    return text[:1].upper() + text[1:] if start else text
