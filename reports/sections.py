"""The sections of a report, in the order they are read. A new section is a row here and a template of the same name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reports.device import device_lines, rho_bar
from reports.distributions import spread_figures
from reports.figures import Figure, build_figures
from reports.memory_figure import memory_figure
from reports.pictures import NARROW, pictures
from reports.roofline_figure import roofline_figure
from reports.startup import starts_of
from reports.startup_svg import draw_starts, startup_keys
from reports.sure import sure_context
from reports.tables import columns_of, memory_rows, table_rows
from reports.times import WIDE, again_context, times_context
from results.comparison_words import looks_sentence
from results.report_audit import asked_sentence, audit_lines, kind_lines, kv_sentence
from results.report_background import told_apart
from results.report_data import ReportData
from results.report_limits import WHY_NEEDS, to_ask
from results.report_reasons import evidence_groups
from results.report_verify import tokens_words
from results.statistics import BLOCKS_FOR_A_VERDICT

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


_LEADING = ("Objectives", "Engines", "How sure", "Why this fast", "What not to trust")
# Where a sentence that has more to it is taken up again: (words, section).
_MORE = {"Engines": ("Side by side", "alike"), "Why this fast": ("Shares", "limits")}


def _answer(data: ReportData) -> Context:
    topics: dict[str, list[Any]] = {}
    for sentence in data.answer:
        topics.setdefault(sentence.topic, []).append(sentence)
    # Where engines are compared, who is faster comes before what was measured.
    first = [topic for topic in _LEADING if topic in topics] if "Engines" in topics else []
    rest = {topic: found for topic, found in topics.items() if topic not in first}
    if not first:
        return {"leading": rest, "rest": {}, "more": _MORE}
    return {"leading": {topic: topics[topic] for topic in first}, "rest": rest, "more": _MORE}


def page_figures(data: ReportData) -> tuple[list[Figure], list[Figure]]:
    """The figures of the page and those of its section on memory."""
    plain = build_figures(data)
    by_speed = [*(f for f in plain if f.spec.id != "memory"), *spread_figures(data), roofline_figure(data)]
    by_memory = [memory_figure(data), *(f for f in plain if f.spec.id == "memory")]
    return [f for f in by_speed if f is not None], [f for f in by_memory if f is not None]


def _matrix(data: ReportData) -> Context:
    judged = data.blocks >= BLOCKS_FOR_A_VERDICT
    return {"matrix": data.matrix, "looks": looks_sentence(*data.sure.comparisons) if judged else ""}


def _figures(data: ReportData) -> Context:
    return {"pictures": pictures(page_figures(data)[0])}


def _memory(data: ReportData) -> Context:
    return {"pictures": pictures(page_figures(data)[1]), "rows": memory_rows(data)}


def _device(data: ReportData) -> Context:
    return {"device": data.device, "lines": device_lines(data)}


def _together(data: ReportData) -> Context:
    return {"device": data.device, "rows": [(row, rho_bar(row)) for row in data.device.together]}


def _limits(data: ReportData) -> Context:
    sides = [side for row in data.limits.rows for side in (row.batch, row.step) if side.named]
    meanings = list({s.factor: (s.factor, s.meaning) for s in sides}.values())
    return {"limits": data.limits, "meanings": meanings, "why": WHY_NEEDS, "ask": to_ask(data.limits, data.path)}


def _cells(data: ReportData) -> Context:
    rows = table_rows(data)
    spread = any(entry.spread for row in rows for entry in row.entries)
    return {"columns": columns_of(data), "rows": rows, "blocks": data.blocks, "spread": spread}


def _reasons(data: ReportData) -> Context:
    rows = [(row, evidence_groups(row)) for row in data.reasons]
    return {
        "serious": [pair for pair in rows if pair[0].severity != "note"],
        "notes": [pair for pair in rows if pair[0].severity == "note"],
    }


def _settings(data: ReportData) -> Context:
    found: Context = {
        "engines": [(e, *told_apart(e.settings)) for e in data.engines],
        "starts": starts_of(data.engines),
    }
    if found["starts"].engines:
        starts = found["starts"]
        found |= {
            "legend": startup_keys(starts),
            "wide": draw_starts(starts, WIDE),
            "narrow": draw_starts(starts, NARROW),
        }
    return found


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
    Section("matrix", "Engines side by side", lambda d: bool(d.matrix), _matrix, "Side by side"),
    Section("figures", "Figures", lambda d: d.usable > 0, _figures),
    Section("memory", "Memory", lambda d: bool(d.memory), _memory),
    Section("times", "One cell over time", lambda d: bool(d.times), times_context, "Over time"),
    Section("device", "Device", lambda d: bool(d.device.rows), _device),
    Section("limits", "Why this fast?", lambda d: bool(d.limits), _limits),
    Section(
        "together", "What throughput goes together with", lambda d: bool(d.device.together), _together, "Correlation"
    ),
    Section("sure", "How sure is it?", lambda d: bool(d.sure), sure_context, "How sure?"),
    Section("reasons", "Reasons", lambda d: bool(d.reasons), _reasons),
    Section("alike", "Are these engines set alike?", lambda d: d.audit is not None, _alike, "Set alike?"),
    Section("tokens", "Do they give the same tokens?", lambda d: d.tokens is not None, _tokens, "Same tokens?"),
    Section("settings", "Engines, their settings and start-up", lambda d: bool(d.engines), _settings, "Settings"),
    Section("environment", "Environment", lambda d: bool(d.environment), _environment),
    Section("cells", "Cells", lambda d: bool(d.cells), _cells),
    Section("reproduction", "Do it again", lambda d: True, again_context),
    Section("definitions", "Definitions", lambda d: bool(d.definitions), _nothing),
)
