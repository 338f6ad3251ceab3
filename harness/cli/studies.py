"""`dyno studies`: what each mechanism buys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from harness.studies.runner import Done


def studies(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One study; all when there is none.", show_default=False)
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Tell the studies, run none.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer requests and points; seconds in all.")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="What is counted: a Llama-style model, by name or folder.",
            show_default="random-tiny; on a GPU what is timed",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws prompts and output lengths.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads of what is counted.")] = 1,
    shape: Annotated[
        str | None,
        typer.Option(
            help="What is timed: the shape of a model (a name of dyno kv, or a folder), weights drawn at random.",
            show_default="smollm2-135m; on a GPU llama-3.1-8b",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="cpu|cuda", help="What the engine computes on; cuda has larger sizes.")
    ] = "cpu",
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Where studies.json and report.html go; what is there of other studies and devices stays.",
        ),
    ] = Path("runs/studies"),
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Flip one switch of the reference engine at a time and tell what it bought: a claim, a hypothesis, a figure, a verdict.

    Most findings are counters of the engine's step log, which repeat exactly. What needs the clock runs in turn, round after
    round, on a model of real size, and gets a verdict only where the machine was quiet and the rounds agree. Exit code 1 when a
    hypothesis does not hold, 3 when none failed but one is undetermined.

    Example: `dyno studies paging --quick`
    """
    from harness.studies.table import chosen

    found = chosen(name)
    if listed:
        from results.files import to_json

        if as_json:
            rows = [{"name": s.name, "title": s.title, "claim": s.claim, "switch": s.switch} for s in found]
            typer.echo(to_json(rows).decode(), nl=False)
            return
        from shutil import get_terminal_size
        from textwrap import fill

        width = get_terminal_size().columns
        for study in found:
            typer.echo(fill(study.claim, width, initial_indent=f"{study.name:<12} ", subsequent_indent=" " * 13))
        return
    import logging

    from harness.studies.lab import open_lab
    from harness.studies.runner import PAGE, as_data, make_folder, run_studies, write
    from harness.studies.study import MISSED, OPEN
    from results.errors import EXIT_BAD_ANSWER, EXIT_INCONCLUSIVE
    from results.files import to_json
    from results.report_format import seconds as seconds_words

    logging.getLogger("backends").setLevel(logging.ERROR)  # preemptions are part of what is found
    make_folder(out)
    done: list[Done] = []

    def ended(study: Done) -> None:
        """What is measured is kept, whatever becomes of the rest."""
        done.append(study)
        write(out, lab, quick, done)
        if not as_json:
            _print(study)

    with _progress():
        lab = open_lab(model, seed, threads, shape, device=device)
        run_studies(lab, found, quick, ended)
    if as_json:
        typer.echo(to_json(as_data(lab, quick, done)).decode(), nl=False)
    else:
        typer.echo(f"{seconds_words(sum(d.seconds for d in done))} in all. The figures: {out / PAGE}")
    verdicts = {d.outcome.verdict for d in done}
    if MISSED in verdicts:
        raise typer.Exit(EXIT_BAD_ANSWER)
    if OPEN in verdicts:
        raise typer.Exit(EXIT_INCONCLUSIVE)


@contextmanager
def _progress() -> Iterator[None]:
    """A line on stderr when each study, arm and round begins, also into a pipe."""
    import logging
    import sys

    handler, logger = logging.StreamHandler(sys.stderr), logging.getLogger("harness.studies")
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _print(done: Done) -> None:
    from rich.table import Table
    from rich.text import Text

    from harness.cli.console import CalmConsole
    from harness.studies.runner import study_row, tone

    console = CalmConsole()
    colours = {"valid": "green", "suspect": "yellow", "invalid": "red"}
    console.print(Text(f"{done.study.name}: {done.study.claim}", style="bold"))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    timed = any(f.clock for f in done.outcome.findings)
    heads = ("", "found", *(["by the clock"] if timed else []), "expected", "")
    for head in heads:
        table.add_column(head, justify="right" if head in ("found", "expected") else "left")
    rows = [study_row(f) for f in done.outcome.findings]
    for row in rows:
        spread = [row.spread] if timed else []
        table.add_row(row.words, row.value, *spread, row.expected, Text(row.verdict, style=colours[row.tone]))
    console.print(table)
    for why in dict.fromkeys(row.why for row in rows if row.why):
        console.print(Text(f"  undetermined: {why}", style="yellow"))
    for line in done.outcome.clock:
        console.print(Text(f"  clock: {line}", style="dim"))
    console.print(Text(f"{done.outcome.verdict} ({done.seconds:.1f} s)\n", style=colours[tone(done.outcome.verdict)]))
