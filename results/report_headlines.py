"""The few numbers that stand above everything else, each with the cell it comes from and what is to be said against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results.report_format import listed, number, percent, size
from results.report_measures import MEASURE, Value
from results.report_shapes import MemoryRow, Point, ReasonRow

# More engines than this do not fit beside each other.
_ENGINES_SHOWN = 2


@dataclass(frozen=True, slots=True)
class Headline:
    """A number with its unit, what it is and where. `doubt` is set where it comes from a SUSPECT cell, and says why."""

    value: str
    unit: str
    words: str
    doubt: str = ""


def headlines(points: Sequence[Point], memory: Sequence[MemoryRow], reasons: Sequence[ReasonRow]) -> list[Headline]:
    """Most output tokens/s; TTFT and TPOT at the smallest load; KV growth. Taken from VALID cells; where there is none, from
    SUSPECT ones, and marked as such."""
    several = len({p.engine for p in points}) > 1
    found = [_most(points, several, reasons)]
    found += [_at_smallest(points, measure, several, reasons) for measure in ("ttft_ms_p50", "tpot_ms_p50")]
    found.append(_growth(memory, several, reasons))
    return [headline for headline in found if headline]


def level(a: Value, b: Value) -> bool:
    """Whether two numbers lie within each other's spread, so that neither is known to be the larger."""
    if None in (a.mean, b.mean):
        return False
    (low_a, high_a), (low_b, high_b) = _ends(a), _ends(b)
    return low_a <= high_b and low_b <= high_a


def _ends(value: Value) -> tuple[float, float]:
    mean = value.mean or 0.0
    return min(mean, mean if value.low is None else value.low), max(mean, mean if value.high is None else value.high)


def trusted(points: Sequence[Point]) -> list[Point]:
    """The VALID ones; where there is none, the SUSPECT ones."""
    return [p for p in points if p.verdict == "VALID"] or [p for p in points if p.verdict == "SUSPECT"]


def _known(points: Sequence[Point], measure: str) -> list[Point]:
    return trusted([p for p in points if p.values[measure].known])


def _most(points: Sequence[Point], several: bool, reasons: Sequence[ReasonRow]) -> Headline | None:
    measure = "output_tokens_per_s"
    known = _known(points, measure)
    if not known:
        return None
    best = max(known, key=lambda p: p.values[measure].mean or 0.0)
    words = f"most output: {_place(best, several)}"
    equal = [_place(p, several) for p in known if p is not best and level(p.values[measure], best.values[measure])]
    if equal:
        words += f"; level within the spread: {listed(equal, 2)}"
    return Headline(number(best.values[measure].mean), MEASURE[measure].unit, words, _doubt([best], reasons))


def _at_smallest(points: Sequence[Point], measure: str, several: bool, reasons: Sequence[ReasonRow]) -> Headline | None:
    """Every engine at the smallest load and shortest input that the run has: there, nothing waits for anything else."""
    known = [p for p in points if p.values[measure].known and p.verdict != "INVALID"]
    if not known:
        return None
    groups: dict[tuple[str, float, int], list[Point]] = {}
    for p in known:
        groups.setdefault((p.load_mode, p.load_value, p.workload.index), []).append(p)
    # A place at which all engines were measured and are VALID comes before one that holds less.
    wanted = len({p.engine for p in known})

    def standing(place: tuple[str, float, int]) -> tuple[bool, bool, float, int]:
        members = groups[place]
        return (len(members) < wanted, any(p.verdict != "VALID" for p in members), place[1], place[2])

    members = groups[min(groups, key=standing)]
    place = f"{members[0].load_label}, {members[0].workload.label}"
    words = f"{MEASURE[measure].words} at {place}"
    if len(members) > _ENGINES_SHOWN:
        members = [min(members, key=lambda p: p.values[measure].mean or 0.0)]
        words = f"lowest {words}: {members[0].engine}"
    elif several:
        words += f": {' / '.join(p.engine for p in members)}"
    text = " / ".join(number(p.values[measure].mean) for p in members)
    return Headline(text, MEASURE[measure].unit, words, _doubt(members, reasons))


def _growth(memory: Sequence[MemoryRow], several: bool, reasons: Sequence[ReasonRow]) -> Headline | None:
    rows = {id(row.point): row for row in memory}
    points = trusted([row.point for row in memory])
    if not points:
        return None
    top = max((rows[id(p)] for p in points), key=lambda r: r.predicted.mean or r.engine_says.mean or 0.0)
    held = top.predicted if top.predicted.known else top.engine_says
    by = "by the formula" if top.predicted.known else "by the engine's own count"
    weights = top.point.values["weight_bytes"].mean
    share = f", {percent(held.mean / weights)} of the weights" if held.mean and weights else ""
    where, doubt = _place(top.point, several), _doubt([top.point], reasons)
    per_token = top.point.values["kv_bytes_per_token"]
    if not per_token.known:
        return Headline(*_split(held), f"KV cache {by}: {where}{share}", doubt)
    return Headline(*_split(per_token, " a token"), f"KV cache: {size(held.mean)} {by} at {where}{share}", doubt)


def _split(value: Value, more: str = "") -> tuple[str, str]:
    amount, unit = size(value.mean).split(" ", 1)
    return amount, unit + more


def _place(point: Point, several: bool) -> str:
    return point.label if several else f"{point.workload.label}, {point.load_label}"


def _doubt(points: Sequence[Point], reasons: Sequence[ReasonRow]) -> str:
    """Why the cells behind a number are SUSPECT, in words; empty when none is."""
    words: Mapping[str, str] = {r.code: r.words for r in reasons if r.severity == "suspect"}
    suspect = [p for p in points if p.verdict == "SUSPECT"]
    if not suspect:
        return ""
    found = list(dict.fromkeys(words[code] for p in suspect for code in p.codes if code in words))
    who = f" ({listed([p.engine for p in suspect])})" if len(points) > 1 else ""
    return f"SUSPECT{who}: {listed(found, 2)}" if found else f"SUSPECT{who}"
