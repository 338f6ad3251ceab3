"""The answer in words: at most a sentence a topic, made from the numbers of a run, with what not to trust.

Sentences tell how numbers move and compare; single numbers are the table's. Nothing here judges one engine against another:
a verdict needs blocks and intervals: it is the comparison's, and until then it says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from results.reasons import CEILING_REFUTED
from results.report_format import count, listed, number, percent, plural, size
from results.report_reasons import evidence_groups
from results.report_sentences import SUSPECT_TOO, AnswerFacts, Sentence, span
from results.report_shapes import VERDICTS, load_words
from results.report_trends import latency_sentences, lengths_sentences, phases_sentences, throughput_sentences
from results.statistics import BLOCKS_FOR_A_VERDICT

_GAPS = {
    "ttft_ms_p50": "TTFT p50",
    "ttft_ms_p90": "TTFT p90",
    "tpot_ms_p50": "TPOT p50",
    "decode_tokens_per_s": "decode tokens/s",
    "prefill_tokens_per_s": "prefill tokens/s",
}

_SEARCH = Sentence(
    "Search",
    "These are trials of a tuning, short at first, of which the best go on: the best of many flatters itself, so they are no evidence "
    "that it is faster. That is what the confirmation is for, a run of its own (confirm-*/report.html beside this report).",
    True,
)


def answer(facts: AnswerFacts) -> list[Sentence]:
    """All sentences, in the order they are read."""
    if not facts.cells:
        text = f"No cell has been committed yet, of {facts.planned} planned: there is nothing to conclude."
        return [Sentence("Measured", text, True)]
    return [
        *_measured(facts),
        *([_SEARCH] if facts.search else []),
        *_engines(facts),
        *facts.sure,
        *throughput_sentences(facts),
        *lengths_sentences(facts),
        *latency_sentences(facts),
        *phases_sentences(facts),
        *([facts.limits] if facts.limits else []),
        *_memory(facts),
        *_trust(facts),
    ]


def _measured(facts: AnswerFacts) -> list[Sentence]:
    loads: dict[str, list[float]] = {}
    for mode, value in sorted({(p.load_mode, p.load_value) for line in facts.lines for p in line.points}):
        loads.setdefault(mode, []).append(value)
    load = listed([load_words(mode, listed([count(v) for v in values], 6)) for mode, values in loads.items()])
    labels = list(dict.fromkeys(x.workload.label for x in sorted(facts.lines, key=lambda x: x.workload.index)))
    ok = sum(int(row.values["requests_ok"].mean or 0) for row in facts.cells)
    issued = sum(int(row.values["requests_issued"].mean or 0) for row in facts.cells)
    where = f" on {facts.machine}" if facts.machine else ""
    text = f"{listed([e.label for e in facts.engines])} served {facts.model}{where} at {load}, {listed(labels, 5)} tokens: "
    text += plural(len(facts.cells), "cell") + (f" in {facts.blocks} blocks" if facts.blocks > 1 else "")
    return [Sentence("Measured", f"{text}, {ok:,} of {issued:,} requests answered in full.")]


def _engines(facts: AnswerFacts) -> list[Sentence]:
    """Ratios between engines over the cells they share: the comparison's, with its verdict where there are blocks enough for one; of
    one block (and of a search) the bare ratios."""
    beside = [sentence for sentence in (facts.alike, facts.tokens) if sentence]
    base = facts.engines[0].label if facts.engines else ""
    few = facts.search or facts.blocks < BLOCKS_FOR_A_VERDICT
    verdict = f": no verdict below {BLOCKS_FOR_A_VERDICT} blocks ({_more_blocks(facts)})" if few else ""
    if facts.search:
        verdict = ": no verdict from a search"
    if facts.verdicts:
        told = []
        for other, text in facts.verdicts:
            careful = few or "inconclusive" in text or "SUSPECT" in text
            labelled = f"{text.removesuffix('.')}{_tokens(facts, base, other, ', tokens {}')}{verdict}."
            told.append(Sentence("Engines", labelled, caution=careful))
        return [*told, *beside]
    compared = [(e.label, found) for e in facts.engines[1:] if (found := _ratios(facts, base, e.label)).ratios]
    sentences = []
    if len(compared) == 1:
        other, found = compared[0]
        text = f"{other} gives {found.mean} times the output tokens/s of {base} at equal cells{found.range_words}"
        sentences.append(f"{text}, {found.basis}{_tokens(facts, base, other, ', tokens {}')}")
    elif compared:
        parts = [
            f"{other} {found.mean}{found.range_words}{_tokens(facts, base, other, ' (tokens {})')}"
            for other, found in compared
        ]
        text = f"Times the output tokens/s of {base} at equal cells: {listed(parts, 6)}"
        sentences.append(f"{text}, {compared[0][1].basis}")
    said = [Sentence("Engines", f"{text}{verdict}.", caution=few) for text in sentences]
    return [*said, *beside]


def _more_blocks(facts: AnswerFacts) -> str:
    """How there come to be enough of them."""
    if facts.blocks_asked < BLOCKS_FOR_A_VERDICT:
        return f"--blocks {BLOCKS_FOR_A_VERDICT}"
    return f"{facts.blocks} of the {facts.blocks_asked} asked for are measured: the same command again completes them"


def _tokens(facts: AnswerFacts, base: str, other: str, form: str) -> str:
    """The label of a ratio: the class of the two engines' tokens, where that was asked."""
    kind = facts.kind_of(base, other)
    return form.format(kind) if kind else ""


