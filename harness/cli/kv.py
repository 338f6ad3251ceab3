"""`dyno kv`: how much KV cache a model needs, beside its weights. No device, no download."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import complete
from harness.cli.values import positive_int
from results.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

_BATCHES = (1, 8, 32, 64, 128, 256)


def kv(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A shipped name (llama-7b ...), a folder, a config.json, or a Hub id.",
            autocompletion=complete.planned_models,
        ),
    ],
    batch: Annotated[str, typer.Option("--batch", help="Sequences held at once.")] = "64",
    seq_len: Annotated[str, typer.Option("--seq-len", help="Tokens of each: prompt plus output.")] = "1024",
    dtype: Annotated[str, typer.Option("--dtype", help="Of the weights; auto is the one published.")] = "auto",
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", help="Of the cache; auto follows the weights.")] = "auto",
    block_size: Annotated[
        str | None, typer.Option("--block-size", help="Round each sequence up to whole blocks of that many tokens.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """KV-cache bytes a token and in all, the weights beside them, and where the cache outgrows the weights.

    Example: `dyno kv llama-7b --batch 64 --seq-len 1024 --dtype float16`
    """
    from harness.models import find_config
    from results.files import to_json

    found = find_config(model)
    n_batch, length = positive_int("--batch", batch), positive_int("--seq-len", seq_len)
    blocks = None if block_size is None else positive_int("--block-size", block_size)
    answer = _answer(found.name, found.config, n_batch, length, dtype, kv_dtype, blocks)
    if as_json:
        typer.echo(to_json(answer).decode(), nl=False)
    else:
        _print(answer, found.config)


def _answer(
    name: str, config: dict[str, Any], batch: int, seq_len: int, dtype: str, kv_dtype: str, block_size: int | None
) -> dict[str, Any]:
    """All numbers, as `--json` prints them. Parameters are null for a family that cannot be counted, with the reason."""
    from results import arithmetic

    dtype = arithmetic.model_dtype(config) if dtype == "auto" else arithmetic.dtype_name(dtype)
    kv_dtype = arithmetic.kv_dtype_name(kv_dtype, dtype, config)
    layout = arithmetic.kv_layout(config)
    try:
        count, reason = arithmetic.parameters(config), None
    except UsageError as error:
        count, reason = None, str(error)
    weights = None if count is None else arithmetic.weight_bytes(config, dtype)
    per_token = arithmetic.kv_bytes_per_token(config, kv_dtype)
    outgrows = None
    if weights is not None:
        lengths = {b: arithmetic.length_where_kv_outgrows(weights, config, kv_dtype, b) for b in (*_BATCHES, batch)}
        outgrows = {
            "tokens": weights // per_token + 1,
            "seq_len_by_batch": {str(b): lengths[b] for b in sorted(lengths)},
        }
    text = arithmetic.text_config(config)
    longest = next((text[k] for k in ("max_position_embeddings", "n_positions") if isinstance(text.get(k), int)), None)
    named = config.get("architectures")
    return {
        "architecture": str(named[0] if isinstance(named, list) and named else text.get("model_type", "unknown")),
        "parameters": count.total if count else None,
        "weight_bytes": weights,
        "kv_bytes_per_token": per_token,
        "kv_bytes": arithmetic.kv_bytes(config, kv_dtype, batch=batch, seq_len=seq_len, block_size=block_size),
        "batch": batch,
        "seq_len": seq_len,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "model": name,
        "block_size": block_size,
        "sliding_window": layout.window,
        "max_model_len": longest,
        "parameters_by_part": asdict(count) if count else None,
        "ffn_share_of_layer": count.ffn_share_of_layer if count else None,
        "kv_outgrows_weights": outgrows,
        "unknown_reason": reason,
    }


def _print(answer: dict[str, Any], config: dict[str, Any]) -> None:
    from rich.console import Console

    from results.report_format import number, size

    console = Console(highlight=False, soft_wrap=False)
    console.print(f"[bold]{answer['model']}[/bold]  {answer['architecture']}\n")
    per_token, total = answer["kv_bytes_per_token"], answer["kv_bytes"]
    console.print(f"KV cache  {per_token:,} bytes a token ({size(per_token)}) in {answer['kv_dtype']}")
    console.print(f"          {_formula(config)}", style="dim")
    rounded = f", in blocks of {answer['block_size']}" if answer["block_size"] else ""
    held = f"{answer['batch']:,} x {answer['seq_len']:,} tokens{rounded}"
    console.print(f"          {held}: [bold]{size(total)}[/bold] ({total:,} bytes)")
    if window := answer["sliding_window"]:
        console.print(f"          layers with a sliding window keep the last {window:,} tokens only")
    longest = answer["max_model_len"]
    if isinstance(longest, int) and answer["seq_len"] > longest:
        console.print(f"          [yellow]longer than the model's {longest:,} positions[/yellow]")
    if answer["parameters"] is None:
        console.print(f"\nWeights   unknown: {answer['unknown_reason']}")
        return
    weights, parameters = answer["weight_bytes"], answer["parameters"]
    console.print(f"          {number(total / weights)} times the weights")
    console.print(f"\nWeights   [bold]{size(weights)}[/bold] in {answer['dtype']} ({parameters:,} parameters)")
    console.print(_parts(answer))
    console.print(f"          the FFN is {100 * answer['ffn_share_of_layer']:.0f} % of a layer's matrices\n")
    outgrows = answer["kv_outgrows_weights"]
    console.print(f"KV outgrows the weights from {outgrows['tokens']:,} tokens in the cache (batch x length) on:")
    console.print(_lengths(outgrows["seq_len_by_batch"], longest))


def _formula(config: dict[str, Any]) -> str:
    from results.arithmetic import head_dim, kv_heads, text_config

    text = text_config(config)
    layers = text.get("num_hidden_layers") or text.get("n_layer")
    if text.get("kv_lora_rank"):
        return f"= {layers} layers x ({text['kv_lora_rank']} latent + {text['qk_rope_head_dim']} rope) x bytes"
    if text.get("v_head_dim"):
        head = f"({head_dim(text)} + {text['v_head_dim']})"
        return f"= {layers} layers x {kv_heads(text)} KV heads x {head} x bytes"
    return f"= 2 x {layers} layers x {kv_heads(text)} KV heads x {head_dim(text)} head_dim x bytes"


def _parts(answer: dict[str, Any]) -> Table:
    from rich.table import Table

    from results.report_format import size

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("         part", "parameters", "bytes", "share"):
        table.add_column(heading, justify="left" if heading.strip() == "part" else "right")
    scale = answer["weight_bytes"] / answer["parameters"]
    for part, n in answer["parameters_by_part"].items():
        share = f"{100 * n / answer['parameters']:.1f} %"
        words = {"lm_head": "LM head", "ffn": "FFN"}.get(part, part)
        shown = (f"{n:,}", size(n * scale), share) if n else ("tied", "", "") if part == "lm_head" else ("0", "", "")
        table.add_row(f"          {words}", *shown)
    return table


def _lengths(lengths: dict[str, int | None], longest: object) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("          batch", justify="right")
    table.add_column("length", justify="right")
    table.add_column("")
    for batch, length in lengths.items():
        beyond = isinstance(longest, int) and length is not None and length > longest
        note = "beyond the model's positions" if beyond else ""
        table.add_row(f"{int(batch):,}", "never (window)" if length is None else f"{length:,}", note)
    return table
