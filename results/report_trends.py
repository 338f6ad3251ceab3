"""How numbers move: with load, with input length, and prefill against decode. Each function makes one sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from results.arrivals import OPEN_LOOPS
from results.report_format import count, listed, number, percent
from results.report_headlines import level
from results.report_readings import PHASES
from results.report_sentences import SUSPECT_TOO, AnswerFacts, Sentence, said, several, span
from results.report_shapes import Line, Point, load_words

Ends = tuple[Point, Point]


def _where(facts: AnswerFacts, line: Line) -> str:
    """Where a line was measured, no longer than it must be to be told from the others."""
    one_output = len({other.workload.output_tokens for other in facts.lines}) == 1
    return f"{line.workload.input_label} in" if one_output and line.workload.input_tokens else line.workload.label


def _step(first: Point, last: Point) -> str:
    """`batch 1 → 16`, `1 → 16 in flight`, or just `batch 1` where a line has one point."""
    low, high = count(first.load_value), count(last.load_value)
    return load_words(first.load_mode, low if low == high else f"{low} → {high}")


def _trend(facts: AnswerFacts, *measures: str) -> tuple[str, list[tuple[Line, Ends]], str] | None:
    """The step of load over which most engines and lines can be told, the widest of several: (`batch 1 → 16`, its lines with
    their ends, what is to be said against them). VALID cells only, unless no engine has two of them.

    All lines of a sentence get the same step: factors over different ones do not compare. A run of one load has the step
    from that load to itself.
    """
    usable = {
        id(x): [p for p in x.points if p.verdict != "INVALID" and all(p.values[m].known for m in measures)]
        for x in facts.lines
    }
    for only_valid in (True, False):
        steps: dict[tuple[str, float, float], list[tuple[Line, Ends]]] = {}
        for line in facts.lines:
            points = [p for p in usable[id(line)] if p.verdict == "VALID" or not only_valid]
            for i, first in enumerate(points):
                for last in points[i:]:
                    steps.setdefault((line.load_mode, first.load_value, last.load_value), []).append(
                        (line, (first, last))
                    )
        rising = {step: spans for step, spans in steps.items() if step[2] > step[1]}
        if steps and (rising or not only_valid or not any(len(points) > 1 for points in usable.values())):
            found = rising or steps
            best = max(
                found,
                key=lambda step: (len({x.engine for x, _ in found[step]}), len(found[step]), step[2] / (step[1] or 1)),
            )
            spans = found[best]
            suspect = any(p.verdict == "SUSPECT" for _, ends in spans for p in ends)
            return _step(*spans[0][1]), spans, f" ({SUSPECT_TOO})" if suspect else ""
    return None


def _per_line(
    facts: AnswerFacts, spans: Sequence[tuple[Line, Ends]], value: Callable[[Ends], float | None], unit: str = ""
) -> str:
    """One number a line, with its unit: each with its length for one engine, the range of each engine for several. Engines go
    unnamed only where all of them are in it."""
    known = [(line, v) for line, ends in spans if (v := value(ends)) is not None]
    everybody = {line.engine for line, _ in known} == {e.label for e in facts.engines}
    if everybody and len({number(v) for _, v in known}) == 1 and len(known) == len(spans):
        alike = " at every input length" if len({line.workload.key for line, _ in known}) > 1 else ""
        return f"{number(known[0][1])}{unit}" + (
            alike or (f" at {_where(facts, known[0][0])}" if len({x.workload.key for x in facts.lines}) > 1 else "")
        )
    if not several(facts):
        return listed([f"{number(v)}{unit} at {_where(facts, line)}" for line, v in known], 6)
    by_engine: dict[str, list[float]] = {}
    for line, v in known:
        by_engine.setdefault(line.engine, []).append(v)
    # Of several lengths the one that is told must be named.
    places = {line.workload.key: f" at {_where(facts, line)}" for line, _ in known}
    at = next(iter(places.values())) if len(places) == 1 < len({x.workload.key for x in facts.lines}) else ""
    if everybody and len({span(values) for values in by_engine.values()}) == 1:
        return f"{span(next(iter(by_engine.values())))}{unit} on each{at}"
    return listed([f"{span(values)}{unit} on {engine}" for engine, values in by_engine.items()], 6) + at


def _factor(measure: str) -> Callable[[Ends], float | None]:
    def factor(ends: Ends) -> float | None:
        first, last = (p.values[measure].mean for p in ends)
        return last / first if first and last else None

    return factor


def _last(facts: AnswerFacts, spans: Sequence[tuple[Line, Ends]], measure: str, unit: str = "") -> str:
    """The number at the end of the step, of each line."""
    return _per_line(facts, spans, lambda ends: ends[1].values[measure].mean, unit)


def _mean_words(spans: Sequence[tuple[Line, Ends]]) -> str:
    """Which mean the numbers of a step are, where they are one."""
    blocks = {ends[1].blocks for _, ends in spans}
    return f" (means of {max(blocks)} blocks)" if len(blocks) == 1 and max(blocks) > 1 else ""


def throughput_sentences(facts: AnswerFacts) -> list[Sentence]:
    measure = "output_tokens_per_s"
    trend = _trend(facts, measure)
    if not trend:
        return []
    step, spans, doubt = trend
    if _one_load(spans):
        return said(
            "Throughput",
            [
                f"at {step}, output tokens/s is {_last(facts, spans, measure)}{_mean_words(spans)}{doubt}: one load shows no trend"
            ],
        )
    told = [f"{step} multiplies output tokens/s by {_per_line(facts, spans, _factor(measure))}{doubt}"]
    return said(
        "Throughput",
        [*told, *_untold(facts, spans), *(peak for line in facts.lines if (peak := _peak(facts, line, measure)))],
    )


def _untold(facts: AnswerFacts, spans: Sequence[tuple[Line, Ends]]) -> list[str]:
    """Engines of which a sentence cannot tell."""
    untold = [e.label for e in facts.engines if e.label not in {line.engine for line, _ in spans}]
    return [f"not told of {listed(untold)}: no two loads there that are VALID and comparable"] if untold else []


def _one_load(spans: Sequence[tuple[Line, Ends]]) -> bool:
    return all(first.load_value == last.load_value for _, (first, last) in spans)


def _peak(facts: AnswerFacts, line: Line, measure: str) -> str:
    """Where a line is highest before its end, by more than its spread."""
    points = [p for p in line.usable(measure) if p.verdict == "VALID"]
    if not points:
        return ""
    best, end = max(points, key=lambda p: p.values[measure].mean or 0), points[-1]
    highest = max(line.usable(measure), key=lambda p: p.values[measure].mean or 0)
    # A SUSPECT cell above it leaves open where the most is.
    if best is end or best is not highest or level(best.values[measure], end.values[measure]):
        return ""
    who = f" on {line.engine}" if several(facts) else ""
    most = f"{number(best.values[measure].mean)} at {best.load_label}"
    return f"at {_where(facts, line)}{who} the most is {most}, beyond which more load loses throughput"


def lengths_sentences(facts: AnswerFacts) -> list[Sentence]:
    """How the longest input compares with the shortest, at the largest load at which most engines have both."""
    measure = "output_tokens_per_s"
    for only_valid in (True, False):
        places: dict[tuple[str, float, str, str], list[tuple[float, str, bool]]] = {}
        for engine in facts.engines:
            own = [x for x in facts.lines if x.engine == engine.label and x.workload.input_tokens]
            lines = sorted(own, key=lambda x: x.workload.index)
            if len(lines) < 2 or lines[0].load_mode != lines[-1].load_mode:
                continue
            short, long = ({p.load_value: p for p in x.usable(measure)} for x in (lines[0], lines[-1]))
            for value in short.keys() & long.keys():
                low, high = short[value].values[measure].mean, long[value].values[measure].mean
                valid = short[value].verdict == long[value].verdict == "VALID"
                if low and high and (valid or not only_valid):
                    place = (lines[0].load_mode, value, lines[-1].workload.input_label, lines[0].workload.input_label)
                    places.setdefault(place, []).append((high / low, engine.label, valid))
        if places:
            break
    if not places:
        return []
    mode, value, long_label, short_label = best = max(places, key=lambda p: (len(places[p]), p[1]))
    shares = places[best]
    verb = "falls to" if all(share < 1 for share, _, _ in shares) else "goes to"
    alike = len({percent(share) for share, _, _ in shares}) == 1 and len(shares) == len(facts.engines)
    told = percent(shares[0][0]) if alike else listed([f"{percent(s)} on {e}" for s, e, _ in shares], 6)
    doubt = "" if all(valid for _, _, valid in shares) else f" ({SUSPECT_TOO})"
    text = f"with {long_label} tokens in instead of {short_label}, output tokens/s {verb} {told} at {load_words(mode, value)}"
    return said("Input length", [text + doubt])


def latency_sentences(facts: AnswerFacts) -> list[Sentence]:
    measures = {"ttft_ms_p50": "TTFT p50", "tpot_ms_p50": "TPOT p50"}
    if not any(p.values["tpot_ms_p50"].known for line in facts.lines for p in line.points):
        del measures["tpot_ms_p50"]
    trend = _trend(facts, *measures)
    if not trend:
        return []
    step, spans, doubt = trend
    since = "; TTFT counts from when each request was to be sent" if spans[0][0].load_mode in OPEN_LOOPS else ""
    if _one_load(spans):
        told = [f"{words} is {_last(facts, spans, measure, ' ms')}" for measure, words in measures.items()]
        return said("Latency", [f"at {step}, {', and '.join(told)}{_mean_words(spans)}{doubt}{since}"])
    told = [f"{words} by {_per_line(facts, spans, _factor(measure))}" for measure, words in measures.items()]
    return said("Latency", [f"{step} multiplies {', and '.join(told)}{doubt}{since}", *_untold(facts, spans)])


def phases_sentences(facts: AnswerFacts) -> list[Sentence]:
    told: list[str] = []
    doubt = ""
    for engine in facts.engines:
        both = ("prefill_tokens_per_s", "decode_tokens_per_s")
        points = [
            p for x in facts.lines if x.engine == engine.label for p in x.usable(both[0]) if p.values[both[1]].mean
        ]
        valid = [p for p in points if p.verdict == "VALID"]
        doubt = f" ({SUSPECT_TOO})" if points and not valid else doubt
        ratios = [(p.values[both[0]].mean or 0) / (p.values[both[1]].mean or 1) for p in valid or points]
        if ratios:
            rate = " times" if told else " times the tokens/s of decode"
            told.append(span(ratios) + rate + (f" on {engine.label}" if several(facts) else ""))
    if not told:
        return []
    text = f"Prefill runs at {listed(told, 6)}{doubt}"
    names = [name for measure, name in PHASES.items() if facts.readings.estimated(measure)]
    if names:
        text += f"; {' and '.join(names)} rates are the client's estimates, in which the phases overlap"
        text += ", for every engine alike" if several(facts) else ""
    return [Sentence("Prefill and decode", f"{text}.", caution=bool(names or doubt))]
