"""A comparison in words, the same in terminal, Markdown and report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from results.comparison import EQUIVALENT, FASTER, INCONCLUSIVE, REFUSED, SLOWER, Comparison, Row
from results.report_format import UNKNOWN, listed, number, plural
from results.report_measures import MEASURE
from results.statistics import MOST_BLOCKS

# What an announced number counts: blocks that chose it happen to be alike, and would call equals different too often.
WITHOUT_PILOT = "(a run of their own, without the pilot)"
VERDICT_ORDER = (FASTER, SLOWER, EQUIVALENT, INCONCLUSIVE, REFUSED)


def ratio_words(row: Row) -> str:
    """`1.21 [1.15, 1.27]`, three digits after the point where the interval is narrower than that tells."""
    if row.ratio is None:
        return UNKNOWN
    if row.low is None or row.high is None:
        return f"{row.ratio:.3f}"
    return f"{row.ratio:.3f} [{row.low:.3f}, {row.high:.3f}]"


def interval_words(row: Row) -> str:
    """`1.15 to 1.27`."""
    return UNKNOWN if row.low is None or row.high is None else f"{row.low:.3f} to {row.high:.3f}"


def verdict_words(row: Row) -> str:
    """The verdict with its mark: SUSPECT travels with the number."""
    return f"{row.verdict}{' SUSPECT' if row.suspect else ''}"


def place_words(row: Row) -> str:
    return f"{row.load}, {row.workload}" if row.load else "all points"


def share_words(share: float) -> str:
    """`95 %`, `2.5 %`."""
    return f"{100 * share:.4g} %"


def side_words(comparison: Comparison) -> tuple[str, str]:
    """Both sides by engine, and by run as well where the engines are called alike."""
    if comparison.base != comparison.other:
        return comparison.base, comparison.other
    return f"{comparison.base} of {comparison.base_run}", f"{comparison.other} of {comparison.other_run}"


def how_words(comparison: Comparison) -> str:
    """How it was compared, in one sentence."""
    how = "paired by block" if comparison.paired else "unpaired (two runs share no block), so the intervals are wider"
    base, other = side_words(comparison)
    return (
        f"{other} / {base}, {how}; {share_words(comparison.confidence)} intervals of the mean log ratio over blocks, equivalent "
        f"within {share_words(comparison.margin)}, figures of the {comparison.scope} cell."
    )


def verdict_sentence(comparison: Comparison) -> str:
    """What the primary metric says over all points, how sure that is, and what it rests on."""
    row, (base, other) = comparison.overall, side_words(comparison)
    words = MEASURE[comparison.metric].words
    if row is None or row.ratio is None:
        return f"No verdict on {other} against {base}: {row.why if row else 'no point in common'}."
    points = len(comparison.primary)
    where = f"over {points} points" if points > 1 else f"at {place_words(comparison.primary[0])}"
    basis = f"{plural(row.n_blocks, 'block')}{'' if comparison.paired else ' a side, unpaired'}"
    suspect = f", {plural(row.suspect, 'cell')} SUSPECT ({listed(list(row.codes), 3)})" if row.suspect else ""
    text = f"{other} is {_is(row, base)} {where}: {words} {number(row.ratio)} times"
    sure = f", {share_words(comparison.confidence)} sure of {interval_words(row)}" if row.low is not None else ""
    return f"{text}{sure} ({basis}{suspect}){_more(row)}."


def ratio_sentence(comparison: Comparison) -> str:
    """What too few blocks for a verdict show over all points: the ratio with its ends, its interval, and what it rests on."""
    row, (base, other) = comparison.overall, side_words(comparison)
    if row is None or row.ratio is None:
        return verdict_sentence(comparison)
    words, points = MEASURE[comparison.metric].words, comparison.primary
    where = f"over {len(points)} points" if len(points) > 1 else f"at {place_words(points[0])}"
    ends = f" ({told})" if (told := _ends(points, lambda row: number(row.ratio))) else ""
    sure = "no interval" if row.low is None else f"{share_words(comparison.confidence)} sure of {interval_words(row)}"
    suspect = f", {plural(row.suspect, 'cell')} SUSPECT" if row.suspect else ""
    basis = f"{plural(row.n_blocks, 'block')}{suspect}"
    return f"{other} gives {number(row.ratio)} times the {words[:1].lower()}{words[1:]} of {base} {where}{ends}, {sure} ({basis})."


def looks_sentence(*comparisons: Comparison) -> str:
    """How many false alarms the points stand for, where there are several; of comparisons of one confidence."""
    tested = [row for comparison in comparisons for row in comparison.primary if row.p is not None]
    if len(tested) < 2:
        return ""
    share = 1 - comparisons[0].confidence
    return (
        f"Each of the {len(tested)} verdicts on single points stands for itself: of as many without any difference, "
        f"{number(share * len(tested))} would show one by chance. What is said over all points of two engines is one test."
    )


def points_sentence(comparison: Comparison) -> str:
    """`2 faster, 1 inconclusive of 3 points`, and which ones part from the rest; empty for a single point."""
    rows = comparison.primary
    if len(rows) < 2:
        return ""
    counts = [(v, sum(row.verdict == v for row in rows)) for v in VERDICT_ORDER]
    told = listed([f"{n} {v}" for v, n in counts if n])
    ends = f": {text}" if (text := _ends(rows, ratio_words)) else ""
    return f"Of {len(rows)} points {told}{ends}."


def row_notes(row: Row) -> str:
    """What stands beside a row: why it is no verdict, how many blocks would make it one, what was left out."""
    parts = [row.why] if row.why else []
    parts += [words] if (words := needed_words(row)) else []
    if row.suspect:
        parts.append(f"{plural(row.suspect, 'cell')} SUSPECT: {listed(list(row.codes), 3)}")
    if row.invalid:
        parts.append(f"{plural(row.invalid, 'cell')} INVALID, left out")
    return "; ".join(parts)


def needed_words(row: Row) -> str:
    """How many new blocks would find a slowdown as large as the margin, as far as those that are there tell; empty where there is
    a verdict or no spread is known."""
    if row.verdict != INCONCLUSIVE or row.low is None:
        return ""
    effect = share_words(row.margin)
    if row.blocks_needed is None:
        return f"no number of blocks up to {MOST_BLOCKS:,} would find {effect} with this spread"
    if row.blocks_needed <= row.n_blocks:
        return f"so many blocks would have found a slowdown of {effect}"
    return f"{row.blocks_needed} new blocks {WITHOUT_PILOT} would find {effect}, as far as {row.n_blocks} tell"


def besides_sentence(comparison: Comparison) -> str:
    """What the other metrics show, Holm's way; empty where there is nothing to say of them."""
    rest = [row for row in comparison.points if not row.primary and row.p is not None]
    if not rest:
        return ""
    parts = []
    for verdict in (FASTER, SLOWER):
        found = [row for row in rest if row.verdict == verdict]
        names = list(dict.fromkeys(MEASURE[row.metric].words for row in found))
        if found:
            parts.append(f"{verdict} in {len(found)} ({listed(names, 6)})")
    told = listed(parts) if parts else "none shows a difference"
    return f"Of {len(rest)} looks at other metrics, allowing for their number (Holm): {told}."


