"""Shares of time with intervals, and whether one of them may be called the factor.

Time is cut into slices; a share's interval comes from how it differs between them (a ratio estimate, t over slices). A factor
is named only where its share beats the next one's: the interval of their difference lies above 0. Else the two are `rivals`:
`mixed`, or `undetermined` where one of them is the unexplained part, as what is not explained may belong to any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from results.events import Floats

SLICES = 20
UNEXPLAINED = "unexplained"
MIXED, UNDETERMINED = "mixed", "undetermined"
# What is not worth a word.
_NOTHING = 0.005


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the time, 0 to 1, with its 95 % interval."""

    name: str
    value: float
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "share": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class Finding:
    """What holds one side: a factor (or `mixed`, `undetermined`), the shares it rests on, largest first, and in words what was
    seen. `basis` is where it was read: `steps` (the engine's log), `xray`, `gauges`, or None for nothing. `rivals` are the two
    largest where the first is not clearly ahead; `why` is what else keeps a factor from being named."""

    factor: str
    shares: tuple[Share, ...]
    evidence: str
    basis: str | None
    rivals: tuple[str, ...] = ()
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "factor": self.factor,
            "shares": [s.to_dict() for s in self.shares],
            "evidence": self.evidence,
            "basis": self.basis,
            "rivals": list(self.rivals),
            "why": self.why,
        }


def finding(
    names: Sequence[str],
    parts: NDArray[np.float64],
    evidence: str,
    basis: str,
    stretch: dict[str, float] | None = None,
) -> Finding:
    """Shares of `parts` (row: a stretch of time in order, column: the seconds of it that belong to each name).

    `stretch` widens a name's upper bound by a factor, where the seconds themselves rest on a ceiling that is not sharp.
    """
    slices = _sliced(parts)
    total = float(slices.sum())
    if total <= 0:
        return Finding(UNDETERMINED, (), "no time was spent", None)
    shares = []
    for column, name in enumerate(names):
        value, half = _ratio(slices[:, column], slices.sum(axis=1))
        high = (value + half) * (stretch or {}).get(name, 1.0)
        shares.append(Share(name, value, max(0.0, value - half), min(1.0, max(value, high))))
    order = sorted(range(len(names)), key=lambda i: -shares[i].value)
    kept = tuple(shares[i] for i in order if shares[i].value > _NOTHING)
    factor, rivals = _factor(shares, order, slices)
    return Finding(factor, kept, evidence, basis, rivals)


def undetermined(why: str) -> Finding:
    """Nothing to tell by."""
    return Finding(UNDETERMINED, (), why, None)


def _factor(shares: list[Share], order: list[int], slices: NDArray[np.float64]) -> tuple[str, tuple[str, ...]]:
    """The factor, and the two that cannot be told apart where there is none."""
    first = order[0]
    if len(order) > 1:
        second = order[1]
        lead, half = _ratio(slices[:, first] - slices[:, second], slices.sum(axis=1))
        # The upper bound of the next one, where it is stretched, must not reach the first.
        slack = shares[second].high - shares[second].value
        if lead - max(half, slack) <= 0:
            rivals = (shares[first].name, shares[second].name)
            return UNDETERMINED if UNEXPLAINED in rivals else MIXED, rivals
    return UNDETERMINED if shares[first].name == UNEXPLAINED else shares[first].name, ()


def _sliced(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows summed into at most SLICES of about equal time."""
    ends = np.cumsum(parts.sum(axis=1))
    if not len(ends) or ends[-1] <= 0:
        return np.zeros((1, parts.shape[1]))
    of = np.minimum((ends / ends[-1] * SLICES - 1e-9).astype(np.int64), SLICES - 1)
    out = np.zeros((SLICES, parts.shape[1]))
    np.add.at(out, of, parts)
    kept: NDArray[np.float64] = out[out.sum(axis=1) > 0]
    return kept


def _ratio(part: Floats, whole: Floats) -> tuple[float, float]:
    """A ratio of sums, and half of its 95 % interval; 1 where a single slice tells nothing of the spread."""
    n, value = len(whole), float(part.sum() / whole.sum())
    if n < 3:
        return value, 1.0
    from scipy.special import stdtrit

    residual = part - value * whole
    error = float(np.sqrt(n / (n - 1) * (residual**2).sum()) / whole.sum())
    return value, float(stdtrit(n - 1, 0.975)) * error
