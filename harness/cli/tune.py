"""`dyno tune`: which settings of each engine are fastest for this workload and load?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import LOAD, OUTPUT, SLO, WORKLOAD, Backends, Engines, Model
from harness.cli.tell import tell

if TYPE_CHECKING:
    from rich.console import Console

    from harness.tune.asked import Asked, Ready

# Without a budget; with one, as many as fit, but no more than that.
TRIALS, MOST_TRIALS, BLOCKS = 8, 100, 5
SEARCH = "Search and confirmation"


def tune(
    backend: Backends = None,
    engine: Engines = None,
    model: Model = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Workload and load of a preset.", show_default=False)
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(metavar="8", help="So many requests sent at once.", show_default=False, rich_help_panel=LOAD),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(metavar="16", help="A closed loop of so many.", show_default=False, rich_help_panel=LOAD),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="4", help="An open loop: so many requests a second.", show_default=False, rich_help_panel=LOAD
        ),
    ] = None,
    input_len: Annotated[
        str | None,
        typer.Option(metavar="128", help="Prompt length in tokens.", show_default="128", rich_help_panel=WORKLOAD),
    ] = None,
    output_len: Annotated[
        str | None,
        typer.Option(metavar="64", help="Output length in tokens.", show_default="64", rich_help_panel=WORKLOAD),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE|KIND", help="As of `dyno sweep`.", show_default=False, rich_help_panel=WORKLOAD),
    ] = None,
    requests: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Requests of a whole cell; trials begin with a quarter.",
            show_default=False,
            rich_help_panel=LOAD,
        ),
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="60s|5m", help="Or its time.", show_default=False, rich_help_panel=LOAD)
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT",
            help="Throughput at the highest load that meets it, 'ttft_ms.p99<=200' for one, of the range that "
            "--concurrency 1,64 or --rate names.",
            show_default=False,
            rich_help_panel=SLO,
        ),
    ] = None,
    slo_share: Annotated[
        str | None,
        typer.Option(
            metavar="95%", help="Of requests that must meet all limits.", show_default=False, rich_help_panel=SLO
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=A,B",
            help="Search this alone: max_num_seqs=4,16,64, block_size=16..64, chunked_prefill=on,off. Repeatable.",
            show_default="the backend's table",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    trials: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Of each engine, its defaults among them, while any are left.",
            show_default="8; with a budget what fits",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="20m|3h",
            help="Half of it for the search, the rest to confirm.",
            show_default=False,
            rich_help_panel=SEARCH,
        ),
    ] = None,
    blocks: Annotated[
        str, typer.Option(metavar="R", help="Sessions of each engine in the confirmation.", rich_help_panel=SEARCH)
    ] = str(BLOCKS),
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="The run's seed.", show_default="0", rich_help_panel=SEARCH)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="The run's folder.", show_default="runs/tune-MODEL-HASH", rich_help_panel=OUTPUT
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but the answer.", rich_help_panel=OUTPUT)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.", rich_help_panel=OUTPUT)] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be searched, and stop.")] = False,
) -> None:
    """Search the settings of each engine, the same number of trials for each while any are left, and hold the best against its
    defaults.

    Example: `dyno tune --backend reference --backend vllm --model smollm2-135m --concurrency 16 --budget 30m`

    The same command again completes what is missing. Exit code 3 where the blocks give no verdict yet, or the
    budget was too short for a trial.
    """
    import sys

    from harness.brings import check_commands
    from harness.cli.console import CalmConsole
    from harness.cli.experiment_args import SweepFlags
    from harness.cli.live import observer_for
    from harness.cli.values import public_command
    from harness.observer import Observer
    from harness.tune.asked import prepare
    from harness.tune.outcome import FILE, conclude, exit_code
    from harness.tune.tune import tune as run_tune
    from reports.tuning import print_answer
    from results.files import to_json, write_atomic

    flags = SweepFlags(
        None, preset, backend or [], engine or [], model, batch, concurrency, input_len, output_len, False,
        requests, rate, None, None, None, None, duration, None, None, None, False,
        blocks, seed, None, None, budget=budget, slo=slo or [], slo_share=slo_share, workload=workload or [],
    )  # fmt: skip
    console = CalmConsole(stderr=as_json)
    asked = _asked(flags, vary or [], trials)
    check_commands(asked.experiment.engines)
    ready = prepare(asked)
    folder = out or default_folder(ready)
    for note in ready.notes:
        tell(note)
    if dry_run:
        _print_plan(ready, folder, console, as_json)
        return

    def observer(part: str) -> Observer:
        if not quiet:
            console.print(f"The {part}:", style="bold", markup=False, highlight=False)
        return observer_for(console, quiet)

    tuned = run_tune(ready, folder, observer, public_command(["dyno", *sys.argv[1:]]))
    document = conclude(tuned)
    write_atomic(folder / FILE, to_json(document))
    if as_json:
        typer.echo(to_json(document).decode(), nl=False)
    else:
        print_answer(document, console)
    for outcome in tuned.outcomes:
        if outcome.error is not None:
            tell(str(outcome.error))
        if outcome.interrupted:
            tell("interrupted. What was measured is kept; the same command completes it.")
    raise typer.Exit(exit_code(tuned, document))


def _asked(flags: Any, vary: list[str], trials: str | None) -> Asked:
    """The experiment, and the values to vary: those of --vary, and lists in an engine's entry for that engine."""
    from harness.axes import axes_of
    from harness.cli.experiment_args import build_experiment, engine_mappings
    from harness.cli.values import positive_int
    from harness.tune.asked import Asked
    from harness.tune.space import checked_values, parse_vary

    axes = [axes_of(entry) for entry in engine_mappings(flags.backends, flags.engines, None)]
    experiment = build_experiment(flags, [found.entry for found in axes])
    common = parse_vary(vary)
    named = {engine.label: common for engine in experiment.engines}
    for found in axes:
        own = {name: checked_values(name, values) for name, values in found.values.items()}
        label = str(found.entry["label"])
        if both := [name for name in own if name in common]:
            tell(f"{label}: its own {', '.join(both)} is searched, not that of --vary.")
        named[label] = {**common, **own}
    number = positive_int("--trials", trials) if trials is not None else None
    return Asked(experiment, named, number or (TRIALS if experiment.budget_s is None else MOST_TRIALS))