@dataclass(frozen=True, slots=True)
class _Ratios:
    """Ratios of two engines, each with where, and what they rest on; a block is counted where both have a cell."""

    ratios: list[tuple[float, str]]
    blocks: int
    suspect: bool

    @property
    def mean(self) -> str:
        return number(math.exp(math.fsum(math.log(r) for r, _ in self.ratios) / len(self.ratios)))

    @property
    def range_words(self) -> str:
        (low, low_at), (high, high_at) = min(self.ratios), max(self.ratios)
        if number(low) == number(high):
            return ""
        return f" ({number(low)} at {low_at} to {number(high)} at {high_at})"

    @property
    def basis(self) -> str:
        return plural(self.blocks, "block") + (f", {SUSPECT_TOO}" if self.suspect else "")


def _ratios(facts: AnswerFacts, base: str, other: str) -> _Ratios:
    """other / base for each workload and load: the geometric mean over the blocks in which both count. Pairs of VALID cells
    where there are any, else those with SUSPECT ones too."""
    rates: dict[tuple[str, str, str, float, int], tuple[float, bool]] = {}
    for row in facts.cells:
        rate = row.values["output_tokens_per_s"].mean
        if rate and row.verdict != "INVALID":
            rates[row.engine, row.workload.key, row.load_mode, row.load_value, row.block] = (
                rate,
                row.verdict == "VALID",
            )
    pairs: list[tuple[str, int, float, bool]] = []
    for row in facts.cells:
        place = (row.workload.key, row.load_mode, row.load_value, row.block)
        if row.engine == other and (other, *place) in rates and (base, *place) in rates:
            where = f"{load_words(row.load_mode, row.load_value)}, {row.workload.label}"
            (a, a_valid), (b, b_valid) = rates[base, *place], rates[other, *place]
            pairs.append((where, row.block, math.log(b / a), a_valid and b_valid))
    valid = [pair for pair in pairs if pair[3]]
    logs: dict[str, list[float]] = {}
    for where, _, log, _ in valid or pairs:
        logs.setdefault(where, []).append(log)
    ratios = [(math.exp(math.fsum(values) / len(values)), where) for where, values in logs.items()]
    return _Ratios(ratios, len({block for _, block, _, _ in valid or pairs}), bool(pairs) and not valid)


def _memory(facts: AnswerFacts) -> list[Sentence]:
    valid = [r for r in facts.memory if r.point.verdict == "VALID"]
    rows = valid or list(facts.memory)
    if not rows:
        return []
    top = max(rows, key=lambda r: r.predicted.mean or r.engine_says.mean or 0)
    at = f"{top.point.load_label}, {top.point.workload.label}"
    per_token, weights = top.point.values["kv_bytes_per_token"], top.point.values["weight_bytes"]
    held = top.predicted if top.predicted.known else top.engine_says
    grows = f"The KV cache grows by {size(per_token.mean)} a token, to" if per_token.known else "The KV cache grows to"
    # The formula is one for all engines; a count is of the engine that made it.
    whose = "by the formula" if top.predicted.known else f"on {top.point.engine}"
    text = f"{grows} {size(held.mean)} {whose} at {at}"
    if weights.mean and held.mean:
        text += f" ({percent(held.mean / weights.mean)} of the weights)"
    own: dict[str, list[float]] = {}
    for row in rows:
        if row.ratio is not None:
            own.setdefault(row.point.engine, []).append(row.ratio)
    if own:
        alike = len({span(ratios) for ratios in own.values()}) == 1 and len(own) == len(facts.engines)
        told = [f"{span(ratios)} times that{'' if alike else f' on {e}'}" for e, ratios in own.items()]
        text += f"; by the engine's own count {told[0] if alike else listed(told, 6)}"
    return [Sentence("Memory", f"{text}{'' if valid else f' ({SUSPECT_TOO})'}.", caution=not valid)]


def _trust(facts: AnswerFacts) -> list[Sentence]:
    cells = plural(len(facts.cells), "cell")
    counts = {v: sum(row.verdict == v for row in facts.cells) for v in VERDICTS}
    if counts["VALID"] == len(facts.cells):
        found = [(f"All {cells} are VALID." if len(facts.cells) > 1 else "The one cell is VALID.", False, "")]
    else:
        left_out = " INVALID cells are in no figure and in no sentence above." if counts["INVALID"] else ""
        found = [(f"{listed([f'{n} {v}' for v, n in counts.items() if n])} of {cells}.{left_out}", True, "")]
    for row in facts.reasons:
        if row.severity != "note" or row.code == CEILING_REFUTED:
            groups = evidence_groups(row)
            text = f"{row.words} ({row.code}, {row.severity}) in {groups[0].named(2)}: {groups[0].text.rstrip('.')}"
            rest = sum(len(g.cells) for g in groups[1:])
            text += f"; likewise in {plural(rest, 'other cell')}" if rest else ""
            found.append((f"{text}.", True, row.code))
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
