"""A comparison as a terminal table and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from reports.console import plain
from reports.markdown import escape
from results.comparison import Comparison, Row
from results.comparison_pareto import ParetoPoint
from results.comparison_words import (
    besides_sentence,
    how_words,
    looks_sentence,
    place_words,
    points_sentence,
    ratio_words,
    row_notes,
    shown_rows,
    verdict_sentence,
    verdict_words,
)
from results.report_format import UNKNOWN, count, listed, number
from results.report_measures import MEASURE

_STYLES = {"faster": "green", "slower": "red", "equivalent": "cyan", "inconclusive": "yellow", "refused": "yellow"}
_HEADS = ("point", "metric", "ratio", "blocks", "finds", "verdict")


def comparison_table(comparison: Comparison, every: bool = False) -> Table:
    """A row a point: the ratio with its interval, the smallest slowdown its blocks find, the verdict. What rows share stands once
    above them: their workload, with several metrics their load too; blocks have a column where rows rest on unlike many."""
    rows = table_rows(comparison, every)
    several = len({row.metric for row in rows}) > 1
    blocks_differ = len({row.n_blocks for row in rows}) > 1
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("metric" if several else "point", overflow="fold")
    for head in ("ratio", *(("blocks",) if blocks_differ else ()), "finds"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    above = ""
    for row in rows:
        shared = place_words(row) if several else row.workload or ""
        if shared != above:
            table.add_row(Text(plain(shared), style="dim"))
            above = shared
        name = MEASURE[row.metric].words if several else row.load or place_words(row)
        verdict = Text(f"{row.verdict}{'*' if row.suspect else ''}", style=_STYLES.get(row.verdict, ""))
        numbers = (ratio_words(row), *((count(row.n_blocks),) if blocks_differ else ()), _finds(row))
        table.add_row(Text(f"{'  ' if shared else ''}{plain(name)}"), *numbers, verdict)
    return table


def comparison_notes(comparison: Comparison, every: bool = False) -> list[str]:
    """What is to be said against rows of the table, each thing once with the rows it is said of."""
    rows = table_rows(comparison, every)
    said: dict[str, list[Row]] = {}
    for row in rows:
        if notes := row_notes(row):
            said.setdefault(notes, []).append(row)
    several = len({row.metric for row in rows}) > 1
    lines = []
    for notes, about in said.items():
        names = [f"{MEASURE[row.metric].words} at {place_words(row)}" if several else place_words(row) for row in about]
        lines.append(f"{'all rows' if len(about) == len(rows) else listed(names, 3)}: {notes}.")
    return lines


def closing_sentences(comparison: Comparison) -> list[str]:
    """What follows the table."""
    found = (points_sentence(comparison), looks_sentence(comparison), besides_sentence(comparison))
    return [text for text in found if text]


def comparison_markdown(found: Sequence[Comparison], fronts: Sequence[ParetoPoint], every: bool = False) -> str:
    """The same for a pull request."""
    parts: list[str] = []
    for comparison in found:
        parts += [f"**{escape(verdict_sentence(comparison))}**", "", escape(how_words(comparison)), ""]
        parts += [f"- differs: {escape(item)}" for item in comparison.differs]
        parts += [f"- **disregarded**: {escape(item)}" for item in comparison.unlike]
        parts += ["", f"| {' | '.join((*_HEADS, 'notes'))} |", "| --- | --- | ---: | ---: | ---: | --- | --- |"]
        for row in table_rows(comparison, every):
            parts.append(f"| {' | '.join(escape(text) for text in (*_cells(row), row_notes(row)))} |")
        parts += ["", *(escape(text) for text in closing_sentences(comparison))]
        parts += [f"- not compared: {escape(item)}" for item in comparison.missing]
        parts.append("")
    if text := pareto_sentence(fronts):
        parts += [escape(text), ""]
    return "\n".join(parts).strip() + "\n"


def pareto_sentence(fronts: Sequence[ParetoPoint]) -> str:
    """Which points no other beats both in throughput and in tokens/s of a user; empty where there is nothing to choose."""
    if len(fronts) < 2:
        return ""
    several = len({p.workload for p in fronts}) > 1
    best = [p for p in fronts if p.front]
    words = [
        f"{p.engine} at {p.load}{f', {p.workload}' if several else ''} ({number(p.output_tokens_per_s)} tok/s, "
        f"{number(p.user_tokens_per_s)} a user{', SUSPECT' if p.suspect else ''})"
        for p in best
    ]
    mean = " (means over blocks)" if any(p.blocks > 1 for p in best) else ""
    return f"Not beaten in both output tokens/s and tokens/s of a user{mean}: {listed(words, 8)}."


def table_rows(comparison: Comparison, every: bool = False) -> list[Row]:
    """The row over all points, where there are several, then those of the points."""
    rows = list(shown_rows(comparison, every))
    return [comparison.overall, *rows] if comparison.overall and len(comparison.primary) > 1 else rows


def _cells(row: Row) -> tuple[str, ...]:
    return (
        place_words(row),
        MEASURE[row.metric].words,
        ratio_words(row),
        count(row.n_blocks),
        _finds(row),
        verdict_words(row),
    )


def _finds(row: Row) -> str:
    return f"{100 * row.mde:.1f} %" if row.mde is not None else UNKNOWN
