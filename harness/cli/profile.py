"""`dyno profile`: where the time of one cell goes, operator by operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import CellId, RunFolder

if TYPE_CHECKING:
    from rich.console import Console

_TOP = 15


def profile(
    run: RunFolder,
    cell: CellId,
    steps: Annotated[str, typer.Option(help="Steps of the reference engine that are watched at most.")] = "64",
    operators: Annotated[
        bool,
        typer.Option("--operators", help="Have PyTorch compute the reference's layers, so that each operator shows."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but the answer.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Run a measured cell once more under a profiler: torch's for the reference engine, NVIDIA's nsys for the others.

    Example: `dyno profile runs/smollm2-135m-1a2b3c4d 0f3a`

    The run stays as it is: the profiled cell lies in `profiles/` inside of it, unscored. Where nsys is missing, what to paste on a
    machine that has it is printed (exit code 4).
    """
    import sys

    from harness.cli.console import CalmConsole
    from harness.cli.live import observer_for
    from harness.cli.values import positive_int, public_command
    from harness.profile import ask_profile, can_run, paste, run_profile
    from results.errors import EnvironmentProblemError
    from results.files import to_json

    console = CalmConsole(stderr=as_json)
    asked = ask_profile(run, cell, positive_int("--steps", steps), operators)
    if not can_run(asked):
        for line in paste(asked):
            typer.echo(line)
        raise EnvironmentProblemError(
            f"Engine {asked.record.engine!r} is profiled by nsys (NVIDIA Nsight Systems), and there is none on PATH. Install it, or "
            "paste the lines above on a machine that has it: the server (wait until it is ready), the recording, the load, the end."
        )
    document = run_profile(asked, observer_for(console, quiet), public_command(["dyno", *sys.argv[1:]]))
    if as_json:
        typer.echo(to_json(document).decode(), nl=False)
    else:
        show_profile(document, console)


def show_profile(document: dict[str, Any], console: Console) -> None:
    """The operators that took the most time of their own, and where the whole trace lies."""
    from rich.table import Table

    console.print(f"Cell {document['cell']} of engine {document['engine']} under {document['tool']}:", markup=False)
    rows = sorted(document.get("operators") or [], key=lambda row: -_own(row))
    if rows:
        whole = sum(map(_own, rows)) or 1.0
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("operator", no_wrap=True, overflow="ellipsis", ratio=1)
        for heading in ("calls", "total ms", "own ms", "share"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in rows[:_TOP]:
            total = max(row["total_ms"], _own(row))
            share = f"{_own(row) / whole:.1%}"
            table.add_row(row["name"], f"{row['calls']:,}", f"{total:,.1f}", f"{_own(row):,.1f}", share)
        console.print(table)
        if len(rows) > _TOP:
            rest = sum(map(_own, rows[_TOP:])) / whole
            console.print(f"{len(rows) - _TOP} more take {rest:.1%}.", style="dim", markup=False)
        most = (
            f", the most that were asked for (--steps {document['most']})"
            if document["steps"] == document["most"]
            else ""
        )
        console.print(
            f"{document['steps']} steps, {document['wall_ms'] / (document['steps'] or 1):.2f} ms each{most}.",
            markup=False,
        )
    if document.get("kernels") not in (None, "off"):
        console.print(
            f"The layers are one call into the compiled kernels ({document['kernels']}); --operators has PyTorch compute them "
            "instead, which is another implementation and slower.", markup=False,
        )  # fmt: skip
    viewer = "https://ui.perfetto.dev or chrome://tracing" if document["tool"] != "nsys" else "Nsight Systems"
    console.print(f"Trace, to open in {viewer}:", markup=False)
    console.print(document["trace"], markup=False, soft_wrap=True)


def _own(row: dict[str, Any]) -> float:
    """Time of its own: on the device where it ran there."""
    return float(row["self_device_ms"] or row["self_ms"])
