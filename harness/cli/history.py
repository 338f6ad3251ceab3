"""`dyno history`: a metric over the committed versions of the baselines."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from results.regression_history import HistoryRow, Version


def history(
    metric: Annotated[str, typer.Argument(metavar="METRIC", help="`ttft_ms.p50`, for one.", show_default=False)],
    baselines: Annotated[Path, typer.Option(metavar="FOLDER|FILE", help="Where the baselines are.")] = Path(
        "results/baselines"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Show a metric over the committed versions of the baselines, oldest first, and what is not committed yet.

    Example: `dyno history output_tokens_per_s`
    """
    from dataclasses import asdict

    from results.errors import UsageError
    from results.files import to_json
    from results.regression_history import metric_history
    from results.regression_metrics import gate_metric

    found = gate_metric(metric)
    files = [baselines] if baselines.is_file() else sorted(baselines.glob("*.json"))
    if not files:
        raise UsageError(f"There is no baseline in {baselines}. Make one: `dyno baseline make RUN`.")
    rows = metric_history([version for file in files for version in _versions(file)], found.id)
    if as_json:
        typer.echo(
            to_json({"metric": found.id, "unit": found.unit, "rows": [asdict(r) for r in rows]}).decode(), nl=False
        )
        return
    if not rows:
        raise UsageError(f"No baseline in {baselines} records {found.id}.")
    _print(rows, f"{found.words}, {found.unit}".rstrip(", "))


def _versions(file: Path) -> list[Version]:
    """Every committed version of a file, oldest first, then the file itself."""
    from results.errors import StoreError
    from results.regression_baseline import parse_baseline, read_baseline
    from results.regression_history import Version

    found = []
    for line in reversed(_git(file, "log", "--format=%h %cs", "--", file.name).splitlines()):
        commit, _, date = line.partition(" ")
        import orjson

        try:
            data = orjson.loads(_git(file, "show", f"{commit}:./{file.name}"))
            found.append(Version(commit, date, parse_baseline(data, f"{file} of {commit}")))
        except (orjson.JSONDecodeError, StoreError):
            # A version that was deleted or damaged in that commit tells nothing.
            continue
    found.append(Version(None, "", read_baseline(file)))
    return found


def _git(file: Path, *words: str) -> str:
    """What git says, nothing where the folder is under no version control."""
    try:
        done = subprocess.run(
            ["git", "-C", str(file.resolve().parent), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def _print(rows: list[HistoryRow], title: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from harness.cli.console import CalmConsole
    from reports.console import plain
    from results.report_format import number

    console = CalmConsole()
    console.print(Text(title))
    for place in dict.fromkeys((r.baseline, r.machine, r.point) for r in rows):
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        for head in ("recorded", "commit", "median", "range", "blocks", "change"):
            table.add_column(head)
        for row in rows:
            if (row.baseline, row.machine, row.point) != place:
                continue
            change = "" if row.change is None else f"{100 * row.change:+.1f} %"
            span = f"{number(row.low)} to {number(row.high)}"
            table.add_row(
                *(row.recorded, row.commit or "not committed", number(row.value), span, str(row.n_blocks), change)
            )
        console.print()
        console.print(Text(plain(f"{place[0]}, {place[2]}, {place[1]}"), style="bold"))
        console.print(table)
