"""`dyno roofline`: how fast a model's decode can be at best on a device, and what holds it. No device, no download."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import complete
from harness.cli.values import positive_int, positive_ints

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from harness.roofline_target import Target
    from results.roofline import Roofline

_BATCHES = "1,8,32,128,512"
# A change is judged at no more sequences than engines usually run.
_CAP = 1024


def roofline(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A shipped name (llama-3-8b ...), a folder, a config.json, or a Hub id.",
            autocompletion=complete.planned_models,
        ),
    ],
    device: Annotated[str, typer.Option(help="h200, a100-80gb, l4 ...; `this` measures the machine here.")] = "h200",
    dtype: Annotated[str, typer.Option("--dtype", help="Of the weights; auto is the one published.")] = "auto",
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", help="Of the cache; auto follows the weights.")] = "auto",
    tp: Annotated[str, typer.Option("--tp", help="Devices the model is split over (tensor parallel).")] = "1",
    batch: Annotated[str, typer.Option("--batch", metavar="1,8,32", help="Sequences in a step.")] = _BATCHES,
    context: Annotated[
        str | None,
        typer.Option(
            "--context", metavar="512,2048", help="Tokens a sequence holds.", show_default="up to the model's"
        ),
    ] = None,
    block_size: Annotated[str, typer.Option("--block-size", help="Tokens in a KV block.")] = "16",
    memory_fraction: Annotated[
        float, typer.Option("--memory-fraction", min=0.01, max=1.0, help="Of the memory, what the engine may take.")
    ] = 0.9,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """The ceiling of decode in tokens/s by batch and context, when it turns compute-bound, and how many requests fit.

    Example: `dyno roofline llama-3-8b --device h200 --kv-dtype fp8`
    """
    from harness.models import find_config
    from harness.roofline_target import target_of
    from results import step_cost
    from results.files import to_json
    from results.parameters import text_config
    from results.roofline import default_contexts
    from results.roofline import roofline as roofline_of

    found = find_config(model)
    form = step_cost.format_of(found.config, dtype, kv_dtype, positive_int("--tp", tp))
    target = target_of(device, form, memory_fraction)
    line = roofline_of(found.config, form, target.machine, positive_int("--block-size", block_size))
    longest = text_config(found.config).get("max_position_embeddings")
    positions = longest if isinstance(longest, int) else None
    contexts = default_contexts(positions) if context is None else positive_ints("--context", context, "512,2048")
    answer = _answer(found.name, line, target, positive_ints("--batch", batch), contexts, positions)
    if as_json:
        typer.echo(to_json(answer).decode(), nl=False)
    else:
        _print(answer)


def _answer(
    name: str, line: Roofline, target: Target, batches: list[int], contexts: list[int], positions: int | None
) -> dict[str, Any]:
    """All numbers, as `--json` prints them."""
    from dataclasses import asdict

    from results.roofline import changes, grid

    gemms = line.gemms_turn()
    middle = contexts[len(contexts) // 2]
    return {
        "model": name,
        "device": {
            "name": target.name,
            "words": target.words,
            "ceilings": target.basis,
            "gemm_flops_per_s": target.machine.peaks.gemm_flops,
            "attention_flops_per_s": target.machine.peaks.attention_flops,
            "bytes_per_s": target.machine.peaks.bytes_per_s,
            "bytes_per_s_by_clock": target.formula_bytes_per_s,
            "bytes_per_s_median": target.median_bytes_per_s,
            "spread": target.spread,
            "others_cpu": target.others_cpu,
            "warning": target.warning or None,
            "memory_bytes": target.machine.memory_bytes,
            "memory_fraction": target.machine.memory_fraction,
        },
        "positions": positions,
        "beyond_positions": [c for c in contexts if positions is not None and c > positions],
        "dtype": line.form.weights,
        "kv_dtype": line.form.kv,
        "tensor_parallel": line.form.tensor_parallel,
        "block_size": line.block_size,
        "weight_bytes": line.weights_per_device * line.form.tensor_parallel,
        "streamed_bytes": line.shape.streamed * line.form.weight_bytes,
        "active_parameters": line.shape.active,
        "ceilings": [{**asdict(p), "tokens_per_s": p.tokens_per_s} for p in grid(line, batches, contexts)],
        "compute_bound_from": {
            "gemms": gemms,
            "step": [{"context": c, "batch": line.step_turns(c)} for c in contexts],
            "longest_context": line.longest_compute_bound_context(),
        },
        "fits": [
            {"context": c, "requests": line.requests_that_fit(c), "kv_bytes": line.kv_per_request(c)} for c in contexts
        ],
        "changes": {"context": middle, "at": [asdict(c) for c in changes(line, middle, _CAP)]},
    }


def _print(answer: dict[str, Any]) -> None:
    from rich.console import Console

    from results.report_format import size

    console = Console(highlight=False, soft_wrap=False)
    device, form = answer["device"], f"{answer['dtype']} weights, {answer['kv_dtype']} cache"
    split = f" x {answer['tensor_parallel']}" if answer["tensor_parallel"] > 1 else ""
    console.print(f"[bold]{answer['model']}[/bold] on {device['words']}{split}, {form}\n")
    rate, speed = device["gemm_flops_per_s"] / 1e12, device["bytes_per_s"] / 1e9
    clock = device["bytes_per_s_by_clock"]
    by_clock = f" (by clock and width {clock / 1e9:,.0f})" if clock else ""
    spread = (
        ""
        if device["spread"] is None
        else f", the best of tries whose median lies up to {100 * device['spread']:.0f} % below"
    )
    console.print(f"Ceilings  {rate:,.4g} TFLOP/s and {speed:,.4g} GB/s, {device['ceilings']}{spread}{by_clock}")
    if device["warning"]:
        console.print(device["warning"], style="yellow", markup=False)
    streamed, weights = size(answer["streamed_bytes"]), size(answer["weight_bytes"])
    console.print(f"Weights   {weights}, of which a decode step can read {streamed}")
    console.print("[dim]Least time of a step: the sum over operators of max(FLOPs / P, bytes / BW).[/dim]\n")
    _print_ceilings(console, answer)
    _print_turns(console, answer)
    _print_changes(console, answer)


def _print_ceilings(console: Console, answer: dict[str, Any]) -> None:
    contexts = [row["context"] for row in answer["fits"]]
    console.print("Decode at best, tokens/s of the whole batch, by batch and context:")
    table = _table(["batch", *(f"{c:,}" for c in contexts)])
    for batch in dict.fromkeys(p["batch"] for p in answer["ceilings"]):
        cells = [
            f"{p['tokens_per_s']:,.0f}{'c' if p['bound'] == 'compute' else ' '}" if p["fits"] else "no room "
            for p in answer["ceilings"]
            if p["batch"] == batch
        ]
        table.add_row(f"{batch:,}", *cells)
    table.add_row("fit", *(f"{row['requests']:,} " for row in answer["fits"]), style="bold")
    console.print(table)
    used = f"{100 * answer['device']['memory_fraction']:.0f} % of {_memory(answer)}"
    if any(p["fits"] and p["bound"] == "compute" for p in answer["ceilings"]):
        console.print("[dim]c    more than half of the step is compute-bound[/dim]")
    console.print(f"[dim]fit  requests of that context beside the weights, in {used}[/dim]")
    for context in answer["beyond_positions"]:
        console.print(f"{context:,} is longer than the model's {answer['positions']:,} positions", style="yellow")
    console.print()


def _memory(answer: dict[str, Any]) -> str:
    """The device's memory in words."""
    from results.report_format import size

    return size(answer["device"]["memory_bytes"] * answer["tensor_parallel"])


