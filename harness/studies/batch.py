"""Batch is the first lever: requests that share a step share the reading of the weights."""

from __future__ import annotations

from collections.abc import Callable

from harness.studies.arm import Arrival
from harness.studies.clock import QUICK_ROUNDS, ROUNDS, in_rounds
from harness.studies.lab import Lab, Rig
from harness.studies.machine import MACHINES
from harness.studies.study import Curve, Outcome, Study
from reports.scales import Axis

PROMPT, OUTPUT, QUICK_OUTPUT = 32, 128, 32
CPU, GPU = MACHINES["cpu"].batches[-1], MACHINES["cuda"].batches[-1]


def run(lab: Lab, quick: bool) -> Outcome:
    """The same requests, more and more of them at once."""
    timed = lab.timed
    draw = timed.draw("batch")
    output = QUICK_OUTPUT if quick else OUTPUT
    batches = timed.machine.batches
    half, most = batches[-2:]
    arrivals = [Arrival(0, timed.prompt(draw, PROMPT), output) for _ in range(most)]
    sizes = (1, 8, half, most) if quick else batches
    rig = timed.rig(
        PROMPT + OUTPUT, max_num_seqs=most, max_num_batched_tokens=2048, kv_cache_tokens=most * (PROMPT + OUTPUT)
    )
    arms = {str(n): _batch(rig, arrivals[:n]) for n in sizes}
    found = in_rounds(QUICK_ROUNDS if quick else ROUNDS, arms)
    rate = {n: n * output / found.middle(str(n)) for n in sizes}
    findings = [
        found.finding("output tokens/s, batch 8 / batch 1", "1", "8", 4.5, None, times=8),
        found.finding(f"output tokens/s, batch {most} / batch {half}", str(half), str(most), None, 1.35, times=2),
    ]
    curves = [
        Curve("all requests together", [(n, rate[n]) for n in sizes]),
        Curve("one of them", [(n, rate[n] / n) for n in sizes]),
    ]
    clock = [
        f"batch {n}: {rate[n]:,.0f} tokens/s, {n / found.middle(str(n)):.2f} requests completed a second; each request at "
        f"{rate[n] / n:,.1f} tokens/s, done after {found.middle(str(n)):.2f} s"
        for n in sizes
    ]
    return Outcome(findings, curves, clock)


def _batch(rig: Rig, arrivals: list[Arrival]) -> Callable[[], float]:
    return lambda: rig.run("", arrivals).seconds


STUDY = Study(
    "batch",
    "Batch is the first lever",
    "Requests that are computed together cost little more than one, until arithmetic takes the time.",
    "the number of requests at once",
    f"{PROMPT} tokens in, {OUTPUT} out: 8 requests at once make at least 4.5 times the tokens of one in the same time, as the "
    f"weights are read once for all of them; from {CPU // 2} to {CPU} at most 1.35 times, as arithmetic has taken over (on a GPU from "
    f"{GPU // 2} to {GPU:,}).",
    "Where the weights are few and the contexts long: keys and values are read for each request, so nothing is shared. And it is "
    "no gain for anybody alone: each request is slower than it would be by itself, which is the price that latency objectives "
    "limit. How far the lever goes is the machine's ratio of arithmetic to bandwidth: tens of requests here, hundreds on a GPU.",
    Axis("requests at once", log=2),
    Axis("output tokens/s", log=10),
    "The upper line is what the machine makes, the lower what each user sees. While the upper rises as steeply as the batch, the "
    "lower is level: another request is nearly free.",
    run,
)
