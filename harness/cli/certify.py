"""`dyno certify`: how wrong is another load tool on this machine?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from harness.certify.card import Card, Row


def certify(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND", help="The tool's command, behind --, with {url} {model} {tokenizer} {out} in it."
        ),
    ],
    ttft_ms: Annotated[float, typer.Option(help="The server's time to the first token.")] = 100.0,
    gap_ms: Annotated[float, typer.Option(help="And between tokens.")] = 10.0,
    tokens_per_chunk: Annotated[int, typer.Option(help="Tokens in each event.")] = 1,
    jitter: Annotated[float, typer.Option(help="Share by which each time varies, 0 to 1.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the jitter.")] = 0,
    result: Annotated[
        Path | None, typer.Option(help="The tool's result file, if it is not in {out}.", show_default=False)
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds the tool may take.")] = 600.0,
    out: Annotated[Path | None, typer.Option(help="Keep its files in this folder.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Run a load tool against a server of known schedule and print its errors.

    Example: `dyno certify -- aiperf profile --url {url} --model {model} --tokenizer {tokenizer} --streaming
    --endpoint-type completions --concurrency 64 --request-count 384 --output-tokens-mean 64 --artifact-dir {out} --ui none`

    Understood are the result files of vLLM's bench serve, AIPerf, GuideLLM, inference-perf and Dyno. {url}, {host}, {port},
    {model}, {tokenizer} (a folder) and {out} (a folder) are replaced in the command. Exit code 2 for a command or file
    that cannot be used, 4 when the tool fails.
    """
    from harness.certify.certify import certify as run
    from harness.cli.folders import work_folder
    from harness.truth.schedule import Schedule
    from results.errors import UsageError
    from results.files import to_json

    if not 0 < timeout < float("inf"):
        raise UsageError(f"--timeout is a number of seconds above zero (given: {timeout}). Example: --timeout 600.")
    schedule = Schedule(ttft_ms=ttft_ms, gap_ms=gap_ms, tokens_per_chunk=tokens_per_chunk, jitter=jitter, seed=seed)
    with work_folder(out, "dyno-certify-") as folder:
        card = run(command, folder, schedule, result=result, timeout_s=timeout)
    if as_json:
        typer.echo(to_json({**card.to_dict(), "schedule": schedule.to_dict()}).decode(), nl=False)
    else:
        print_card(card)


def print_card(card: Card) -> None:
    """The error card as a table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from reports.console import plain

    console = Console(highlight=False, soft_wrap=True)
    # The version is what the tool says of itself: no markup of ours.
    version = plain(str(card.version or "(version not told)"))
    console.print(Text.assemble((card.reported.tool, "bold"), f" {version}\n"))
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("", "true", "reported", "error", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in card.rows:
        table.add_row(row.name, _value(row, row.true), _value(row, row.reported), _error(row), row.unit)
    console.print(table)
    each = card.cpu_us_per_token
    share = "" if each is None else f", {each:.1f} us a token"
    console.print(
        f"\nCPU {card.tool.cpu_s:.1f} s{share}, start-up and report included; {card.tool.wall_s:.1f} s in all"
    )
    if card.others:
        console.print(f"Requests beside those that it reports (warm-up): {card.others}.")
    if card.reported.tpot_called != "TPOT":
        console.print(f"TPOT is what it calls {card.reported.tpot_called}.")
    if card.reported.note:
        console.print(f"{card.reported.note[0].upper()}{card.reported.note[1:]}.")
    if card.late_ms_p99 is not None:
        console.print(f"The server itself sent up to {card.late_ms_p99:.2f} ms (p99) late; the true figures hold that.")


def _value(row: Row, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if row.unit == "ms" else f"{value:,.0f}"


def _error(row: Row) -> str:
    if row.error is None:
        return "-"
    sign = f"{row.error:+,.2f}" if row.unit == "ms" else f"{row.error:+,.0f}"
    return f"{sign} ({row.error / row.true:+.1%})" if row.true else sign
