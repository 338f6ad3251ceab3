"""The presets that ship with dyno: `dyno presets` lists them, `dyno sweep --preset NAME` runs one, `--scale` makes it small."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from results.errors import UnknownNameError, UsageError

_PRESETS = Path(__file__).resolve().parents[2] / "workloads" / "presets"
# What a preset says of itself, beside the experiment.
_WORDS = ("about", "cost")
_TOKENS = ("tokens", "low", "high", "mean", "std")
_LENGTHS = ("input_len", "output_len", "turn_len")
_COUNTS = ("prefix_len", "max_len", "max_tokens", "most_output")


def presets(as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False) -> None:
    """List the presets: what each is for, and what it costs.

    Example: `dyno presets`, then `dyno sweep --preset 1k-1k --backend vllm --model M`
    """
    from harness.cli.console import CalmConsole
    from results.files import to_json

    found = {name: read_preset(name) for name in preset_names()}
    if as_json:
        typer.echo(to_json([{"name": name, **preset} for name, preset in found.items()]).decode(), nl=False)
        return
    console = CalmConsole()
    for name, preset in found.items():
        console.print(name, style="bold", markup=False, highlight=False)
        for word in _WORDS:
            if preset.get(word):
                console.print(f"  {preset[word].strip()}", markup=False, highlight=False)


def preset_names() -> list[str]:
    """The presets that ship with dyno."""
    return sorted(p.stem for p in _PRESETS.glob("*.yaml"))


def read_preset(name: str) -> dict[str, Any]:
    """A preset as it is written. Raises UnknownNameError."""
    if name not in preset_names():
        raise UnknownNameError("preset", name, preset_names())
    import yaml

    data: dict[str, Any] = yaml.safe_load((_PRESETS / f"{name}.yaml").read_text(encoding="utf-8"))
    return data


def preset_fields(name: str) -> dict[str, Any]:
    """The experiment of a preset, without what it says of itself."""
    return {key: value for key, value in read_preset(name).items() if key not in _WORDS}


def scale_factor(text: str) -> float:
    """`1/64` or `0.05`. Raises UsageError."""
    over, _, under = text.partition("/")
    try:
        value = float(over) / float(under or 1)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if not 0 < value <= 1:
        raise UsageError(f"--scale takes a share of the lengths and counts, such as 1/64 or 0.05 (given: {text!r}).")
    return value


def scaled(data: dict[str, Any], factor: float) -> dict[str, Any]:
    """Lengths and numbers of requests times `factor`; concurrency and rates stay. To try a preset out: it is another measurement."""
    from harness.loads import smaller_load

    return {
        **data,
        "workloads": [_smaller_workload(w, factor) for w in data.get("workloads") or []],
        "loads": [smaller_load(load, factor) for load in data.get("loads") or []],
    }


def _down(value: float, factor: float, least: int = 1) -> int:
    return max(least, round(value * factor))


def _smaller_workload(workload: dict[str, Any], factor: float) -> dict[str, Any]:
    out = dict(workload)
    for name in _LENGTHS:
        if isinstance(length := out.get(name), dict):
            out[name] = {k: _down(v, factor) if k in _TOKENS else v for k, v in length.items()}
    for name in _COUNTS:
        if isinstance(value := out.get(name), int):
            out[name] = _down(value, factor, 2)
    if isinstance(most := out.get("max_tokens"), int):  # stays above the longest output
        output = out.get("output_len") or {}
        out["max_tokens"] = max(most, 1 + max((v for k, v in output.items() if k in _TOKENS), default=1))
    return out
