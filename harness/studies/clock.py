"""What the clock says: arms in turn, round after round, and a verdict only where the machine was quiet and the rounds agree.

In a round every arm runs once, right after the others, since what disturbs a machine drifts; every other round runs them
backwards. What is told is the ratio of two arms of one round, with its interval over the rounds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from harness.cpu_watch import CPUWatch
from harness.studies.study import Clock, Finding
from results.ceilings import BUSY
from results.statistics import paired

ROUNDS = 7
QUICK_ROUNDS = 5  # as many as a verdict needs
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Timings:
    """Seconds of each arm, one a round, and the share of the machine's CPU that others used in each round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)

    def middle(self, arm: str) -> float:
        """Of the rounds."""
        return median(self.seconds[arm])

    def finding(
        self, words: str, of: str, to: str, low: float | None, high: float | None, times: float = 1, why: str = ""
    ) -> Finding:
        """How `times` seconds of arm `of` compare with the seconds of arm `to`, against the bounds of the hypothesis. `why`: a
        reason of its own that nothing can be told."""
        base, other = self.seconds[to], [times * value for value in self.seconds[of]]
        found = paired(base, other)
        estimate = median(other) / median(base) if found.estimate is None else found.estimate
        return Finding(words, estimate, low, high, Clock(found.low, found.high, len(base), why or self.busy))

    @property
    def busy(self) -> str:
        """Why nothing can be told from these rounds, or an empty text."""
        others = median(self.others)
        return f"the machine was busy: others used {100 * others:.0f} % of its CPU" if others > BUSY else ""


def in_rounds(rounds: int, arms: Mapping[str, Callable[[], float | Mapping[str, float]]]) -> Timings:
    """Run the arms, each of which gives its seconds, or several by name (kept as `arm, name`); one round more at the start is thrown
    away, as the first to run pays for cold caches."""
    timings = Timings()
    _log.info("  timed in turn: %s", "; ".join(arms))
    for number in range(-1, rounds):
        _log.info("  round %d of %d%s", number + 1, rounds, " (thrown away: cold caches)" if number < 0 else "")
        watch = CPUWatch()
        order: Sequence[str] = list(arms) if number % 2 == 0 else list(arms)[::-1]
        found = {name: arms[name]() for name in order}
        if number < 0:
            continue
        for arm, made in found.items():
            named = (
                {f"{arm}, {name}": value for name, value in made.items()} if isinstance(made, Mapping) else {arm: made}
            )
            for name, seconds in named.items():
                timings.seconds.setdefault(name, []).append(seconds)
        timings.others.append(watch.others())
    return timings
