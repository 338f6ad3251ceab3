"""The gate's answer as a terminal table, as Markdown for a job summary, and as JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from reports.console import plain
from reports.markdown import escape
from results.regression import FAILED, INCONCLUSIVE, PASS, REGRESSION, SUSPECTED, Gate, GateRow
from results.regression_words import (
    announced_words,
    asked_words,
    headline,
    how,
    notes,
    percent_words,
    ratio_words,
    reasons,
    row_words,
    seen,
    values_words,
    verdict_words,
)
from results.report_format import number

STYLES = {PASS: "green", REGRESSION: "red", FAILED: "red", SUSPECTED: "yellow", INCONCLUSIVE: "yellow"}
_VALUES = "base → candidate"
_HEADS = ("point", "metric", _VALUES, "ratio", "margin", "sees", "blocks", "verdict")
# Which columns go first where the terminal is narrow: what they hold is said below the table in one line.
_DROPPED = ("blocks", "sees", "margin")
# Characters that XML 1.0 cannot hold, whatever the escape.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def gate_table(gate: Gate, width: int) -> RenderableType:
    """For a terminal: a table a point, a row a metric, columns alike in all and named once. Where it would not fit, columns of
    `_DROPPED` go, then units."""
    rows = [dict(zip(_HEADS, _cells(row), strict=True)) for row in gate.points]
    for shown, row in zip(rows, gate.points, strict=True):
        shown["verdict"] = f"{row.verdict}{'*' if row.suspect else ''}"
    widths = {head: max(cell_len(text) for text in (head, *(shown[head] for shown in rows))) for head in _HEADS[1:]}
    for head in _DROPPED:
        if _total(widths) > width:
            del widths[head]
    if _total(widths) > width:
        for shown, row in zip(rows, gate.points, strict=True):
            shown[_VALUES] = f"{number(row.base)} → {number(row.cand)}"
        widths[_VALUES] = max(cell_len(text) for text in (_VALUES, *(shown[_VALUES] for shown in rows)))
    parts: list[RenderableType] = []
    for place in dict.fromkeys(row.place for row in gate.points):
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", show_header=not parts)
        for head, room in widths.items():
            # What does not fit even so is broken between words.
            whole = head in ("metric", "verdict") or _total(widths) <= width
            table.add_column(head, no_wrap=whole, min_width=room if whole else None)
        for shown, row in zip(rows, gate.points, strict=True):
            if row.place == place:
                cells = [Text(plain(shown[head])) for head in widths]
                cells[-1].stylize(STYLES[row.verdict])
                table.add_row(*cells)
        parts += [Text(plain(f"At {place}:")), table]
    if any(head not in widths for head in _DROPPED):
        parts.append(Text(asked_words(gate), style="dim"))
    return Group(*parts)


def _total(widths: Mapping[str, int]) -> int:
    """Of a table with one blank between columns."""
    return sum(widths.values()) + len(widths) - 1


def gate_markdown(gate: Gate) -> str:
    """For a pull request or a job summary."""
    lines = [f"### {escape(headline(gate))}", "", escape(how(gate)), ""]
    if gate.points:
        lines += ["| " + " | ".join(_HEADS) + " |", "|" + " --- |" * len(_HEADS)]
        lines += ["| " + " | ".join(escape(text) for text in _cells(row)) + " |" for row in gate.points]
        lines.append("")
    lines += [f"- {escape(text)}" for text in closing(gate)]
    return "\n".join(lines) + "\n"


def closing(gate: Gate) -> list[str]:
    """What follows the table."""
    return [text for text in (seen(gate), announced_words(gate), *reasons(gate), *notes(gate)) if text]


def gate_junit(gate: Gate) -> str:
    """A test case a row and one for the cells: regressions and faults are failures, what cannot be told is skipped."""
    suite = ElementTree.Element("testsuite", name=_xml(f"dyno regress: {gate.cand} against {gate.base}"))
    counts = {"tests": 0, "failures": 0, "skipped": 0, "errors": 0}

    def case(name: str, place: str, kind: str, words: str, text: str) -> None:
        element = ElementTree.SubElement(suite, "testcase", classname=_xml(place), name=_xml(name), time="0")
        counts["tests"] += 1
        if kind:
            counts["failures" if kind == "failure" else "skipped"] += 1
            ElementTree.SubElement(element, kind, message=_xml(words)).text = _xml(text)
        else:
            ElementTree.SubElement(element, "system-out").text = _xml(text)

    case("every cell was measured", "cells", "failure" if gate.faults else "", FAILED, "\n".join(gate.faults))
    for row in gate.points:
        kind = {REGRESSION: "failure", PASS: ""}.get(row.verdict, "skipped")
        case(row.metric, row.place, kind, verdict_words(row), row_words(row))
    for name, value in counts.items():
        suite.set(name, str(value))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _cells(row: GateRow) -> tuple[str, ...]:
    return (
        row.place,
        row.metric,
        values_words(row),
        ratio_words(row),
        percent_words(row.margin),
        percent_words(row.mde),
        str(row.n_blocks),
        verdict_words(row),
    )


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
