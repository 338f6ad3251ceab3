"""The `dyno` command. A file a command; nothing heavy is imported before the command that needs it runs."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from harness.cli import backends, doctor, kv, models, report, runs, serve, sweep, verify
from results.errors import EXIT_ENVIRONMENT, EXIT_INTERRUPTED, DynoError

app = typer.Typer(
    name="dyno",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command()(sweep.sweep)
app.command(context_settings=serve.CONTEXT_SETTINGS)(serve.serve)
app.command()(report.report)
app.command()(runs.runs)
app.add_typer(backends.app, name="backends")
app.command()(kv.kv)
app.command()(doctor.doctor)
app.command()(verify.verify)
app.add_typer(models.app, name="models")


def main() -> None:
    """Entry point of `dyno`: a user's mistake is one paragraph and an exit code, never a traceback."""
    # `kill` ends a sweep as Ctrl-C does: what was measured is kept, no server is left.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except DynoError as error:
        print(f"dyno: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        if error.filename is None:
            raise
        print(f"dyno: {error.filename}: {error.strerror}.", file=sys.stderr)
        raise SystemExit(EXIT_ENVIRONMENT) from None
    except KeyboardInterrupt:
        print("dyno: interrupted.", file=sys.stderr)
        raise SystemExit(EXIT_INTERRUPTED) from None
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        # The reader of a pipe (`dyno runs | head`) went away: nothing is wrong, and nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"dyno {version('llm-dyno')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A test bench for LLM inference engines: the same device, the same load, and a measured reason why one is faster.

    Start with `dyno sweep --help`; `dyno doctor` tells what is installed.
    """
