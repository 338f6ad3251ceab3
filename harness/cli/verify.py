"""`dyno verify`: do engines give the same tokens, and if not, is that rounding or another model?"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import ENGINES, OUTPUT, Backends, Engines, Url

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from harness.experiment import EngineSpec
    from harness.model_parts import ModelParts
    from harness.verify.compare import Questions

PROMPTS = "Prompts"
_COLOURS = {"identical": "green", "near-tie": "green", "close": "yellow", "different": "red", "broken": "red"}


def verify(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="A known name, a folder, or a Hub id.", rich_help_panel=ENGINES)
    ],
    backend: Backends = None,
    engine: Engines = None,
    url: Url = None,
    prompts: Annotated[
        str, typer.Option(metavar="N", help="Prompts: half texts, half random ids.", rich_help_panel=PROMPTS)
    ] = "12",
    output_len: Annotated[
        str, typer.Option(metavar="N", help="Output tokens a prompt.", rich_help_panel=PROMPTS)
    ] = "32",
    seed: Annotated[int, typer.Option(help="Seed of the random prompts.", rich_help_panel=PROMPTS)] = 0,
    ready_s: Annotated[float, typer.Option("--ready-s", help="How long a start may take.", min=1)] = 600,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write verify.json and the servers' logs here; may be a run.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Compare what engines say: greedy tokens on a fixed set, one in flight and all at once, and scores of fixed text.

    Example: `dyno verify --model smollm2-135m --backend reference --engine label=fp32,backend=reference,dtype=float32`

    Classes: identical, near-tie (they part only where rounding decides), close (otherwise rounded), different, broken.
    Exit code 1 for the last two.
    """
    from rich.console import Console

    from harness.cli.folders import work_folder
    from harness.cli.values import positive_int
    from harness.verify.after_run import run_at
    from harness.verify.compare import Questions
    from harness.verify.judge import worst
    from results.agreement import Agreement
    from results.errors import EXIT_BAD_ANSWER, EXIT_OK
    from results.files import to_json
    from results.verification import write_verification

    console = Console(stderr=as_json, highlight=False)
    asked = Questions(positive_int("--prompts", prompts), positive_int("--output-len", output_len), seed)
    specs, parts = _engines(model, backend or [], engine or [], url)
    store = run_at(out, model, [spec.label for spec in specs])
    logs = None if out is None else out if store is None else out / "verify"
    with work_folder(logs, "dyno-verify-") as folder:
        document = _ask_all(specs, parts, model, asked, folder, ready_s, console)
    if out is not None:
        write_verification(out, document)
    if as_json:
        typer.echo(to_json(document).decode(), nl=False)
    else:
        _print(document, console)
        if out is not None:
            console.print(f"\n{out / 'verify.json'}", style="dim", markup=False)
        if store is not None:
            console.print(f"`dyno report {out}` shows it in the run's report.", style="dim", markup=False)
    bad = worst(document) in (Agreement.DIFFERENT, Agreement.BROKEN)
    raise typer.Exit(EXIT_BAD_ANSWER if bad else EXIT_OK)


def _engines(
    model: str, backends: list[str], engines: list[str], url: str | None
) -> tuple[list[EngineSpec], ModelParts]:
    """The engines asked for, checked as far as they can be before one is launched. Raises UsageError."""
    from backends.base import get_backend
    from harness.cli.experiment_args import engine_specs
    from harness.model_parts import model_parts
    from results.errors import UsageError

    specs = engine_specs(backends, engines, url)
    if not specs:
        raise UsageError(
            "No engine named. Give two: --backend reference --backend vllm, or --engine label=fp32,backend=reference,dtype=float32."
        )
    for spec in specs:
        get_backend(spec.backend).refuse_unsupported(spec.settings)
    launches = any(spec.url is None for spec in specs)
    return specs, model_parts(model, None, needs_folder=launches)


def _ask_all(
    specs: list[EngineSpec],
    parts: ModelParts,
    model: str,
    asked: Questions,
    folder: Path,
    ready_s: float,
    console: Console,
) -> dict[str, Any]:
    from harness.experiment import Timeouts
    from harness.verify.compare import compare_engines, comparison_of

    with console.status("") as status:
        say = partial(show_step, status)
        return compare_engines(specs, comparison_of(parts, model, asked, folder, Timeouts(ready_s=ready_s), say))


def show_step(status: Status, label: str, words: str) -> None:
    """One line that tells what is asked of whom."""
    status.update(f"{label}: {words}")


def _print(document: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    from results.report_verify import equal_outputs

    prompts = document["prompts"]
    console.print(f"{len(prompts)} prompts of {min(p['tokens'] for p in prompts)} to {max(p['tokens'] for p in prompts)} "
                  f"tokens, {document['output_len']} tokens each, greedy")  # fmt: skip
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("engines", "class", "same outputs", "batched", "same favourite", "log-prob. apart", "KL >="):
        table.add_column(title)
    for pair in document["pairs"]:
        forced = pair["teacher_forced"] or {}
        table.add_row(
            f"{pair['a']} | {pair['b']}", f"[{_COLOURS[pair['class']]}]{pair['class']}[/]",
            equal_outputs(pair["prompts"]), equal_outputs(pair["batched"]["prompts"]), _percent(forced.get("top1_share")),
            _small(forced.get("mean_abs_logprob_difference")), _small(forced.get("mean_kl")),
        )  # fmt: skip
    if document["pairs"]:
        console.print(table)
    for pair in document["pairs"]:
        console.print(f"[bold]{pair['a']} | {pair['b']}[/]: {pair['why']}", soft_wrap=True)
        if pair["teacher_forced_reason"]:
            console.print(f"  Fixed text: {pair['teacher_forced_reason']}.", markup=False, style="dim", soft_wrap=True)
        for row in [row for row in pair["prompts"] if not row["match"]][:8]:
            gap = "not told" if row["logprob_gap"] is None else f"{row['logprob_gap']:.3g} nats"
            least = "at least " if row["gap_at_least"] else ""
            kind = prompts[row["index"]]["text"] or f"{prompts[row['index']]['tokens']} random ids"
            console.print(
                f"  prompt {row['index']} ({kind[:40]!r}): part at token {row['first_divergence']}, gap {least}{gap}",
                markup=False, soft_wrap=True, style="dim",
            )  # fmt: skip
    for row in document["engines"]:
        alone, again = row["alone_and_batched"], row["first_and_again"]
        words = f"alone and batched: {alone['class']} ({equal_outputs(alone['prompts'])} the same)"
        if again["exact_match"] != 1:
            words += f"; the same prompt again: {again['class']} ({equal_outputs(again['prompts'])} the same)"
        if row["problems"]:
            words += f"; {len(row['problems'])} outputs with " + ", ".join(
                sorted({kind for found in row["problems"] for kind in found["problems"]})
            )
        console.print(f"[bold]{row['label']}[/] {words}", soft_wrap=True)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _small(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
