"""The gate's answer in words, the same in terminal, Markdown and JUnit."""

from __future__ import annotations

from results.comparison_words import WITHOUT_PILOT
from results.regression import (
    BASELINE,
    FAILED,
    INCONCLUSIVE,
    PAIRED,
    PASS,
    REGRESSION,
    SUSPECTED,
    Gate,
    GateRow,
)
from results.regression_metrics import gate_metric
from results.report_format import UNKNOWN, listed, number, plural
from results.statistics import MOST_BLOCKS

HEADLINES = {PASS: "PASS", REGRESSION: "REGRESSION", INCONCLUSIVE: "INCONCLUSIVE", FAILED: "FAILED"}
_MODES = {
    PAIRED: "paired by block inside one run; a regression is confirmed in new sessions before it fails",
    BASELINE: "against a recorded baseline: unpaired, so wider, and without confirmation",
}
_UNPAIRED = "two runs: unpaired, so wider than inside one run, and without confirmation"
# Settings that decide how much runs at once.
_BATCH_SETTINGS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "chunked_prefill",
    "scheduler",
    "block_size",
)


def percent_words(share: float | None) -> str:
    """`4.9 %`, a dash where it is not known."""
    return UNKNOWN if share is None else f"{100 * share:.3g} %"


def ratio_words(row: GateRow) -> str:
    """`1.021 [1.010, 1.032]`; of a counter that agrees in all blocks, `1.500 exactly`."""
    if row.ratio is None:
        return UNKNOWN
    if row.exact:
        return f"{row.ratio:.3f} exactly"
    known = row.low is not None and row.high is not None
    return f"{row.ratio:.3f} [{row.low:.3f}, {row.high:.3f}]" if known else f"{row.ratio:.3f}"


def headline(gate: Gate) -> str:
    """The answer in one sentence."""
    bad = gate.of(REGRESSION)
    what = f"{HEADLINES[gate.verdict]}: {gate.cand} against {gate.base}"
    if gate.verdict == FAILED:
        return f"{what}: {listed(gate.faults, 3)}."
    if bad:
        return f"{what}: {listed([_short(row) for row in bad], 3)}."
    if gate.verdict == PASS:
        return f"{what}: no worse by more than the margin in any of {plural(len(gate.points), 'look')}."
    open_rows = [row for row in gate.points if row.verdict in (INCONCLUSIVE, SUSPECTED)]
    if not open_rows:
        return f"{what}: nothing could be looked at."
    suspected = gate.of(SUSPECTED)
    if suspected:
        return (
            f"{what}: {listed([_short(row) for row in suspected], 3)} worse at first sight, not confirmed. Next: the same command "
            "with --confirm, which measures both again in new sessions."
        )
    return f"{what}: {len(open_rows)} of {plural(len(gate.points), 'look')} cannot tell."


def how(gate: Gate) -> str:
    """How it was looked at."""
    basis = "values are geometric means over blocks"
    return f"{100 * gate.confidence:g} % intervals of candidate / base, {_MODES.get(gate.mode, _UNPAIRED)}; {basis}."


def seen(gate: Gate) -> str:
    """Which effect this run could have seen, by kind of metric."""
    parts = []
    for kind in dict.fromkeys(row.kind for row in gate.points):
        known = [row.mde for row in gate.points if row.kind == kind and row.mde is not None]
        if known:
            ends = dict.fromkeys([percent_words(min(known)), percent_words(max(known))])
            parts.append(f"{kind} {' to '.join(ends)}")
    if not parts:
        return "What this run could have seen is not known: it takes two blocks a side."
    return f"The smallest worsening this run would have called a regression (95 of 100 times): {listed(parts)}."


def asked_words(gate: Gate) -> str:
    """The margins, by kind of metric, and how many blocks the rows rest on."""
    parts = []
    for kind in dict.fromkeys(row.kind for row in gate.points):
        margins = [row.margin for row in gate.points if row.kind == kind]
        parts.append(f"{kind} {' to '.join(dict.fromkeys([percent_words(min(margins)), percent_words(max(margins))]))}")
    blocks = [row.n_blocks for row in gate.points]
    ends = dict.fromkeys([f"{min(blocks)}", f"{max(blocks)}"]) if blocks else ()
    return f"Margins: {listed(parts)}. Blocks: {' to '.join(ends)}." if parts else ""


