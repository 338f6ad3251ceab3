"""`dyno compare`: which engine is faster, by how much, and how sure is that?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

    from results.comparison import Comparison
    from results.comparison_pareto import ParetoPoint

_STYLES = {"faster": "green", "slower": "red", "equivalent": "cyan", "inconclusive": "yellow", "refused": "yellow"}


def compare(
    run: RunFolder,
    second: Annotated[
        Path | None, typer.Argument(metavar="RUN2", help="A run to hold against it.", show_default=False)
    ] = None,
    metric: Annotated[str, typer.Option(help="The primary metric, named before looking.")] = "output_tokens_per_s",
    margin: Annotated[str, typer.Option(metavar="3%", help="Differences within it are equivalent.")] = "3%",
    confidence: Annotated[str, typer.Option(metavar="95%", help="That of each interval.")] = "95%",
    base: Annotated[str | None, typer.Option(help="The engine to compare with.", show_default="the first")] = None,
    other: Annotated[
        str | None, typer.Option(help="With RUN2: the engine of it.", show_default="the same label, else its first")
    ] = None,
    allow_differences: Annotated[
        bool,
        typer.Option("--allow-differences", help="Compare runs of unlike machine, model or precision, labelled so."),
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Show every metric, not only the primary one.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Compare the engines of RUN, or RUN with RUN2: faster, slower, equivalent or inconclusive at each point.

    Example: `dyno compare runs/demo --margin 2%`

    The unit is the block (`dyno sweep --blocks 5` makes five). Exit code 2 where two runs cannot be compared, 3 where no
    point of the primary metric got a verdict.
    """
    from harness.cli.amounts import share
    from harness.cli.console import CalmConsole
    from results.comparison import Options, metric_id
    from results.comparison_pareto import pareto
    from results.errors import EXIT_INCONCLUSIVE, EXIT_OK, UsageError
    from results.files import to_json

    options = Options(
        primary=metric_id(metric), margin=share("--margin", margin), confidence=share("--confidence", confidence)
    )
    if second is None and other is not None:
        raise UsageError("--other names the engine of a second run: give RUN2 with it.")
    found, data = _compare(run, second, options, base, other, allow_differences)
    fronts = pareto([point for one in data for point in one.points])
    if as_json:
        document = {"comparisons": [c.to_dict() for c in found], "pareto": [_asdict(p) for p in fronts]}
        typer.echo(to_json(document).decode(), nl=False)
    elif markdown:
        from reports.comparison import comparison_markdown

        typer.echo(comparison_markdown(found, fronts, every))
    else:
        _print(found, fronts, CalmConsole(), every)
    told = any(row.verdict not in ("inconclusive", "refused") for c in found for row in c.primary)
    raise typer.Exit(EXIT_OK if told else EXIT_INCONCLUSIVE)


def _compare(
    run: Path, second: Path | None, options: Any, base: str | None, other: str | None, disregard: bool
) -> tuple[list[Comparison], list[Any]]:
    from results.comparison_runs import RunFacts, compare_run, compare_runs
    from results.report_data import load_report_data
    from results.store import RunStore
    from results.summary import build_summary

    facts, data = [], []
    for path in (run, second):
        if path is None:
            continue
        store = RunStore.open(path)
        summary = build_summary(store)
        facts.append(RunFacts(store.name, summary, store.manifest))
        data.append(load_report_data(store, summary))
    if len(facts) == 1:
        return compare_run(facts[0], options, base), data
    return compare_runs(facts[0], facts[1], options, (base, other), disregard), data


def _asdict(point: ParetoPoint) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(point)


def _print(found: list[Comparison], fronts: list[ParetoPoint], console: Console, every: bool) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from reports.comparison import closing_sentences, comparison_notes, comparison_table, pareto_sentence
    from reports.console import plain
    from results.comparison_words import how_words, verdict_sentence

    width = min(console.width, 100)
    for comparison in found:
        style = _STYLES.get(comparison.verdict, "")
        console.print(Text(plain(verdict_sentence(comparison)), style=style), width=width)
        console.print(Text(plain(how_words(comparison)), style="dim"), width=width)
        for words, items in (("differs", comparison.differs), ("DISREGARDED", comparison.unlike)):
            for item in items:
                console.print(Padding(Text(plain(f"{words}: {item}")), (0, 0, 0, 2)), width=width)
        console.print()
        console.print(comparison_table(comparison, every), width=width)
        for text in (*comparison_notes(comparison, every), *closing_sentences(comparison)):
            console.print(Text(plain(text), style="dim"), width=width)
        for missing in comparison.missing:
            console.print(Text(plain(f"Not compared: {missing}"), style="yellow"), width=width)
        console.print()
    if text := pareto_sentence(fronts):
        console.print(Text(plain(text)), width=width)
