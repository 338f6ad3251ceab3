"""The answer in words: sentences made from the numbers of a run, with what not to trust.

Nothing here judges one engine against another: a verdict needs blocks and intervals, and until then it says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results.report_background import EngineInfo
from results.report_format import count, listed, number, percent, plural, size
from results.report_shapes import CellRow, Line, MemoryRow, Point, ReasonRow, load_words

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
    """One statement, filed under a topic. `caution` marks what limits the others."""

    topic: str
    text: str
    caution: bool = False


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
        *_throughput(facts),
        *_latency(facts),
        *_phases(facts),
        *_engines(facts),
        *_memory(facts),
        *_trust(facts),
    ]


def _several(facts: AnswerFacts) -> bool:
    return len(facts.engines) > 1


def _at(facts: AnswerFacts, line: Line) -> str:
    """Where a line was measured, no longer than it must be to be told from the others."""
    same = len({other.workload.output_tokens for other in facts.lines}) == 1
    where = f"{line.workload.input_label} in" if same and line.workload.input_tokens else line.workload.label
    return f"{line.engine} at {where}" if _several(facts) else f"at {where}"


def _step(first: Point, last: Point) -> str:
    if first.load_mode == last.load_mode == "batch":
        return f"batch {count(first.load_value)} → {count(last.load_value)}"
    return f"{first.load_label} → {last.load_label}"


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
    for line in facts.lines:
        points = line.usable("output_tokens_per_s")
        if not points:
            continue
        first, last = points[0], points[-1]
        low, high = first.values["output_tokens_per_s"].mean, last.values["output_tokens_per_s"].mean
        if first is last or not low or high is None:
            found.append(f"{first.load_label} gives {number(low)} output tokens/s {_at(facts, line)}.")
            continue
        text = (
            f"{_step(first, last)} multiplies output tokens/s by {number(high / low)} {_at(facts, line)} "
            f"({number(low)} → {number(high)})"
        )
        best = max(points, key=lambda p: p.values["output_tokens_per_s"].mean or 0)
        if best is not last and best is not first:
            text += f", with the most at {best.load_label} ({number(best.values['output_tokens_per_s'].mean)})"
        elif best is first:
            text += ": more load gains nothing here"
        found.append(f"{text}.")
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
            who = f" of {engine.label}" if _several(facts) else ""
            found.append(
                f"{lines[-1].workload.input_label} tokens in instead of {lines[0].workload.input_label} leave "
                f"{percent(b / a)} of the output tokens/s{who} at {short[common[-1]].load_label}."
            )
    return found


def _latency(facts: AnswerFacts) -> list[Sentence]:
    found = []
    for line in facts.lines:
        parts = []
        ends: list[Point] = []
        for measure, words in (("ttft_ms_p50", "TTFT p50"), ("tpot_ms_p50", "TPOT p50")):
            points = line.usable(measure)
            if points:
                ends = ends or [points[0], points[-1]]
                values = [
                    number(p.values[measure].mean) for p in ((points[0], points[-1]) if len(points) > 1 else points)
                ]
                parts.append(f"{words} {'goes from ' if len(values) > 1 else 'is '}{' to '.join(values)} ms")
        if parts:
            lead = (
                f"{_step(*ends)} {_at(facts, line)}"
                if ends[0] is not ends[1]
                else f"{ends[0].load_label} {_at(facts, line)}"
            )
            found.append(Sentence("Latency", _capital(f"{lead}: {', '.join(parts)}.")))
    return found


def _phases(facts: AnswerFacts) -> list[Sentence]:
    found = []
    for line in facts.lines:
        points = [p for p in line.usable("prefill_tokens_per_s") if p.values["decode_tokens_per_s"].known]
        if not points:
            continue
        first, last = points[0], points[-1]
        ratio = (first.values["prefill_tokens_per_s"].mean or 0) / (first.values["decode_tokens_per_s"].mean or 1)
        prefill, decode = (
            _span(first.values[k].mean, last.values[k].mean, first is last)
            for k in ("prefill_tokens_per_s", "decode_tokens_per_s")
        )
        text = f"{_at(facts, line)}, prefill runs at {prefill} tokens/s and decode at {decode}"
        text += f" ({_step(first, last)})" if first is not last else f" ({first.load_label})"
        text += (
            f"; at {first.load_label} a prompt token costs 1/{number(ratio)} of an output token."
            if ratio > 1.5
            else "."
        )
        found.append(Sentence("Prefill and decode", _capital(text)))
    return found


def _span(first: float | None, last: float | None, single: bool) -> str:
    return number(first) if single else f"{number(first)} → {number(last)}"


def _engines(facts: AnswerFacts) -> list[Sentence]:
    """Ratios between engines at the loads they share. No verdict: that is the comparison's to give."""
    found = []
    base = facts.engines[0].label
    for other in facts.engines[1:]:
        ratios = []
        for line in (x for x in facts.lines if x.engine == other.label):
            twin = next(
                (
                    x
                    for x in facts.lines
                    if x.engine == base and x.workload == line.workload and x.load_mode == line.load_mode
                ),
                None,
            )
            ours = {p.load_value: p for p in line.usable("output_tokens_per_s")}
            theirs = {p.load_value: p for p in twin.usable("output_tokens_per_s")} if twin else {}
            for load in ours.keys() & theirs.keys():
                a, b = (d[load].values["output_tokens_per_s"].mean for d in (ours, theirs))
                if a and b:
                    ratios.append((a / b, f"{ours[load].load_label}, {line.workload.label}"))
        if not ratios:
            continue
        low, high = min(ratios), max(ratios)
        text = f"{other.label} gives {number(low[0])} times the output tokens/s of {base} ({low[1]})"
        if len(ratios) > 1:
            text = f"{other.label} gives {number(low[0])} to {number(high[0])} times the output tokens/s of {base} (lowest at {low[1]}; highest at {high[1]})"
        found.append(Sentence("Engines", f"{text}."))
    if found and facts.blocks < BLOCKS_FOR_A_VERDICT:
        text = (
            f"{plural(facts.blocks, 'block')} cannot tell these ratios from chance: a verdict needs at least "
            f"{BLOCKS_FOR_A_VERDICT} blocks (--blocks {BLOCKS_FOR_A_VERDICT})."
        )
        found.append(Sentence("Engines", text, caution=True))
    return found


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
            text += f", {count((per_token.mean or 0) / 1024)} KiB a token"
        if weights.mean and top.predicted.mean:
            text += f"; that is {percent(top.predicted.mean / weights.mean)} of the weights ({size(weights.mean)})"
        found.append(Sentence("Memory", f"{text}."))
    return found


