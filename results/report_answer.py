"""The answer in words: sentences made from the numbers of a run, with what not to trust.

Nothing here judges one engine against another: a verdict needs blocks and intervals, and until then it says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from results.report_background import EngineInfo
from results.report_format import count, listed, number, percent, plural, size
from results.report_readings import PHASES, Readings
from results.report_shapes import VERDICTS, CellRow, Line, MemoryRow, Point, ReasonRow, load_words

# Fewer blocks than this give no interval that a verdict could stand on.
BLOCKS_FOR_A_VERDICT = 5
_GAPS = {
    "ttft_ms_p50": "TTFT p50",
    "ttft_ms_p90": "TTFT p90",
    "tpot_ms_p50": "TPOT p50",
    "decode_tokens_per_s": "decode tokens/s",
    "prefill_tokens_per_s": "prefill tokens/s",
}


@dataclass(frozen=True, slots=True)
class Sentence:
    """One statement, filed under a topic. `caution` marks what limits the others; `code` is the reason it tells of.

    `detail` holds what stands under it where there is no section of its own for it (terminal, Markdown).
    """

    topic: str
    text: str
    caution: bool = False
    code: str = ""
    detail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """What the sentences are made from."""

    model: str
    machine: str | None
    engines: Sequence[EngineInfo]
    cells: Sequence[CellRow]
    lines: Sequence[Line]
    reasons: Sequence[ReasonRow]
    memory: Sequence[MemoryRow]
    planned: int
    blocks: int
    alike: Sentence | None = None
    readings: Readings = field(default_factory=Readings)


def answer(facts: AnswerFacts) -> list[Sentence]:
    """All sentences, in the order they are read."""
    if not facts.cells:
        return [
            Sentence(
                "Measured",
                f"No cell has been committed yet, of {facts.planned} planned: there is nothing to conclude.",
                True,
            )
        ]
    return [
        *_measured(facts),
        *_engines(facts),
        *_throughput(facts),
        *_latency(facts),
        *_phases(facts),
        *_memory(facts),
        *_trust(facts),
    ]


def _several(facts: AnswerFacts) -> bool:
    return len(facts.engines) > 1


def _where(facts: AnswerFacts, line: Line) -> str:
    """Where a line was measured, no longer than it must be to be told from the others."""
    one_output = len({other.workload.output_tokens for other in facts.lines}) == 1
    return f"{line.workload.input_label} in" if one_output and line.workload.input_tokens else line.workload.label


def _step(first: Point, last: Point) -> str:
    """`batch 1 → 16`, or just `batch 1` where a line has one point."""
    if first.load_value == last.load_value:
        return first.load_label
    if first.load_mode == "batch":
        return f"batch {count(first.load_value)} → {count(last.load_value)}"
    return f"{first.load_label} → {last.load_label}"


Ends = tuple[Point, Point]


def _spans(facts: AnswerFacts, measure: str) -> list[tuple[str, list[tuple[Line, Ends]]]]:
    """Lines with their first and last point that knows `measure`, grouped by engine and load, so that one sentence holds each
    group. The text is that engine and load: `reference, batch 1 → 16`."""
    groups: dict[str, list[tuple[Line, Ends]]] = {}
    for line in facts.lines:
        if points := line.usable(measure):
            who = f"{line.engine}, " if _several(facts) else ""
            groups.setdefault(who + _step(points[0], points[-1]), []).append((line, (points[0], points[-1])))
    return list(groups.items())


def _from_to(ends: Ends, measure: str) -> str:
    first, last = (number(p.values[measure].mean) for p in ends)
    return first if first == last else f"{first} → {last}"


def _measured(facts: AnswerFacts) -> list[Sentence]:
    loads = dict.fromkeys((p.load_mode, p.load_value) for line in facts.lines for p in line.points)
    modes = dict.fromkeys(mode for mode, _ in loads)
    load = listed(
        [load_words(mode, v).replace(count(v), listed([count(w) for m, w in sorted(loads) if m == mode], 6)) for mode, v in
         ((mode, next(w for m, w in sorted(loads) if m == mode)) for mode in modes)]
    )  # fmt: skip
    labels = listed([line.workload.label for line in _first_per_workload(facts.lines)], 5)
    ok = sum(int(row.values["requests_ok"].mean or 0) for row in facts.cells)
    issued = sum(int(row.values["requests_issued"].mean or 0) for row in facts.cells)
    engines = listed([e.label for e in facts.engines])
    where = f" on {facts.machine}" if facts.machine else ""
    text = f"{engines} served {facts.model}{where} at {load}, {labels} tokens: {plural(len(facts.cells), 'cell')}"
    if facts.blocks > 1:
        text += f" in {facts.blocks} blocks"
    text += f", {ok:,} of {issued:,} requests answered in full."
    return [Sentence("Measured", text)]


def _first_per_workload(lines: Sequence[Line]) -> list[Line]:
    return list({line.workload.index: line for line in sorted(lines, key=lambda x: x.workload.index)}.values())


def _throughput(facts: AnswerFacts) -> list[Sentence]:
    found = []
    measure = "output_tokens_per_s"
    for _, spans in _spans(facts, measure):
        first, last = spans[0][1]
        engine = f" of {first.engine}" if _several(facts) else ""
        if first.load_value == last.load_value:
            rates = [f"{_from_to(ends, measure)} at {_where(facts, line)}" for line, ends in spans]
            found.append(f"{first.load_label} gives output tokens/s{engine} of {listed(rates, 6)}.")
            continue
        factors = [
            f"{number((b.values[measure].mean or 0) / (a.values[measure].mean or 1))} at {_where(facts, line)} "
            f"({_from_to((a, b), measure)})"
            for line, (a, b) in spans
        ]
        found.append(f"{_step(first, last)} multiplies output tokens/s{engine} by {listed(factors, 6)}.")
        for line, (_, end) in spans:
            best = max(line.usable(measure), key=lambda p: p.values[measure].mean or 0)
            if best is not end:
                most = f"{number(best.values[measure].mean)} at {best.load_label}"
                found.append(
                    f"At {_where(facts, line)}{engine} the most is {most}: beyond it, more load loses throughput."
                )
    return [Sentence("Throughput", _capital(text)) for text in [*found, *_lengths(facts)]]


def _lengths(facts: AnswerFacts) -> list[str]:
    """How the longest input compares with the shortest at the largest load both have."""
    found = []
    for engine in facts.engines:
        lines = sorted(
            (x for x in facts.lines if x.engine == engine.label and x.workload.input_tokens),
            key=lambda x: x.workload.index,
        )
        if len(lines) < 2 or lines[0].load_mode != lines[-1].load_mode:
            continue
        short, long = ({p.load_value: p for p in x.usable("output_tokens_per_s")} for x in (lines[0], lines[-1]))
        common = sorted(short.keys() & long.keys())
        if not common:
            continue
        a, b = (d[common[-1]].values["output_tokens_per_s"].mean for d in (short, long))
        if a and b:
            who = f" for {engine.label}" if _several(facts) else ""
            found.append(
                f"With {lines[-1].workload.input_label} tokens in instead of {lines[0].workload.input_label}, output tokens/s "
                f"{'falls' if b < a else 'goes'} to {percent(b / a)}{who} at {short[common[-1]].load_label}."
            )
    return found


def _latency(facts: AnswerFacts) -> list[Sentence]:
    found = []
    for measure, words in (("ttft_ms_p50", "TTFT p50"), ("tpot_ms_p50", "TPOT p50")):
        for who, spans in _spans(facts, measure):
            values = [f"{_from_to(ends, measure)} ms at {_where(facts, line)}" for line, ends in spans]
            found.append(Sentence("Latency", _capital(f"{who}: {words} {listed(values, 6)}.")))
    return found


def _phases(facts: AnswerFacts) -> list[Sentence]:
    found = []
    for measure, words in (("prefill_tokens_per_s", "prefill"), ("decode_tokens_per_s", "decode")):
        for who, spans in _spans(facts, measure):
            values = [f"{_from_to(ends, measure)} at {_where(facts, line)}" for line, ends in spans]
            found.append(Sentence("Prefill and decode", _capital(f"{who}: {words} tokens/s {listed(values, 6)}.")))
    for engine in facts.engines:
        known = [
            p
            for line in facts.lines
            if line.engine == engine.label
            for p in line.usable("prefill_tokens_per_s")
            if p.values["decode_tokens_per_s"].mean
        ]
        ratios = [
            ((p.values["prefill_tokens_per_s"].mean or 0) / (p.values["decode_tokens_per_s"].mean or 1), p)
            for p in known
        ]
        if not ratios:
            continue
        most, least = max(ratios, key=lambda r: r[0]), min(ratios, key=lambda r: r[0])
        who = f"{engine.label}: a" if _several(facts) else "A"
        text = f"{who} prompt token takes 1/{number(most[0])} of the time of an output token at {most[1].load_label}"
        text += f", {most[1].workload.label}"
        if most[0] > 1.2 * least[0]:
            text += f"; 1/{number(least[0])} at {least[1].load_label}, {least[1].workload.label}, where more requests share a step"
        if most[0] > 1:
            found.append(Sentence("Prefill and decode", f"{text}."))
    names = [name for measure, name in PHASES.items() if facts.readings.estimated(measure)]
    if found and names:
        text = f"{_capital_first(' and '.join(names))} rates are the client's estimates, in which the phases overlap"
        text += ", for every engine alike." if _several(facts) else "."
        found.append(Sentence("Prefill and decode", text, caution=True))
    return found


def _engines(facts: AnswerFacts) -> list[Sentence]:
    """Ratios between engines over the cells they share. No verdict: that is the comparison's to give."""
    found = []
    base = facts.engines[0].label if facts.engines else ""
    for other in facts.engines[1:]:
        ratios = sorted(_ratios(facts, base, other.label))
        if not ratios:
            continue
        (low, low_at), (high, high_at) = ratios[0], ratios[-1]
        if len(ratios) == 1:
            text = f"{other.label} gives {number(low)} times the output tokens/s of {base} ({low_at})."
        elif number(low) == number(high):
            text = f"{other.label} gives {number(low)} times the output tokens/s of {base} at every load."
        else:
            text = f"{other.label} gives {number(low)} to {number(high)} times the output tokens/s of {base}"
            text += f" (lowest at {low_at}; highest at {high_at})."
        found.append(Sentence("Engines", text))
    if found and facts.blocks < BLOCKS_FOR_A_VERDICT:
        text = (
            f"{plural(facts.blocks, 'block')} cannot tell these ratios from chance: a verdict needs at least "
            f"{BLOCKS_FOR_A_VERDICT} blocks (--blocks {BLOCKS_FOR_A_VERDICT})."
        )
        found.append(Sentence("Engines", text, caution=True))
    if facts.alike:
        found.append(facts.alike)
    return found


