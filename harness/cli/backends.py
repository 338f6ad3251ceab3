"""`dyno backends`: the engines this installation can drive, and `check`, which holds one to its promises."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import complete

if TYPE_CHECKING:
    from rich.console import Console

    from harness.conformance import Result

app = typer.Typer(help="The engines at hand: list them, check one.", rich_markup_mode="markdown")
_Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
DEFAULT_MODEL = "random-tiny"
_COLOURS = {"pass": "green", "fail": "red", "not claimed": "dim", "not run": "yellow"}


@app.callback(invoke_without_command=True)
def backends(context: typer.Context, as_json: _Json = False) -> None:
    """List the backends: what each drives, how it is started, which neutral settings it understands.

    Example: `dyno backends`
    """
    if context.invoked_subcommand is None:
        _list(as_json)


@app.command("list")
def list_backends(as_json: _Json = False) -> None:
    """List the backends.

    Example: `dyno backends list --json`
    """
    _list(as_json)


def _list(as_json: bool) -> None:
    import shlex

    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from backends.base import backend_names, get_backend
    from harness.brings import brings, command_fault
    from results.errors import DynoError
    from results.files import to_json

    rows: list[dict[str, Any]] = []
    for name in backend_names():
        row: dict[str, Any] = {
            "name": name,
            "words": "",
            "launches": None,
            "command": None,
            "missing": None,
            "brings": None,
            "settings": [],
        }
        rows.append(row)
        try:
            backend = get_backend(name)
            row |= {"words": backend.words, "launches": backend.capabilities.launches}
            row["settings"] = sorted(backend.settings)
            if backend.capabilities.launches:
                command = backend.command(None)
                row["command"] = list(command)
                row["missing"], row["brings"] = command_fault(name, command) or (None, None)
        except DynoError as error:  # not installed here, or cannot be loaded: it is listed all the same
            row |= {"missing": str(error), "brings": brings(name)}
    if as_json:
        typer.echo(to_json(rows).decode(), nl=False)
        return
    console = Console(highlight=False)
    for row in rows:
        console.print(f"[bold]{row['name']}[/bold]  {row['words']}")
        told = [f"started with: {shlex.join(row['command'])}"] if row["command"] and not row["missing"] else []
        if row["missing"]:
            # Where it is known what brings it, the general advice of the error is not needed beside it.
            told.append(
                f"not at hand: {row['missing'].split('. ')[0]}." if row["brings"] else f"not at hand: {row['missing']}"
            )
            told += [row["brings"]] if row["brings"] else []
        if row["launches"] is not None:
            told.append(f"settings: {', '.join(row['settings']) or 'none: it is measured as it is'}")
        for words in told:
            if words.startswith("export "):  # never wrapped: it is there to be copied
                console.print(Text(f"  {words}"), soft_wrap=True)
            else:
                console.print(Padding(Text(words), (0, 0, 0, 2)))
        console.print()


@app.command("check")
def check(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A backend that `dyno backends` lists.", autocompletion=complete.backends),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="What the server loads, or serves.", show_default=f"{DEFAULT_MODEL} where it is launched"),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Check a server that runs already instead of launching one.", show_default=False)
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="KEY=VALUE,..", help="Settings, as --engine of `dyno sweep`.")
    ] = None,
    ready_s: Annotated[float, typer.Option("--ready-s", help="How long a start may take.", min=1)] = 600,
    timeout_s: Annotated[float, typer.Option("--timeout-s", help="How long one answer may take.", min=1)] = 120,
    out: Annotated[Path | None, typer.Option(help="Keep the server's log and files here.", show_default=False)] = None,
    as_json: _Json = False,
) -> None:
    """Hold a backend to the adapter contract: launch it (or attach to it) and check each promise.

    Example: `dyno backends check reference` or `dyno backends check openai --url http://127.0.0.1:8000`

    Exit code 0: all that is claimed holds; 1: something does not; 4: there was no server to check.
    """
    from rich.console import Console

    from harness.cli.folders import work_folder
    from harness.conformance import Outcome
    from results.errors import EXIT_BAD_ANSWER
    from results.files import to_json

    console = Console(stderr=as_json, highlight=False)
    with work_folder(out, "dyno-check-") as folder:
        results = _run(name, model, url, engine, folder, ready_s, timeout_s, console, as_json)
        bad = [r for r in results if r.outcome in (Outcome.FAIL, Outcome.NOT_RUN)]
        if as_json:
            rows = [r.to_dict() for r in results]
            typer.echo(to_json({"backend": name, "ok": not bad, "checks": rows}).decode(), nl=False)
        else:
            counts = ", ".join(f"{n} {o}" for o in Outcome if (n := sum(r.outcome is o for r in results)))
            console.print(f"\n{name}: {counts}.", style="red" if bad else "green")
        if bad:
            if (folder / "server.log").exists():
                console.print(f"The server's log: {folder / 'server.log'}", markup=False, soft_wrap=True)
            raise typer.Exit(EXIT_BAD_ANSWER)


def _run(
    name: str,
    model: str | None,
    url: str | None,
    engine: str | None,
    folder: Path,
    ready_s: float,
    timeout_s: float,
    console: Console,
    quiet: bool,
) -> list[Result]:
    from pydantic import ValidationError

    from backends.base import get_backend
    from harness.cli.values import engine_fields
    from harness.conformance import check_backend
    from harness.experiment import EngineSpec, Timeouts, describe_validation
    from harness.models import resolve_model
    from results.errors import UsageError

    backend = get_backend(name)
    fields = engine_fields(f"backend={name}" + (f",{engine}" if engine else ""))
    if url is not None:
        fields["url"] = url
    try:
        spec = EngineSpec(**fields)
    except ValidationError as error:
        raise UsageError(f"--engine {engine}: {describe_validation(error.errors())}.") from error
    launches = backend.capabilities.launches and spec.url is None
    if not backend.capabilities.launches and spec.url is None:
        raise UsageError(f"Backend {backend.name!r} attaches to a server: give --url http://HOST:PORT.")
    found = resolve_model(model or DEFAULT_MODEL) if launches else None
    if not quiet:
        words = f"Launching it with {found.name} ..." if found else f"Attaching to {spec.url} ..."
        console.print(f"[bold]{backend.name}[/bold]: {words}", soft_wrap=True)

    def show(result: Result) -> None:
        if not quiet:
            outcome = str(result.outcome)
            console.print(f"[{_COLOURS[outcome]}]{outcome:>11}[/]  [bold]{result.words}[/bold]", soft_wrap=True)
            console.print(f"             {result.evidence}", markup=False, style="dim", soft_wrap=True)

    return check_backend(
        spec,
        found,
        folder,
        model_name=model or "",
        timeouts=Timeouts(ready_s=ready_s),
        timeout_s=timeout_s,
        on_result=show,
    )