def _trust(facts: AnswerFacts) -> list[Sentence]:
    counts = {v: sum(row.verdict == v for row in facts.cells) for v in ("VALID", "SUSPECT", "INVALID")}
    shown = [f"{n} {verdict}" for verdict, n in counts.items() if n]
    found = []
    if counts["VALID"] == len(facts.cells):
        found.append(
            Sentence(
                "What not to trust",
                f"All {plural(len(facts.cells), 'cell')} are VALID."
                if len(facts.cells) > 1
                else "The one cell is VALID.",
            )
        )
    else:
        found.append(
            Sentence(
                "What not to trust",
                f"{listed(shown)} of {plural(len(facts.cells), 'cell')}. INVALID cells are in no figure line and no sentence above.",
                True,
            )
        )
    for severity in ("invalid", "suspect"):
        for row in [r for r in facts.reasons if r.severity == severity][:2]:
            label, evidence = row.evidence[0]
            more = f" and {plural(len(row.evidence) - 1, 'other cell')}" if len(row.evidence) > 1 else ""
            found.append(
                Sentence(
                    "What not to trust", f"{row.code} ({severity}) in {label}{more}: {evidence.rstrip('.')}.", True
                )
            )
    gaps = [
        f"{words} in {missing}"
        for measure, words in _GAPS.items()
        if (missing := sum(row.verdict != "INVALID" and not row.values[measure].known for row in facts.cells))
    ]
    if gaps:
        found.append(
            Sentence(
                "What not to trust",
                f"Withheld or unknown, shown as gaps and never as 0: {listed(gaps, 5)} of {plural(len(facts.cells), 'cell')}.",
                True,
            )
        )
    if facts.planned > len(facts.cells):
        found.append(
            Sentence(
                "What not to trust",
                f"The run is incomplete: {len(facts.cells)} of {facts.planned} planned cells are committed. The same command again completes it.",
                True,
            )
        )
    return found


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith(("batch ", "at ")) else text
