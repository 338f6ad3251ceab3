"""The result of a run as terminal tables that fit 80 columns. Names from outside are printed as text, control characters out."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reports.tables import ESTIMATE, SHORT, columns_of
from results.report_data import ReportData
from results.report_format import compact, count, plural
from results.report_shapes import Line, Point

_WIDTH = 80
_TOPICS = ("Engines", "Throughput", "Memory", "What not to trust")
_MODE_HEADS = {"concurrency": "conc."}
_STYLES = {
    "VALID": "green",
    "SUSPECT": "yellow",
    "INVALID": "red",
    "suspect": "yellow",
    "invalid": "red",
    "note": "dim",
}
# Longer labels are cut in the table.
_ENGINE_WIDTH = 12


def print_report(data: ReportData, console: Console, report: Path | None = None) -> None:
    """The conclusions, one row a point, the reasons gathered, and where the report is. No colour unless on a terminal."""
    width = min(console.width, _WIDTH)
    console.print(Text(plain(data.title), style="bold"), width=width)
    topic = ""
    for sentence in data.answer:
        # Reasons follow the table, with their advice.
        if (sentence.topic in _TOPICS or sentence.caution) and not sentence.code:
            if sentence.topic != topic:
                topic = sentence.topic
                console.print(Text(topic, style="cyan"), width=width)
            style = "yellow" if sentence.caution else ""
            console.print(Padding(Text(plain(sentence.text), style=style), (0, 0, 0, 2), expand=False), width=width)
            for line in sentence.detail:
                console.print(Padding(Text(plain(line), style="dim"), (0, 0, 0, 4), expand=False), width=width)
    if data.lines:
        console.print()
        console.print(cell_table(data), width=width)
        _print_notes(data, console, width)
        _print_reasons(data, console, width)
    if report is not None:
        # Never wrapped or cut: it is there to be copied.
        console.print(Text.assemble(("Report  ", "bold"), plain(str(report))), soft_wrap=True)


def cell_table(data: ReportData) -> Table:
    """Engine, input, load, the measures that fit, verdict; over blocks each number is the mean."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("\nengine", max_width=_ENGINE_WIDTH, no_wrap=True, overflow="ellipsis")
    table.add_column("input\ntokens", justify="right", no_wrap=True, max_width=8, overflow="ellipsis")
    modes = _modes(data)
    head = "load" if len(modes) > 1 else _MODE_HEADS.get(modes[0], modes[0][:6])
    table.add_column(f"\n{head}", justify="right", no_wrap=True)
    for column in columns_of(data, SHORT, ESTIMATE):
        table.add_column(f"{column.heading}\n{column.under}", justify="right", no_wrap=True)
    table.add_column("\nverdict", no_wrap=True)
    names = engine_names(data)
    for line in data.lines:
        for point in line.points:
            table.add_row(*_row(names[line.engine], line, point, len(modes) > 1))
    return table


def engine_names(data: ReportData) -> dict[str, str]:
    """What stands for each engine in the table: its label, or a number where cut labels could not be told apart."""
    labels = list(dict.fromkeys(line.engine for line in data.lines))
    cut = {label[: _ENGINE_WIDTH - 1] for label in labels}
    if len(cut) == len(labels):
        return {label: plain(label) for label in labels}
    return {label: f"engine {i}" for i, label in enumerate(labels, 1)}


def _modes(data: ReportData) -> list[str]:
    return list(dict.fromkeys(line.load_mode for line in data.lines))


def _row(name: str, line: Line, point: Point, name_mode: bool) -> list[Text]:
    load = f"{point.load_mode[0]}{count(point.load_value)}" if name_mode else count(point.load_value)
    cells = [Text(name), Text(plain(line.workload.input_label)), Text(load)]
    cells += [Text(column.show(point.values[column.measure], compact)) for column in SHORT]
    return [*cells, Text(point.verdict, style=_STYLES.get(point.verdict, ""))]


def _print_notes(data: ReportData, console: Console, width: int) -> None:
    notes = [f"{name} = {plain(label)}." for label, name in engine_names(data).items() if name != plain(label)]
    if data.blocks > 1:
        notes.append(f"Means over {data.blocks} blocks.")
    if any(column.under == ESTIMATE for column in columns_of(data, SHORT, ESTIMATE)):
        notes.append(f"{ESTIMATE} is the client's estimate.")
    if len(_modes(data)) > 1:
        notes.append("Load: " + ", ".join(f"{m[0]} = {m}" for m in _modes(data)) + ".")
    if any(not p.values[c.measure].known for p in data.points for c in SHORT):
        notes.append("– is unknown or withheld, never 0.")
    if notes:
        console.print(Text(" ".join(notes), style="dim"), width=width)


def _print_reasons(data: ReportData, console: Console, width: int) -> None:
    """SUSPECT and INVALID reasons with their advice; notes in one line."""
    notes = [row for row in data.reasons if row.severity == "note"]
    for row in data.reasons:
        if row.severity == "note":
            continue
        head = Text.assemble(
            (row.severity.upper(), _STYLES.get(row.severity, "")),
            f" {plain(row.code)}, {plural(len(row.evidence), 'cell')}: ",
        )
        label, evidence = row.evidence[0]
        head.append(plain(f"{label}: {evidence}" if evidence else label))
        console.print(head, width=width)
        if row.advice:
            console.print(Padding(Text(plain(row.advice), style="dim"), (0, 0, 0, 2), expand=False), width=width)
    if notes:
        words = ", ".join(f"{plain(r.code)} ({len(r.evidence)})" for r in notes)
        console.print(Text(f"Notes: {words}. The report tells what they mean.", style="dim"), width=width)


def plain(text: str) -> str:
    """Without control characters, so that no name can move the cursor, ring or colour."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
