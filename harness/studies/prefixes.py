"""Prefix caching: a beginning that many requests share is computed once, while it stays in the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.studies.arm import Arm, Arrival
from harness.studies.lab import Lab
from harness.studies.study import Curve, Finding, Outcome, Study
from reports.scales import Axis

if TYPE_CHECKING:
    from backends.reference.config import EngineSettings

POOL, SHARED, OWN, OUTPUT = 4096, 1024, 64, 4
FITS = POOL // SHARED - 1  # groups; the room of one is needed by what the requests have of their own


def run(lab: Lab, quick: bool) -> Outcome:
    """Groups that take turns, one request at a time; each group has a beginning of its own."""
    groups = (1, 6) if quick else (1, 2, 3, 4, 6, 8)
    arms = {n: lab.run(f"{n} groups", _settings(lab, True), _turns(lab, n, quick)) for n in groups}
    off = lab.run("no prefix cache", _settings(lab, False), _turns(lab, 1, quick))
    one, beyond = arms[1], arms[groups[-1]]
    last = len(one.arrivals) - 1
    findings = [
        Finding(
            "tokens computed to the first token, without / with, one group",
            off.first_token_computed(last) / one.first_token_computed(last),
            (SHARED + OWN) / OWN,
            (SHARED + OWN) / OWN,
        ),
        Finding(
            "prompt tokens found in the pool after each group's first request, one group, %", _found(one, 1), 90, 100
        ),
        Finding(f"the same, {groups[-1]} groups: more than the pool holds, %", _found(beyond, groups[-1]), 0, 1),
    ]
    if not quick:
        findings.append(Finding(f"the same, {FITS} groups, %", _found(arms[FITS], FITS), 90, 100))
    clock = [
        f"one group, first token of the last request: {off.first_token_ms(last):.1f} ms without, "
        f"{one.first_token_ms(last):.1f} ms with"
    ]
    curve = Curve("prefix cache", [(n, _found(arm, n)) for n, arm in arms.items()])
    return Outcome(findings, [curve], clock, [*arms.values(), off])


def _turns(lab: Lab, groups: int, quick: bool) -> list[Arrival]:
    """Requests so far apart that each is alone."""
    draw = lab.draw("prefixes")
    begins = [lab.prompt(draw, SHARED) for _ in range(groups)]
    rounds = 3 if quick else 6
    return [Arrival(OUTPUT * i, begins[i % groups] + lab.prompt(draw, OWN), OUTPUT) for i in range(rounds * groups)]


def _found(arm: Arm, groups: int) -> float:
    """Percent of the prompt tokens that are found; a group's first request cannot find any and is left out."""
    return 100 * arm.cached / sum(len(a.prompt) for a in arm.arrivals[groups:])


def _settings(lab: Lab, cache: bool) -> EngineSettings:
    from backends.reference.switches import Switches

    room = SHARED + OWN + 16
    return lab.settings(room, max_num_seqs=8, kv_cache_tokens=POOL, switches=Switches(prefix_caching=cache))


STUDY = Study(
    "prefixes",
    "Prefix caching",
    "A beginning that requests share is computed once, as long as it stays in the pool.",
    "--[no-]prefix-caching",
    f"{SHARED:,} of {SHARED + OWN:,} prompt tokens shared: {OWN} are left to compute before the first token, "
    f"{(SHARED + OWN) // OWN} times fewer. Groups that take turns find theirs while all of them fit the pool of {POOL:,} "
    f"tokens, and nothing beyond it.",
    "Beginnings that together outgrow the pool: taking turns, each is evicted just before it is needed again (the longest "
    "unused goes first). Requests without a common beginning pay for the look-up and gain nothing; nor does anything "
    "change after the first token. Only whole blocks are found.",
    Axis("groups that take turns"),
    Axis("prompt tokens found in the pool, %"),
    "Level while all beginnings fit. Where they fill the pool alone, what requests have of their own pushes the ends of them "
    "out; beyond that nothing is found, since the longest unused is evicted just before it comes again.",
    run,
)
