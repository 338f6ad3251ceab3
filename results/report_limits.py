"""What a report shows of the limiting factors: a row a point, with a sentence that a newcomer understands."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from results.report_format import listed, number, percent
from results.report_sentences import SUSPECT_TOO, Sentence
from results.report_shapes import Line, Point, workload_key
from results.report_why import Decision

# Factor -> (a few words for a table, what it means, what would help).
BATCH_WORDS: dict[str, tuple[str, str]] = {
    "offered_load": (
        "the offered load",
        "the batch is what the load offers: more requests at once would make it larger",
    ),
    "client": (
        "the client",
        "slots of the client stood idle between answers: a faster client would make the batch larger",
    ),
    "max_num_seqs": ("max_num_seqs", "requests waited while as many ran as max_num_seqs allows: raise it"),
    "token_budget": (
        "the token budget",
        "steps were full of tokens while requests waited: raise max_num_batched_tokens",
    ),
    "kv_capacity": (
        "KV capacity",
        "requests waited for KV blocks that were in use: a larger KV cache, or smaller KV elements, would make room",
    ),
    "kv_reservation": (
        "KV reservation",
        "requests waited for KV blocks that were promised to others but not in use: admission on demand would let them in",
    ),
    "static_batching": (
        "static batching",
        "requests waited for the whole batch to end: continuous batching would let them in",
    ),
}
# What is known of waiting, by where it was read: each looks at moments, and what came and went between two of them is not seen.
_NONE_WAITED = {
    "steps": "no request waited at the start of a step",
    "gauges": "no request waited when the server's gauges were read",
    "xray": "no request was without its first token at the start of a step",
}
# A share from here on is all of the time, as a percentage shows it.
_ALL = 0.995
STEP_WORDS: dict[str, tuple[str, str]] = {
    "compute": (
        "compute",
        "a step spends most of its time on arithmetic: more prompt tokens or a larger batch cost in full",
    ),
    "power": ("power", "arithmetic is slow because power or heat holds the clock down"),
    "bandwidth": (
        "memory bandwidth",
        "a step spends most of its time reading weights and KV: a larger batch reads the weights for more requests at once",
    ),
    "host_gap": (
        "host work",
        "much of the time passes between steps: the engine's own work on the CPU holds the device up",
    ),
}
_SHARE_WORDS = {
    "offered_load": "offered load",
    "client": "client",
    "max_num_seqs": "max_num_seqs",
    "token_budget": "token budget",
    "kv_capacity": "KV capacity",
    "kv_reservation": "KV reservation",
    "static_batching": "static batching",
    "compute": "compute",
    "power": "power",
    "bandwidth": "bandwidth",
    "host_gap": "between steps",
    "unexplained": "unexplained",
}
_BASIS = {"steps": "the engine's step log", "xray": "X-ray of the arrivals", "gauges": "the server's gauges"}
_MOST_TO_ASK = 4
TOO_LOW = (
    " A use above 100 % says that the ceiling was measured too low: other work held the machine then, or the engine's kernels are "
    "better than the probe. Shares of compute and bandwidth are then too high as well. Ceilings belong to a run: the same sweep "
    "into another folder (--out), on a quiet machine, measures them again; dyno roofline MODEL --device this shows them alone."
)
WHY_NEEDS = "Shares tell where to look; the command dyno why changes one resource at a time and decides."


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the pair: the factor in a few words (`mixed`, `undetermined`), its shares, what it means, and the basis. `why`
    says what keeps it from being named."""

    factor: str
    named: bool
    shares: tuple[str, ...]
    meaning: str
    evidence: str
    basis: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A point's pair, from the cell of it that ran last, and its use of the machine in words."""

    point: Point
    cell: str
    batch: Side
    step: Side
    use: tuple[str, ...]


@dataclass(slots=True)
class LimitReport:
    """`ceilings` says what percentages are of; empty where nothing was measured. `decisions` are those of `dyno why`, where it
    has been run."""

    rows: list[LimitRow] = field(default_factory=list)
    ceilings: str = ""
    decisions: list[Decision] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.rows or self.decisions)


