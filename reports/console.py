"""The result of a run as terminal tables that fit 80 columns, or fewer. Names from outside are printed as text, control
characters out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reports.tables import ESTIMATE, SHORT, Column, columns_of
from results.reasons import NO_WINDOW
from results.report_data import ReportData
from results.report_format import compact, count, listed, plural
from results.report_reasons import evidence_groups
from results.report_shapes import Line, Point, load_words, workload_info

_WIDTH = 80
# What is left out says no more than the title and the table.
_UNSAID = ("Measured",)
_MODE_HEADS = {"concurrency": "in\nflight"}
_STYLES = {
    "VALID": "green",
    "SUSPECT": "yellow",
    "INVALID": "red",
    "suspect": "yellow",
    "invalid": "red",
    "note": "dim",
}
# Longer labels are cut in the table.
_ENGINE_WIDTH, _INPUT_WIDTH = 12, 8
# Which measures go first where the terminal is narrow.
_DROPPED = ("kv_bytes_engine", "prefill_tokens_per_s", "decode_tokens_per_s")


def print_report(data: ReportData, console: Console, report: Path | None = None) -> None:
    """The conclusions, one row a point, the reasons gathered, and where the report is. No colour unless on a terminal; one
    sentence where there is no cell."""
    width = min(console.width, _WIDTH)
    with console.capture() as captured:
        _print(data, console, width, report)
    text = captured.get()
    if not console.is_terminal:
        # Tables are padded to their width: in a pipe that is noise.
        text = "\n".join(line.rstrip() for line in text.split("\n"))
    console.file.write(text)
    console.file.flush()


def _print(data: ReportData, console: Console, width: int, report: Path | None) -> None:
    if not data.cells:
        console.print(Text(plain(data.answer[0].text)), width=width)
        return
    console.print(Text(plain(data.title), style="bold"), width=width)
    if data.weights:
        console.print(Text(f"Weights from {plain(data.weights)}", style="dim"), width=width)
    topic = ""
    for sentence in data.answer:
        # Reasons follow the table, with their advice.
        if sentence.topic in _UNSAID or sentence.code:
            continue
        if sentence.topic != topic:
            topic = sentence.topic
            console.print(Text(topic, style="cyan"), width=width)
        style = "yellow" if sentence.caution else ""
        console.print(Padding(Text(plain(sentence.text), style=style), (0, 0, 0, 2), expand=False), width=width)
        for line in sentence.detail:
            console.print(Padding(Text(plain(line), style="dim"), (0, 0, 0, 4), expand=False), width=width)
    console.print()
    console.print(cell_table(data, width), width=width)
    _print_notes(data, console, width, engine_names(data, fitting(data, width)[1]))
    _print_reasons(data, console, width)
    for engine in data.engines:
        if engine.notes:
            text = f"About the sessions of {engine.label}: {'; '.join(engine.notes)}."
            console.print(Text(plain(text), style="dim"), width=width)
    if report is not None:
        hint = f"Cells   dyno report {plain(str(report.parent))} --cells"
        more = " (ids, for dyno why and dyno profile)"
        shown = hint + more if len(hint + more) <= width else hint
        console.print(Text(shown, style="dim"), soft_wrap=True)
        # Never wrapped or cut: it is there to be copied.
        console.print(Text.assemble(("Report  ", "bold"), plain(str(report))), soft_wrap=True)


def print_cells(cells: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Every cell of summary.json with its id, which commands that look at one cell ask for. The id is never cut."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for head in ("id", "engine", "load", "input / output", "block", "verdict"):
        table.add_column(
            head, no_wrap=head in ("id", "block", "verdict"), justify="right" if head == "block" else "left"
        )
    for cell in cells:
        load = cell["load"]
        place = load_words(str(load.get("mode")), load.get("value") or "?")
        words = (cell["id"], cell["engine"], place, workload_info(cell["workload"]).label)
        verdict = Text(str(cell["verdict"]), style=_STYLES.get(str(cell["verdict"]), ""))
        table.add_row(*(Text(plain(str(text))) for text in words), Text(str(cell["block"])), verdict)
    console.print(table, width=min(console.width, _WIDTH))


def cell_table(data: ReportData, width: int = _WIDTH) -> Table:
    """Engine, input, load, the measures that fit into `width`, verdict; over blocks each number is the mean."""
    columns, room = fitting(data, width)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("\nengine", max_width=room, no_wrap=True, overflow="ellipsis")
    table.add_column("input\ntokens", justify="right", no_wrap=True, max_width=_INPUT_WIDTH, overflow="ellipsis")
    table.add_column(_load_head(data), justify="right", no_wrap=True)
    for column in columns:
        table.add_column(f"{column.heading}\n{column.under}", justify="right", no_wrap=True)
    table.add_column("\nverdict", no_wrap=True)
    names = engine_names(data, room)
    for line in data.lines:
        for point in line.points:
            table.add_row(*_row(names[line.engine], line, point, len(_modes(data)) > 1, columns))
    return table


def fitting(data: ReportData, width: int) -> tuple[list[Column], int]:
    """The measures for which there is room, and the room for the engine: where there is not enough, the last of `_DROPPED`
    that is left goes, whole, and names of engines are cut only after all of them."""
    columns = columns_of(data, SHORT, ESTIMATE)
    several, points = len(_modes(data)) > 1, [(line, p) for line in data.lines for p in line.points]
    for measure in (None, *_DROPPED):
        columns = [c for c in columns if c.measure != measure]
        heads = [
            "engine",
            "tokens",
            _load_head(data).split("\n")[1],
            *(max(c.heading, c.under, key=len) for c in columns),
            "verdict",
        ]
        rows = [[t.plain for t in _row(plain(line.engine), line, p, several, columns)] for line, p in points]
        engine, tokens, *rest = (max(len(text) for text in column) for column in zip(heads, *rows, strict=True))
        room = width - min(tokens, _INPUT_WIDTH) - sum(rest) - len(rest) - 1
        if min(engine, _ENGINE_WIDTH) <= room:
            break
    return columns, max(len("engine"), min(_ENGINE_WIDTH, room))


def _load_head(data: ReportData) -> str:
    modes = _modes(data)
    return "\nload" if len(modes) > 1 else _MODE_HEADS.get(modes[0], f"\n{modes[0][:6]}")


def engine_names(data: ReportData, room: int = _ENGINE_WIDTH) -> dict[str, str]:
    """What stands for each engine in the table: its label, or a number where cut labels could not be told apart."""
    labels = list(dict.fromkeys(line.engine for line in data.lines))
    cut = {label if len(label) <= room else label[: room - 1] for label in labels}
    if len(cut) == len(labels):
        return {label: plain(label) for label in labels}
    return {label: f"engine {i}" for i, label in enumerate(labels, 1)}


def _modes(data: ReportData) -> list[str]:
    return list(dict.fromkeys(line.load_mode for line in data.lines))


def _letter(mode: str) -> str:
    """What stands for a kind of load before its number: no two of ours begin alike."""
    return "R" if mode == "ramp" else mode[0]


def _row(name: str, line: Line, point: Point, name_mode: bool, columns: list[Column]) -> list[Text]:
    load = f"{_letter(point.load_mode)}{count(point.load_value)}" if name_mode else count(point.load_value)
    cells = [Text(name), Text(plain(line.workload.input_label).replace("about ", "~")), Text(load)]
    cells += [Text(column.show(point.values[column.measure], compact)) for column in columns]
    return [*cells, Text(point.verdict, style=_STYLES.get(point.verdict, ""))]


def _print_notes(data: ReportData, console: Console, width: int, names: dict[str, str]) -> None:
    notes = [f"{name} = {plain(label)}." for label, name in names.items() if name != plain(label)]
    if data.blocks > 1:
        notes.append(f"Means over {data.blocks} blocks.")
    if any(column.under == ESTIMATE for column in columns_of(data, SHORT, ESTIMATE)):
        notes.append(f"{ESTIMATE} is the client's estimate.")
    if len(_modes(data)) > 1:
        notes.append("Load: " + ", ".join(f"{_letter(m)} = {m}" for m in _modes(data)) + ".")
    if any(not p.values[c.measure].known for p in data.points for c in SHORT):
        notes.append("– is unknown or withheld, never 0.")
    if notes:
        console.print(Text(" ".join(notes), style="dim"), width=width)


def _print_reasons(data: ReportData, console: Console, width: int) -> None:
    """SUSPECT and INVALID reasons in words, with what was seen, where, and the advice; notes in one sentence, but for that of the
    window."""
    for row in data.reasons:
        if row.severity == "note":
            continue
        head = Text.assemble(
            (row.severity.upper(), _STYLES.get(row.severity, "")),
            plain(f" {row.words} ({row.code}), {plural(len(row.evidence), 'cell')}"),
        )
        console.print(head, width=width)
        for group in evidence_groups(row):
            text = f"{group.named()}: {group.text}" if group.text else group.named()
            console.print(Padding(Text(plain(text)), (0, 0, 0, 2), expand=False), width=width)
        if row.advice:
            console.print(Padding(Text(plain(row.advice), style="dim"), (0, 0, 0, 2), expand=False), width=width)
    for row in data.reasons:
        if row.code == NO_WINDOW:  # what the figures are of, and the one note that a flag takes away
            text = f"{row.words} ({row.code}) in {plural(len(row.evidence), 'cell')}. {row.advice}"
            console.print(Text(plain(text), style="dim"), width=width)
    left = [r for r in data.reasons if r.severity == "note" and r.code != NO_WINDOW]
    notes = list(dict.fromkeys(plain(r.words[:1].lower() + r.words[1:]) for r in left))
    if notes:
        text = f"Noted, and no fault of a number: {listed(notes, 4)}. The report tells more."
        console.print(Text(text, style="dim"), width=width)


def plain(text: str) -> str:
    """Without control characters, so that no name can move the cursor, ring or colour."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
