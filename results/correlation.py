"""How closely two measures go together: rank correlation with its uncertainty, refused where it would say nothing.

Across cells a point is one (engine, workload, load); over time inside a cell neighbours are alike, so n values are worth
fewer. Two measures that are tied by construction are named: such a correlation is no finding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtr

from results.events import Floats
from results.statistics import MOST_AUTOCORRELATION, autocorrelation
from results.statistics_series import LEAST_EFFECTIVE

THROUGHPUT = "output_tokens_per_s"
WORDS: dict[str, str] = {
    THROUGHPUT: "output tokens/s",
    "batch": "realised batch",
    "kv_occupancy": "share of the KV cache in use",
    "bandwidth_fraction": "share of the memory bandwidth",
    "sm_clock_mhz": "SM clock",
    "power_w": "power",
}
# Why throughput goes together with these by construction.
MECHANICAL: dict[str, str] = {
    "batch": "throughput is batch over step time",
    "kv_occupancy": "the KV cache holds the batch's contexts, and throughput is batch over step time",
    "bandwidth_fraction": "in decode each step reads the weights and the batch's KV, so bytes/s and tokens/s both follow steps/s",
    "power_w": "both follow the work done",
}
# Below this no two-sided exact test can reach 5 %: the least p is 0.083 with four points, 0.017 with five.
LEAST_POINTS = 5
_LEAST_TOLD = 3
_EXACT_UP_TO = 8


@dataclass(frozen=True, slots=True)
class Correlation:
    """Spearman's rho of `x` with throughput. `refused` says why there is no rho, or no p and interval beside it."""

    x: str
    stratum: str
    n: int
    rho: float | None = None
    p: float | None = None
    low: float | None = None
    high: float | None = None
    effective_n: float | None = None
    refused: str = ""

    @property
    def mechanical(self) -> str:
        """Why the two go together by construction, or an empty text."""
        return MECHANICAL.get(self.x, "")

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "mechanical": self.mechanical}


def ranks(values: Floats) -> Floats:
    """Ranks from 1 on, ties sharing their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    out: Floats = middle[inverse].astype(np.float64)
    return out


def pearson(x: Floats, y: Floats) -> float | None:
    """None where one of them does not vary."""
    a, b = x - x.mean(), y - y.mean()
    size = math.sqrt(float(a @ a) * float(b @ b))
    if size <= 1e-12 * max(1.0, float(np.abs(x).max()) * float(np.abs(y).max())):
        return None
    return min(max(float(a @ b) / size, -1.0), 1.0)


def across_points(name: str, stratum: str, x: Sequence[float], y: Sequence[float]) -> Correlation:
    """Over points that are independent of each other: exact two-sided p up to 8 points, by Student's t beyond."""
    n = len(x)
    if n < _LEAST_TOLD:
        return Correlation(name, stratum, n, refused=f"{n} points, at least {_LEAST_TOLD} are needed")
    a, b = ranks(np.asarray(x, dtype=np.float64)), ranks(np.asarray(y, dtype=np.float64))
    rho = pearson(a, b)
    if rho is None:
        which = WORDS.get(name, name) if np.ptp(a) == 0 else WORDS[THROUGHPUT]
        return Correlation(name, stratum, n, refused=f"{which} does not vary")
    if n < LEAST_POINTS:
        return Correlation(name, stratum, n, rho, refused=f"{n} points can show nothing: {LEAST_POINTS} are needed")
    return Correlation(name, stratum, n, rho, _p_value(a, b, rho))


