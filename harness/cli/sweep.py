"""`dyno sweep`: measure engines over batch sizes and sequence lengths, and write the report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import Backends, Engines, Url

if TYPE_CHECKING:
    from rich.console import Console

    from harness.experiment import Experiment
    from harness.model_parts import ModelParts
    from harness.runner import RunOutcome
    from results.store import RunWriter


def sweep(
    experiment: Annotated[
        Path | None,
        typer.Argument(metavar="[EXPERIMENT.yaml]", help="An experiment file; flags override it.", show_default=False),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Start from a preset that ships with dyno.", show_default=False)
    ] = None,
    backend: Backends = None,
    engine: Engines = None,
    model: Annotated[str | None, typer.Option(help="A known name, a folder, or a Hub id.", show_default=False)] = None,
    batch: Annotated[
        str | None,
        typer.Option(metavar="1,8,32", help="Batch sizes: so many requests sent at once.", show_default=False),
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option(metavar="1,8,32", help="Closed loops: so many requests in flight.", show_default=False)
    ] = None,
    input_len: Annotated[
        str | None, typer.Option(metavar="128,1024", help="Prompt lengths in tokens.", show_default="128")
    ] = None,
    output_len: Annotated[
        str | None, typer.Option(metavar="64", help="Output lengths in tokens.", show_default="64")
    ] = None,
    exact_lengths: Annotated[
        bool, typer.Option("--exact-lengths", help="No +-20 % spread of lengths in closed loops (batches are exact).")
    ] = False,
    requests: Annotated[
        str | None,
        typer.Option(metavar="N", help="Requests a cell (batches: rounded up to whole waves).", show_default=False),
    ] = None,
    blocks: Annotated[
        str | None, typer.Option(metavar="R", help="Sessions an engine, each with the whole grid.", show_default="1")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The run's seed.", show_default="0")] = None,
    url: Url = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Whose vocabulary prompts are drawn from, where the model is not at hand.", show_default=False
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder.", show_default="runs/MODEL-HASH")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="After the cells, see whether the engines give the same tokens.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json at the end instead of tables.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and what it will send, and stop.")] = False,
) -> None:
    """Measure engines over batch sizes and sequence lengths, on this machine, and write a report.

    Example: `dyno sweep --backend reference --model smollm2-135m --batch 1,4,16 --input-len 128,512 --output-len 32`

    The same command again completes what is missing: a committed cell is never run twice.
    """
    from harness.cli.console import CalmConsole
    from harness.cli.experiment_args import SweepFlags, build_experiment

    flags = SweepFlags(
        experiment, preset, backend or [], engine or [], model, batch, concurrency, input_len, output_len, exact_lengths,
        requests, blocks, seed, url, tokenizer,
    )  # fmt: skip
    # With --json the answer goes to stdout alone; progress goes to stderr.
    console = CalmConsole(stderr=as_json)
    asked = build_experiment(flags)
    folder = out or default_folder(asked)
    if dry_run:
        print_plan(asked, folder, console, as_json)
        return
    raise typer.Exit(run_sweep(asked, folder, console, quiet, as_json, verify))


def default_folder(experiment: Experiment) -> Path:
    """`runs/<model>-<hash of the experiment>`: the same command finds its run again."""
    import hashlib

    from workloads.base import canonical

    slug = "".join(c if c.isalnum() or c in "-_." else "-" for c in experiment.model.rsplit("/", 1)[-1])[:40]
    digest = hashlib.sha256(canonical(experiment.model_dump(mode="json")).encode()).hexdigest()[:8]
    return Path("runs") / f"{slug}-{digest}"


def run_sweep(
    experiment: Experiment, folder: Path, console: Console, quiet: bool, as_json: bool, verify: bool = False
) -> int:
    """Resolve the model, run every missing cell, write summary and report, print the result. Returns the exit code."""
    import sys

    from backends.base import get_backend
    from harness.cli.live import observer_for
    from harness.cli.values import public_command
    from harness.manifest import make_manifest
    from harness.model_parts import model_parts
    from harness.planner import planner_for
    from harness.runner import Runner, check_asked, check_attached
    from reports.build import render_report
    from reports.console import print_report
    from results.errors import DynoError
    from results.files import to_json
    from results.report_data import load_report_data
    from results.store import RunWriter

    launches = any(get_backend(e.backend).capabilities.launches for e in experiment.engines)
    parts = model_parts(experiment.model, experiment.tokenizer, needs_folder=launches)
    check_asked(experiment, parts.config)
    check_attached(experiment)
    manifest = make_manifest(public_command(["dyno", *sys.argv[1:]]), experiment.model, parts.folder, parts.config)
    with RunWriter.start(folder, experiment.to_yaml(), manifest) as store:
        planner = planner_for(experiment)
        missing = [cell for cell in planner.planned() if not store.has_cell(cell.id)]
        if not missing and not quiet:
            console.print(
                f"All {len(planner.planned())} cells of {folder} are measured already; name another --out to measure again.",
                markup=False, soft_wrap=True,
            )  # fmt: skip
        runner = Runner(experiment, planner, store, parts.model, parts.vocabulary, observer_for(console, quiet))
        outcome = runner.run()
        if verify:
            _verify(experiment, parts, store, outcome, console, quiet)
        try:
            data = load_report_data(store, outcome.summary)
            path = render_report(store, data)
        except DynoError as error:  # the run's own error, where there is one, is what the user must see
            outcome.error = outcome.error or error
        else:
            if as_json:
                typer.echo(to_json(outcome.summary).decode(), nl=False)
            elif not quiet and outcome.summary["cells"]:
                print_report(data, console, path)
        for label, why in outcome.failed_engines.items():
            print(f"dyno: engine {label!r} was not measured to the end. {why}", file=sys.stderr)
        if outcome.error is not None:
            print(f"dyno: {outcome.error}", file=sys.stderr)
        if outcome.interrupted:
            print("dyno: interrupted. Committed cells are kept; the same command completes the run.", file=sys.stderr)
        return outcome.exit_code


def _verify(
    experiment: Experiment, parts: ModelParts, store: RunWriter, outcome: RunOutcome, console: Console, quiet: bool
) -> None:
    """Whether the run's engines give the same tokens. What cannot be verified is told, and leaves the cells as they are."""
    import sys
    from contextlib import nullcontext
    from functools import partial

    from harness.cli.verify import show_step
    from harness.verify.after_run import verify_run
    from results.errors import DynoError

    def tell(label: str, words: str) -> None:
        print(f"dyno: engine {label!r} was not verified. {words}", file=sys.stderr)

    if outcome.interrupted or outcome.error is not None:
        return
    if len(experiment.engines) < 2:
        print("dyno: --verify compares engines, and this run has one: there is nothing to compare.", file=sys.stderr)
        return
    try:
        with nullcontext() if quiet else console.status("Same tokens?") as status:
            say = partial(show_step, status) if status is not None else lambda label, words: None
            document = verify_run(experiment, parts, store, outcome.failed_engines, say, tell)
    except KeyboardInterrupt:
        outcome.interrupted = True
    except DynoError as error:
        print(f"dyno: the engines were not verified. {error}", file=sys.stderr)
    else:
        if document is None and not quiet:
            console.print("The engines were verified already, as they were measured.", markup=False)


