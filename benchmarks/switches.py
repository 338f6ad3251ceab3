"""What each mechanism of the reference engine buys: one workload, one switch at a time, read from the truth log.

    python benchmarks/switches.py [MODEL] [--requests 48] [--only KV_LAYOUT ...]

All arms run the same requests on the same model and the same KV bytes, in one process, in turn: prompts of 16 to 96
tokens of which half begin alike, outputs of 4 to 96 tokens, all there at the start, and two prompts of 400 tokens that
come while the others generate. Steps and tokens are exact and repeat; tokens/s is this machine's, now.

Columns: requests running (mean over steps); of the KV bytes reserved and of the whole pool, the share that holds
tokens (mean over steps with any); tokens computed, for whatever purpose, and of those for finished rows; prompt tokens
found in the prefix cache; preemptions; steps; the longest gap between two tokens of one request, in steps, in tokens
computed meanwhile, and in ms; generated tokens/s.
"""

from __future__ import annotations

import argparse
import logging
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from backends.reference.build import build_engine
from backends.reference.config import EngineSettings, read_model_config
from backends.reference.engine import Engine
from backends.reference.messages import Submit
from backends.reference.switches import Switches
from backends.reference.truth import STEPS_FILE, TOKENS_FILE, ArrowTruth
from harness.models.resolve import resolve_model

MODEL_LEN = 512
POOL_TOKENS = 2048
BLOCK_SIZE = 16
LONG_PROMPT, LONG_AT_STEPS = 400, (20, 60)

ARMS: dict[str, Switches] = {
    "default": Switches(),
    "prefix caching": Switches(prefix_caching=True),
    "whole prompts": Switches(chunked_prefill=False),
    "reserve oracle": Switches(admission="reserve-oracle"),
    "oracle, whole prompts": Switches(admission="reserve-oracle", chunked_prefill=False),
    "reserve pow2": Switches(admission="reserve-pow2"),
    "reserve max": Switches(admission="reserve-max"),
    "contiguous": Switches(kv_layout="contiguous"),
    "static, drop": Switches(admission="reserve-oracle", batching="static-drop"),
    "static, pad": Switches(admission="reserve-oracle", batching="static-pad"),
    "no KV cache": Switches(kv_cache="off", chunked_prefill=False),
}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request, and the step before which it comes."""

    step: int
    prompt: list[int]
    output: int


def workload(requests: int, vocabulary: int, seed: int) -> list[Arrival]:
    """The same for every arm."""
    draw = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(vocabulary) for _ in range(count)]

    begin = tokens(64)
    short = [
        Arrival(0, [*begin[: 64 * (i % 2)], *tokens(draw.randint(16, 96 - 64 * (i % 2)))], draw.randint(4, 96))
        for i in range(requests)
    ]
    return short + [Arrival(step, tokens(LONG_PROMPT), 8) for step in LONG_AT_STEPS]


def run(engine: Engine, arrivals: list[Arrival]) -> None:
    """Until all are answered."""
    pending = list(enumerate(arrivals))
    while pending or engine.scheduler.has_work:
        while pending and pending[0][1].step <= engine.num_steps:
            key, arrival = pending.pop(0)
            engine.submit(Submit(key, f"r{key}", arrival.prompt, arrival.output))
        for token in engine.step():
            engine.truth.token(f"r{token.key}", token.index, token.step, token.sampled, None)


def read(path: Path) -> dict[str, Any]:
    """Columns of a truth file as arrays."""
    with pa.ipc.open_stream(path) as stream:
        table = stream.read_all()
    return {name: table[name].to_numpy() for name in table.column_names if name != "written"}


def longest_gap(tokens: dict[str, Any], steps: dict[str, Any]) -> tuple[int, int, float]:
    """Between two tokens of one request: most steps, most tokens computed, most ms."""
    computed = np.cumsum(steps["prefill_tokens"] + steps["decodes"] + steps["padding_tokens"])
    order = np.lexsort((tokens["index"], tokens["request_id"].astype(str)))
    request, step, sampled = (tokens[name][order] for name in ("request_id", "step", "sampled"))
    same = request[1:] == request[:-1]
    gaps = [np.diff(values)[same].max() for values in (step, computed[step], sampled)]
    return int(gaps[0]), int(gaps[1]), gaps[2] / 1e6


def measure(folder: Path, switches: Switches, arrivals: list[Arrival], dtype: str, threads: int) -> list[str]:
    """One arm's row."""
    off = switches.kv_cache == "off"
    settings = EngineSettings(
        dtype=dtype,
        max_model_len=MODEL_LEN,
        max_num_seqs=32,
        max_num_batched_tokens=128 if switches.chunked_prefill else MODEL_LEN,
        block_size=BLOCK_SIZE,
        kv_cache_tokens=0 if off else POOL_TOKENS,
        threads=threads,
        switches=switches,
    )
    with tempfile.TemporaryDirectory() as scratch:
        truth = ArrowTruth(Path(scratch))
        built = build_engine(folder, read_model_config(folder), settings, truth)
        run(built.engine, arrivals)
        truth.close()
        steps, tokens = read(Path(scratch) / STEPS_FILE), read(Path(scratch) / TOKENS_FILE)
    reserved = steps["blocks_reserved"] * BLOCK_SIZE
    held = steps["tokens_held"]
    some = reserved > 0
    gap_steps, gap_tokens, gap_ms = longest_gap(tokens, steps)
    seconds = (steps["end"][-1] - steps["start"][0]) / 1e9
    return [
        f"{steps['running'].mean():.1f}",
        f"{100 * np.mean(held[some] / reserved[some]):.0f}" if some.any() else "-",
        f"{100 * np.mean(held[some] / POOL_TOKENS):.0f}" if some.any() else "-",
        f"{int((steps['prefill_tokens'] + steps['decodes'] + steps['padding_tokens']).sum()):,}",
        f"{int(steps['padding_tokens'].sum()):,}",
        f"{int(steps['cached_tokens'].sum()):,}",
        f"{int(steps['preempted'].sum())}",
        f"{len(steps['step'])}",
        f"{gap_steps}",
        f"{gap_tokens:,}",
        f"{gap_ms:.1f}",
        f"{len(tokens['index']) / seconds:,.0f}",
    ]


def chosen(only: list[str]) -> Iterator[tuple[str, Switches]]:
    """The arms whose name contains one of `only`; all when it is empty."""
    for name, switches in ARMS.items():
        if not only or any(part in name for part in only):
            yield name, replace(switches)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="random-tiny", help="folder or name of a model")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--only", nargs="*", default=[], metavar="ARM", help="arms whose names contain this")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    logging.getLogger("backends").setLevel(logging.ERROR)  # preemptions are counted in the table
    folder = resolve_model(asked.model).folder
    arrivals = workload(asked.requests, read_model_config(folder).vocab_size, asked.seed)
    table = Table(title=f"{asked.model}, {len(arrivals)} requests, {POOL_TOKENS} KV tokens, {asked.dtype}")
    table.add_column("switch")
    for column in (
        *("running", "held of reserved %", "held of pool %", "computed", "padding", "cached", "preempted"),
        *("steps", "gap, steps", "gap, tokens", "gap, ms", "tokens/s"),
    ):
        table.add_column(column, justify="right")
    measure(folder, Switches(), arrivals, asked.dtype, asked.threads)  # the first to run pays for everybody's start
    for name, switches in chosen(asked.only):
        table.add_row(name, *measure(folder, switches, arrivals, asked.dtype, asked.threads))
    Console(width=190).print(table)


if __name__ == "__main__":
    main()
