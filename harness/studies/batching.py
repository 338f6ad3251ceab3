"""Continuous batching: whoever finishes makes room at once, against a batch that runs to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.studies.arm import Arrival
from harness.studies.lab import Lab
from harness.studies.study import Finding, Outcome, Study, over_steps
from reports.scales import Axis

if TYPE_CHECKING:
    from backends.reference.config import EngineSettings

BATCH, PROMPT, MEAN, CUT = 16, 16, 32, 4


def run(lab: Lab, quick: bool) -> Outcome:
    """Three arms with outputs that differ, two with outputs that do not."""
    draw = lab.draw("batching")
    count = BATCH * (5 if quick else 20)
    outputs = [max(1, min(CUT * MEAN, round(draw.expovariate(1 / MEAN)))) for _ in range(count)]
    arrivals = [Arrival(0, lab.prompt(draw, PROMPT), output) for output in outputs]
    equal = [Arrival(0, a.prompt, MEAN) for a in arrivals]
    flowing = lab.run("continuous", _settings(lab, "continuous"), arrivals)
    dropped = lab.run("static, finished rows dropped", _settings(lab, "static-drop"), arrivals)
    padded = lab.run("static, finished rows computed on", _settings(lab, "static-pad"), arrivals)
    alike = lab.run("continuous, equal outputs", _settings(lab, "continuous"), equal)
    alike_static = lab.run("static, equal outputs", _settings(lab, "static-drop"), equal)
    findings = [
        Finding("steps, static / continuous", len(dropped.steps) / len(flowing.steps), 2, 3.3),
        Finding("tokens computed, static with dropped rows / continuous", dropped.computed / flowing.computed, 1, 1),
        Finding("tokens computed, static with padding / continuous", padded.computed / flowing.computed, 1.7, 3.3),
        Finding("steps with equal outputs, static / continuous", len(alike_static.steps) / len(alike.steps), 0.95, 1.1),
    ]
    arms = [flowing, dropped, padded, alike, alike_static]
    clock = [f"{arm.label}: {arm.tokens_per_s:,.0f} tokens/s" for arm in arms]
    return Outcome(findings, [over_steps(arm) for arm in (flowing, dropped)], clock, arms)


def _settings(lab: Lab, batching: str) -> EngineSettings:
    from backends.reference.switches import Switches

    longest = PROMPT + CUT * MEAN
    return lab.settings(
        longest, max_num_seqs=BATCH, max_num_batched_tokens=BATCH * PROMPT, kv_cache_tokens=BATCH * -(-longest // 16) * 16,
        switches=Switches(batching=batching),
    )  # fmt: skip


STUDY = Study(
    "batching",
    "Continuous batching",
    "When output lengths differ, a batch that runs to its end computes mostly empty places.",
    "--batching",
    f"{BATCH} places, exponential outputs of mean {MEAN} cut at {CUT} times that: a static batch lasts as long as its "
    "longest request, which needs 2 to 3.3 times the steps. With padded rows all of that is computed.",
    "With equal outputs both are the same, within the steps it takes to fill the places. Dropped rows cost no work, so "
    "what a static batch loses in time depends on how much a step costs that has few rows: nearly all of a full one "
    "where reading weights is what takes the time, and less where it is the arithmetic. Dropping shows in the clock as "
    "something between the ratio of tokens computed (1) and the ratio of steps.",
    Axis("step"),
    Axis("requests in flight"),
    "Each tooth of a static line is a batch that empties; the continuous line stays at its places until the queue is gone. "
    "With padded rows the steps are the same as with dropped ones, so their line is not drawn.",
    run,
)