def default_folder(ready: Ready) -> Path:
    """`runs/tune-<model>-<hash of what is searched>`: the same command finds its run again, whatever the budget."""
    from harness.cli.sweep import default_folder as folder_of

    varied = {label: repr(space.axes) for label, space in ready.spaces.items()}
    experiment = ready.experiment.model_copy(update={"budget_s": None, "blocks": 1})
    sweep = folder_of(experiment.model_copy(update={"left_out": (repr(varied),)}))
    return sweep.with_name(f"tune-{sweep.name}")


def _print_plan(ready: Ready, folder: Path, console: Console, as_json: bool) -> None:
    from harness.axis_labels import shown_value
    from results.files import to_json
    from results.report_format import listed, plural, seconds

    asked, experiment = ready.asked, ready.experiment
    refused = {engine.label: ready.refused(engine) for engine in experiment.engines}
    engines = [
        {
            "engine": engine.label,
            "backend": engine.backend,
            "varied": {name: list(values) for name, values in ready.spaces[engine.label].axes.items()},
            "combinations": ready.spaces[engine.label].size,
            "refused": dict(zip(("n", "of"), refused[engine.label], strict=True)),
        }
        for engine in experiment.engines
    ]
    if as_json:
        plan = {"out": str(folder), "trials": asked.trials, "blocks": experiment.blocks, "engines": engines}
        typer.echo(to_json({**plan, "budget_s": experiment.budget_s}).decode(), nl=False)
        return
    console.print(f"Would write {folder}", markup=False, highlight=False, soft_wrap=True)
    for engine in experiment.engines:
        space = ready.spaces[engine.label]
        words = f"{engine.label}: {plural(space.size, 'combination')} beside the defaults"
        number, of = refused[engine.label]
        if number:
            drawn = f" of {of:,} drawn" if of < space.size else ""
            words += f" ({number:,}{drawn} cannot be started: they are left out)"
        console.print(f"{words} of", markup=False, highlight=False)
        for name, values in space.axes.items():
            console.print(f"  {name}: {listed([shown_value(v) for v in values], 12)}", markup=False, highlight=False)
    limit = f"at most {plural(asked.trials, 'trial')} of each engine, while any are left"
    if experiment.budget_s is not None:
        limit += f", as many as fit into half of {seconds(experiment.budget_s)}"
    console.print(
        f"{limit}; then the best of each beside its defaults in {plural(experiment.blocks, 'block')}.",
        markup=False, highlight=False,
    )  # fmt: skip
