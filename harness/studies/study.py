"""What a study is: a claim, one switch, a hypothesis with its bounds, and what was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harness.studies.arm import Arm
from harness.studies.lab import Lab
from reports.scales import Axis

HOLDS, MISSED, OPEN = "HOLDS", "DOES NOT HOLD", "UNDETERMINED"


@dataclass(frozen=True, slots=True)
class Clock:
    """Of a number that was timed: its 95 % interval over `n` rounds, and why it cannot be believed (empty where it can)."""

    low: float | None
    high: float | None
    n: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A number and the bounds that the hypothesis gives it; both ends belong to them, None is open.

    Without `clock` it is a counter of the step log, which repeats exactly. With it, the whole interval must lie on one side.
    """

    words: str
    value: float
    low: float | None = None
    high: float | None = None
    clock: Clock | None = None

    @property
    def verdict(self) -> str:
        """HOLDS inside the bounds."""
        if self.clock is None:
            return HOLDS if self._inside(self.value, self.value) else MISSED
        if self.why_open:
            return OPEN
        return HOLDS if self._inside(self.clock.low or 0.0, self.clock.high or 0.0) else MISSED

    @property
    def why_open(self) -> str:
        """Why there is no verdict, or an empty text."""
        clock = self.clock
        if clock is None:
            return ""
        if clock.why:
            return clock.why
        if clock.low is None or clock.high is None:
            return f"{clock.n} rounds give no interval"
        if self._inside(clock.low, clock.high) or self._outside(clock.low, clock.high):
            return ""
        return f"the spread is too wide: {clock.low:.3g} to {clock.high:.3g} over {clock.n} rounds"

    @property
    def holds(self) -> bool:
        return self.verdict == HOLDS

    def _inside(self, low: float, high: float) -> bool:
        return (self.low is None or low >= self.low) and (self.high is None or high <= self.high)

    def _outside(self, low: float, high: float) -> bool:
        return (self.low is not None and high < self.low) or (self.high is not None and low > self.high)


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of the figure."""

    name: str
    points: list[tuple[float, float]]


@dataclass(slots=True)
class Outcome:
    """What a study found. `clock` is what this machine's clock says beside the verdict, which does not rest on it."""

    findings: list[Finding]
    curves: list[Curve]
    clock: list[str] = field(default_factory=list)
    arms: list[Arm] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The hypothesis holds when every finding lies inside its bounds; one outside refutes it."""
        verdicts = {f.verdict for f in self.findings} or {MISSED}
        return next(v for v in (MISSED, OPEN, HOLDS) if v in verdicts)


@dataclass(frozen=True, slots=True)
class Study:
    """One question. `run(lab, quick)` measures; `limits` says when the claim does not hold."""

    name: str
    title: str
    claim: str
    switch: str
    hypothesis: str
    limits: str
    x_axis: Axis
    y_axis: Axis
    reading: str
    run: Callable[[Lab, bool], Outcome]


def over_steps(arm: Arm) -> Curve:
    """Requests in flight over the arm's steps, which count from 1. Of steps with as many as both neighbours none is kept: the line
    through the others is the same."""
    running = [s.running for s in arm.steps]
    last = len(running) - 1
    turns = [i for i, n in enumerate(running) if i in (0, last) or n != running[i - 1] or n != running[i + 1]]
    return Curve(arm.label, [(i + 1, running[i]) for i in turns])
