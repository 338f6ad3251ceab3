"""The conclusions and the table as Markdown, for a pull request. Names from outside stay text."""

from __future__ import annotations

import re

from reports.console import plain
from reports.device import device_lines
from reports.tables import COLUMNS, Column, columns_of
from results.report_data import ReportData
from results.report_format import plural
from results.report_measures import Value
from results.report_reasons import evidence_groups
from results.report_shapes import Point

_BADGES = {"VALID": "VALID", "SUSPECT": "**SUSPECT**", "INVALID": "**INVALID**"}


def render_markdown(data: ReportData) -> str:
    """One table row a point: means over the blocks that count."""
    parts = [f"## {escape(data.title)}", ""]
    if data.weights:
        parts += [f"Weights from {escape(data.weights)}", ""]
    topic = ""
    for sentence in data.answer:
        if sentence.code:
            # Told under the table, with its advice.
            continue
        if sentence.topic != topic:
            topic = sentence.topic
            parts += ["", f"**{topic}**", ""]
        parts += [f"- {escape(sentence.text)}", *(f"  - {escape(line)}" for line in sentence.detail)]
    if data.lines:
        parts += ["", *_table(data)]
        if data.blocks > 1:
            parts += ["", f"Means over {data.blocks} blocks, INVALID cells left out."]
    if data.device.rows:
        parts += ["", "**Device**", "", *_device(data), "", *(escape(text) for text in data.device.sentences)]
    serious = [row for row in data.reasons if row.severity != "note"]
    if serious:
        parts += ["", "**Reasons**", ""]
        for row in serious:
            what = f"{escape(row.words)} ({escape(row.code)}, {row.severity}, {plural(len(row.evidence), 'cell')})"
            seen = [f"{g.named()}: {g.text}" if g.text else g.named() for g in evidence_groups(row)]
            parts.append(f"- {what}. {escape(row.advice)}".rstrip())
            parts += [f"  - {escape(text)}" for text in seen]
    noted = [engine for engine in data.engines if engine.notes]
    if noted:
        parts += ["", "**About the sessions**", ""]
        parts += [f"- {escape(engine.label)}: {escape('; '.join(engine.notes))}." for engine in noted]
    if data.reproduction.starts:
        parts += ["", "Done with", "", *_code(data.reproduction.starts)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip() + "\n"


def _table(data: ReportData) -> list[str]:
    heads = ["engine", "workload", "load", *(f"{c.heading} {c.under}" for c in columns_of(data)), "verdict"]
    aligns = ["---", "---", "---", *("---:" for _ in COLUMNS), "---"]
    rows = [_row(point) for point in data.points]
    return [f"| {' | '.join(cells)} |" for cells in (heads, aligns, *rows)]


def _device(data: ReportData) -> list[str]:
    heads = [
        "engine",
        "workload",
        "load",
        "GB/s",
        "of peak",
        "power W",
        "J a token",
        "SM clock MHz",
        "memory",
        "clock events",
    ]
    aligns = ["---", "---", "---", *("---:" for _ in heads[3:-1]), "---"]
    rows = [
        [escape(text) for text in (d.engine, d.workload, d.load)]
        + [d.bandwidth, d.share, d.power, d.energy, d.clock, d.memory, escape(d.events)]
        for d in device_lines(data)
    ]
    return [f"| {' | '.join(cells)} |" for cells in (heads, aligns, *rows)]


def _row(point: Point) -> list[str]:
    values = [_with_spread(column, point.values[column.measure]) for column in COLUMNS]
    verdict = _BADGES.get(point.verdict, escape(point.verdict))
    return [escape(point.engine), escape(point.workload.label), escape(point.load_label), *values, verdict]


def _with_spread(column: Column, value: Value) -> str:
    spread = column.spread(value)
    return f"{column.show(value)} ({spread})" if spread else column.show(value)


def escape(text: str) -> str:
    """Text that Markdown, the HTML inside it and a terminal leave alone: on one line, every character with a meaning escaped."""
    line = plain(" ".join(text.split()))
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # `@` would call a person and `#12` link an issue; a zero-width space after them keeps them text.
    line = re.sub(r"([@#])(?=\w)", "\\1\u200b", line)
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", line)


def _code(lines: list[str]) -> list[str]:
    """A fence longer than any run of backticks inside it."""
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}sh", *lines, fence]
