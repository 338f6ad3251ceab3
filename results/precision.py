"""Are the intervals of a run narrow enough? What `--until-ci` asks after each block, and what the run says in the end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from results.report_format import UNKNOWN, number
from results.report_shapes import load_words, workload_info, workload_key
from results.statistics import BLOCKS_FOR_A_VERDICT, CONFIDENCE, Interval, blocks_needed, mean_interval, paired

METRIC = "output_tokens_per_s"
# An interval looked at after each block, until it is narrow, is a lucky one a little too often: of what is nominally 95 %,
# 92.5 % cover in the worst case (a spread of 1.3 to 2.5 times the target). Made at 97 %, 94 to 97 % do.
LOOKED_AT = 0.97


@dataclass(frozen=True, slots=True)
class Precision:
    """`widest` is the half-width of the widest interval of all points (0.03 is +-3 %), `where` names it, None where any point
    has no interval yet (`why`); `blocks` is the fewest that a point rests on, `needed` about how many the widest needs."""

    widest: float | None
    where: str
    blocks: int
    why: str = ""
    needed: int | None = None

    def reached(self, target: float) -> bool:
        return self.widest is not None and self.blocks >= BLOCKS_FOR_A_VERDICT and self.widest <= target


def precision(cells: Iterable[Mapping[str, Any]], target: float | None = None) -> Precision:
    """How narrow the 95 % intervals of a run are: of one engine, of its output tokens/s at each point; of several, of the ratio
    of each to the first at each point. Cells that are INVALID do not count. With a `target` that is looked for after each block
    the intervals allow for the looking."""
    confidence = CONFIDENCE if target is None else LOOKED_AT
    values: dict[tuple[str, str, float], dict[str, dict[int, float]]] = {}
    labels: dict[tuple[str, str, float], str] = {}
    engines: list[str] = []
    for cell in cells:
        load, scope = cell.get("load") or {}, cell.get("window") or cell.get("whole") or {}
        mode = str(load.get("mode") or "unknown")
        value, rate = load.get("value", load.get(mode)), scope.get(METRIC)
        engine = str(cell.get("engine"))
        if engine not in engines:
            engines.append(engine)
        point = (workload_key(cell.get("workload") or {}), mode, float(value or 0))
        labels[point] = f"{load_words(mode, float(value or 0))}, {workload_info(cell.get('workload') or {}).label}"
        of = values.setdefault(point, {}).setdefault(engine, {})
        if rate and cell.get("verdict") != "INVALID":
            of[int(cell.get("block") or 0)] = float(rate)
    widest, where, why, fewest = 0.0, "", "", 0
    found: list[Interval] = []
    for point, by_engine in values.items():
        for name, interval in _intervals(by_engine, engines, confidence):
            found.append(interval)
            width = half_width(interval)
            place = f"{name}, {labels[point]}"
            if width is None:
                return Precision(None, place, min(i.n for i in found), interval.refused)
            if width >= widest:
                widest, where, why = width, place, ""
    if not found:
        return Precision(None, "", 0, "no cell yet")
    fewest = min(i.n for i in found)
    worst = max(found, key=lambda i: half_width(i) or 0.0)
    needed = None
    if target is not None and worst.sd:
        # Half a width of `target` is about a difference of `target` found half the time.
        needed = blocks_needed(worst.sd, -math.expm1(-math.log1p(target)), power=0.5)
    return Precision(widest, where, fewest, why, needed)


def half_width(interval: Interval) -> float | None:
    """Half the width of the interval of a ratio or of a positive mean, relative to its middle; 0 where all blocks agree to the
    last digit, which no further block would make wider."""
    if interval.sd == 0.0:
        return 0.0
    if interval.low is None or interval.high is None or interval.low <= 0:
        return None
    return math.sqrt(interval.high / interval.low) - 1


# From this half-width on (its ends then differ by 2.25 times) an interval tells no size.
_NO_SIZE = 0.5


def width_words(width: float | None) -> str:
    """`±3.1 %`; where the ends are too far apart for that, how many times: `a factor of 7.00 from end to end`."""
    if width is None:
        return UNKNOWN
    return (
        f"±{number(100 * width)} %" if width < _NO_SIZE else f"a factor of {number((1 + width) ** 2)} from end to end"
    )


def _intervals(
    by_engine: Mapping[str, Mapping[int, float]], engines: list[str], confidence: float
) -> list[tuple[str, Interval]]:
    # A point that one side never got a number at (it ran out of memory there) has no interval to wait for.
    if len(engines) == 1:
        rates = by_engine.get(engines[0], {})
        if not rates:
            return []
        logs = mean_interval([math.log(v) for v in rates.values()], confidence)
        if logs.low is None or logs.high is None or logs.estimate is None:
            return [(engines[0], logs)]
        shown = Interval(math.exp(logs.estimate), math.exp(logs.low), math.exp(logs.high), logs.n, sd=logs.sd)
        return [(engines[0], shown)]
    base = by_engine.get(engines[0], {})
    found = []
    for engine in engines[1:]:
        other = by_engine.get(engine, {})
        shared = sorted(base.keys() & other.keys())
        if not base or not other:
            continue
        found.append((engine, paired([base[k] for k in shared], [other[k] for k in shared], confidence)))
    return found
