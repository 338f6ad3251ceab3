"""The KV cache itself: keep keys and values, or compute every sequence from its first token in each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.studies.arm import Arrival
from harness.studies.lab import Lab
from harness.studies.study import Curve, Finding, Outcome, Study
from reports.scales import Axis

if TYPE_CHECKING:
    from backends.reference.config import EngineSettings

PROMPT = 16


def run(lab: Lab, quick: bool) -> Outcome:
    """One request alone, at several output lengths, with and without."""
    outputs = (32, 64, 128) if quick else (32, 64, 128, 256, 512)
    prompt = lab.prompt(lab.draw("recompute"), PROMPT)
    arms = {
        (cache, n): lab.run(f"KV cache {cache}, {n} out", _settings(lab, cache), [Arrival(0, prompt, n)])
        for n in outputs
        for cache in ("on", "off")
    }
    ratio = {n: arms["off", n].computed / arms["on", n].computed for n in outputs}
    most, half = outputs[-1], outputs[-2]
    findings = [
        Finding(
            f"tokens computed with the cache, {most} out (prompt + output - 1)",
            arms["on", most].computed,
            PROMPT + most - 1,
            PROMPT + most - 1,
        ),
        Finding(
            f"tokens computed without, {most} out (each step the whole sequence)",
            arms["off", most].computed,
            most * PROMPT + most * (most - 1) // 2,
            most * PROMPT + most * (most - 1) // 2,
        ),
        Finding(f"without / with, {most} out over {half} out", ratio[most] / ratio[half], 1.6, 2.1),
    ]
    clock = [
        f"{n} out: {arms['off', n].seconds / arms['on', n].seconds:.1f} times as long without, for {ratio[n]:.0f} times "
        "the tokens computed"
        for n in outputs
    ]
    curves = [Curve(f"KV cache {c}", [(n, arms[c, n].computed) for n in outputs]) for c in ("on", "off")]
    return Outcome(findings, curves, clock, list(arms.values()))


def _settings(lab: Lab, cache: str) -> EngineSettings:
    from backends.reference.switches import Switches

    # The pool is not made where there is no cache. Without one, prompts must be whole.
    switches = Switches(kv_cache=cache, chunked_prefill=cache == "on")
    return lab.settings(1024, max_num_seqs=1, max_num_batched_tokens=1024, kv_cache_tokens=1024, switches=switches)


STUDY = Study(
    "recompute",
    "The KV cache itself",
    "Without a KV cache the work of an output grows with the square of its length.",
    "--kv-cache",
    f"{PROMPT} tokens in: with the cache every token is computed once, without it each step computes the whole sequence. "
    "Doubling the output doubles the ratio between the two.",
    "Short outputs, where there is little to compute again. On the clock the ratio is far below that of the tokens as "
    "long as a step's cost hardly grows with its tokens: a step that reads all weights for one token computes a few "
    "hundred for little more.",
    Axis("output tokens", log=2),
    Axis("tokens computed", log=10),
    "Two slopes on logarithms: one with the cache, two without.",
    run,
)
