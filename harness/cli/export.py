"""`dyno export`: a run's cells as one table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from harness.cli import complete


def export(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Folders of runs.", show_default=False, autocompletion=complete.runs),
    ],
    format_: Annotated[str, typer.Option("--format", metavar="csv|parquet|json", help="Of the table.")] = "csv",
    out: Annotated[Path | None, typer.Option(help="The file to write.", show_default="standard output")] = None,
    gpu_hour: Annotated[
        float | None,
        typer.Option("--gpu-hour", metavar="USD", help="What an hour of one GPU costs: adds $ a million tokens."),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(metavar="N", help="GPUs of each engine, where its settings do not say.")
    ] = None,
) -> None:
    """Write a row for each cell of RUN: what was asked, the numbers, and tokens/s a GPU against a user.

    Example: `dyno export runs/a runs/b --format parquet --out cells.parquet --gpu-hour 3.50`
    """
    import sys

    from results.errors import UnknownNameError, UsageError
    from results.exports import FORMATS, encode_rows, export_rows
    from results.files import write_atomic
    from results.store import RunStore
    from results.summary import build_summary

    if format_ not in FORMATS:
        raise UnknownNameError("format", format_, list(FORMATS))
    if gpu_hour is not None and not (math.isfinite(gpu_hour) and gpu_hour >= 0):
        raise UsageError(f"--gpu-hour is a price in dollars, 0 or more (given: {gpu_hour}).")
    if gpus is not None and gpus < 1:
        raise UsageError(f"--gpus is a whole number above zero (given: {gpus}).")
    rows = [row for run in runs for row in export_rows(build_summary(RunStore.open(run)), gpu_hour, gpus)]
    data = encode_rows(rows, format_)
    if out is not None:
        write_atomic(out, data)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