def limit_report(cells: Sequence[Mapping[str, Any]], lines: Iterable[Line]) -> LimitReport:
    """Rows for every point that has limits, in the order of the lines."""
    by_point: dict[tuple[str, str, str, float], Mapping[str, Any]] = {}
    for cell in cells:
        load = cell.get("load") or {}
        if (
            cell.get("verdict") != "INVALID"
            and isinstance(cell.get("limits"), Mapping)
            and load.get("value") is not None
        ):
            key = (
                str(cell.get("engine")),
                workload_key(cell.get("workload") or {}),
                str(load.get("mode")),
                load["value"],
            )
            by_point[key] = cell
    rows = []
    for line in lines:
        for point in line.points:
            cell = by_point.get((point.engine, point.workload.key, point.load_mode, point.load_value), {})
            if cell:
                rows.append(_row(point, cell))
    return LimitReport(rows, _ceilings(list(by_point.values())))


def to_ask(report: LimitReport, path: str) -> list[str]:
    """The commands that would decide where the shares do not, a few of them; `path` is the run's folder."""
    unsure = [row for row in report.rows if not row.batch.named or not row.step.named]
    return [f"dyno why {shlex.quote(path)} {row.cell}   # {row.point.label}" for row in unsure[:_MOST_TO_ASK]]


def limits_sentence(report: LimitReport) -> Sentence | None:
    """The pair in words for the answer: one factor with its meaning where all points agree, else how many say what."""
    if not report.rows:
        return None
    batch = _told("The batch is held by", [row.batch for row in report.rows])
    step = _told("The time of a step goes to", [row.step for row in report.rows])
    suspect = sum(row.point.verdict == "SUSPECT" for row in report.rows)
    some = "" if suspect == len(report.rows) else f"{suspect} of {len(report.rows)} points "
    doubt = f" ({some}{SUSPECT_TOO})" if suspect else ""
    return Sentence("Why this fast", f"{batch} {step.removesuffix('.')}{doubt}.", bool(suspect), detail=(WHY_NEEDS,))


def _told(subject: str, sides: Sequence[Side]) -> str:
    counts = Counter(side.factor for side in sides if side.named)
    rest = len(sides) - sum(counts.values())
    if not counts:
        return f"{subject} no single factor that can be named."
    if len(counts) == 1 and not rest:
        meaning = next(side.meaning for side in sides)
        return f"{subject} {next(iter(counts))}: {meaning}."
    parts = [f"{factor} ({n} of {len(sides)} points)" for factor, n in counts.most_common()]
    parts += [f"no single factor ({rest})"] if rest else []
    return f"{subject} {listed(parts, 4)}."


def _row(point: Point, cell: Mapping[str, Any]) -> LimitRow:
    limits = cell["limits"]
    return LimitRow(
        point,
        str(cell.get("id")),
        _side(limits.get("batch"), BATCH_WORDS),
        _side(limits.get("step"), STEP_WORDS),
        _use(cell.get("arithmetic") or {}),
    )


def _side(found: Any, words: Mapping[str, tuple[str, str]]) -> Side:
    if not isinstance(found, Mapping):
        return Side("undetermined", False, (), "", "", "")
    factor = str(found.get("factor"))
    short, meaning = words.get(factor, (factor, ""))
    shares = [
        s for s in found.get("shares") or [] if isinstance(s, Mapping) and isinstance(s.get("share"), float | int)
    ]
    told = [f"{_SHARE_WORDS.get(str(s['name']), str(s['name']))} {_whole(s['share'])}{_range(s)}" for s in shares[:3]]
    basis = _BASIS.get(str(found.get("basis")), "")
    if factor == "offered_load":
        seen = _NONE_WAITED.get(str(found.get("basis")), "no request was seen to wait")
        mostly = "mostly " if shares and shares[0]["share"] < _ALL else ""
        meaning = f"{mostly}{seen}, so {meaning}"
    why = "" if factor in words else _unnamed(found, shares)
    return Side(short, factor in words, tuple(told), meaning, str(found.get("evidence") or ""), basis, why)


