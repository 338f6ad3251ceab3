"""Prefill against decode: a step of few tokens waits for the weights, a step of many for arithmetic."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from statistics import median

from harness.studies.arm import Arrival
from harness.studies.clock import QUICK_ROUNDS, ROUNDS, Timings, in_rounds
from harness.studies.lab import Lab, Rig
from harness.studies.machine import MACHINES
from harness.studies.study import Curve, Finding, Outcome, Study
from reports.scales import Axis
from results.report_format import plural

CPU, GPU = MACHINES["cpu"], MACHINES["cuda"]
# A median needs a few steps where a step is short.
_REPEATS_BELOW, _REPEATS = 128, 5
DECODES = 24


def run(lab: Lab, quick: bool) -> Outcome:
    """One prompt a step, one token out, at each size, at each number of threads; and a request that decodes alone."""
    timed = lab.timed
    machine, draw = timed.machine, timed.draw("phases")
    few, most, counts = machine.few, machine.most, machine.threads
    sizes = (1, 4, few, most) if quick else tuple(2**e for e in range(most.bit_length()))
    prompts = {size: timed.prompt(draw, size) for size in sizes}
    rigs = {threads: _rig(timed, threads, most) for threads in counts}
    arms: dict[str, Callable[[], float]] = {}
    for threads, rig in rigs.items():
        for size in sizes:
            arms[_name(size, threads)] = partial(_step_s, rig, prompts[size])
        arms[_name(0, threads)] = partial(_decode_s, rig, prompts[1])
    found = in_rounds(QUICK_ROUNDS if quick else ROUNDS, arms)
    top = counts[-1]
    findings = [
        found.finding("tokens/s, 4 a step / 1 a step", _name(1, top), _name(4, top), 3.5, None, times=4),
        found.finding(
            f"tokens/s, {most:,} a step / {few:,} a step",
            _name(few, top),
            _name(most, top),
            None,
            1.3,
            times=most / few,
        ),
    ]
    if len(counts) > 1:
        findings += _causal(found, most)
    curves = [
        Curve(_threads(n), [(size, size / found.middle(_name(size, n))) for size in sizes]) for n in reversed(counts)
    ]
    clock = [
        f"{size:,} tokens a step: "
        + "; ".join(
            f"{1000 * found.middle(_name(size, n)):.1f} ms, {size / found.middle(_name(size, n)):,.0f} tokens/s with {_threads(n)}"
            for n in reversed(counts)
        )
        for size in sizes
    ]
    alone = "; ".join(f"{1 / found.middle(_name(0, n)):,.1f} tokens/s with {_threads(n)}" for n in reversed(counts))
    clock.append(f"one request decoding: {alone}")
    return Outcome(findings, curves, clock)


def _threads(threads: int) -> str:
    return plural(threads, "thread")


def _name(size: int, threads: int) -> str:
    return f"{size or 'decode'} on {threads}"


def _causal(found: Timings, most: int) -> list[Finding]:
    """A second thread changes the arithmetic alone."""
    cores = "" if len(os.sched_getaffinity(0)) > 1 else "this process may use one core, and two threads need two"
    return [
        found.finding(
            f"prefill of {most:,}, speed of 2 threads / of 1", _name(most, 1), _name(most, 2), 1.8, None, why=cores
        ),
        found.finding(
            "decode of one request, speed of 2 threads / of 1", _name(0, 1), _name(0, 2), None, 1.5, why=cores
        ),
    ]


def _rig(lab: Lab, threads: int, most: int) -> Rig:
    return lab.rig(2 * most, max_num_batched_tokens=most, max_num_seqs=1, kv_cache_tokens=2 * most, threads=threads)


def _step_s(rig: Rig, prompt: list[int]) -> float:
    """Of a step that computes this prompt and nothing else."""
    repeats = _REPEATS if len(prompt) < _REPEATS_BELOW else 1
    arm = rig.run("", [Arrival(step, prompt, 1) for step in range(repeats)])
    return median([s.end - s.start for s in arm.steps]) / 1e9


def _decode_s(rig: Rig, prompt: list[int]) -> float:
    arm = rig.run("", [Arrival(0, prompt, DECODES)])
    return median([s.end - s.start for s in arm.steps if s.decodes]) / 1e9


STUDY = Study(
    "phases",
    "Prefill against decode",
    "More arithmetic makes prefill faster and decode hardly: a decode step waits for the weights.",
    "tokens a step (prompts of 1 to 1,024 tokens, one token out); then --threads 1 and 2",
    "All weights are read once a step, however many tokens it computes. So 4 tokens a step are at least 3.5 times as fast as 1; "
    f"from {CPU.few} to {CPU.most:,}, where arithmetic takes the time, the rate hardly moves (at most 1.3 times). A second thread adds "
    "arithmetic but little bandwidth: prefill at least 1.8 times, the decode of one request at most 1.5 times as fast. On a GPU the "
    f"rate is to be level from {GPU.few:,} to {GPU.most:,}, and there is no arm of more arithmetic.",
    "Decode waits for weights as long as a step holds few tokens and short contexts: with many requests it turns to arithmetic, "
    "and with long contexts to the keys and values (study memory). Prefill below the ridge (a few dozen tokens here, a few hundred on "
    "a GPU) is bound by bandwidth as decode is. Where one core cannot draw the memory's whole bandwidth, a second one speeds decode "
    "up as well; a weight cache that holds the model (a tiny one) leaves nothing to wait for.",
    Axis("tokens a step", log=2),
    Axis("tokens/s", log=10),
    "A slope that follows the tokens is time spent on weights; a level is arithmetic. Where the lines part, the number of threads decides: "
    "the upper one's is the faster.",
    run,
)
