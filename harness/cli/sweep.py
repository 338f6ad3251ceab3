"""`dyno sweep`: measure engines over batch sizes and sequence lengths, and write the report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import complete
from harness.cli.options import BLOCKS, ENGINES, LOAD, OUTPUT, SLO, WORKLOAD, Backends, Engines, Url
from harness.cli.tell import tell

if TYPE_CHECKING:
    from rich.console import Console

    from harness.experiment import Experiment
    from harness.model_parts import ModelParts
    from harness.runner import RunOutcome
    from results.store import RunWriter

CHECKS = "Telemetry and checks"


def sweep(
    experiment: Annotated[
        Path | None,
        typer.Argument(metavar="EXPERIMENT.yaml", help="An experiment file; flags override it.", show_default=False),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Start from a preset that ships with dyno.",
            show_default=False,
            autocompletion=complete.presets,
        ),
    ] = None,
    backend: Backends = None,
    engine: Engines = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A known name, a folder, or a Hub id.",
            show_default=False,
            autocompletion=complete.models,
            rich_help_panel=ENGINES,
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="1,8,32",
            help="Batch sizes: so many requests sent at once.",
            show_default=False,
            rich_help_panel=LOAD,
        ),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            metavar="1,8,32", help="Closed loops: so many requests in flight.", show_default=False, rich_help_panel=LOAD
        ),
    ] = None,
    input_len: Annotated[
        str | None,
        typer.Option(
            metavar="128,1024", help="Prompt lengths in tokens.", show_default="128", rich_help_panel=WORKLOAD
        ),
    ] = None,
    output_len: Annotated[
        str | None,
        typer.Option(metavar="64", help="Output lengths in tokens.", show_default="64", rich_help_panel=WORKLOAD),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="1/64",
            help="Lengths and requests times that, to try a preset out.",
            show_default=False,
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|KIND",
            help="ShareGPT JSON, JSONL or a trace, or random, prefix, conversations, with :KEY=VALUE,.. behind it. "
            "Repeatable.",
            show_default=False,
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Replay a trace: its arrivals and its lengths.",
            show_default=False,
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    trace_format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="How it is written: azure, mooncake or burstgpt.",
            show_default="by its look",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    speed_up: Annotated[
        str | None,
        typer.Option(metavar="X", help="Play it so much faster.", show_default="1", rich_help_panel=WORKLOAD),
    ] = None,
    exact_lengths: Annotated[
        bool,
        typer.Option(
            "--exact-lengths",
            help="No +-20 % spread of lengths (those of batches are exact anyway).",
            rich_help_panel=WORKLOAD,
        ),
    ] = False,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="1,2,4", help="Open loops: so many requests a second.", show_default=False, rich_help_panel=LOAD
        ),
    ] = None,
    ramp: Annotated[
        str | None,
        typer.Option(
            metavar="FROM:TO", help="A rate that rises (or falls) evenly.", show_default=False, rich_help_panel=LOAD
        ),
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            metavar="PROCESS",
            help="How they come: poisson, constant or gamma.",
            show_default="poisson",
            rich_help_panel=LOAD,
        ),
    ] = None,
    burstiness: Annotated[
        str | None,
        typer.Option(
            metavar="X",
            help="Shape of gamma arrivals: below 1 in bursts, above it steadier.",
            show_default=False,
            rich_help_panel=LOAD,
        ),
    ] = None,
    max_in_flight: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Of an open loop: others wait their turn.", show_default=False, rich_help_panel=LOAD
        ),
    ] = None,
    requests: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Requests a cell (batches: rounded up to whole waves).",
            show_default=False,
            rich_help_panel=LOAD,
        ),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            metavar="60s|5m",
            help="Send no more after so long; what is out still ends.",
            show_default=False,
            rich_help_panel=LOAD,
        ),
    ] = None,
    max_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Ask for so many, and end each answer after its output length.",
            show_default=False,
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N|ray",
            help="Processes that share the load; ray: on several machines.",
            show_default="1, or as calibrated",
            rich_help_panel=LOAD,
        ),
    ] = None,
    num_workers: Annotated[
        str | None,
        typer.Option(metavar="N", help="How many with --workers ray.", show_default=False, rich_help_panel=LOAD),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="completions or chat.", show_default="completions", rich_help_panel=LOAD),
    ] = None,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Ask for answers in one piece.", rich_help_panel=LOAD)
    ] = False,
    blocks: Annotated[
        str | None,
        typer.Option(
            metavar="R", help="Sessions an engine, each with the whole grid.", show_default="1", rich_help_panel=BLOCKS
        ),
    ] = None,
    until_ci: Annotated[
        str | None,
        typer.Option(
            metavar="3%",
            help="More blocks, from 5 on, until intervals are that narrow.",
            show_default=False,
            rich_help_panel=BLOCKS,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="90s|20m|3h",
            help="Begin no block that would not fit into it.",
            show_default=False,
            rich_help_panel=BLOCKS,
        ),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT",
            help="Search the highest load that meets it: 'ttft_ms.p99<=200'. Repeatable.",
            show_default=False,
            rich_help_panel=SLO,
        ),
    ] = None,
    slo_share: Annotated[
        str | None,
        typer.Option(
            metavar="95%",
            help="Of the requests that must meet all limits at once.",
            show_default=False,
            rich_help_panel=SLO,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="The run's seed.", show_default="0", rich_help_panel=BLOCKS)
    ] = None,
    url: Url = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Whose vocabulary prompts are drawn from, where the model is not at hand.",
            show_default=False,
            rich_help_panel=ENGINES,
        ),
    ] = None,
    telemetry: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Who tells of the GPU: auto, nvml, dcgm, nvidia-smi or none.",
            show_default="auto",
            rich_help_panel=CHECKS,
        ),
    ] = None,
    require_telemetry: Annotated[
        bool,
        typer.Option(
            "--require-telemetry", help="Without device telemetry, stop before any load.", rich_help_panel=CHECKS
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="The run's folder.", show_default="runs/MODEL-HASH", rich_help_panel=OUTPUT
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="After the cells, see whether the engines give the same tokens.", rich_help_panel=CHECKS
        ),
    ] = False,
    try_all: Annotated[
        bool,
        typer.Option("--try-all", help="Run cells also where a smaller one ran out of memory.", rich_help_panel=CHECKS),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.", rich_help_panel=OUTPUT)] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print summary.json at the end instead of tables.", rich_help_panel=OUTPUT)
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and what it will send, and stop.")] = False,
) -> None:
    """Measure engines over batch sizes and sequence lengths, on this machine, and write a report.

    Example: `dyno sweep --backend reference --model smollm2-135m --batch 1,4,16 --input-len 128,512 --output-len 32`

    The same command again completes what is missing: a committed cell is never run twice.
    """
    from harness.brings import check_commands
    from harness.cli.console import CalmConsole
    from harness.cli.experiment_args import SweepFlags, build_experiment

    flags = SweepFlags(
        experiment, preset, backend or [], engine or [], model, batch, concurrency, input_len, output_len, exact_lengths,
        requests, rate, ramp, arrivals, burstiness, max_in_flight, duration, max_tokens, workers, endpoint, no_stream,
        blocks, seed, url, tokenizer, telemetry, require_telemetry, until_ci, budget, slo or [], slo_share,
        workload or [], trace, trace_format, speed_up, scale, num_workers,
    )  # fmt: skip
    # With --json the answer goes to stdout alone; progress goes to stderr.
    console = CalmConsole(stderr=as_json)
    asked = build_experiment(flags)
    for combination in asked.left_out:
        tell(f"left out {combination}")
    folder = out or default_folder(asked)
    if dry_run:
        print_plan(asked, folder, console, as_json)
        check_commands(asked.engines)
        return
    raise typer.Exit(run_sweep(asked, folder, console, quiet, as_json, verify, try_all))


def default_folder(experiment: Experiment) -> Path:
    """`runs/<model>-<hash of the experiment>`: the same command finds its run again."""
    import hashlib

    from workloads.base import canonical

    slug = "".join(c if c.isalnum() or c in "-_." else "-" for c in experiment.model.rsplit("/", 1)[-1])[:40]
    digest = hashlib.sha256(canonical(experiment.model_dump(mode="json")).encode()).hexdigest()[:8]
    return Path("runs") / f"{slug}-{digest}"


def run_sweep(
    experiment: Experiment,
    folder: Path,
    console: Console,
    quiet: bool,
    as_json: bool,
    verify: bool = False,
    try_all: bool = False,
) -> int:
    """Resolve the model, run every missing cell, write summary and report, print the result. Returns the exit code."""
    import sys

    from backends.base import get_backend
    from harness.brings import check_commands
    from harness.ceilings import keep_ceilings
    from harness.cli.live import observer_for
    from harness.cli.values import public_command
    from harness.load.places import PLACES
    from harness.load_workers import WorkerChoice
    from harness.manifest import make_manifest
    from harness.model_parts import model_parts
    from harness.plan_cost import cost_sentence, plan_cost
    from harness.planners import planner_for
    from harness.runner import Runner, check_asked, check_attached
    from harness.telemetry.choose import choose
    from reports.build import render_report
    from reports.console import print_report
    from results.errors import DynoError
    from results.files import to_json
    from results.report_data import load_report_data
    from results.store import RunStore, RunWriter

    launches = any(get_backend(e.backend).capabilities.launches for e in experiment.engines)
    parts = model_parts(experiment.model, experiment.tokenizer, needs_folder=launches)
    check_asked(experiment, parts.config)
    if experiment.endpoint == "chat":
        parts.vocabulary.text(())  # refused where there is no tokenizer, before anything starts
    check_attached(experiment)
    PLACES[experiment.workers_on].check(experiment.workers or 1, [engine.url for engine in experiment.engines])
    devices = choose(experiment.telemetry)
    if experiment.telemetry.warning:
        tell(f"{experiment.telemetry.warning}.")
    command = public_command(["dyno", *sys.argv[1:]])
    manifest = make_manifest(command, experiment.model, parts.folder, parts.config, devices)
    planner = planner_for(experiment, try_all)
    missing = [cell for cell in planner.planned() if not RunStore(folder).has_cell(cell.id)]
    # What is measured already needs its engine no more. Before there is a folder: a run that is refused leaves none.
    check_commands({cell.engine.label: cell.engine for cell in missing}.values())
    with RunWriter.start(folder, experiment.to_yaml(), manifest) as store:
        if missing and not quiet:
            shared = [f"Client, {line}" for line in WorkerChoice(experiment).plan()]
            words = " ".join([cost_sentence(plan_cost(missing, folder.parent)), open_end(experiment), *shared])
            console.print(words.strip(), style="dim", markup=False, highlight=False)
        if not missing and not quiet and not open_end(experiment):
            console.print(
                f"All {len(planner.planned())} cells of {folder} are measured already; name another --out to measure again.",
                markup=False, soft_wrap=not console.is_terminal,
            )  # fmt: skip
        if missing and launches:
            keep_ceilings(store)
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
            tell(f"engine {label!r} was not measured to the end. {why}")
        if outcome.error is not None:
            tell(str(outcome.error))
        if outcome.interrupted:
            tell("interrupted. Committed cells are kept; the same command completes the run.")
        return outcome.exit_code


def _verify(
    experiment: Experiment, parts: ModelParts, store: RunWriter, outcome: RunOutcome, console: Console, quiet: bool
) -> None:
    """Whether the run's engines give the same tokens. What cannot be verified is told, and leaves the cells as they are."""
    from contextlib import nullcontext
    from functools import partial

    from harness.cli.verify import show_step
    from harness.verify.after_run import verify_run
    from results.errors import DynoError

    def failed(label: str, words: str) -> None:
        tell(f"engine {label!r} was not verified. {words}")

    if outcome.interrupted or outcome.error is not None:
        return
    if len(experiment.engines) < 2:
        tell("--verify compares engines, and this run has one: there is nothing to compare.")
        return
    try:
        with nullcontext() if quiet else console.status("Same tokens?") as status:
            say = partial(show_step, status) if status is not None else lambda label, words: None
            document = verify_run(experiment, parts, store, outcome.failed_engines, say, failed)
    except KeyboardInterrupt:
        outcome.interrupted = True
    except DynoError as error:
        tell(f"the engines were not verified. {error}")
    else:
        if document is None and not quiet:
            console.print("The engines were verified already, as they were measured.", markup=False)


