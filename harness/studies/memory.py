"""KV growth: how many requests a pool holds, exactly, and from where keys and values outgrow the weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from harness.studies.arm import Arrival
from harness.studies.clock import QUICK_ROUNDS, ROUNDS, in_rounds
from harness.studies.lab import Lab
from harness.studies.machine import MACHINES
from harness.studies.study import Curve, Finding, Outcome, Study
from reports.scales import Axis
from results.errors import UsageError

if TYPE_CHECKING:
    from backends.reference.config import EngineSettings

POOL, PROMPT, OUTPUT = 4096, 96, 32
FIT = POOL // (PROMPT + OUTPUT)
CPU, GPU = MACHINES["cpu"].decodes, MACHINES["cuda"].decodes
# Of the timed arm: the contexts of requests that decode (the longest with --quick), and how many of their steps a round takes.
CONTEXTS, QUICK_LONGEST, STEPS = (128, 512, 1024, 2048), 1024, 8
MORE = STEPS * (ROUNDS + 2) + 16  # every round takes some steps more, the same in each arm
# A step is to grow by this part of the factor by which the bytes that it reads grow: it has other work besides.
SHARE = 0.9


def run(lab: Lab, quick: bool) -> Outcome:
    """More and more requests at once, each promised what it will need; and the same with blocks on demand."""
    contexts = _contexts(lab.timed, quick)
    offered = (FIT, FIT + 1) if quick else (8, 16, 24, FIT, FIT + 1, 40, 48, 64)
    draw = lab.draw("memory")
    arrivals = [Arrival(0, lab.prompt(draw, PROMPT), OUTPUT) for _ in range(offered[-1])]
    arms = {
        (admission, n): lab.run(f"{admission}, {n} offered", _settings(lab, admission), arrivals[:n])
        for n in offered
        for admission in ("reserve-oracle", "on-demand")
    }
    full, over = arms["reserve-oracle", FIT], arms["reserve-oracle", FIT + 1]
    late = min(t.step for t in over.made(FIT)), max(t.step for t in over.made(0))
    findings = [
        Finding(f"running at most, {FIT} offered", max(s.running for s in full.steps), FIT, FIT),
        Finding(f"running at most, {FIT + 1} offered", max(s.running for s in over.steps), FIT, FIT),
        Finding(f"waiting at most, {FIT + 1} offered", max(s.waiting for s in over.steps), 1, 1),
        Finding("steps from the first request's end to the last one's first token", late[0] - late[1], 1, 1),
        Finding("tokens held at most, of the pool's, %", 100 * max(s.tokens_held for s in full.steps) / POOL, 98, 100),
    ]
    longer, steps = _growing(lab.timed, contexts, quick)
    findings.append(longer)
    even = full.weight_bytes / full.kv_bytes_per_token
    clock = [
        f"By arithmetic: {lab.name} in {lab.dtype} has {full.weight_bytes:,} bytes of weights and keeps "
        f"{full.kv_bytes_per_token:,} bytes a token, so keys and values outgrow the weights at {even:,.0f} tokens in flight "
        f"(batch x length), {even / (PROMPT + OUTPUT):,.1f} requests of {PROMPT + OUTPUT}"
    ]
    clock += steps
    curves = [
        Curve(name, [(n, max(s.running for s in arms[name, n].steps)) for n in offered])
        for name in ("reserve-oracle", "on-demand")
    ]
    return Outcome(findings, curves, clock, list(arms.values()))


def _contexts(lab: Lab, quick: bool) -> tuple[int, ...]:
    """Those that the model has positions for, two of them with `quick`. Raises UsageError for fewer than two."""
    known = [n for n in CONTEXTS if n + MORE <= lab.config.max_position]
    if len(known) < 2:
        raise UsageError(
            f"Study memory times decode steps at contexts of {CONTEXTS[0]} and {CONTEXTS[1]} tokens at least, which takes"
            f" {CONTEXTS[1] + MORE} positions, and {lab.name} has {lab.config.max_position:,}: take another model with --shape."
        )
    return (known[0], max(n for n in known if n <= QUICK_LONGEST)) if quick else tuple(known)


def bytes_ratio(weight_bytes: int, kept_a_token: int, short: int, longest: int) -> float:
    """How many times as many bytes a decode step reads at the longer context, weights and keys and values; `kept_a_token` is what
    one token of all requests keeps."""
    return (weight_bytes + kept_a_token * longest) / (weight_bytes + kept_a_token * short)


def _growing(lab: Lab, contexts: Sequence[int], quick: bool) -> tuple[Finding, list[str]]:
    """What a decode step takes at more and more context, the weights being the same; and in words at each."""
    draw, batch = lab.draw("memory, context"), lab.machine.decodes
    rigs = {}
    for context in contexts:
        room = context + MORE
        rig = lab.rig(
            room, max_num_seqs=batch, max_num_batched_tokens=1024, kv_cache_tokens=batch * -(-room // 16) * 16
        )
        rig.begin([lab.prompt(draw, context) for _ in range(batch)], room - context)
        rigs[context] = rig
    found = in_rounds(
        QUICK_ROUNDS if quick else ROUNDS, {str(n): partial(rig.decode_s, STEPS) for n, rig in rigs.items()}
    )
    short, longest = contexts[0], contexts[-1]
    words = f"decode step of {batch} requests, context {longest:,} / {short}, same weights"
    kept_a_token = batch * lab.config.kv_bytes_per_token(lab.dtype)
    ratio = bytes_ratio(rigs[short].weight_bytes, kept_a_token, short, longest)
    finding = found.finding(words, str(longest), str(short), round(SHARE * ratio, 1), None)
    return finding, [
        f"By arithmetic: such a step reads {ratio:.2f} times as many bytes at {longest:,} as at {short}, weights, keys and values",
        *(
            f"{lab.name}, {batch} requests with {n:,} tokens of context each: {1000 * found.middle(str(n)):.1f} ms a decode step"
            for n in rigs
        ),
    ]


def _settings(lab: Lab, admission: str) -> EngineSettings:
    from backends.reference.switches import Switches

    # The budget takes all prompts in one step, so that nothing but memory keeps a request waiting.
    switches = Switches(admission=admission)
    return lab.settings(256, max_num_batched_tokens=64 * PROMPT, kv_cache_tokens=POOL, switches=switches)


STUDY = Study(
    "memory",
    "KV growth: what a pool holds",
    "How many requests run at once is a division, the pool by what a request keeps; and a step pays for what they all keep.",
    "the number of requests offered (--admission for the second line); then the context of requests that decode",
    f"A pool of {POOL:,} tokens and requests of {PROMPT} + {OUTPUT}: {FIT} run, the next waits until one of them ends, and its "
    f"first token comes one step later. With the same weights, a decode step of {CPU} requests ({GPU} on a GPU) is longer at "
    f"{CONTEXTS[-1]:,} tokens of context than at {CONTEXTS[0]} (--quick: {QUICK_LONGEST:,}), since it reads the keys and values of each: "
    f"by at least {SHARE:g} of the factor by which the bytes that it reads grow.",
    "Blocks on demand let more in at first, as young requests are smaller than they will be; when all have grown, the "
    "youngest are sent back. And the pool decides nothing while max_num_seqs or the token budget is reached before it. "
    "Where the weights are many bytes and contexts short, a step hardly notices what is kept; and of a tiny model most of a step is "
    "neither, so it does not grow as its bytes do.",
    Axis("requests offered at once"),
    Axis("running at most"),
    "Along the diagonal until memory ends; the reserving line is level from there on.",
    run,
)
