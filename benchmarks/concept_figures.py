"""Draws the pictures of docs/concepts.md: four from the reference engine's own step log, two from arithmetic.

    python benchmarks/concept_figures.py docs/concepts

The engine runs in this process on the tiny random model (a few seconds). What is drawn are counters (tokens, blocks, steps), which
repeat exactly for a seed, so the pictures are the same on every machine.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from picture import ALLOCATED, DECODE, GRID, HELD, IDLE, INK, LEFT, MUTED, PREFILL, RIGHT, WIDTH, Picture, across

from backends.reference.config import EngineSettings, read_model_config
from backends.reference.switches import Switches
from harness.models import fetch
from harness.studies.arm import Arrival
from harness.studies.lab import Lab
from results import model_configs
from results.arithmetic import kv_bytes_per_token, weight_bytes
from results.device_specs import device_spec
from results.roofline import Machine, roofline
from results.step_cost import Format, peaks_for


def engine(lab: Lab, longest: int, pool: int, seqs: int, budget: int, **switches: Any) -> EngineSettings:
    return EngineSettings("float32", longest, seqs, budget, 16, pool, 1, switches=Switches(**switches))


def batching(lab: Lab) -> Picture:
    """Lanes of requests over steps, static and continuous."""
    draw = random.Random(5)
    arrivals = [Arrival(0, lab.prompt(draw, 16), draw.choice((3, 5, 8, 12, 40))) for _ in range(12)]
    picture = Picture("Twelve requests, four at a time: a static batch waits for its longest")
    arms = [
        lab.run(words, engine(lab, 64, 1024, 4, 64, batching=kind), arrivals)
        for words, kind in (("static batches", "static-drop"), ("continuous batching", "continuous"))
    ]
    x = across(0, max(len(arm.steps) for arm in arms))
    for arm in arms:
        picture.text(16, picture.height + 12, f"{arm.label}: {len(arm.steps)} steps", bold=True)
        picture.height += 22
        for request in range(len(arrivals)):
            made = [token.step for token in arm.made(request)]
            y = picture.height
            picture.text(LEFT - 8, y + 8, f"request {request + 1}", "end", MUTED)
            picture.rect(x(0), y + 4, x(made[0]) - x(0), 1.5, IDLE)
            picture.rect(x(made[0]), y, x(made[0] + 1) - x(made[0]), 9, PREFILL)
            for step in made[1:]:
                picture.rect(x(step), y, x(step + 1) - x(step) - 0.6, 9, DECODE)
            picture.height += 12
        picture.height += 12
    _steps_axis(picture, x, max(len(arm.steps) for arm in arms))
    picture.legend([(IDLE, "waits"), (PREFILL, "prompt, and its first token"), (DECODE, "a token a step")])
    return picture


def paging(lab: Lab) -> Picture:
    """The pool over steps: what is promised, and what holds tokens."""
    draw = random.Random(3)
    arrivals = [Arrival(0, lab.prompt(draw, 64), min(256, 1 + round(draw.expovariate(1 / 64)))) for _ in range(64)]
    arms = [
        lab.run("reserved: room for the longest", engine(lab, 1024, 4096, 256, 512, kv_layout="contiguous"), arrivals),
        lab.run("paged: blocks as requests grow", engine(lab, 1024, 4096, 256, 512), arrivals),
    ]
    picture = Picture("The same 4,096 tokens of KV cache, promised whole or handed out by the block")
    x = across(0, max(len(arm.steps) for arm in arms))
    for arm in arms:
        top, high = picture.height + 24, 110.0
        use = f"{arm.in_flight:.0f} requests in flight, {arm.held_share:.0%} of the pool holds tokens"
        words = f"{arm.label}. {use}, {len(arm.steps)} steps"
        picture.text(16, picture.height + 12, words, bold=True)
        whole = arm.steps[0].blocks_total * arm.block_size
        blocks = [(step.step, step.blocks_allocated * arm.block_size) for step in arm.steps]
        held = [(step.step, step.tokens_held) for step in arm.steps]
        for values, colour in ((blocks, ALLOCATED), (held, HELD)):
            points = [(x(step), top + high * (1 - min(1.0, value / whole))) for step, value in values]
            picture.steps(points, x(len(arm.steps)), top + high, colour)
        picture.line([(LEFT, top), (WIDTH - RIGHT, top)], INK, dash="4 3")
        picture.text(LEFT - 8, top + 4, f"{whole:,} tokens", "end", MUTED)
        picture.text(LEFT - 8, top + high, "0", "end", MUTED)
        picture.height = top + high + 16
    _steps_axis(picture, x, max(len(arm.steps) for arm in arms))
    picture.legend([(HELD, "holds a token"), (ALLOCATED, "handed out, and empty")])
    return picture


def mixing(lab: Lab) -> Picture:
    """What each step computes while a long prompt comes in, whole and in chunks."""
    draw = random.Random(1)
    arrivals = [Arrival(0, lab.prompt(draw, 16), 40) for _ in range(4)] + [Arrival(8, lab.prompt(draw, 512), 8)]
    arms = [
        lab.run("whole prompts", engine(lab, 640, 4096, 8, 640, chunked_prefill=False), arrivals),
        lab.run("in chunks: at most 64 tokens a step", engine(lab, 640, 4096, 8, 64), arrivals),
    ]
    picture = Picture(
        "A prompt of 512 tokens comes while four streams decode: each bar is a step, its width is its work"
    )
    work = max(sum(step.computed for step in arm.steps) for arm in arms)
    x = across(0, work)
    for arm in arms:
        gap = max(max(arm.gaps(stream)) for stream in range(4))
        top, high, done = picture.height + 24, 90.0, 0
        picture.text(
            16, picture.height + 12, f"{arm.label}. Longest wait of a stream: {gap:,} tokens of work", bold=True
        )
        most = max(step.computed for step in arm.steps)
        for step in arm.steps:
            wide = x(done + step.computed) - x(done)
            prompt, decodes = (high * n / most for n in (step.prefill_tokens, step.decodes))
            picture.rect(x(done), top + high - prompt, wide - 0.5, prompt, PREFILL)
            picture.rect(x(done), top + high - prompt - decodes, wide - 0.5, decodes, DECODE)
            if step.decodes:
                picture.line([(x(done + step.computed), top + high), (x(done + step.computed), top + high + 7)], DECODE)
            done += step.computed
        picture.text(LEFT - 8, top + 8, f"{most:,} tokens", "end", MUTED)
        picture.text(LEFT - 8, top + high + 8, "tokens come out", "end", MUTED)
        picture.height = top + high + 24
    picture.legend([(PREFILL, "prompt tokens"), (DECODE, "decodes; a tick: every stream gets its token")])
    return picture


def kv_sizes() -> Picture:
    """KiB of KV cache a token, by model."""
    picture = Picture("KV cache of one token: 2 x layers x KV heads x head_dim x 2 bytes")
    rows = []
    for name in ("gpt2-xl", "llama-7b", "llama-3-8b", "qwen2.5-7b", "qwen3-32b", "llama-3-70b", "smollm2-135m"):
        config = model_configs.load(name)
        rows.append((name, kv_bytes_per_token(config, "bfloat16") / 1024, weight_bytes(config, "bfloat16")))
    x = across(0, max(kib for _, kib, _ in rows) * 2.1)
    for name, kib, weights in rows:
        y = picture.height
        picture.text(LEFT - 8, y + 14, name, "end")
        picture.rect(LEFT, y, x(kib) - LEFT, 20, HELD)
        alike = weights / (kib * 1024)
        picture.text(x(kib) + 6, y + 14, f"{kib:g} KiB; {alike:,.0f} tokens weigh as much as the weights", colour=MUTED)
        picture.height += 26
    picture.height += 8
    return picture


def first_lever() -> Picture:
    """The ceiling of decode tokens/s by batch, at three contexts."""
    spec, form = device_spec("h200"), Format("bfloat16", "bfloat16")
    machine = Machine(peaks_for(form, spec.flops, spec.bytes_per_s), spec.memory_bytes)
    line = roofline(model_configs.load("llama-3-8b"), form, machine)
    batches = [2**n for n in range(11)]
    picture = Picture(
        "Ceiling of decode, Llama-3-8B on an H200 by arithmetic: the batch lifts it, the context bends it"
    )
    contexts = ((128, PREFILL), (2048, HELD), (16384, DECODE))
    top, high = picture.height + 10, 240.0
    low, most = 8, 16  # powers of two of tokens/s
    x = across(0, len(batches) - 1)

    def y(rate: float) -> float:
        return top + high * (1 - (math.log2(rate) - low) / (most - low))

    for power in range(low, most + 1):
        picture.line([(LEFT, y(2**power)), (WIDTH - RIGHT, y(2**power))], GRID)
        picture.text(LEFT - 8, y(2**power) + 4, f"{2**power:,}", "end", MUTED)
    for place, batch in enumerate(batches):
        picture.text(x(place), top + high + 18, f"{batch:,}", "middle", MUTED)
    for context, colour in contexts:
        points = [line.point(batch, context) for batch in batches]
        at = [(x(n), y(p.tokens_per_s)) for n, p in enumerate(points)]
        fits = sum(p.fits for p in points)
        picture.line(at[:fits], colour, 2.5)
        if fits < len(at):
            picture.line(at[max(fits - 1, 0) :], colour, 1.5, dash="3 4")
        picture.text(at[-1][0] - 6, at[-1][1] - 8, f"context {context:,}", "end", colour, bold=True)
    picture.text(16, top + 4, "tokens/s", colour=MUTED)
    picture.text(
        WIDTH - RIGHT, top + high + 36, "requests in a step (dashed: their KV cache does not fit)", "end", MUTED
    )
    picture.height = top + high + 48
    return picture


def _steps_axis(picture: Picture, x: Callable[[float], float], steps: int) -> None:
    every = next(n for n in (5, 10, 20, 50, 100, 200, 500) if steps / n <= 10)
    for step in range(0, steps + 1, every):
        picture.line([(x(step), picture.height), (x(step), picture.height + 5)], INK)
        picture.text(x(step), picture.height + 18, f"{step}", "middle", MUTED)
    picture.text(LEFT - 8, picture.height + 18, "steps", "end", MUTED)
    picture.height += 30


def main() -> None:
    """Run what is to be drawn, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the SVG files")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    folder = fetch("random-tiny").folder
    lab = Lab("random-tiny", folder, read_model_config(folder))
    pictures = {
        "batching": batching(lab),
        "paging": paging(lab),
        "mixing": mixing(lab),
        "kv-sizes": kv_sizes(),
        "batch": first_lever(),
    }
    for name, picture in pictures.items():
        (out / f"{name}.svg").write_text(picture.svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