def _unnamed(found: Mapping[str, Any], shares: Sequence[Mapping[str, Any]]) -> str:
    """Why no factor is named, by the rule of `limits_shares`; empty where nothing could be told at all."""
    if why := found.get("why"):
        return str(why)
    if rivals := [_SHARE_WORDS.get(str(name), str(name)) for name in found.get("rivals") or ()]:
        return f"{rivals[0]} is not clearly ahead of {rivals[1]}"
    largest = str(shares[0]["name"]) if shares else ""
    if largest == "bandwidth":
        return "no counter of this CPU shows bandwidth"
    return "most is unexplained" if largest == "unexplained" else ""


def _whole(share: float) -> str:
    return f"{100 * share:.0f}\N{NO-BREAK SPACE}%"


def _range(share: Mapping[str, Any]) -> str:
    low, high = share.get("low"), share.get("high")
    if low is None or high is None or _whole(low) == _whole(high):
        return ""
    return f" ({100 * low:.0f} to {100 * high:.0f})"


def _use(arithmetic: Mapping[str, Any]) -> tuple[str, ...]:
    """`MFU 12 %, MBU 24 %`, `full batches that decode 11 % and 25 %`, `271 MB a token`."""
    parts = []
    mfu, mbu = arithmetic.get("mfu"), arithmetic.get("mbu")
    if mfu is not None and mbu is not None:
        parts.append(f"MFU {percent(mfu)}, MBU {percent(mbu)}")
    for name, words in (("prefill", "prefill alone"), ("decode", "full batches that decode")):
        phase = arithmetic.get(name)
        if isinstance(phase, Mapping) and phase.get("mfu") is not None:
            parts.append(f"{words} {percent(phase['mfu'])} and {percent(phase['mbu'])}")
    predicted, counted = arithmetic.get("bytes_per_output_token"), arithmetic.get("bytes_per_output_token_counted")
    if predicted is not None:
        beside = f" ({number(counted / 1e6)} by the device's counter)" if counted is not None else ""
        parts.append(f"{number(predicted / 1e6)} MB a token{beside}")
    if _passes(arithmetic):
        parts.append("above 100 %: the ceiling is too low")
    return tuple(parts)


def _passes(arithmetic: Mapping[str, Any]) -> bool:
    """Whether any use is of more than the measured ceiling."""
    phases = [arithmetic, *(p for name in ("prefill", "decode") if isinstance(p := arithmetic.get(name), Mapping))]
    return any(isinstance(u := phase.get(name), int | float) and u > 1 for phase in phases for name in ("mfu", "mbu"))


def _ceilings(cells: Sequence[Mapping[str, Any]]) -> str:
    passed = sum(_passes(cell.get("arithmetic") or {}) for cell in cells)
    for cell in cells:
        found = (cell.get("arithmetic") or {}).get("ceilings")
        if not isinstance(found, Mapping):
            continue
        rate, speed = found.get("flops_per_s"), found.get("bytes_per_s")
        if isinstance(rate, float | int) and isinstance(speed, float | int):
            maker, low = _published(found.get("published")), TOO_LOW if passed else ""
            return (
                f"MFU and MBU are of {number(rate / 1e12)} TFLOP/s and {number(speed / 1e9)} GB/s, {found.get('words')}: what a "
                f"GEMM, a copy and a read on random data gave right before the run.{maker}{low}"
            )
    return ""


def _published(found: Any) -> str:
    """The maker's figures beside the measured ones."""
    if not isinstance(found, Mapping):
        return ""
    rate, speed, clock = (found.get(name) for name in ("bf16_flops_per_s", "bytes_per_s", "bytes_per_s_by_clock"))
    if not isinstance(rate, float | int) or not isinstance(speed, float | int):
        return ""
    by_clock = f", {number(clock / 1e9)} by its memory clock and width" if isinstance(clock, float | int) else ""
    return f" Its maker says {number(rate / 1e12)} TFLOP/s (bf16, dense) and {number(speed / 1e9)} GB/s{by_clock}."