def shown_rows(comparison: Comparison, every: bool) -> Sequence[Row]:
    """The rows worth a line: the primary metric's, or all that any side knows."""
    return [row for row in comparison.points if row.primary or (every and row.verdict != REFUSED)]


def _is(row: Row, base: str) -> str:
    if row.verdict in (FASTER, SLOWER):
        return f"{row.verdict} than {base}"
    if row.verdict == EQUIVALENT:
        return f"equivalent to {base} within {share_words(row.margin)}"
    return f"not shown to differ from {base}"


def _more(row: Row) -> str:
    """What the blocks would have found, where they found nothing."""
    if row.verdict != INCONCLUSIVE:
        return ""
    parts = [f"; inconclusive: {row.why}"]
    if row.mde is not None and row.n_blocks:
        parts.append(f", so many blocks would find only slowdowns above {100 * row.mde:.1f} %")
    parts += [f"; {words}"] if (words := needed_words(row)) else []
    return "".join(parts)


def _ends(rows: Sequence[Row], words: Callable[[Row], str]) -> str:
    """The smallest and the largest ratio with their points, where those differ."""
    known = sorted((row for row in rows if row.ratio is not None), key=lambda row: row.ratio or 0.0)
    if not known or number(known[0].ratio) == number(known[-1].ratio):
        return ""
    return f"{words(known[0])} at {place_words(known[0])} to {words(known[-1])} at {place_words(known[-1])}"