def _ratios(facts: AnswerFacts, base: str, other: str) -> list[tuple[float, str]]:
    """(other / base, where) for each workload and load: the geometric mean over the blocks in which both count."""
    rates: dict[tuple[str, str, str, float, int], float] = {}
    for row in facts.cells:
        rate = row.values["output_tokens_per_s"].mean
        if rate and row.verdict != "INVALID":
            rates[row.engine, row.workload.key, row.load_mode, row.load_value, row.block] = rate
    logs: dict[str, list[float]] = {}
    for row in facts.cells:
        place = (row.workload.key, row.load_mode, row.load_value, row.block)
        if row.engine == other and (other, *place) in rates and (base, *place) in rates:
            where = f"{load_words(row.load_mode, row.load_value)}, {row.workload.label}"
            logs.setdefault(where, []).append(math.log(rates[other, *place] / rates[base, *place]))
    return [(math.exp(math.fsum(values) / len(values)), where) for where, values in logs.items()]


def _memory(facts: AnswerFacts) -> list[Sentence]:
    found = []
    for engine in facts.engines:
        rows = [r for r in facts.memory if r.point.engine == engine.label]
        if not rows:
            continue
        top = max(rows, key=lambda r: r.predicted.mean or r.engine_says.mean or 0)
        who = f"{engine.label}'s " if _several(facts) else "The "
        text = f"{who}KV cache grows to {size(top.predicted.mean)} by the formula"
        if top.engine_says.known:
            text += f" and {size(top.engine_says.mean)} by the engine's own count"
            text += f" ({number(top.ratio)} times)" if top.ratio else ""
        text += f" at {top.point.load_label}, {top.point.workload.label}"
        per_token, weights = top.point.values["kv_bytes_per_token"], top.point.values["weight_bytes"]
        if per_token.known:
            text += f", {size(per_token.mean)} a token"
        if weights.mean and top.predicted.mean:
            text += f"; that is {percent(top.predicted.mean / weights.mean)} of the weights ({size(weights.mean)})"
        found.append(Sentence("Memory", f"{text}."))
    return found


