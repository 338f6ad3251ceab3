"""`dyno runs`: the runs below a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def runs(
    root: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the runs below a folder: when each was made, its engines, and how many of its cells are measured.

    Example: `dyno runs`
    """
    from datetime import datetime

    from rich.table import Table

    from harness.cli.console import CalmConsole
    from harness.experiment import cells_of, experiment_from
    from results.errors import DynoError
    from results.files import to_json
    from results.store import RunStore, find_runs

    rows: list[dict[str, Any]] = []
    for path in find_runs(root):
        store = RunStore(path)
        try:
            experiment = experiment_from(store.experiment, str(path))
            made = (
                datetime.fromtimestamp(store.manifest["start"]["wall_ns"] / 1e9).astimezone().isoformat(" ", "minutes")
            )
            rows.append(
                {
                    "run": str(path),
                    "made": made,
                    "model": experiment.model,
                    "engines": [e.label for e in experiment.engines],
                    "cells_planned": len(cells_of(experiment)),
                    "cells_committed": len(list((path / "cells").glob("*/cell.json"))),
                    "error": None,
                }
            )
        except (DynoError, KeyError, TypeError) as error:
            rows.append({"run": str(path), "error": str(error)})
    if as_json:
        typer.echo(to_json(rows).decode(), nl=False)
        return
    console = CalmConsole(soft_wrap=True)
    if not rows:
        console.print(f"No runs below {root}/. `dyno sweep` makes one.", markup=False)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("Run", "Made", "Model", "Engines", "Cells"):
        table.add_column(
            heading, justify="right" if heading == "Cells" else "left", no_wrap=heading == "Run", overflow="fold"
        )
    for row in rows:
        if row["error"]:
            table.add_row(str(row["run"]), "", "", "unreadable", "")
        else:
            cells = f"{row['cells_committed']}/{row['cells_planned']}"
            table.add_row(str(row["run"]), str(row["made"]), str(row["model"]), ", ".join(row["engines"]), cells)
    console.print(table)
