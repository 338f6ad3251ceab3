"""The reference engine beside its peers on one CPU: same model, same cores, same load, blocks in turn.

    python benchmarks/engine_cpu.py [--blocks 2] [--engines reference vllm transformers] [--out runs/engine-cpu]

Each server is driven by `dyno sweep` at four points: 1, 8 and 32 requests at once with 128 tokens in and 64 out, and 8 with
1,024 in. vLLM is the one that DYNO_VLLM_COMMAND names (`make vllm-venv` makes it), with its compiled default and without a
prefix cache. `reference-pytorch` is the reference engine without its compiled kernels. transformers has no server here: it
generates the same batches by a call, before the others and after them, so it pays for no HTTP. llama.cpp is that of the package
xllamacpp, through `llamacpp_server.py`, and is there all the time (it sleeps while others are measured). A server that is there
already joins with --url NAME=http://HOST:PORT.

Two blocks of the reference engine and vLLM take about nine minutes on two cores, most of it vLLM's starts. Three give
intervals, five a verdict (`dyno compare` on the two runs).

Columns: output tokens/s of the whole cell (the median of its blocks, and the least and the most); the reference engine's over
it, a paired t interval of the log ratio over blocks; ms a decode step; GB/s a decode step reads (weights and KV; every step
reads them once) and their share of what a plain read of memory gave at the start; GFLOP/s of the prompts' products and
attention, and their share of a square product's, bfloat16 or, where a CPU is faster in it, float32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from backends.ports import free_port
from backends.reference.config import ModelConfig, read_model_config
from harness.ceilings import measure_ceilings
from harness.models.resolve import resolve_model
from results.ceilings import ceilings_of
from results.statistics import paired

OUTPUT = 64
POINTS = ((1, 128), (8, 128), (32, 128), (8, 1024))
LIMITS = "max_model_len=2048,kv_cache_tokens=65536"
SERVED = {
    "reference": "backend=reference",
    "reference-pytorch": "backend=reference,options=--kernels off",
    "vllm": "backend=vllm,prefix_caching=false",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """One cell: what it made a second over all, while it decoded and while it took prompts in."""

    engine: str
    batch: int
    input_len: int
    block: int
    output_per_s: float
    decode_per_s: float | None
    prefill_per_s: float | None


def sweep(
    folder: Path, model: str, engines: list[str], batches: list[int], input_len: int, asked: Any
) -> list[Reading]:
    """One run of `dyno sweep`; its cells."""
    words = [part for engine in engines for part in ("--engine", engine)]
    command = [
        *(sys.executable, "-m", "harness.cli", "sweep", *words, "--model", model, "--out", str(folder), "--quiet"),
        *("--batch", ",".join(map(str, batches)), "--input-len", str(input_len), "--output-len", str(OUTPUT)),
        *("--requests", str(asked.requests), "--blocks", str(asked.blocks), "--seed", str(asked.seed)),
    ]
    done = subprocess.run(command, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"dyno sweep ended with {done.returncode}: {' '.join(command)}")
    cells = json.loads((folder / "summary.json").read_text())["cells"]
    return [
        Reading(
            cell["engine"],
            int(cell["load"]["value"]),
            input_len,
            int(cell["block"]),
            cell["whole"]["output_tokens_per_s"],
            cell["whole"]["decode_tokens_per_s"],
            cell["whole"]["prefill_tokens_per_s"],
        )
        for cell in cells
    ]


@contextmanager
def llamacpp(folder: Path) -> Iterator[str]:
    """The address of llama.cpp's server on the folder, for as long as the block lasts."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("llamacpp_server.py")),
        str(folder),
        "--port",
        str(free_port()),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line.startswith("ready on "):
                raise SystemExit(f"llama.cpp's server did not start; try it alone: {' '.join(command)}")
            yield line.removeprefix("ready on ").strip()
        finally:
            process.terminate()


def transformers_readings(folder: Path, vocabulary: int, threads: int, block: int) -> Iterator[Reading]:
    """The same batches through `generate` with its own KV cache, after one that warms it up."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    options = {"max_new_tokens": OUTPUT, "min_new_tokens": OUTPUT, "do_sample": False, "pad_token_id": 0}
    for number, (batch, input_len) in enumerate([(1, 16), *POINTS]):
        ids = torch.randint(0, vocabulary, (batch, input_len), generator=torch.Generator().manual_seed(number))
        begin = time.monotonic()
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        if number:
            yield Reading(
                "transformers", batch, input_len, block, batch * OUTPUT / (time.monotonic() - begin), None, None
            )


class Costs:
    """What a step must read and compute, from the model's shape."""

    def __init__(self, config: ModelConfig) -> None:
        self.kv_per_token = config.kv_bytes_per_token("bfloat16")
        width = config.num_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim
        layer = config.hidden_size * (2 * width + 2 * kv_width + 3 * config.intermediate_size)
        self.layers = config.num_layers * layer
        self.weights = 2 * (self.layers + config.vocab_size * config.hidden_size)
        self.per_key = 4 * config.num_layers * width

    def step_bytes(self, batch: int, input_len: int) -> float:
        """Of one decode step in the middle of an answer."""
        return self.weights + batch * (input_len + OUTPUT / 2) * self.kv_per_token

    def prompt_flops(self, input_len: int) -> float:
        """Of one prompt token, in the mean; the head runs once a prompt and is left out."""
        return 2 * self.layers + self.per_key * input_len / 2


