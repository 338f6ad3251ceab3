"""All commands of `dyno` together. A file a command; nothing heavy is imported before the command that needs it runs."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer

from harness.cli import (
    backends,
    baseline,
    calibrate,
    certify,
    compare,
    doctor,
    export,
    history,
    import_,
    kv,
    models,
    presets,
    profile,
    regress,
    report,
    roofline,
    runs,
    serve,
    studies,
    sweep,
    tune,
    twin,
    verify,
    why,
)
from harness.cli.tell import tell
from results.errors import EXIT_ENVIRONMENT, DynoError

app = typer.Typer(
    name="dyno",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command()(sweep.sweep)
app.command()(tune.tune)
app.command(context_settings=serve.CONTEXT_SETTINGS)(serve.serve)
app.command()(report.report)
app.command()(export.export)
app.command("import")(import_.import_)
app.command()(compare.compare)
app.command()(regress.regress)
app.add_typer(baseline.app, name="baseline")
app.command()(history.history)
app.command()(runs.runs)
app.command()(presets.presets)
app.add_typer(backends.app, name="backends")
app.command()(kv.kv)
app.command()(roofline.roofline)
app.command()(doctor.doctor)
app.command()(studies.studies)
app.command()(verify.verify)
app.command()(why.why)
app.command()(twin.twin)
app.command()(profile.profile)
app.command()(calibrate.calibrate)
app.command()(certify.certify)
app.add_typer(models.app, name="models")


def run() -> None:
    """The command line's command: a user's mistake is one paragraph and an exit code, never a traceback.

    Raises SystemExit, and KeyboardInterrupt where the command does not end by itself on it.
    """
    try:
        app()
    except DynoError as error:
        tell(str(error))
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
            tell("No space left where the output goes: make room and run the same command again.")
            _drop_output()
            raise SystemExit(EXIT_ENVIRONMENT) from None
        if error.filename is None:
            raise
        tell(f"{error.filename}: {error.strerror}.")
        raise SystemExit(EXIT_ENVIRONMENT) from None
    except SystemExit as end:
        # typer makes an exit of an interrupt, without a word.
        if end.__context__ is not None and isinstance(end.__context__.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        # The reader of a pipe (`dyno runs | head`) went away: nothing is wrong, and nothing more can be written.
        _drop_output()
        raise SystemExit(0) from None


def _drop_output() -> None:
    """What is still buffered goes nowhere, so that the interpreter's last flush cannot fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
