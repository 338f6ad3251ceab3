"""`dyno sweep`: measure engines over batch sizes and sequence lengths, and write the report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from harness.cli import sweep_options as opt
from harness.cli.options import Backends, Engines, Model, Url
from harness.cli.tell import tell

if TYPE_CHECKING:
    from rich.console import Console

    from harness.experiment import Experiment
    from harness.model_parts import ModelParts
    from harness.runner import RunOutcome
    from results.store import RunWriter


def sweep(
    experiment: opt.ExperimentFile = None,
    preset: opt.Preset = None,
    backend: Backends = None,
    engine: Engines = None,
    model: Model = None,
    batch: opt.Batch = None,
    concurrency: opt.Concurrency = None,
    input_len: opt.InputLen = None,
    output_len: opt.OutputLen = None,
    scale: opt.Scale = None,
    workload: opt.Workload = None,
    trace: opt.Trace = None,
    trace_format: opt.TraceFormat = None,
    speed_up: opt.SpeedUp = None,
    exact_lengths: opt.ExactLengths = False,
    rate: opt.Rate = None,
    ramp: opt.Ramp = None,
    arrivals: opt.Arrivals = None,
    burstiness: opt.Burstiness = None,
    max_in_flight: opt.MaxInFlight = None,
    requests: opt.Requests = None,
    duration: opt.Duration = None,
    max_tokens: opt.MaxTokens = None,
    workers: opt.Workers = None,
    num_workers: opt.NumWorkers = None,
    endpoint: opt.Endpoint = None,
    no_stream: opt.NoStream = False,
    blocks: opt.Blocks = None,
    until_ci: opt.UntilCi = None,
    budget: opt.Budget = None,
    slo: opt.Slo = None,
    slo_share: opt.SloShare = None,
    seed: opt.Seed = None,
    url: Url = None,
    tokenizer: opt.Tokenizer = None,
    telemetry: opt.Telemetry = None,
    require_telemetry: opt.RequireTelemetry = False,
    out: opt.Out = None,
    verify: opt.Verify = False,
    try_all: opt.TryAll = False,
    quiet: opt.Quiet = False,
    as_json: opt.AsJson = False,
    dry_run: opt.DryRun = False,
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
