"""Builds of the reference engine's kernels against each other, in turn in one process: whole steps of a real model.

    gcc -O2 -shared -fPIC -fopenmp -Wno-psabi -mavx2 -mfma -o /tmp/new.so backends/reference/kernels.c
    python benchmarks/kernels.py old=/tmp/old.so new=/tmp/new.so [--model smollm2-135m] [--threads 2] [--pairs 5]

Each pair measures every build once, the order turned each time, after a step of each that is not counted: the prompt of 512 tokens
in one step, and the shortest of eight decode steps at 1, 8 and 32 in flight on contexts of 32. Columns: tokens/s (median of the
pairs), and the last build over the first, a paired t interval of the log ratio. Builds whose greedy tokens differ are told.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table

from backends.reference import kernels
from backends.reference.build import BuiltEngine, build_engine
from backends.reference.config import EngineSettings, read_model_config
from backends.reference.messages import Sampling, Submit
from harness.models.resolve import resolve_model
from results.statistics import paired

CONTEXT, PROMPT = 32, 512


@dataclass(frozen=True, slots=True)
class Point:
    """So many requests in flight of `prompt` tokens; the step that counts is their prefill or a decode."""

    words: str
    flying: int
    prompt: int
    decodes: bool

    @property
    def tokens(self) -> int:
        return self.flying if self.decodes else self.flying * self.prompt


POINTS = (
    Point(f"prefill of {PROMPT}", 1, PROMPT, decodes=False),
    *(Point(f"decode, {n} in flight", n, CONTEXT, decodes=True) for n in (1, 8, 32)),
)


def build(folder: Path, form: str, library: Path, threads: int) -> BuiltEngine:
    """The engine on this library alone."""
    settings = EngineSettings(
        dtype="bfloat16",
        max_model_len=1024,
        kv_cache_tokens=16384,
        max_num_batched_tokens=8192,
        threads=threads,
        kernels=form,
    )
    with mock.patch.object(kernels, "_compiled", return_value=[(form, library)]):
        made = build_engine(folder, read_model_config(folder), settings)
    if made.kernels != form:
        raise SystemExit(f"{library} is not used: this processor or the model lacks what its form {form} needs.")
    return made


def seconds(built: BuiltEngine, point: Point, key: Iterator[int]) -> tuple[float, list[int]]:
    """The shortest of a few steps, and the tokens it gave first."""
    engine, draw = built.engine, torch.Generator().manual_seed(point.flying)
    steps, tokens = (8 if point.decodes else 1), []
    for _ in range(point.flying):
        at = next(key)
        prompt = torch.randint(1000, 20000, (point.prompt,), generator=draw).tolist()
        engine.submit(Submit(at, f"r{at}", prompt, steps + 1, Sampling()))
    if point.decodes:
        engine.step()
    best = float("inf")
    for _ in range(steps):
        start = time.perf_counter()
        tokens += [token.token for token in engine.step()]
        best = min(best, time.perf_counter() - start)
    while engine.scheduler.has_work:
        engine.step()
    return best, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="+", metavar="NAME=LIBRARY")
    parser.add_argument("--form", default="avx2", help="What the builds need of the processor: avx512, avx2 or plain.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    folder = resolve_model(asked.model).folder
    named = dict(entry.split("=", 1) for entry in asked.builds)
    engines = {
        name: build(folder, asked.form, Path(library).resolve(), asked.threads) for name, library in named.items()
    }
    names, keys = list(engines), iter(range(10**9))
    table = Table("step", *(f"{name}, tokens/s" for name in names), f"{names[-1]} / {names[0]}", box=None)
    for point in POINTS:
        found: dict[str, list[float]] = {name: [] for name in names}
        said: dict[str, list[int]] = {name: [] for name in names}
        for number in range(asked.pairs + 1):
            for name in names[:: 1 if number % 2 else -1]:
                taken, tokens = seconds(engines[name], point, keys)
                said[name] += tokens
                if number:
                    found[name].append(point.tokens / taken)
        ratio = paired(found[names[0]], found[names[-1]])
        rates = (f"{median(found[name]):,.0f}" for name in names)
        unlike = "" if len({tuple(tokens) for tokens in said.values()}) == 1 else " (other tokens)"
        table.add_row(point.words, *rates, f"{ratio.estimate:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]{unlike}")
    Console().print(table)


if __name__ == "__main__":
    main()
