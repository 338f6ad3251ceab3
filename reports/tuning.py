"""The answer of `dyno tune` on a terminal: trials, what beat the defaults, the arms, commands to paste."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from results.report_format import number, percent

_STYLES = {
    "beaten": "green",
    "not beaten": "cyan",
    "inconclusive": "yellow",
    "nothing found": "yellow",
    "nothing to try": "cyan",
    "budget too short": "yellow",
    "unfinished": "yellow",
}


def print_answer(document: Mapping[str, Any], console: Console) -> None:
    """Show what `tune.json` holds."""
    console.print()
    console.print(_trials_table(document))
    for why, left in _by_reason(document).items():
        what = left[0] if len(left) == 1 else f"{left[0]} and {len(left) - 1} more"
        console.print(Text(f"Left out, {what}: {why}", style="dim"))
    if document["order"]:
        console.print(Text(f"Order of the trials: {document['order'].rstrip('.')}.", style="dim"))
    console.print()
    for engine in document["engines"]:
        console.print(Text(engine["words"], style=_STYLES[engine["verdict"]]))
    if any((engine["against_defaults"] or {}).get("low") for engine in document["engines"]):
        looks = f"Intervals of {100 * document['confidence']:g} %, which bear a second look after more blocks."
        console.print(Text(looks, style="dim"))
    if document["arms"]:
        console.print()
        console.print(Text("The arms of the comparison, paired by block, verdicts by Holm over all:", style="bold"))
        for arm in document["arms"]:
            console.print(Text(f"  {arm['words']}"))
            if arm["audit"]:
                console.print(Text(f"    the settings, by the audit: {arm['audit']}", style="dim"))
        if document["equalised"]:
            equal = ", ".join(f"{name} {value}" for name, value in document["equalised"].items())
            console.print(Text(f"  Equalised are {equal}", style="dim"))
    measured = {trial["engine"] for trial in document["trials"] if trial["value"] is not None}
    for engine in document["engines"]:
        if engine["engine"] not in measured:
            continue
        console.print()
        console.print(Text(f"To run {engine['run']} as it was measured:", style="bold"))
        console.print(engine["command"], markup=False, highlight=False, soft_wrap=True)
        if engine["measuring_only"]:
            only = ", ".join(engine["measuring_only"])
            console.print(Text(f"(without what only served the measuring: {only})", style="dim"), soft_wrap=True)
    console.print()
    where = f"{document['run']}/report.html"
    if document["confirmation"]:
        where += f" (the search), {document['confirmation']}/report.html (the confirmation)"
    console.print(Text(f"Reports: {where}", style="dim"), soft_wrap=True)


def _by_reason(document: Mapping[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for left in document["left_out"]:
        found.setdefault(left["why"], []).append(left["what"])
    return found


def _trials_table(document: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("engine", "settings", "load", "tokens/s", "cells", "ended"):
        table.add_column(heading, justify="right" if heading in ("load", "tokens/s") else "left")
    for trial in document["trials"]:
        cells = (
            trial["engine"],
            trial["label"],
            "whole" if trial["share"] == 1 else percent(trial["share"]),
            number(trial["value"]),
            trial["verdict"],
            trial["ended"],
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table
