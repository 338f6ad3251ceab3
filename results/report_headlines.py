"""The few numbers that stand above everything else, each with the cell it comes from and what is to be said against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.comparison import EQUIVALENT, FASTER, SLOWER, Comparison
from results.report_format import listed, number, percent, size
from results.report_measures import MEASURE, Value
from results.report_shapes import MemoryRow, Point, ReasonRow, load_words

# More engines than this do not fit beside each other.
_ENGINES_SHOWN = 2
_OUTPUT = "output_tokens_per_s"


@dataclass(frozen=True, slots=True)
class Headline:
    """A number with its unit, what it is and where. `doubt` is set where it comes from a SUSPECT cell; `reasons` say why."""

    value: str
    unit: str
    words: str
    doubt: str = ""
    reasons: tuple[str, ...] = ()


def doubts_sentence(shown: Sequence[Headline]) -> str:
    """Why the numbers that are marked are SUSPECT, each reason once; empty where none is."""
    found = list(dict.fromkeys(reason for headline in shown for reason in headline.reasons))
    return f"SUSPECT here: {listed(found, 4)}." if found else ""


def headlines(
    points: Sequence[Point],
    memory: Sequence[MemoryRow],
    reasons: Sequence[ReasonRow],
    slo: Mapping[str, Any] | None = None,
    comparisons: Sequence[Comparison] = (),
) -> list[Headline]:
    """Throughput that meets the objectives, where there are any; most output tokens/s; TTFT and TPOT at the smallest load; KV
    growth. Taken from VALID cells; where there is none, from SUSPECT ones, and marked as such. Bytes a token are arithmetic, on
    which no doubt of a measurement bears."""
    several = len({p.engine for p in points}) > 1
    found = [_most(points, several, reasons, comparisons)]
    found += [_at_smallest(points, measure, several, reasons) for measure in ("ttft_ms_p50", "tpot_ms_p50")]
    found.append(_growth(memory, several, reasons))
    return [headline for headline in [_at_slo(slo, several), *found] if headline]


def _at_slo(slo: Mapping[str, Any] | None, several: bool) -> Headline | None:
    """The most output tokens/s under which the objectives are met, of any engine."""
    met = [p for p in (slo or {}).get("points") or [] if p.get("output_tokens_per_s")]
    if slo is None or not met:
        return None
    best = max(met, key=lambda p: p["output_tokens_per_s"])
    where = load_words(str(best["mode"]), float(best["highest"]))
    who = f"{best['engine']}, " if several else ""
    words = f"output that meets {listed([str(t) for t in slo['objectives']], 3)}: {who}{best['workload']}, {where}"
    doubt = "SUSPECT" if best.get("suspect") else "" if best["verdict"] == "met" else f"undetermined above {where}"
    return Headline(number(best["output_tokens_per_s"]), "tok/s", words, doubt)


def level(a: Value, b: Value) -> bool:
    """Whether the spreads of two numbers meet, so that neither is known to be the larger. They need not be equal."""
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


def _most(
    points: Sequence[Point], several: bool, reasons: Sequence[ReasonRow], comparisons: Sequence[Comparison]
) -> Headline | None:
    known = _known(points, _OUTPUT)
    if not known:
        return None
    best = max(known, key=lambda p: p.values[_OUTPUT].mean or 0.0)
    # A SUSPECT cell may stand higher in the table.
    among = " of VALID cells" if len(known) < sum(p.values[_OUTPUT].known for p in points) else ""
    words = f"most output{among}{_mean_words([best])}: {_place(best, several)}"
    beside: dict[str, list[str]] = {}
    for p in known:
        if p is not best and (standing := _standing(p, best, comparisons)):
            beside.setdefault(standing, []).append(_place(p, several))
    words += "".join(f"; {standing}: {listed(places, 2)}" for standing, places in beside.items())
    return Headline(number(best.values[_OUTPUT].mean), MEASURE[_OUTPUT].unit, words, *_doubt([best], reasons))


def _standing(point: Point, best: Point, comparisons: Sequence[Comparison]) -> str:
    """What may be said of a point beside the highest: the comparison's verdict where it has judged the two, else by whether their
    spreads meet; empty where it is lower."""
    for found in comparisons:
        for row in found.primary:
            places = {(p.engine, p.workload.label, p.load_label) for p in (point, best)}
            if places == {(engine, row.workload, row.load) for engine in (found.base, found.other)}:
                return {FASTER: "", SLOWER: "", EQUIVALENT: "equivalent"}.get(row.verdict, "not told apart")
    return "not told apart" if level(point.values[_OUTPUT], best.values[_OUTPUT]) else ""


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
    words = f"{MEASURE[measure].words}{_mean_words(members)} at {place}"
    if len(members) > _ENGINES_SHOWN:
        members = [min(members, key=lambda p: p.values[measure].mean or 0.0)]
        words = f"lowest {words}: {members[0].engine}"
    elif several:
        words += f": {' / '.join(p.engine for p in members)}"
    text = " / ".join(number(p.values[measure].mean) for p in members)
    return Headline(text, MEASURE[measure].unit, words, *_doubt(members, reasons))


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
    where = _place(top.point, several)
    per_token = top.point.values["kv_bytes_per_token"]
    if not per_token.known:
        return Headline(*_split(held), f"KV cache {by}: {where}{share}", *_doubt([top.point], reasons))
    return Headline(*_split(per_token, " a token"), f"KV cache: {size(held.mean)} {by} at {where}{share}")


def _split(value: Value, more: str = "") -> tuple[str, str]:
    amount, unit = size(value.mean).split(" ", 1)
    return amount, unit + more


def _place(point: Point, several: bool) -> str:
    return point.label if several else f"{point.workload.label}, {point.load_label}"


def _mean_words(points: Sequence[Point]) -> str:
    """Which mean a number is, where it is one."""
    blocks = {p.blocks for p in points}
    return f" (mean of {max(blocks)} blocks)" if len(blocks) == 1 and max(blocks) > 1 else ""


def _doubt(points: Sequence[Point], reasons: Sequence[ReasonRow]) -> tuple[str, tuple[str, ...]]:
    """Whose cells behind a number are SUSPECT, and why, in words; empty when none is."""
    words: Mapping[str, str] = {r.code: r.words for r in reasons if r.severity == "suspect"}
    suspect = [p for p in points if p.verdict == "SUSPECT"]
    if not suspect:
        return "", ()
    found = list(dict.fromkeys(words[code] for p in suspect for code in p.codes if code in words))
    who = f" ({listed([p.engine for p in suspect])})" if len(suspect) < len(points) else ""
    return f"SUSPECT{who}", tuple(found)