def announced_words(gate: Gate) -> str:
    """How many new blocks would tell, where some rows cannot; empty where all can."""
    # Without an interval nothing is known of the spread.
    rows = [row for row in gate.points if row.verdict == INCONCLUSIVE and row.low is not None and not row.exact]
    if not rows:
        return ""
    known = [row for row in rows if row.blocks_needed]
    never = len(rows) - len(known)
    none = f"No number of blocks up to {MOST_BLOCKS:,} would tell"
    if not known:
        return f"{none} with this spread: widen the margin, or measure on a quieter machine."
    most = max(known, key=lambda row: row.blocks_needed or 0)
    apart = f"tell {percent_words(most.effect)} from the margin of {percent_words(most.margin)}"
    where = f"{f'in {len(known)} of {len(rows)} rows' if never else 'in all rows'} (the most: {most.metric} at {most.place})"
    if (most.blocks_needed or 0) <= most.n_blocks:
        text = f"So many blocks {apart} {where}: what is inconclusive lies near the margin."
    else:
        unit = "new blocks" if gate.mode == PAIRED else "new blocks a side"
        text = f"{most.blocks_needed} {unit} {WITHOUT_PILOT} would {apart} {where}, as far as {most.n_blocks} tell."
    return f"{text} {none} in the other {plural(never, 'row')}." if never else text


def reasons(gate: Gate) -> list[str]:
    """Why rows are what they are, each reason once with the rows it is said of."""
    said: dict[str, list[str]] = {}
    for row in gate.points:
        if row.why:
            said.setdefault(row.why, []).append(f"{row.metric} at {row.place}")
    return [f"{listed(about, 3)}: {why}." for why, about in said.items()]


def notes(gate: Gate) -> list[str]:
    """What else must be said: faults, what was disregarded, what is compared, what nobody told."""
    found = [f"FAULT: {fault}." for fault in gate.faults]
    found += [f"DISREGARDED: {item}." for item in gate.unlike]
    found += [text] if (text := _of_the_batch(gate)) else []
    found += [f"differs: {item}." for item in gate.differs]
    found += [f"Not in the base: {item}." for item in gate.extra]
    if gate.silent:
        found.append(f"Neither side tells {listed(gate.silent, 6)}.")
    if gate.confirmed_by:
        found.append("What was worse at first sight was measured again in new sessions.")
    suspect = sum(row.suspect for row in gate.points)
    if suspect:
        found.append("Rows marked SUSPECT, or with a star, rest on cells that are.")
    return found


def _of_the_batch(gate: Gate) -> str:
    """What else may make a counter larger where settings were allowed to differ; empty where nothing does."""
    settings = [item for item in gate.unlike if item.split(":")[0] in _BATCH_SETTINGS]
    worse = [
        row.metric
        for row in gate.points
        if gate_metric(row.metric).by_arrival and row.verdict in (SUSPECTED, REGRESSION)
    ]
    if not settings or not worse:
        return ""
    return (
        f"{listed(list(dict.fromkeys(worse)))} follows how many requests run at once, and settings that decide it were allowed to "
        f"differ ({listed(settings)}): what is worse there may be that alone."
    )


def row_words(row: GateRow) -> str:
    """Why a row is what it is, with its numbers; for JUnit and tips."""
    parts = [f"{row.metric} at {row.place}: candidate / base {ratio_words(row)}, {row.better} is better"]
    parts.append(f"margin {percent_words(row.margin)}, {plural(row.n_blocks, 'block')}")
    parts.append(f"sees {percent_words(row.mde)}")
    if row.why:
        parts.append(row.why)
    return "; ".join(parts)


def verdict_words(row: GateRow) -> str:
    return f"{row.verdict}{' SUSPECT' if row.suspect else ''}"


def values_words(row: GateRow) -> str:
    """`1,204 → 1,198 tok/s`."""
    return f"{number(row.base)} → {number(row.cand)} {row.unit}".rstrip()


def _short(row: GateRow) -> str:
    return f"{row.metric} {ratio_words(row)} at {row.place}"
