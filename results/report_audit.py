"""The fairness audit in words: what HTML, terminal and Markdown show of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from results.audit import DIFFERS, KIND_WORDS, NOT_TOLD, Audit, AuditResult, AuditValue
from results.audit_rules import NO, YES
from results.report_format import UNKNOWN, count, listed, size
from results.report_sentences import Sentence

# How a value is known, in a word or two beside it.
MARKS = {
    "endpoint": "server",
    "log": "log",
    "fixed": "fixed",
    "asked": "only asked",
    "computed": "worked out",
    "unknown": "not told",
}
# Status and bearing, in the order they are shown: (class of the badge, badge, what it says).
_STANDINGS = {
    (DIFFERS, YES): ("bears", "differs", "bears on these cells"),
    (DIFFERS, "unknown"): ("may", "differs", "may bear on them"),
    (NOT_TOLD, YES): ("open", "not told", "would bear on them"),
    (NOT_TOLD, "unknown"): ("open", "not told", "could bear on them"),
    (DIFFERS, NO): ("idle", "differs", "not in play here"),
    (NOT_TOLD, NO): ("idle", "not told", "not in play here"),
}
_SAME = ("same", "same", "")


@dataclass(frozen=True, slots=True)
class AuditLine:
    """A row of the table: (value, how it is known) for each engine; `standing` names how it is to look."""

    words: str
    values: list[tuple[str, str]]
    standing: str
    badge: str
    bearing: str
    means: str
    why: str


def audit_lines(audit: Audit) -> list[AuditLine]:
    """Every row: differences that bear on the cells first, what is the same last."""
    order = list(_STANDINGS)
    places = {id(r): order.index(_key(r)) if _key(r) in order else len(order) for r in audit.rows}
    return [_line(r) for r in sorted(audit.rows, key=lambda r: places[id(r)])]


def _key(row: AuditResult) -> tuple[str, str]:
    return (row.status, row.binding or "")


def _line(row: AuditResult) -> AuditLine:
    standing, badge, bearing = _STANDINGS.get(_key(row), _SAME)
    values = [(value_text(row, v), MARKS.get(v.source, v.source)) for v in row.values]
    return AuditLine(row.words, values, standing, badge, bearing, row.means, row.why)


def value_text(row: AuditResult, value: AuditValue) -> str:
    """A value as it is read: `on`, `2,048`, `1.00 GiB`, `1 to 512 (67 sizes)`; what other sessions told follows it."""
    return ", earlier ".join(_text(v, row.bytes) for v in (value.value, *value.also))


def _text(value: Any, is_bytes: bool) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int | float):
        return size(value) if is_bytes else count(value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    if isinstance(value, list | tuple) and len(value) > 3 and all(isinstance(n, int) for n in value):
        return f"{count(min(value))} to {count(max(value))} ({len(value)} sizes)"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def kind_lines(audit: Audit) -> list[tuple[str, str, str]]:
    """(engine, its kind, what was asked of it) in words."""
    return [(e.label, KIND_WORDS[e.kind], listed(e.asked, 8) if e.asked else "nothing asked") for e in audit.engines]


def kv_sentence(audit: Audit) -> str:
    """Whether the caches are equal, in the two ways there are; empty where neither is known."""
    words = {True: "equal", False: "not equal", None: "not known to be equal"}
    tokens, size_ = audit.equal_kv["tokens"], audit.equal_kv["bytes"]
    if tokens is None and size_ is None:
        return ""
    if tokens is size_ is False:
        return "The KV caches are equal neither in tokens nor in bytes."
    if tokens == size_:
        return f"The KV caches are {words[tokens]} in tokens and in bytes."
    offer = f" {_capital(audit.equal_bytes.words())}" if audit.equal_bytes else ""
    return f"The KV caches are {words[tokens]} in tokens, and {words[size_]} in bytes.{offer}"


def asked_sentence(audit: Audit) -> str:
    """Which sameness rests on what was asked for, and was not read back."""
    rows = [r.words for r in audit.rows if r.status == "same" and r.only_asked]
    return f"Not read back, so the same only as far as it was asked for: {listed(rows, 6)}." if rows else ""


def audit_sentence(audit: Audit) -> Sentence:
    """The one sentence that stands with the ratios between engines."""
    text = f"Set alike? {audit.verdict} Label: {audit.label}."
    return Sentence("Engines", text, not audit.alike, detail=tuple(short_lines(audit)))


def short_lines(audit: Audit) -> list[str]:
    """The differences that bear on the cells or may, each with its values; and equal memory where the caches are equal in tokens
    alone."""
    found = []
    for row in audit.differing():
        if row.binding != NO:
            values = ", ".join(f"{v.engine} {value_text(row, v)}" for v in row.values)
            found.append(f"{row.words}: {values} ({row.why}).")
    return [*found, _capital(audit.equal_bytes.words())] if audit.equal_bytes else found


def unlike_settings(audit: Mapping[str, Any] | None, a: str, b: str) -> list[str]:
    """In one line, the settings in which two engines differ so that it bears on their cells or may, each with both values; []
    where there are none. `audit` is the one of a summary."""
    pairs = (audit or {}).get("pairs") or ()
    ids = next((pair["differs"] for pair in pairs if {pair["a"], pair["b"]} == {a, b}), ())
    found = []
    for row in (audit or {}).get("rows") or ():
        if row["id"] in ids:
            result = AuditResult(**{**row, "values": [AuditValue(**value) for value in row["values"]]})
            texts = {value.engine: value_text(result, value) for value in result.values}
            found.append(f"{result.words} {texts[a]} / {texts[b]}")
    return [f"settings that bear on these cells, or may: {'; '.join(found)}"] if found else []


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
