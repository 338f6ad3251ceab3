"""`dyno why`: what holds a cell's throughput, decided by changing one resource at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import CellId, RunFolder
from harness.cli.tell import tell

if TYPE_CHECKING:
    from rich.console import Console

    from harness.why import Question


def why(
    run: RunFolder,
    cell: CellId,
    pairs: Annotated[str, typer.Option(help="How often each change is tried beside the cell as it was.")] = "5",
    budget: Annotated[
        str | None, typer.Option(metavar="10m", help="Begin no further pairs that would not fit.", show_default=False)
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RESOURCE", help="Change this alone (max_num_seqs, threads ...). Repeatable.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be changed, and stop.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but the answer.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Run a cell again with one resource changed by a fifth, and see what its throughput does: d ln T / d ln R.

    Example: `dyno why runs/smollm2-135m-1a2b3c4d 0f3a --budget 10m` (`dyno report RUN --cells` lists the ids)

    Exit code 3 where nothing is shown to hold the throughput and something may: more pairs, or a longer budget, would tell.
    """
    import sys

    from harness.cli.console import CalmConsole
    from harness.cli.live import observer_for
    from harness.cli.values import positive_int, public_command, seconds
    from harness.why import MOST_PAIRS, answer, ask
    from results.errors import EXIT_INCONCLUSIVE, UsageError
    from results.files import to_json

    console = CalmConsole(stderr=as_json)
    number = positive_int("--pairs", pairs)
    if number > MOST_PAIRS:
        raise UsageError(
            f"--pairs {number}: at most {MOST_PAIRS} can be told apart; ten are plenty on a quiet machine."
        )
    question = ask(run, cell, number, None if budget is None else seconds("--budget", budget), only or None)
    if dry_run or not quiet:
        _print_plan(console, question)
    if dry_run:
        for none in question.left_out:
            console.print(f"{none.resource}: left as it is, {none.why}", markup=False)
        return
    document, outcome = answer(question, observer_for(console, quiet), public_command(["dyno", *sys.argv[1:]]))
    if as_json:
        typer.echo(to_json(document).decode(), nl=False)
    else:
        _print(console, document)
    for label, error in outcome.failed_engines.items():
        tell(f"engine {label!r} was not measured to the end. {error}")
    if outcome.error is not None:
        tell(str(outcome.error))
    if outcome.interrupted or outcome.error is not None:
        raise typer.Exit(outcome.exit_code)
    if document["undetermined"]:
        raise typer.Exit(outcome.exit_code or EXIT_INCONCLUSIVE)


_VERDICTS = {"holds": "holds", "does not hold": "no", "undetermined": "open"}


# From here on a plan says what would shorten it.
_LONG_S = 600.0


def _print_plan(console: Console, question: Question) -> None:
    """What is changed of which cell, how often, and how long that will take."""
    from harness.plan_cost import cost_sentence, plan_cost
    from harness.why import WhyPlanner
    from results.report_format import count, plural, seconds
    from results.report_shapes import load_words, workload_info
    from results.store import RunStore

    load = question.entry["load"]
    place = f"{load_words(str(load.get('mode')), load.get('value') or '?')}, {workload_info(question.entry['workload']).label}"
    what = f"Cell {question.entry['id']}: {question.entry['engine']}, {place}."
    console.print(f"{what} {plural(question.pairs, 'pair')} for each change:", markup=False, highlight=False)
    for change in question.changes:
        console.print(
            f"  {change.resource}: {count(change.before)} to {count(change.after)}", markup=False, highlight=False
        )
    store = RunStore(question.folder)
    missing = [cell for cell in WhyPlanner(question).planned() if not store.has_cell(cell.id)]
    cost = plan_cost(missing, question.run.path.parent)
    words = [cost_sentence(cost)] if missing else ["All of it is measured already."]
    if cost.total_s is not None and cost.total_s > _LONG_S and question.budget_s is None:
        words.append(
            f"More than {seconds(_LONG_S)}: --budget 10m begins no further pairs after that time, --only RESOURCE (repeatable) "
            "tries some of the changes, --pairs N each less often."
        )
    if missing and question.budget_s is not None:
        words.append(
            f"After the first of them no round of pairs is begun that would end beyond {seconds(question.budget_s)}."
        )
    console.print(" ".join(words), style="dim", markup=False, highlight=False)


def _print(console: Console, document: dict[str, Any]) -> None:
    from rich.table import Table

    from results.report_format import count, plural
    from results.report_limits import BATCH_WORDS, STEP_WORDS

    words_of = {name: words for name, (words, _) in {**BATCH_WORDS, **STEP_WORDS}.items()}
    pairs, asked = [e["pairs"] for e in document["elasticities"]], document["pairs_asked"]
    # What ends before its time leaves some resources a pair short of the others.
    alike = len(set(pairs)) <= 1
    table = Table(box=None, padding=(0, 2 if alike else 1, 0, 0), pad_edge=False)
    for heading in ("resource", "from, to", *([] if alike else ["pairs"]), "tokens/s", "d ln T / d ln R", "holds?"):
        table.add_column(heading, justify="left" if heading in ("resource", "holds?") else "right", no_wrap=True)
    for e in document["elasticities"]:
        change = "-" if e["throughput_change"] is None else f"{100 * e['throughput_change']:+.1f} %"
        value = "-" if e["elasticity"] is None else f"{e['elasticity']:+.2f}"
        if e["low"] is not None:
            value += f" [{e['low']:+.2f}, {e['high']:+.2f}]"
        verdict = _VERDICTS[e["verdict"]]
        own = [] if alike else [f"{e['pairs']}"]
        table.add_row(e["resource"], f"{count(e['from'])}, {count(e['to'])}", *own, change, value, verdict)
    least, most = min(pairs, default=0), max(pairs, default=0)
    short = "" if least >= asked else f"{least} of " if alike else f"{least} to {most} of "
    done = f"{short}{plural(asked, 'pair')}"
    console.print(f"Cell {document['cell']} of engine {document['engine']}, {done} each:", markup=False)
    console.print(table)
    for none in document["left_out"]:
        console.print(f"{none['resource']} was left as it is: {none['why']}.", style="dim", markup=False)
    console.print(f"{document['words'][:1].upper()}{document['words'][1:]}.", style="bold", markup=False)
    for side, found in document["factors"].items():
        words = {True: "borne out", False: "NOT borne out", None: "left open" if found["tried"] else "not tested here"}
        named = words_of.get(str(found["named"]), found["named"] or "not known")
        console.print(f"By its shares the {side} is held by: {named} ({words[found['agrees']]}).", markup=False)
