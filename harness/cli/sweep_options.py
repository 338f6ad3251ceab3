"""The options of `dyno sweep`, in the order of its help: what each is called, what it says and in which panel it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import complete
from harness.cli.options import BLOCKS, ENGINES, LOAD, OUTPUT, SLO, WORKLOAD

CHECKS = "Telemetry and checks"

ExperimentFile = Annotated[
    Path | None,
    typer.Argument(metavar="EXPERIMENT.yaml", help="An experiment file; flags override it.", show_default=False),
]
Preset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Start from a preset that ships with dyno.",
        show_default=False,
        autocompletion=complete.presets,
    ),
]
Batch = Annotated[
    str | None,
    typer.Option(
        metavar="1,8,32",
        help="Batch sizes: so many requests sent at once.",
        show_default=False,
        rich_help_panel=LOAD,
    ),
]
Concurrency = Annotated[
    str | None,
    typer.Option(
        metavar="1,8,32", help="Closed loops: so many requests in flight.", show_default=False, rich_help_panel=LOAD
    ),
]
InputLen = Annotated[
    str | None,
    typer.Option(metavar="128,1024", help="Prompt lengths in tokens.", show_default="128", rich_help_panel=WORKLOAD),
]
OutputLen = Annotated[
    str | None,
    typer.Option(metavar="64", help="Output lengths in tokens.", show_default="64", rich_help_panel=WORKLOAD),
]
Scale = Annotated[
    str | None,
    typer.Option(
        metavar="1/64",
        help="Lengths and requests times that, to try a preset out.",
        show_default=False,
        rich_help_panel=WORKLOAD,
    ),
]
Workload = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE|KIND",
        help="ShareGPT JSON, JSONL or a trace, or random, prefix, conversations, with :KEY=VALUE,.. behind it. "
        "Repeatable.",
        show_default=False,
        rich_help_panel=WORKLOAD,
    ),
]
Trace = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Replay a trace: its arrivals and its lengths.",
        show_default=False,
        rich_help_panel=WORKLOAD,
    ),
]
TraceFormat = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help="How it is written: azure, mooncake or burstgpt.",
        show_default="by its look",
        rich_help_panel=WORKLOAD,
    ),
]
SpeedUp = Annotated[
    str | None,
    typer.Option(metavar="X", help="Play it so much faster.", show_default="1", rich_help_panel=WORKLOAD),
]
ExactLengths = Annotated[
    bool,
    typer.Option(
        "--exact-lengths",
        help="No +-20 % spread of lengths (those of batches are exact anyway).",
        rich_help_panel=WORKLOAD,
    ),
]
Rate = Annotated[
    str | None,
    typer.Option(
        metavar="1,2,4", help="Open loops: so many requests a second.", show_default=False, rich_help_panel=LOAD
    ),
]
Ramp = Annotated[
    str | None,
    typer.Option(
        metavar="FROM:TO", help="A rate that rises (or falls) evenly.", show_default=False, rich_help_panel=LOAD
    ),
]
Arrivals = Annotated[
    str | None,
    typer.Option(
        metavar="PROCESS",
        help="How they come: poisson, constant or gamma.",
        show_default="poisson",
        rich_help_panel=LOAD,
    ),
]
Burstiness = Annotated[
    str | None,
    typer.Option(
        metavar="X",
        help="Shape of gamma arrivals: below 1 in bursts, above it steadier.",
        show_default=False,
        rich_help_panel=LOAD,
    ),
]
MaxInFlight = Annotated[
    str | None,
    typer.Option(
        metavar="N", help="Of an open loop: others wait their turn.", show_default=False, rich_help_panel=LOAD
    ),
]
Requests = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Requests a cell (batches: rounded up to whole waves).",
        show_default=False,
        rich_help_panel=LOAD,
    ),
]
Duration = Annotated[
    str | None,
    typer.Option(
        metavar="60s|5m",
        help="Send no more after so long; what is out still ends.",
        show_default=False,
        rich_help_panel=LOAD,
    ),
]
MaxTokens = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Ask for so many, and end each answer after its output length.",
        show_default=False,
        rich_help_panel=WORKLOAD,
    ),
]
Workers = Annotated[
    str | None,
    typer.Option(
        metavar="N|ray",
        help="Processes that share the load; ray: on several machines.",
        show_default="1, or as calibrated",
        rich_help_panel=LOAD,
    ),
]
NumWorkers = Annotated[
    str | None,
    typer.Option(metavar="N", help="How many with --workers ray.", show_default=False, rich_help_panel=LOAD),
]
Endpoint = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="completions or chat.", show_default="completions", rich_help_panel=LOAD),
]
NoStream = Annotated[bool, typer.Option("--no-stream", help="Ask for answers in one piece.", rich_help_panel=LOAD)]
Blocks = Annotated[
    str | None,
    typer.Option(
        metavar="R", help="Sessions an engine, each with the whole grid.", show_default="1", rich_help_panel=BLOCKS
    ),
]
UntilCi = Annotated[
    str | None,
    typer.Option(
        metavar="3%",
        help="More blocks, from 5 on, until intervals are that narrow.",
        show_default=False,
        rich_help_panel=BLOCKS,
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="90s|20m|3h",
        help="Begin no block that would not fit into it.",
        show_default=False,
        rich_help_panel=BLOCKS,
    ),
]
Slo = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LIMIT",
        help="Search the highest load that meets it: 'ttft_ms.p99<=200'. Repeatable.",
        show_default=False,
        rich_help_panel=SLO,
    ),
]
SloShare = Annotated[
    str | None,
    typer.Option(
        metavar="95%",
        help="Of the requests that must meet all limits at once.",
        show_default=False,
        rich_help_panel=SLO,
    ),
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", help="The run's seed.", show_default="0", rich_help_panel=BLOCKS)
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Whose vocabulary prompts are drawn from, where the model is not at hand.",
        show_default=False,
        rich_help_panel=ENGINES,
    ),
]
Telemetry = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="Who tells of the GPU: auto, nvml, dcgm, nvidia-smi or none.",
        show_default="auto",
        rich_help_panel=CHECKS,
    ),
]
RequireTelemetry = Annotated[
    bool,
    typer.Option("--require-telemetry", help="Without device telemetry, stop before any load.", rich_help_panel=CHECKS),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="The run's folder.", show_default="runs/MODEL-HASH", rich_help_panel=OUTPUT),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify", help="After the cells, see whether the engines give the same tokens.", rich_help_panel=CHECKS
    ),
]
TryAll = Annotated[
    bool,
    typer.Option("--try-all", help="Run cells also where a smaller one ran out of memory.", rich_help_panel=CHECKS),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.", rich_help_panel=OUTPUT)]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print summary.json at the end instead of tables.", rich_help_panel=OUTPUT)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and what it will send, and stop.")]
