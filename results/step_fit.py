"""How long a step takes by what it holds, fitted: seconds = step + prefill tokens x a + decodes x b + context tokens x c.

It tells prefill and decode apart in cells whose steps hold both. Intervals are jackknifed over slices of time. A term is left
out where its column does not vary, and there is no fit where steps do not differ, or it explains little of how they differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from results.events import Floats
from results.step_times import Composition

LEAST_STEPS = 40
_LEAST_R2 = 0.3
_SLICES = 10
_MOST_CONDITION = 300.0
TERMS = ("step", "prefill_token", "decode", "context_token")


@dataclass(frozen=True, slots=True)
class StepFit:
    """Seconds by term: (value, low, high), 95 %. `r2` is the part of the differences between steps that it explains."""

    seconds: dict[str, tuple[float, float, float]]
    r2: float
    n: int

    def to_dict(self) -> dict[str, Any]:
        terms = {name: {"value": v, "low": low, "high": high} for name, (v, low, high) in self.seconds.items()}
        return {"n": self.n, "r2": self.r2, "seconds": terms}


def fit_steps(made: Composition, seconds: Floats) -> StepFit | str:
    """The fit, or why there is none."""
    if len(seconds) < LEAST_STEPS:
        return f"{len(seconds)} steps are too few to fit"
    columns: dict[str, Floats] = {"step": np.ones(len(seconds))}
    for name, values in zip(TERMS[1:], (made.prefill_tokens, made.decodes, made.context_tokens), strict=True):
        if values.std() > 0.01 * max(float(values.mean()), 1.0):
            columns[name] = values.astype(np.float64)
    if len(columns) == 1:
        return "all steps held the same"
    names = list(columns)
    matrix = np.stack(list(columns.values()), axis=1)
    scale = np.abs(matrix).mean(axis=0)
    matrix = matrix / scale
    # One step that the machine was taken away in must not bend the line.
    kept = seconds <= np.quantile(seconds, 0.995) * 3
    matrix, taken = matrix[kept], seconds[kept]
    if np.linalg.cond(matrix) > _MOST_CONDITION:
        return "what the steps held varies together, so its parts cannot be told apart"
    found = np.linalg.lstsq(matrix, taken, rcond=None)[0]
    residual, spread = taken - matrix @ found, taken - taken.mean()
    r2 = 1.0 - float((residual**2).sum() / max(float((spread**2).sum()), 1e-300))
    if r2 < _LEAST_R2:
        return f"what the steps held explains only {max(r2, 0.0):.0%} of how they differ"
    slices = np.array_split(np.arange(len(taken)), _SLICES)
    without = []
    for out in slices:
        mask = np.ones(len(taken), dtype=bool)
        mask[out] = False
        without.append(np.linalg.lstsq(matrix[mask], taken[mask], rcond=None)[0])
    error = np.sqrt((_SLICES - 1) / _SLICES * ((np.array(without) - found) ** 2).sum(axis=0))
    half = 2.262 * error  # t, 9 degrees of freedom
    terms = {
        name: (float(v), float(v - h), float(v + h))
        for name, v, h in zip(names, found / scale, half / scale, strict=True)
    }
    return StepFit(terms, r2, len(taken))
