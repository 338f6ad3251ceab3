"""The sections of a report, in the order they are read. A new section is a row here and a template of the same name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reports.figures import build_figures
from reports.pictures import pictures
from reports.tables import columns_of, memory_rows, table_rows
from results.report_audit import asked_sentence, audit_lines, kind_lines, kv_sentence
from results.report_background import told_apart
from results.report_data import ReportData
from results.report_reasons import evidence_groups
from results.report_verify import tokens_words

Context = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Section:
    """`needs` says whether the run has what the section shows; `build` makes what its template is given.

    `short` stands for the title in the list of sections, which has one line.
    """

    id: str
    title: str
    needs: Callable[[ReportData], bool]
    build: Callable[[ReportData], Context]
    short: str = ""


def _nothing(data: ReportData) -> Context:
    return {}


def _answer(data: ReportData) -> Context:
    topics: dict[str, list[Any]] = {}
    for sentence in data.answer:
        topics.setdefault(sentence.topic, []).append(sentence)
    return {"topics": topics}


def _figures(data: ReportData) -> Context:
    return {"pictures": pictures([f for f in build_figures(data) if f.spec.id != "memory"])}


def _memory(data: ReportData) -> Context:
    return {"pictures": pictures([f for f in build_figures(data) if f.spec.id == "memory"]), "rows": memory_rows(data)}


def _cells(data: ReportData) -> Context:
    rows = table_rows(data)
    spread = any(entry.spread for row in rows for entry in row.entries)
    return {"columns": columns_of(data), "rows": rows, "blocks": data.blocks, "spread": spread}


def _reasons(data: ReportData) -> Context:
    return {"rows": [(row, evidence_groups(row)) for row in data.reasons]}


def _settings(data: ReportData) -> Context:
    return {"engines": [(e, *told_apart(e.settings)) for e in data.engines]}


def _alike(data: ReportData) -> Context:
    audit = data.audit
    if audit is None:
        return {}
    return {
        "audit": audit,
        "kinds": kind_lines(audit),
        "lines": audit_lines(audit),
        "kv": kv_sentence(audit),
        "asked": asked_sentence(audit),
    }


def _tokens(data: ReportData) -> Context:
    found = data.tokens
    if found is None:
        return {}
    return {
        "found": found,
        "verdict": tokens_words(found),
        "partings": [(pair, row) for pair in found.pairs for row in pair.partings],
        "more": sum(pair.more_partings for pair in found.pairs),
    }


def _environment(data: ReportData) -> Context:
    groups: dict[str, list[Any]] = {}
    for fact in data.environment:
        groups.setdefault(fact.group, []).append(fact)
    return {"groups": groups}


SECTIONS: tuple[Section, ...] = (
    Section("answer", "The answer", lambda d: True, _answer),
    Section("figures", "Figures", lambda d: d.usable > 0, _figures),
    Section("memory", "Memory", lambda d: bool(d.memory), _memory),
    Section("cells", "Cells", lambda d: bool(d.cells), _cells),
    Section("reasons", "Reasons", lambda d: bool(d.reasons), _reasons),
    Section("alike", "Are these engines set alike?", lambda d: d.audit is not None, _alike, "Set alike?"),
    Section("tokens", "Do they give the same tokens?", lambda d: d.tokens is not None, _tokens, "Same tokens?"),
    Section("settings", "Engines and their settings", lambda d: bool(d.engines), _settings, "Settings"),
    Section("environment", "Environment", lambda d: bool(d.environment), _environment),
    Section("reproduction", "Do it again", lambda d: True, _nothing),
    Section("definitions", "Definitions", lambda d: bool(d.definitions), _nothing),
)