def print_plan(experiment: Experiment, folder: Path, console: Console, as_json: bool) -> None:
    """What a sweep would do and send: sessions, cells, requests, tokens."""
    from harness.cli.live import describe
    from harness.models.planning import find_config
    from harness.planner import planner_for
    from harness.runner import check_asked
    from results.errors import UnknownNameError
    from results.files import to_json

    try:
        config = find_config(experiment.model).config
    except UnknownNameError:
        config = {}  # a name only its server knows
    check_asked(experiment, config)
    cells = planner_for(experiment).planned()
    plan: dict[str, Any] = {
        "out": str(folder),
        "model": experiment.model,
        "engines": [e.label for e in experiment.engines],
        "sessions": len(experiment.engines) * experiment.blocks,
        "cells": len(cells),
        "requests": sum(c.load.requests for c in cells),
        "input_tokens": sum(c.load.requests * c.workload.expected_input for c in cells),
        "output_tokens": sum(c.load.requests * c.workload.expected_output for c in cells),
    }
    if as_json:
        fields = {"engine", "block", "load", "workload"}
        public = [c.model_copy(update={"engine": c.engine.public()}) for c in cells]
        order = [{"id": c.id, **c.model_dump(mode="json", include=fields)} for c in public]
        typer.echo(to_json({**plan, "order": order}).decode(), nl=False)
        return
    for key, value in plan.items():
        shown = ", ".join(value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else value
        console.print(f"{key.replace('_', ' '):>14}  {shown}", markup=False, highlight=False)
    for cell in cells:
        console.print(f"{cell.id:>18}  block {cell.block}, {describe(cell)}", markup=False, highlight=False)
    console.print("Time depends on the engine: the first cell gives an estimate.", style="dim")
