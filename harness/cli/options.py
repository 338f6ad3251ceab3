"""Options that several commands share, said once."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli import complete

Backends = Annotated[
    list[str] | None,
    typer.Option(
        help="An engine with this backend's defaults. Repeatable.", show_default=False, autocompletion=complete.backends
    ),
]
Engines = Annotated[
    list[str] | None,
    typer.Option(
        metavar="label=..,backend=..,KEY=VALUE", help="An engine with settings. Repeatable.", show_default=False
    ),
]
Url = Annotated[str | None, typer.Option(help="The server to attach to (backend openai).", show_default=False)]
