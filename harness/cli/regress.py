"""`dyno regress`: did the candidate make serving slower? Pass, regression or inconclusive, never a coin flip."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import BLOCKS, OUTPUT

if TYPE_CHECKING:
    from results.regression import Gate

GATE = "What is gated"


def regress(
    sides: Annotated[
        list[str],
        typer.Argument(
            metavar="BASE CAND",
            help="RUN:LABEL each, of one run or of two; one RUN of two engines; with --baseline CAND alone.",
            show_default=False,
        ),
    ],
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Hold CAND against a recorded baseline.", show_default=False, rich_help_panel=GATE
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC",
            help="What to gate (repeat for several).",
            show_default="the gate's table",
            rich_help_panel=GATE,
        ),
    ] = None,
    margin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]5%",
            help="How much worse is no regression: of all, of a kind (wall, cpu, counter) or of a metric.",
            show_default="wall 5%, cpu 5%, counter 2%; steps and KV blocks 5%",
            rich_help_panel=GATE,
        ),
    ] = None,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="Margins of a small shared machine: wall 15%, cpu 7%, counter 2%; steps and KV blocks 5%.",
            rich_help_panel=GATE,
        ),
    ] = False,
    effect: Annotated[
        str | None,
        typer.Option(
            metavar="10%",
            help="Announce the blocks that find so much.",
            show_default="twice the margin",
            rich_help_panel=BLOCKS,
        ),
    ] = None,
    confidence: Annotated[
        str, typer.Option(metavar="95%", help="That of each interval.", rich_help_panel=BLOCKS)
    ] = "95%",
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm",
            help="Measure what is worse at first sight again, in new sessions; without it that is inconclusive.",
            rich_help_panel=BLOCKS,
        ),
    ] = False,
    confirmation: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="New sessions that were measured already.", show_default=False, rich_help_panel=BLOCKS
        ),
    ] = None,
    allow_differences: Annotated[
        bool,
        typer.Option(
            "--allow-differences",
            help="Gate unlike machines or settings all the same, labelled so.",
        ),
    ] = False,
    markdown: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Append Markdown, as for a job summary.", show_default=False, rich_help_panel=OUTPUT
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.", show_default=False, rich_help_panel=OUTPUT)
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json-file", metavar="FILE", help="Write the JSON.", show_default=False, rich_help_panel=OUTPUT),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Gate a candidate: is it no worse than the base, by more than a margin?

    Example: `dyno regress runs/pr:base runs/pr:head --confirm`

    Both engines of one run are paired block by block (`dyno sweep --blocks 5` and two --engine). Exit code 0: pass, 1: a
    regression, or a cell that is missing or INVALID, 2: unlike or refused, 3: inconclusive.
    """
    from harness.cli.amounts import share
    from harness.gate import confirmed, measured
    from results.errors import EXIT_BAD_ANSWER, EXIT_INCONCLUSIVE, EXIT_OK, UsageError
    from results.files import check_writable, store_error, to_json, write_atomic
    from results.regression import FAILED, INCONCLUSIVE, PASS, REGRESSION, GateOptions
    from results.regression_metrics import KINDS, chosen

    if confirm and confirmation is not None:
        raise UsageError("--confirm measures new sessions and --confirmation names measured ones: give one of them.")
    margins: dict[str, float] = {}
    for text in margin or []:
        name, sign, amount = text.rpartition("=")
        value = share("--margin", amount)
        margins |= {name: value} if sign else dict.fromkeys(KINDS, value)
    options = GateOptions(
        metrics=chosen(metric or [], margins, shared),
        asked=bool(metric),
        confidence=share("--confidence", confidence),
        effect=share("--effect", effect) if effect is not None else None,
    )
    files = {
        f: p for f, p in (("--markdown", markdown), ("--junit", junit), ("--json-file", json_file)) if p is not None
    }
    for flag, path in files.items():
        check_writable(flag, path, appended=flag == "--markdown")
    if len({path.resolve() for path in files.values()}) < len(files):
        raise UsageError(f"{' and '.join(files)} name one file twice: each is a document of its own.")
    first = measured(sides, baseline, options, allow_differences)
    gate = confirmed(first, options, allow_differences, confirm, confirmation)
    document = to_json(gate.to_dict())
    from reports.regression import gate_junit, gate_markdown

    # The verdict first: a file that cannot be written after all must not lose it.
    if as_json:
        typer.echo(document.decode(), nl=False)
    else:
        _print(gate)
    if markdown is not None:
        try:
            with markdown.open("a", encoding="utf-8") as file:
                file.write(gate_markdown(gate))
        except OSError as error:
            raise store_error(markdown, error, "--markdown") from error
    if junit is not None:
        write_atomic(junit, gate_junit(gate).encode(), "--junit")
    if json_file is not None:
        write_atomic(json_file, document, "--json-file")
    codes = {PASS: EXIT_OK, REGRESSION: EXIT_BAD_ANSWER, FAILED: EXIT_BAD_ANSWER, INCONCLUSIVE: EXIT_INCONCLUSIVE}
    raise typer.Exit(codes[gate.verdict])


def _print(gate: Gate) -> None:
    from rich.text import Text

    from harness.cli.console import CalmConsole
    from reports.console import plain
    from reports.regression import STYLES, closing, gate_table
    from results.regression_words import headline, how

    console = CalmConsole()
    width = min(console.width, 120)
    console.print(Text(plain(headline(gate)), style=STYLES[gate.verdict]), width=width)
    console.print(Text(plain(how(gate)), style="dim"), width=width)
    console.print()
    console.print(gate_table(gate, width), width=width)
    for text in closing(gate):
        console.print(Text(plain(text), style="dim"), width=width)
