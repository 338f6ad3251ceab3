"""`dyno runs`: the runs below a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from results.store import RunStore

_MODEL = 18


def runs(
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the runs below a folder: when each was made, its engines, and how many of its cells are measured.

    Example: `dyno runs`
    """
    from datetime import datetime

    from rich.table import Table

    from harness.cli.console import CalmConsole
    from harness.experiment import experiment_from
    from results.errors import DynoError
    from results.files import to_json
    from results.planned import planned_cells
    from results.store import RunStore, find_runs

    rows: list[dict[str, Any]] = []
    for path in find_runs(root):
        store = RunStore(path)
        try:
            if store.experiment.get("source") == "imported":
                rows.append(_imported(path, store))
                continue
            experiment = experiment_from(store.experiment, str(path))
            made = datetime.fromtimestamp(store.manifest["start"]["wall_ns"] / 1e9).isoformat(" ", "minutes")
            rows.append(
                {
                    "run": str(path),
                    "made": made,
                    "model": experiment.model,
                    "engines": [e.label for e in experiment.engines],
                    # Of a search, and of blocks until intervals are narrow, nobody knows how many there will be.
                    "cells_planned": None if experiment.until_ci else planned_cells(store.manifest, store.experiment),
                    "cells_committed": len(list((path / "cells").glob("*/cell.json"))),
                    "error": None,
                }
            )
        except (DynoError, KeyError, TypeError) as error:
            rows.append({"run": str(path), "error": str(error)})
    if as_json:
        typer.echo(to_json(rows).decode(), nl=False)
        return
    console = CalmConsole()
    if not rows:
        console.print(f"No runs below {root}/. `dyno sweep` makes one.", markup=False, soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False)
    taken = max(len(str(row["run"])) for row in rows) + len("2026-01-31 12:00") + _MODEL + len("12/12") + 8
    # A line a run: its folder whole, since it is what other commands take; of the rest what there is room for.
    table.add_column("Run", overflow="fold")
    table.add_column("Made", no_wrap=True)
    table.add_column("Model", no_wrap=True, overflow="ellipsis", max_width=_MODEL)
    table.add_column("Engines", no_wrap=True, overflow="ellipsis", max_width=max(10, console.width - taken))
    table.add_column("Cells", no_wrap=True, justify="right")
    for row in rows:
        if row["error"]:
            table.add_row(str(row["run"]), "", "", "unreadable", "")
        else:
            planned = "" if row["cells_planned"] is None else f"/{row['cells_planned']}"
            cells = f"{row['cells_committed']}{planned}"
            table.add_row(str(row["run"]), str(row["made"]), str(row["model"]), ", ".join(row["engines"]), cells)
    console.print(table)


def _imported(path: Path, store: RunStore) -> dict[str, Any]:
    """The row of a run that holds another tool's results."""
    cells = store.cells()
    return {
        "run": str(path),
        "made": "imported",
        "model": str(store.experiment.get("model")),
        "engines": [cell.engine for cell in cells],
        "cells_planned": None,
        "cells_committed": len(cells),
        "error": None,
    }