def table(readings: Sequence[Reading], costs: Costs, ceilings: dict[str, Any], threads: int) -> Table:
    """A row a point and engine."""
    found = ceilings_of({"ceilings": ceilings}, threads)
    read = found.bytes_per_s if found else None
    flops = found.flops.get("bf16") if found else None
    kind = "fp32 product (bf16 widened)" if found and found.widens else "bf16 product"
    title = f"ceilings: read {_scaled(read)} GB/s, {kind} {_scaled(flops)} GFLOP/s, {threads} threads"
    made = Table(title=title)
    columns = ("tokens/s", "min - max", "n", "reference / it, 95 %", "step ms", "GB/s", "%", "GFLOP/s", "%")
    for column in ("in flight", "in", "engine", *columns):
        made.add_column(column, justify="left" if column == "engine" else "right")
    groups: dict[tuple[int, int, str], list[Reading]] = defaultdict(list)
    for one in readings:
        groups[one.batch, one.input_len, one.engine].append(one)
    for batch, input_len in POINTS:
        for (other, length, engine), group in groups.items():
            if (other, length) != (batch, input_len):
                continue
            speeds = [one.output_per_s for one in group]
            decode = [one.decode_per_s for one in group if one.decode_per_s]
            prefill = [one.prefill_per_s for one in group if one.prefill_per_s]
            moved = median(decode) / batch * costs.step_bytes(batch, input_len) if decode else None
            done = median(prefill) * costs.prompt_flops(input_len) if prefill else None
            made.add_row(
                *(str(batch), str(input_len), engine, f"{median(speeds):.0f}"),
                *(f"{min(speeds):.0f} - {max(speeds):.0f}", str(len(speeds))),
                _ratio(groups.get((batch, input_len, "reference"), []), group),
                f"{1000 * batch / median(decode):.1f}" if decode else "-",
                *(_scaled(moved), _share(moved, read), _scaled(done), _share(done, flops)),
            )
    return made


def _ratio(reference: Sequence[Reading], others: Sequence[Reading]) -> str:
    """The reference engine's tokens/s over the other's, paired by block, where both ran the same blocks (at least three)."""
    ours = {one.block: one.output_per_s for one in reference}
    theirs = {one.block: one.output_per_s for one in others}
    if others[0].engine in ("reference", "transformers") or ours.keys() != theirs.keys() or len(ours) < 3:
        return "-"
    found = paired([theirs[block] for block in sorted(ours)], [ours[block] for block in sorted(ours)])
    return f"{found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]" if found.known else "-"


def _scaled(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e9:.1f}" if value < 1e11 else f"{value / 1e9:.0f}"


def _share(value: float | None, ceiling: float | None) -> str:
    return f"{100 * value / ceiling:.0f}" if value and ceiling else "-"


def main() -> None:
    """Measure, print, and keep the table and its numbers beside the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument(
        "--engines", nargs="+", default=["reference", "vllm"], choices=(*SERVED, "llamacpp", "transformers")
    )
    parser.add_argument("--url", action="append", default=[], metavar="NAME=URL", help="a server that is there already")
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--requests", type=int, default=8, help="of a cell, rounded up to whole batches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/engine-cpu"))
    asked = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    folder = resolve_model(asked.model).folder
    config = read_model_config(folder)
    ceilings = measure_ceilings()
    engines = [f"label={name},{SERVED[name]},threads={threads},{LIMITS}" for name in asked.engines if name in SERVED]
    engines += [
        f"label={name},backend=openai,url={url}" for name, _, url in (text.partition("=") for text in asked.url)
    ]
    plain = "transformers" in asked.engines
    readings = list(transformers_readings(folder, config.vocab_size, threads, 0)) if plain else []
    with ExitStack() as servers:
        if "llamacpp" in asked.engines:
            engines.append(f"label=llamacpp,backend=openai,url={servers.enter_context(llamacpp(folder))}")
        if engines:
            batches = [batch for batch, length in POINTS if length == 128]
            readings += sweep(asked.out / "128", asked.model, engines, batches, 128, asked)
            readings += sweep(asked.out / "1024", asked.model, engines, [8], 1024, asked)
    if plain:
        readings += transformers_readings(folder, config.vocab_size, threads, 1)
    console = Console(width=120, record=True)
    console.print(table(readings, Costs(config), ceilings, threads))
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "table.txt").write_text(console.export_text())


if __name__ == "__main__":
    main()
