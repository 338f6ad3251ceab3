"""`dyno backends`: the engines this installation can drive."""

from __future__ import annotations

from typing import Annotated

import typer


def backends(as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """List the backends: what each drives, how it is started, which neutral settings it understands.

    Example: `dyno backends`
    """
    import shlex

    from rich.console import Console

    from backends.base import backend_names, get_backend
    from results.files import to_json

    found = [get_backend(name) for name in backend_names()]
    if as_json:
        rows = [
            {
                "name": b.name,
                "words": b.words,
                "launches": b.capabilities.launches,
                "command": list(b.command(None)) if b.capabilities.launches else None,
                "settings": sorted(b.settings),
            }
            for b in found
        ]
        typer.echo(to_json(rows).decode(), nl=False)
        return
    console = Console(highlight=False)
    for backend in found:
        console.print(f"[bold]{backend.name}[/bold]  {backend.words}")
        if backend.capabilities.launches:
            console.print(f"  started with: {shlex.join(backend.command(None))}", markup=False)
        settings = ", ".join(sorted(backend.settings)) or "none: it is measured as it is"
        console.print(f"  settings: {settings}\n", markup=False)
