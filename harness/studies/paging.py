"""Paging: memory by the block, as a request grows, against memory for the longest request there could be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from backends.reference.switches import Switches
from harness.studies.arm import Arrival
from harness.studies.clock import QUICK_ROUNDS, ROUNDS, in_rounds
from harness.studies.lab import Lab
from harness.studies.study import Finding, Outcome, Study, over_steps
from reports.scales import Axis

if TYPE_CHECKING:
    from backends.reference.config import EngineSettings

POOL, LONGEST, PROMPT, MEAN, CAP = 4096, 1024, 64, 64, 256
# Bounds on ratios of the clock: what counts as no difference, and how much copying costs at least.
SAME, COPYING = (0.93, 1.08), 1.1


def run(lab: Lab, quick: bool) -> Outcome:
    """Three arms over the same bytes, and two with a pool that is never short."""
    draw = lab.draw("paging")
    outputs = [max(1, min(CAP, round(draw.expovariate(1 / MEAN)))) for _ in range(64 if quick else 192)]
    arrivals = [Arrival(0, lab.prompt(draw, PROMPT), output) for output in outputs]
    paged = lab.run("paged, on demand", _settings(lab, POOL, "paged", "on-demand"), arrivals)
    most = lab.run("paged, reserve max", _settings(lab, POOL, "paged", "reserve-max"), arrivals)
    runs = lab.run("contiguous", _settings(lab, POOL, "contiguous", "on-demand"), arrivals)
    few = arrivals[:8]
    ample = LONGEST * len(few)
    wide = lab.run("paged, ample pool", _settings(lab, ample, "paged", "on-demand"), few)
    wide_runs = lab.run("contiguous, ample pool", _settings(lab, ample, "contiguous", "on-demand"), few)
    fits = POOL // LONGEST
    findings = [
        Finding("requests in flight, paged on demand", paged.in_flight, 20),
        Finding("requests in flight, paged reserve max", most.in_flight, fits, fits),
        Finding("requests in flight, contiguous", runs.in_flight, fits, fits),
        Finding("steps, paged reserve max / contiguous", len(most.steps) / len(runs.steps), 1, 1),
        Finding("share of the pool that holds tokens, paged on demand, %", 100 * paged.held_share, 85, 100),
        Finding("share of the pool that holds tokens, contiguous, %", 100 * runs.held_share, 5, 20),
        Finding("steps with an ample pool, contiguous / paged", len(wide_runs.steps) / len(wide.steps), 1, 1),
    ]
    layouts, words = _ample(lab.timed, quick)
    findings += layouts
    clock = [
        *words,
        *(
            f"{arm.label}: {arm.tokens_per_s:,.0f} tokens/s, {arm.preemptions} preemptions"
            for arm in (paged, most, runs, wide, wide_runs)
        ),
    ]
    arms = [paged, most, runs, wide, wide_runs]
    return Outcome(findings, [over_steps(arm) for arm in (paged, runs)], clock, arms)


def _ample(lab: Lab, quick: bool) -> tuple[list[Finding], list[str]]:
    """The layouts side by side in a pool that is never short: requests that decode, their blocks scattered where they may be."""
    from backends.reference.attention import PagedKV
    from harness.studies.copied import DecodeAttention, InOnePiece

    draw, paths = lab.draw("paging, ample"), lab.machine.paths
    context, steps, batch = (256 if quick else 1024), 8, 8
    rounds = QUICK_ROUNDS if quick else ROUNDS
    room = context + steps * (rounds + 2) + 16
    run_of = -(-room // 16) * 16
    prompts = [lab.prompt(draw, context) for _ in range(batch)]
    arms: dict[str, Callable[[], float]] = {}
    for kernels, path in paths.items():
        for layout in ("paged", "contiguous"):
            rig = lab.rig(
                room, max_num_seqs=batch, max_num_batched_tokens=1024, kv_cache_tokens=batch * run_of,
                kernels=kernels, switches=Switches(kv_layout=layout),
            )  # fmt: skip
            if layout == "paged":
                rig.scatter(draw)
            rig.begin(prompts, room - context)
            arms[f"{layout}, {path}"] = partial(rig.decode_s, steps)
    for name, form in (("copied", PagedKV), ("in one piece", InOnePiece)):
        arms[name] = DecodeAttention(lab, form, batch, context).seconds
    found = in_rounds(rounds, arms)
    findings = [
        found.finding(
            f"decode step with an ample pool, paged / contiguous, {path}",
            f"paged, {path}",
            f"contiguous, {path}",
            *SAME,
        )
        for path in paths.values()
    ]
    words = "PyTorch's attention alone, copied out of blocks / keys and values in one piece"
    findings.append(found.finding(words, "copied", "in one piece", COPYING, None))
    return findings, [
        f"{lab.name}, {batch} requests with {context:,} tokens of context, {name}: {1000 * found.middle(name):.1f} ms a step"
        for name in arms
    ]


def _settings(lab: Lab, pool: int, layout: str, admission: str) -> EngineSettings:
    switches = Switches(kv_layout=layout, admission=admission)
    return lab.settings(LONGEST, max_num_batched_tokens=512, kv_cache_tokens=pool, switches=switches)


STUDY = Study(
    "paging",
    "Paging: memory by the block",
    "With the same bytes of KV cache, paging runs several times as many requests at once.",
    "--kv-layout and --admission",
    f"A pool of {POOL:,} tokens, max_model_len {LONGEST:,}, {PROMPT} tokens in, exponential outputs of mean {MEAN} cut at "
    f"{CAP}: reserving the longest request lets {POOL // LONGEST} run, blocks on demand about 30; and about 12 % of the "
    "bytes hold tokens against more than 90 %. With an ample pool a step takes the same in both layouts, and copying keys and "
    "values out of blocks costs PyTorch's attention at least a tenth.",
    "With memory to spare paging buys nothing: in an ample pool both need the same steps. Contiguous is said to win there; in "
    "this engine it cannot, as both layouts go through the same attention code and its block tables. What keys and values in "
    "one piece would save is the copy that PyTorch's attention makes first; kernels that read blocks in place make none. "
    "Outputs near max_model_len close the gap too. Blocks on demand are paid for with preemptions, whose tokens are computed "
    "again.",
    Axis("step"),
    Axis("requests in flight"),
    "Same requests, same bytes. A line that is higher is done earlier: it ends further left. "
    "Paged with reserve-max runs as many as contiguous, step for step, so its line is not drawn.",
    run,
)