def _sum(values: Iterable[int | None]) -> int | None:
    """None where one is not known."""
    known = list(values)
    return None if None in known else sum(value or 0 for value in known)


def _times(requests: int | None, tokens: int) -> int | None:
    return None if requests is None else requests * tokens


def print_plan(experiment: Experiment, folder: Path, console: Console, as_json: bool) -> None:
    """What a sweep would do and send: sessions, cells, requests, tokens."""
    from backends.base import get_backend
    from harness.cli.live_view import describe
    from harness.load_workers import WorkerChoice
    from harness.model_parts import model_parts
    from harness.models.planning import find_config
    from harness.plan_cost import cost_sentence, plan_cost
    from harness.plan_window import short_of_window
    from harness.planners import planner_for
    from harness.runner import check_asked
    from results.audit_kv import asked_in_tokens
    from results.files import to_json

    if any(get_backend(engine.backend).capabilities.launches for engine in experiment.engines):
        # A shape is enough for a plan: the folder may be on another machine.
        config = find_config(experiment.model).config
    else:
        # The run has no more to go by, so its plan is refused for what the run would be.
        parts = model_parts(experiment.model, experiment.tokenizer, needs_folder=False)
        config = parts.config
        if experiment.endpoint == "chat":
            parts.vocabulary.text(())
    check_asked(experiment, config)
    cells = planner_for(experiment).planned()
    cost = plan_cost(cells, folder.parent)
    workers = WorkerChoice(experiment)
    plan: dict[str, Any] = {
        "out": str(folder),
        "model": experiment.model,
        "engines": [e.label for e in experiment.engines],
        "sessions": len({(c.engine.label, c.block) for c in cells}),
        "cells": len(cells),
        "requests": _sum(c.load.expected_requests for c in cells),
        "input_tokens": _sum(_times(c.load.expected_requests, c.workload.expected_input) for c in cells),
        "output_tokens": _sum(_times(c.load.expected_requests, c.workload.expected_output) for c in cells),
    }
    if as_json:
        fields = {"engine", "block", "load", "workload"}
        public = [c.model_copy(update={"engine": c.engine.public()}) for c in cells]
        order = [
            {"id": c.id, "workers": workers.of(c).count, **c.model_dump(mode="json", include=fields)} for c in public
        ]
        typer.echo(to_json({**plan, "cost": cost.to_dict(), "order": order}).decode(), nl=False)
        return
    for key, value in plan.items():
        shown = ", ".join(value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else value
        if shown is None:
            shown = "as many as fit into the time of the cells"
        console.print(f"{key.replace('_', ' '):>14}  {shown}", markup=False, highlight=False)
    for cell in cells:
        console.print(f"{cell.id:>18}  block {cell.block}, {describe(cell)}", markup=False, highlight=False)
    for line in asked_in_tokens(config, {e.label: e.settings.asked() for e in experiment.engines}):
        console.print(line, markup=False, highlight=False)
    console.print(cost_sentence(cost), markup=False, highlight=False)
    for line in workers.plan():
        console.print(f"Client, {line}", markup=False, highlight=False)
    if more := open_end(experiment):
        console.print(more, markup=False, highlight=False)
    if short := short_of_window(cells):
        console.print(short, style="dim", markup=False, highlight=False)


def open_end(experiment: Experiment) -> str:
    """What may follow the cells that are planned; empty for a grid."""
    if experiment.slo is not None:
        return "An SLO search: which loads follow depends on the answers."
    if experiment.until_ci is not None:
        return f"Then further blocks until every interval is within ±{100 * experiment.until_ci:g} %."
    return ""
