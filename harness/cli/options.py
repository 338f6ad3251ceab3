"""Arguments and options that several commands share, and the panels of their help, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import complete

# What is in no panel stands above them all.
ENGINES = "Engines and model"
LOAD = "Load: how requests are sent"
WORKLOAD = "Workload: what is sent"
SLO = "SLO search"
BLOCKS = "Blocks and confidence"
OUTPUT = "Output"

RunFolder = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="The run's folder.", show_default=False, autocompletion=complete.runs),
]
CellId = Annotated[
    str,
    typer.Argument(
        metavar="CELL",
        help="A cell's id, or the beginning of it.",
        show_default=False,
        autocompletion=complete.cells,
    ),
]
Backends = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="An engine with this backend's defaults. Repeatable.",
        show_default=False,
        autocompletion=complete.backends,
        rich_help_panel=ENGINES,
    ),
]
Engines = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE,..",
        help="An engine with settings: label=..,backend=.. and more. Repeatable.",
        show_default=False,
        rich_help_panel=ENGINES,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="A known name, a folder, or a Hub id.",
        show_default=False,
        autocompletion=complete.models,
        rich_help_panel=ENGINES,
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="The server to attach to (backend openai).", show_default=False, rich_help_panel=ENGINES
    ),
]
