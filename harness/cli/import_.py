"""`dyno import`: another tool's result file as a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A result file of vllm bench serve, vllm bench throughput, AIPerf (JSON or CSV) or trtllm-bench.",
            show_default=False,
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The run's folder.", show_default="runs/imported-NAME")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
) -> None:
    """Keep FILE as a run marked as imported: shown with its tool's definitions, never paired, never gated.

    Example: `dyno import bench.json --out runs/theirs`, then `dyno report runs/ours --beside runs/theirs`
    """
    import sys

    from harness.cli.console import CalmConsole
    from harness.cli.values import public_command
    from harness.manifest import start_facts
    from reports.build import render_report
    from reports.console import print_report
    from results.imports import IMPORTED, read_import, write_import
    from results.report_data import load_report_data
    from results.schema import SCHEMA_VERSION
    from results.summary import build_summary

    made = read_import(file)
    folder = out or Path("runs") / f"imported-{file.stem}"
    manifest = {
        "schema": SCHEMA_VERSION,
        "source": IMPORTED,
        "model": {"name": made.model, "folder": None, "source": None, "config": {}},
        "start": start_facts(public_command(["dyno", *sys.argv[1:]])),
    }
    store = write_import(folder, made, manifest)
    summary = build_summary(store)
    store.write_summary(summary)
    data = load_report_data(store, summary)
    path = render_report(store, data)
    if not quiet:
        print_report(data, CalmConsole(), path)
