"""`dyno report`: rebuild a run's summary and report from its events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import RunFolder

if TYPE_CHECKING:
    from results.imports import Imported
    from results.records import CellRecord
    from results.store import RunStore

# Cells beside each other in a table of 80 columns.
_COLUMNS = 3


def report(
    run: RunFolder,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the conclusions as Markdown instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead.")] = False,
    tool: Annotated[
        str | None,
        typer.Option("--as", metavar="vllm|aiperf", help="Print the numbers by that tool's rules.", show_default=False),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write each figure as an SVG file.", show_default=False)
    ] = None,
    cells: Annotated[
        bool, typer.Option("--cells", help="Print each cell's id, as `dyno why` and `dyno profile` take it.")
    ] = False,
    beside: Annotated[
        list[Path] | None,
        typer.Option(metavar="IMPORTED", help="With --as or alone: beside a run of `dyno import`.", show_default=False),
    ] = None,
) -> None:
    """Rebuild the summary and the HTML report of RUN from what was measured.

    Example: `dyno report runs/demo`
    """
    import os

    # Before numpy is there: the sums are short, and threads for each of them would cost more than they give.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from harness.cli.console import CalmConsole
    from reports.build import render_report
    from reports.console import print_cells, print_report
    from reports.markdown import render_markdown
    from results.files import to_json
    from results.report_data import load_report_data
    from results.store import RunStore
    from results.summary import build_summary

    store = RunStore.open(run)
    if tool is not None or beside:
        print_as(store, tool, as_json, [RunStore.open(path) for path in beside or []])
        return
    summary = build_summary(store, processes=os.cpu_count() or 1)
    store.write_summary(summary)
    data = load_report_data(store, summary)
    path = render_report(store, data)
    if figures is not None:
        from reports.figure_files import write_figures
        from reports.sections import page_figures

        written = write_figures(data, [f for part in page_figures(data) for f in part], figures)
        typer.echo(
            f"{len(written)} figures written to {figures} (they are SVG already: no browser was needed).", err=True
        )
    if as_json:
        typer.echo(to_json(summary).decode(), nl=False)
    elif cells:
        print_cells(summary["cells"], CalmConsole())
    elif markdown:
        typer.echo(render_markdown(data))
    else:
        print_report(data, CalmConsole(), path)


def print_as(store: RunStore, tool: str | None, as_json: bool, beside: Sequence[RunStore] = ()) -> None:
    """Every cell by another tool's definitions, from the same events, beside what that tool itself reported.

    Without `tool` it is that of the imported runs. Raises UnknownNameError, UsageError, StoreError.
    """
    from rich.table import Table

    from harness.cli.console import CalmConsole
    from results.cell_summary import load_value
    from results.definitions import TOOLS, by_tool
    from results.errors import UnknownNameError
    from results.events import read_chunks, read_requests
    from results.files import to_json
    from results.report_shapes import load_words, workload_info

    theirs = _imported(beside)
    tool = tool or next((made.tool for _, made in theirs if made.tool in TOOLS), None)
    if tool is None:
        _print_without_http(store, theirs, as_json)
        return
    if tool not in TOOLS:
        raise UnknownNameError("tool", tool, list(TOOLS))
    cells = [
        {
            "id": r.id,
            "engine": r.engine,
            "block": r.block,
            "workload": r.workload,
            "load": r.load,
            **by_tool(tool, read_requests(store.cell_dir(r.id)), read_chunks(store.cell_dir(r.id))),
        }
        for r in store.cells()
    ]
    names = cells[0]["numbers"] if cells else {}
    cells += [
        {
            "id": record.id,
            "engine": record.engine,
            "block": 0,
            "workload": made.workload,
            "load": made.load,
            "tool": made.tool,
            "version": made.tool_version,
            "source": "imported",
            "definitions": made.words,
            "numbers": {name: made.numbers.get(name) for name in names or made.numbers},
        }
        for record, made in theirs
        if made.tool == tool
    ]
    if as_json:
        typer.echo(to_json(cells).decode(), nl=False)
        return
    console = CalmConsole()
    console.print(TOOLS[tool].words, style="dim", markup=False, highlight=False)
    flat = [_flat(cell["numbers"]) for cell in cells]
    for at in range(0, len(cells), _COLUMNS):
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("", no_wrap=True)
        for cell in cells[at : at + _COLUMNS]:
            place = load_words(str(cell["load"].get("mode")), load_value(cell["load"]) or "?")
            table.add_column(f"{cell['engine']}, {workload_info(cell['workload']).label}, {place}", justify="right")
        for name in flat[0]:
            shown = (row.get(name) for row in flat[at : at + _COLUMNS])
            table.add_row(name, *("-" if value is None else f"{value:,.4g}" for value in shown))
        console.print(table)


def _flat(numbers: dict[str, Any]) -> dict[str, float | None]:
    out: dict[str, float | None] = {}
    for name, value in numbers.items():
        out |= {f"{name} {point}": v for point, v in value.items()} if isinstance(value, dict) else {name: value}
    return out


def _imported(runs: Sequence[RunStore]) -> list[tuple[CellRecord, Imported]]:
    """The imported cells of runs. Raises UsageError where a run was measured."""
    from results.errors import UsageError
    from results.imports import imported_of

    found = []
    for run in runs:
        for record in run.cells():
            if (made := imported_of(run, record.id)) is None:
                raise UsageError(
                    f"{run.path} was measured here, not imported: `dyno compare` holds two such runs against each other."
                )
            found.append((record, made))
    return found


def _print_without_http(store: RunStore, theirs: Sequence[tuple[CellRecord, Imported]], as_json: bool) -> None:
    """Throughput over HTTP beside that of the engine in a process of its own."""
    from rich.table import Table

    from harness.cli.console import CalmConsole
    from results.files import to_json
    from results.report_shapes import load_words, workload_info
    from results.summary import build_summary

    rates = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
    rows = []
    for cell in build_summary(store)["cells"]:
        scope, load = cell["whole"] or {}, cell["load"]
        place = (
            f"{workload_info(cell['workload']).label}, {load_words(str(load.get('mode')), load.get('value') or '?')}"
        )
        rows.append({"what": f"{cell['engine']}, {place}", "http": True, **{name: scope.get(name) for name in rates}})
    for record, made in theirs:
        what = f"{record.engine}, {made.workload.get('label')}"
        rows.append(
            {
                "what": what,
                "http": made.http,
                "definitions": made.words,
                **{name: made.scope.get(name) for name in rates},
            }
        )
    if as_json:
        typer.echo(to_json(rows).decode(), nl=False)
        return
    console = CalmConsole()
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("", "HTTP", "output tok/s", "all tok/s", "requests/s"):
        table.add_column(head, justify="left" if head in ("", "HTTP") else "right")
    for row in rows:
        shown = ("-" if row[name] is None else f"{row[name]:,.4g}" for name in rates)
        table.add_row(str(row["what"]), "yes" if row["http"] else "no", *shown)
    console.print(table)
    for _, made in theirs:
        console.print(made.words, style="dim", markup=False, highlight=False)
    words = "Where model, lengths and settings are the same, what is missing over HTTP is the cost of the server's front and of the load."
    console.print(words, style="dim", markup=False, highlight=False)
