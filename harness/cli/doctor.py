"""`dyno doctor`: what is installed here, and what brings the rest."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    gpu: Annotated[bool, typer.Option("--gpu", help="Also whether the GPU is in a state to be measured.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Look at this machine: packages, engines, device, limits, models; for what is missing, the command that brings it.

    Example: `dyno doctor`, `dyno doctor --gpu`

    Exit code 1 when something is missing without which the reference engine does not run; with --gpu 4 where there is no
    GPU to measure.
    """
    from harness.doctor import examine, healthy
    from results.errors import EXIT_BAD_ANSWER, EXIT_ENVIRONMENT, EXIT_OK
    from results.files import to_json

    rows = examine()
    good = healthy(rows)
    code = EXIT_OK if good else EXIT_BAD_ANSWER
    if gpu:
        from harness.doctor_gpu import examine_gpu, readable

        boards = examine_gpu()
        rows += boards
        code = code if readable(boards) else EXIT_ENVIRONMENT
    if as_json:
        typer.echo(to_json({"ok": code == EXIT_OK, "rows": [row.to_dict() for row in rows]}).decode(), nl=False)
        raise typer.Exit(code)

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    # A line to be pasted stays whole, however narrow the terminal.
    lines = [row for row in rows if row.brings and row.brings.startswith("export ")]
    for row in rows:
        mark = {True: "[green]found[/]", False: "[red]missing[/]" if row.needed else "[yellow]missing[/]"}
        if row.group == "gpu":
            mark = {True: "[green]good[/]", False: "[yellow]look[/]"}
        brings = "The line below the table names one that is at hand." if row in lines else row.brings
        words = escape(row.words) + (f"\n[cyan]{escape(brings)}[/]" if brings else "")
        table.add_row(row.name, "[dim]-[/]" if row.found is None else mark[row.found], words)
    console = Console(highlight=False)
    console.print(table)
    for row in lines:
        console.print(f"\n{row.brings}", style="cyan", markup=False, soft_wrap=True)
    words = (
        "The reference engine runs here." if good else "The reference engine does not run here: see what is missing."
    )
    console.print(f"\n{words}", style="green" if good else "red")
    if code == EXIT_ENVIRONMENT:
        console.print("There is no GPU here that can be measured: see its telemetry.", style="red")
    raise typer.Exit(code)
