"""What decides a limiting factor: how throughput follows when one resource is changed, d ln T / d ln R.

Each pair is one block: the cell as it was and with one resource changed, side by side. 1 means that throughput follows the
resource in full, 0 that it does not care. A resource holds the throughput where the whole interval lies above `HOLDS`; it does
not where all of it lies below; else more pairs are needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.statistics import mean_interval

HOLDS = 0.15
YES, NO, OPEN = "holds", "does not hold", "undetermined"


@dataclass(frozen=True, slots=True)
class Elasticity:
    """One resource: from what to what, the mean log ratio of throughput over it with its 95 % interval, over `n` pairs."""

    resource: str
    factors: tuple[str, ...]
    before: float
    after: float
    n: int
    change: float | None
    value: float | None
    low: float | None
    high: float | None

    @property
    def verdict(self) -> str:
        if self.low is None or self.high is None:
            return OPEN
        return YES if self.low > HOLDS else NO if self.high < HOLDS else OPEN

    def to_dict(self) -> dict[str, Any]:
        return {
            "resource": self.resource,
            "factors": list(self.factors),
            "from": self.before,
            "to": self.after,
            "pairs": self.n,
            "throughput_change": self.change,
            "elasticity": self.value,
            "low": self.low,
            "high": self.high,
            "verdict": self.verdict,
        }


def elasticity(
    resource: str, factors: Sequence[str], before: float, after: float, pairs: Sequence[tuple[float, float]]
) -> Elasticity:
    """From pairs of throughput (as it was, changed). `before` and `after` are what the resource was and became."""
    step = math.log(after / before)
    logs = [math.log(changed / base) for base, changed in pairs if base > 0 and changed > 0]
    found = mean_interval([value / step for value in logs])
    change = math.exp(math.fsum(logs) / len(logs)) - 1.0 if logs else None
    return Elasticity(resource, tuple(factors), before, after, len(logs), change, found.estimate, found.low, found.high)


def decided(found: Sequence[Elasticity], next_step: str = "more --pairs") -> tuple[str | None, str]:
    """Which resource holds the throughput, and in words how sure that is; None where none is shown to. `next_step`: what would
    tell where an interval is too wide."""
    holding = sorted((e for e in found if e.verdict == YES), key=lambda e: -(e.value or 0.0))
    still_open = [e.resource for e in found if e.verdict == OPEN]
    more = f"; {', '.join(still_open)} cannot be told yet: {next_step}" if still_open else ""
    if not holding:
        tried = [e.resource for e in found if e.verdict == NO]
        none = (
            f"throughput does not follow {' or '.join(tried)}" if tried else "nothing is shown to hold the throughput"
        )
        return None, f"{none}{more}"
    first = holding[0]
    if len(holding) == 1:
        return first.resource, f"throughput follows {first.resource}{more}"
    second = holding[1]
    if (first.low or 0.0) > (second.high or 0.0):
        return first.resource, f"throughput follows {first.resource} most, then {second.resource}{more}"
    return None, f"throughput follows {' and '.join(e.resource for e in holding)} alike{more}"


def is_open(found: Sequence[Elasticity]) -> bool:
    """Whether there is no answer: nothing is shown to hold the throughput, and something may."""
    verdicts = {e.verdict for e in found}
    return OPEN in verdicts and YES not in verdicts


def agrees(factor: str, found: Sequence[Elasticity]) -> bool | None:
    """Whether the elasticities bear out a factor named from shares; None where no resource tried stands for it, or it is open."""
    own = [e for e in found if factor in e.factors]
    if not own or any(e.verdict == OPEN for e in own):
        return None
    return any(e.verdict == YES for e in own)


def throughput(cell: Mapping[str, Any]) -> float | None:
    """Tokens/s of a cell: output, or where outputs are of one token prompts and outputs together; None for INVALID cells."""
    whole = cell.get("whole")
    if cell.get("verdict") == "INVALID" or not isinstance(whole, Mapping):
        return None
    value = whole.get("output_tokens_per_s")
    return float(value) if isinstance(value, int | float) and value > 0 else None