def _print_turns(console: Console, answer: dict[str, Any]) -> None:
    turns, room = answer["compute_bound_from"], {row["context"]: row["requests"] for row in answer["fits"]}
    gemms = "never" if turns["gemms"] is None else f"from a batch of {turns['gemms']:,}"
    console.print(f"Compute-bound: the GEMMs {gemms}; the whole step")
    groups: list[tuple[str, list[int]]] = []
    for row in turns["step"]:
        context, batch = row["context"], row["batch"]
        if batch is None:
            words = "never (attention waits for memory)"
        elif batch > room[context]:
            words = f"from {batch:,}, more than fit"
        else:
            words = f"from {batch:,}"
        if groups and groups[-1][0] == words:
            groups[-1][1].append(context)
        else:
            groups.append((words, [context]))
    for words, contexts in groups:
        at = f"{contexts[0]:,}" if len(contexts) == 1 else f"{contexts[0]:,} to {contexts[-1]:,}"
        console.print(f"  at a context of {at}: {words}")
    if (longest := turns["longest_context"]) is not None:
        console.print(f"  no batch makes it so beyond a context of {longest:,}")
    console.print()


def _print_changes(console: Console, answer: dict[str, Any]) -> None:
    from results.report_format import listed, size

    found = answer["changes"]
    console.print(f"What a change does at {found['context']:,} tokens, with all that fit (at most {_CAP:,}):")
    table = _table(["", "KV a request", "fit", "batch", "tokens/s"])
    table.columns[0].justify = "left"
    for row in found["at"]:
        rate = "-" if row["tokens_per_s"] is None else f"{row['tokens_per_s']:,.0f}"
        table.add_row(row["words"], size(row["kv_bytes_per_request"]), f"{row['fit']:,}", f"{row['batch']:,}", rate)
    console.print(table)
    same: dict[str, list[str]] = {}
    for row in found["at"]:
        if row["why"]:
            same.setdefault(row["why"], []).append(row["words"])
    for why, rows in same.items():
        words = listed(rows)
        console.print(
            f"[dim]{words[:1].upper()}{words[1:]} change{'s' if len(rows) == 1 else ''} next to nothing: {why}.[/dim]"
        )
    if any(row["words"].startswith("blocks of") for row in found["at"]):
        console.print(
            "[dim]On average half of a request's last block stays empty; the rows of larger blocks count the tokens that "
            "are then empty beyond those of the blocks asked for.[/dim]"
        )
    console.print("[dim]A ceiling is no forecast: measure.[/dim]")


def _table(headings: list[str]) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
