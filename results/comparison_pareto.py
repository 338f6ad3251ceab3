"""Throughput against what one user sees: which points no other point beats in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from results.report_shapes import Point

THROUGHPUT, PER_USER = "output_tokens_per_s", "user_tokens_per_s"


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A point of an engine: output tokens/s of the whole, tokens/s of one user (1 / TPOT p50). `front`: no point of the same
    workload, of any engine, is at least as good in both and better in one."""

    engine: str
    workload: str
    load: str
    output_tokens_per_s: float
    user_tokens_per_s: float
    front: bool
    suspect: bool
    blocks: int = 1


def unbeaten(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Of points (x, y): whether no other is at least as large in both and larger in one."""
    return [not any(a >= x and b >= y and (a > x or b > y) for a, b in points) for x, y in points]


def pareto(points: Iterable[Point]) -> list[ParetoPoint]:
    """Points that count and know both numbers, best throughput first within a workload. INVALID ones are in no front."""
    known: list[tuple[str, float, float, Point]] = []
    for point in points:
        output, user = point.values[THROUGHPUT].mean, point.values[PER_USER].mean
        if point.verdict != "INVALID" and output and user:
            known.append((point.workload.key, output, user, point))
    fronts = {key: iter(unbeaten([(output, user) for k, output, user, _ in known if k == key])) for key, *_ in known}
    found = [
        ParetoPoint(
            engine=point.engine,
            workload=point.workload.label,
            load=point.load_label,
            output_tokens_per_s=output,
            user_tokens_per_s=user,
            front=next(fronts[key]),
            suspect=point.verdict == "SUSPECT",
            blocks=point.blocks,
        )
        for key, output, user, point in known
    ]
    return sorted(found, key=lambda p: (p.workload, -p.output_tokens_per_s))