def _p_value(a: Floats, b: Floats, rho: float) -> float:
    """Two-sided."""
    n = len(a)
    if n <= _EXACT_UP_TO:
        orders = np.array(list(permutations(range(n))))
        centred = a - a.mean()
        found = np.abs((b - b.mean())[orders] @ centred)
        least = abs(float((b - b.mean()) @ centred))
        return float((found >= least * (1 - 1e-9)).mean())
    if abs(rho) >= 1:
        # Student's t would say 0: of all orders only those that move equal values among themselves are as extreme.
        same = math.prod(math.factorial(int(c)) for c in np.unique(a, return_counts=True)[1])
        return min(1.0, 2 * same / math.factorial(n))
    t = abs(rho) * math.sqrt((n - 2) / (1 - rho * rho))
    return 2 * float(stdtr(n - 2, -t))


def within_strata(name: str, strata: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> list[Correlation]:
    """Each stratum by itself, then all together with every stratum's own level taken out, and, where that has another sign,
    plainly pooled: mixing engines can turn a relation round."""
    out = [across_points(name, stratum, x, y) for stratum, (x, y) in strata.items()]
    usable = {s: (x, y) for s, (x, y) in strata.items() if len(x) >= 2}
    if len(usable) < 2:
        return out
    a, b = (
        np.concatenate([_levelled(np.asarray(pair[side], dtype=np.float64)) for pair in usable.values()])
        for side in (0, 1)
    )
    n = len(a)
    inside = pearson(a, b)
    if inside is None:
        return [
            *out,
            Correlation(name, "all, each around its own level", n, refused=f"{WORDS.get(name, name)} does not vary"),
        ]
    few = "" if n - len(usable) >= LEAST_POINTS - 1 else f"{n} points in {len(usable)} strata can show nothing"
    out.append(Correlation(name, "all, each around its own level", n, inside, refused=few))
    pooled = across_points(
        name,
        "all mixed together",
        [v for x, _ in usable.values() for v in x],
        [v for _, y in usable.values() for v in y],
    )
    if pooled.rho is not None and pooled.rho * inside < 0:
        why = "the sign turns when unlike engines or workloads are mixed: read those above"
        out.append(Correlation(name, "all mixed together", n, pooled.rho, refused=why))
    return out


def _levelled(values: Floats) -> Floats:
    """Ranks inside a stratum around their own mean."""
    found = ranks(values)
    out: Floats = (found - found.mean()) / len(values)
    return out


def over_time(name: str, x: Floats, y: Floats) -> Correlation:
    """Two series of one cell on the same grid, in time order. No interval above an autocorrelation of 0.7 or below an effective
    n of 20: there even a block bootstrap cries wolf in a fifth of unrelated series."""
    n = len(x)
    if n < LEAST_EFFECTIVE:
        return Correlation(name, "over time", n, refused=f"{n} instants, {LEAST_EFFECTIVE} are needed")
    a, b = ranks(x), ranks(y)
    rho = pearson(a, b)
    if rho is None:
        which = WORDS.get(name, name) if np.ptp(a) == 0 else WORDS[THROUGHPUT]
        return Correlation(name, "over time", n, refused=f"{which} does not vary")
    phi_x, phi_y = max(autocorrelation(a), 0.0), max(autocorrelation(b), 0.0)
    effective = n * (1 - phi_x * phi_y) / (1 + phi_x * phi_y)
    if max(phi_x, phi_y) > MOST_AUTOCORRELATION:
        why = f"neighbouring values are too alike (autocorrelation {max(phi_x, phi_y):.2f})"
        return Correlation(name, "over time", n, rho, effective_n=effective, refused=why)
    if effective < LEAST_EFFECTIVE:
        why = f"{n} instants are worth {effective:.0f}, {LEAST_EFFECTIVE} are needed"
        return Correlation(name, "over time", n, rho, effective_n=effective, refused=why)
    # The variance of a rank correlation's z is a little above that of a product-moment one.
    reach = float(ndtri(0.975)) * math.sqrt((1 + rho * rho / 2) / (effective - 3))
    z = math.atanh(min(max(rho, -0.999999), 0.999999))
    return Correlation(name, "over time", n, rho, None, math.tanh(z - reach), math.tanh(z + reach), effective)