def _trust(facts: AnswerFacts) -> list[Sentence]:
    cells = plural(len(facts.cells), "cell")
    counts = {v: sum(row.verdict == v for row in facts.cells) for v in VERDICTS}
    if counts["VALID"] == len(facts.cells):
        found = [(f"All {cells} are VALID." if len(facts.cells) > 1 else "The one cell is VALID.", False, "")]
    else:
        left_out = " INVALID cells are in no figure and in no sentence above." if counts["INVALID"] else ""
        found = [(f"{listed([f'{n} {v}' for v, n in counts.items() if n])} of {cells}.{left_out}", True, "")]
    for severity in ("invalid", "suspect"):
        for row in [r for r in facts.reasons if r.severity == severity][:2]:
            label, evidence = row.evidence[0]
            more = f" and {plural(len(row.evidence) - 1, 'other cell')}" if len(row.evidence) > 1 else ""
            found.append(
                (f"{row.words} ({row.code}, {severity}) in {label}{more}: {evidence.rstrip('.')}.", True, row.code)
            )
    gaps = [
        f"{words} in {missing}"
        for measure, words in _GAPS.items()
        if (missing := sum(row.verdict != "INVALID" and not row.values[measure].known for row in facts.cells))
    ]
    if gaps:
        found.append((f"Withheld or unknown, shown as gaps and never as 0: {listed(gaps, 5)} of {cells}.", True, ""))
    if facts.planned > len(facts.cells):
        text = f"The run is incomplete: {len(facts.cells)} of {facts.planned} planned cells are committed."
        found.append((f"{text} The same command again completes it.", True, ""))
    return [Sentence("What not to trust", *fields) for fields in found]


def _capital_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith(("batch ", "at ")) else text
