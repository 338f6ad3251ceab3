"""`dyno report`: rebuild a run's summary and report from its events."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="The run's folder.", show_default=False)],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the conclusions as Markdown instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead.")] = False,
) -> None:
    """Rebuild the summary and the HTML report of RUN from what was measured.

    Example: `dyno report runs/demo`
    """
    from harness.cli.console import CalmConsole
    from reports.build import render_report
    from reports.console import print_report
    from reports.markdown import render_markdown
    from results.files import to_json
    from results.report_data import load_report_data
    from results.store import RunStore
    from results.summary import build_summary

    store = RunStore.open(run)
    summary = build_summary(store)
    store.write_summary(summary)
    data = load_report_data(store, summary)
    path = render_report(store, data)
    if as_json:
        typer.echo(to_json(summary).decode(), nl=False)
    elif markdown:
        typer.echo(render_markdown(data))
    else:
        print_report(data, CalmConsole(), path)
