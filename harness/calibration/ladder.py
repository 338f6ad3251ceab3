"""Where the client's error passes a bar: levels of rising load, then halvings between the last good and the first bad one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.calibration.level import Level, LevelResult

# Errors at p99 (ms) that are looked for; the larger one is the ceiling that cells are held against.
BARS_MS = (1.0, 5.0)
# A level that fails is tried once more: another process may have come between.
_TRIES = 2

Run = Callable[[Level], LevelResult]
Measure = Callable[[LevelResult], float]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The highest level whose error stayed under a bar. `met`: a higher one was tried and passed it (`passed_at`); else the
    truth is at least `value`. `value` None: the lowest level passed it already."""

    value: float | None
    met: bool
    passed_at: float | None = None


def within(result: LevelResult, bar_ms: float) -> bool:
    """Did the client measure this level with an error under the bar, and lose nothing?"""
    error = result.error
    worst = error.worst_p99_ms
    return worst is not None and worst <= bar_ms and not error.lost and not error.tokens_wrong


def climb(
    levels: Sequence[Level], run: Run, *, halvings: int = 0, between: Callable[[Level, Level], Level | None]
) -> list[LevelResult]:
    """Run levels in order up to the first that passes the highest bar, then `halvings` of the step before it.

    `between` gives a level between two, or None where there is none. Results in the order of the levels.
    """
    bar = max(BARS_MS)
    done: list[LevelResult] = []
    bad: LevelResult | None = None
    for level in levels:
        result = _best(level, run, bar)
        if not within(result, bar):
            bad = result
            break
        done.append(result)
    above = [bad] if bad is not None else []
    for _ in range(halvings):
        if bad is None or not done:
            break
        level_between = between(done[-1].level, bad.level)
        if level_between is None:
            break
        result = _best(level_between, run, bar)
        if within(result, bar):
            done.append(result)
        else:
            bad = result
            above.insert(0, bad)
    return done + above


def ceiling(results: Sequence[LevelResult], bar_ms: float, measure: Measure) -> Ceiling:
    """The highest level under the bar before the first one that is not. `results` in the order of their levels."""
    value: float | None = None
    for result in results:
        if not within(result, bar_ms):
            return Ceiling(value, met=True, passed_at=measure(result))
        value = max(value or 0.0, measure(result))
    return Ceiling(value, met=False)


def _best(level: Level, run: Run, bar: float) -> LevelResult:
    tries: list[LevelResult] = []
    for _ in range(_TRIES):
        tries.append(run(level))
        if within(tries[-1], bar):
            break
    return min(tries, key=lambda r: (r.error.lost + r.error.tokens_wrong, r.error.worst_p99_ms or float("inf")))
