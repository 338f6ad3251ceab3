"""Chunked prefill: a long prompt in pieces beside the others' decodes, against whole."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import median

from harness.studies.arm import Arm, Arrival
from harness.studies.clock import QUICK_ROUNDS, ROUNDS, in_rounds
from harness.studies.lab import Lab, Rig
from harness.studies.machine import MACHINES
from harness.studies.study import Curve, Finding, Outcome, Study
from reports.scales import Axis

STREAMS, PROMPT = 4, 16
# A long prompt is as many tokens as the largest step, a chunk an eighth of them.
LONG, PIECES = MACHINES["cpu"].most, 8
CHUNK = LONG // PIECES
# A budget that no prompt exceeds: the long one and the streams' decodes beside it.
_BESIDE = 16
# Of the timed arms: what each stream makes, and the step before which the long prompt comes.
_STREAMED, _COMES = 40, 12


def run(lab: Lab, quick: bool) -> Outcome:
    """Streams that decode, and a long prompt now and then; a budget an arm."""
    draw = lab.draw("chunks")
    most = lab.machine.most
    output = 160 if quick else 512
    streams = [Arrival(0, lab.prompt(draw, PROMPT), output) for _ in range(STREAMS)]
    longs = [Arrival(step, lab.prompt(draw, most), 4) for step in range(40, output - 60, 90)]
    arrivals = [*streams, *longs]
    chunk, fits = most // PIECES, most + _BESIDE
    budgets = (chunk, fits) if quick else (*(most >> e for e in range(5, 0, -1)), fits)
    arms = {n: _rig(lab, n).run(f"{n:,} tokens a step", arrivals) for n in budgets}
    whole, cut = arms[fits], arms[chunk]
    share = 1 / STREAMS
    findings = [
        Finding("largest gap of a stream in tokens computed, whole / chunked", _largest(whole) / _largest(cut), 7, 9),
        Finding(
            "largest / median gap in tokens computed, whole",
            *(_largest(whole) / _median(whole), 0.8 * most * share, 1.2 * most * share),
        ),
        Finding(
            "largest / median gap in tokens computed, chunked",
            *(_largest(cut) / _median(cut), 0.75 * chunk * share, 1.25 * chunk * share),
        ),
        Finding("steps to the long prompt's first token, chunked", _steps(cut, STREAMS), PIECES, PIECES + 2),
        Finding("steps to the long prompt's first token, whole", _steps(whole, STREAMS), 1, 1),
    ]
    timed, clock = _milliseconds(lab.timed, quick)
    curves = [
        Curve("a stream's largest gap", [(n, _largest(arm)) for n, arm in arms.items()]),
        Curve(
            "until the long prompt's first token", [(n, arm.first_token_computed(STREAMS)) for n, arm in arms.items()]
        ),
    ]
    return Outcome([*findings, *timed], curves, clock, list(arms.values()))


def _milliseconds(lab: Lab, quick: bool) -> tuple[list[Finding], list[str]]:
    """The same by the clock, of one long prompt: gaps of the streams, and what the prompt pays."""
    draw, most = lab.draw("chunks, by the clock"), lab.machine.most
    streams = [Arrival(0, lab.prompt(draw, PROMPT), _STREAMED) for _ in range(STREAMS)]
    arrivals = [*streams, Arrival(_COMES, lab.prompt(draw, most), 1)]
    budgets = {"whole": most + _BESIDE, "chunked": most // PIECES}
    arms = {name: partial(_seconds, _rig(lab, budget), arrivals) for name, budget in budgets.items()}
    found = in_rounds(QUICK_ROUNDS if quick else ROUNDS, arms)
    findings = [
        found.finding("largest / median gap in ms, whole", "whole, largest gap", "whole, median gap", 20, None),
        found.finding("largest / median gap in ms, chunked", "chunked, largest gap", "chunked, median gap", None, 8),
        found.finding(
            "time to the long prompt's first token, chunked / whole",
            "chunked, first token",
            "whole, first token",
            None,
            1.75,
        ),
    ]
    return findings, [
        f"{lab.name}, prompt {name}: a stream's largest gap {1000 * found.middle(f'{name}, largest gap'):.1f} ms, median "
        f"{1000 * found.middle(f'{name}, median gap'):.1f} ms; the long prompt's first token after "
        f"{1000 * found.middle(f'{name}, first token'):.1f} ms"
        for name in budgets
    ]


def _seconds(rig: Rig, arrivals: list[Arrival]) -> Mapping[str, float]:
    arm = rig.run("", arrivals)
    gaps = [gap / 1000 for stream in range(STREAMS) for gap in arm.gaps_ms(stream)]
    first = arm.first_token_ms(len(arrivals) - 1) / 1000
    return {"largest gap": max(gaps), "median gap": median(gaps), "first token": first}


def _gaps(arm: Arm) -> list[int]:
    return [gap for stream in range(STREAMS) for gap in arm.gaps(stream)]


def _largest(arm: Arm) -> int:
    return max(_gaps(arm))


def _median(arm: Arm) -> float:
    return median(_gaps(arm))


def _steps(arm: Arm, request: int) -> int:
    return arm.made(request)[0].step - arm.arrivals[request].step + 1


def _rig(lab: Lab, budget: int) -> Rig:
    most = lab.machine.most
    return lab.rig(most + _BESIDE, max_num_seqs=16, max_num_batched_tokens=budget, kv_cache_tokens=8 * most)


STUDY = Study(
    "chunks",
    "Chunked prefill",
    "A long prompt that is computed in one piece stops everybody's stream; in chunks it does not.",
    "--max-num-batched-tokens",
    f"{STREAMS} streams decode while prompts of {LONG:,} tokens come: between two tokens of a stream about {LONG:,} tokens "
    f"are computed when the budget of a step holds a whole prompt, and {CHUNK} with a budget of {CHUNK}. The long prompt then takes "
    f"{PIECES} or {PIECES + 1} steps to its first token instead of one. In ms, a stream's largest gap is at least 20 times its median "
    "with whole prompts and at most 8 times in chunks; the long prompt's first token comes at most 1.75 times as late. (On a GPU all "
    "sizes are 8 times as large.)",
    "Without running streams nobody is stopped and chunks only cost the long prompt steps. Prompts shorter than the budget "
    "are one chunk anyway. Total work does not fall: throughput gains come from mixing, not from cutting. The ratio in "
    "milliseconds is smaller than in tokens, as a step has costs that do not grow with its tokens.",
    Axis("tokens a step at most (the last: prompts whole)", log=2),
    Axis("tokens computed", log=10),
    "To the right the streams' gap grows with the chunk; what is computed until the long prompt's own first token hardly "
    "moves, but the steps, each with its fixed cost, are fewer.",
    run,
)
