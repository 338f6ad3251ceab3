"""The highest load of each engine that meets the objectives, over all cells of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from results.report_format import listed, plural
from results.report_shapes import workload_info, workload_key
from results.slo import MET, NOT_MET, UNDETERMINED, Slo, over_blocks, verdict
from results.statistics import BLOCKS_FOR_A_VERDICT, CONFIDENCE

# Loads no further apart than this are one answer.
RESOLUTION = 1.05
# What comes out as the answer, the load that is met and the one that is not, rests on as many sessions as any verdict: where a
# few bad sessions make up all the misses, three often hold none of them, and the first may be a bad one.
SESSIONS = BLOCKS_FOR_A_VERDICT


@dataclass(slots=True)
class SloPoint:
    """One engine and workload under one kind of load. `highest` is the highest load shown to meet the objectives, `failed` the
    lowest shown not to, `undecided` the loads in between that were measured and not decided, `resolution` by how much, as a share
    of `highest`, `failed` lies above it. `sessions` are those of `highest`, `failed_sessions` those of `failed`.

    `verdict`: met (`highest` is met in five sessions, what lies right above it was measured and not shown to be, and `failed` is
    not met in five; or `highest` is the highest that was asked about), not met (not even the lowest, in five), undetermined (the
    search was not ended: something lies in between that was not measured, nothing bounds it, or fewer sessions have been asked).
    """

    engine: str
    workload: str
    workload_key: str
    mode: str
    verdict: str
    highest: float | None
    failed: float | None
    undecided: list[float]
    output_tokens_per_s: float | None
    requests_per_s: float | None
    at_top: bool
    suspect: bool
    sessions: int = 0
    failed_sessions: int = 0
    resolution: float | None = None
    why: str = ""
    cells: list[str] = field(default_factory=list)


def slo_summary(
    cells: Sequence[Mapping[str, Any]], slo: Slo, asked: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """The `slo` part of summary.json. `asked` is the highest load asked about, by mode."""
    points = slo_points(cells, asked or {})
    return {
        "objectives": slo.texts,
        "share": slo.share,
        "confidence": CONFIDENCE,
        "points": [asdict(point) for point in points],
    }


def slo_points(cells: Iterable[Mapping[str, Any]], asked: Mapping[str, float]) -> list[SloPoint]:
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for cell in cells:
        if isinstance(cell.get("slo"), Mapping):
            key = (str(cell.get("engine")), workload_key(cell.get("workload") or {}), _mode(cell))
            groups.setdefault(key, []).append(cell)
    return [_point(*key, found, asked.get(key[2])) for key, found in groups.items()]


def decided(cells: Sequence[Mapping[str, Any]]) -> dict[float, str]:
    """Met, not met or undetermined by load value, smallest first. Blocks of one load are taken together."""
    by_value: dict[float, list[Mapping[str, Any]]] = {}
    for cell in cells:
        value = _value(cell)
        if value is not None and isinstance(cell.get("slo"), Mapping):
            by_value.setdefault(value, []).append(cell)
    return {value: _together(found) for value, found in sorted(by_value.items())}


def highest_met(found: Mapping[float, str]) -> tuple[float | None, float | None]:
    """The highest load below every one that fails that meets the objectives, and the lowest that fails."""
    failed = min((v for v, met in found.items() if met == NOT_MET), default=None)
    met = [v for v, told in found.items() if told == MET and (failed is None or v < failed)]
    return (max(met) if met else None), failed


def _together(cells: Sequence[Mapping[str, Any]]) -> str:
    """What the blocks of one load say together: shares of all their requests."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        slo = cell["slo"]
        told = [*slo.get("objectives", []), *([slo["joint"]] if slo.get("joint") else [])]
        for row in told:
            rows.setdefault(str(row["objective"]), []).append(row)
    verdicts = {_over_blocks(found) for found in rows.values()}
    met = NOT_MET if NOT_MET in verdicts else UNDETERMINED if UNDETERMINED in verdicts or not verdicts else MET
    # Whatever failed requests say of the limit is said; what an INVALID cell says in its favour is not.
    valid = [cell for cell in cells if cell.get("verdict") != "INVALID"]
    return _together(valid) if met == MET and len(valid) < len(cells) else met


def _over_blocks(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the sessions say of one objective: all together, or each by itself that it is not met. Were it met in every second
    session, five would all say so in one case of 32; their shares together leave it open long after, where sessions differ."""
    usable = [r for r in rows if r.get("effective_n") and r.get("share") is not None]
    shares, worths = [float(r["share"]) for r in usable], [float(r["effective_n"]) for r in usable]
    needed = float(rows[0]["needed"])
    alone = [verdict(over_blocks([share], [worth]), needed) for share, worth in zip(shares, worths, strict=True)]
    return NOT_MET if set(alone) == {NOT_MET} else verdict(over_blocks(shares, worths), needed)


def _point(engine: str, key: str, mode: str, cells: Sequence[Mapping[str, Any]], top: float | None) -> SloPoint:
    found = decided(cells)
    highest, failed = highest_met(found)
    undecided = [
        v
        for v, told in found.items()
        if told == UNDETERMINED and v > (highest or 0.0) and (failed is None or v < failed)
    ]
    at_top = highest is not None and failed is None and not undecided and (top is None or highest >= top)
    told, why = _verdict(mode, found, highest, failed, undecided, at_top)
    own = [c for c in cells if _value(c) == highest and c.get("verdict") != "INVALID"]
    sessions = len({c.get("block") for c in own})
    # An INVALID cell counts here: what failed requests say of the limit is said.
    failed_sessions = len({c.get("block") for c in cells if failed is not None and _value(c) == failed})
    if told == MET and sessions < SESSIONS:
        told, why = UNDETERMINED, f"{highest:g} is met in {plural(sessions, 'session')}, and an answer needs {SESSIONS}"
    elif told != UNDETERMINED and failed is not None and failed_sessions < SESSIONS:
        why = f"{failed:g} is not met in {plural(failed_sessions, 'session')}, and an answer needs {SESSIONS}"
        told = UNDETERMINED
    return SloPoint(
        engine=engine,
        workload=workload_info(cells[0].get("workload") or {}).label,
        workload_key=key,
        mode=mode,
        verdict=told,
        highest=highest,
        failed=failed,
        undecided=undecided,
        output_tokens_per_s=_mean(own, "output_tokens_per_s"),
        requests_per_s=_mean(own, "requests_per_s"),
        at_top=at_top,
        suspect=any(c.get("verdict") == "SUSPECT" for c in own),
        sessions=sessions,
        failed_sessions=failed_sessions,
        resolution=failed / highest - 1 if highest and failed is not None else None,
        why=why,
        cells=[str(c.get("id")) for c in own],
    )


def _verdict(
    mode: str,
    found: Mapping[float, str],
    highest: float | None,
    failed: float | None,
    undecided: Sequence[float],
    at_top: bool,
) -> tuple[str, str]:
    if highest is None:
        if failed is not None and failed == min(found):
            return NOT_MET, f"not even at {failed:g}, the lowest load measured"
        return UNDETERMINED, "no load was shown to meet the objectives; more requests or a lower load would tell"
    if at_top:
        return MET, f"{highest:g} is the highest load asked about: the limit lies at or above it"
    above = min([*undecided, *([] if failed is None else [failed])], default=None)
    if above is None:
        return UNDETERMINED, f"{highest:g} is met and nothing above it was measured"
    shown = (
        f"{listed([f'{v:g}' for v in undecided])} {'was' if len(undecided) == 1 else 'were'} measured and not decided"
    )
    if failed is None:
        return UNDETERMINED, f"{highest:g} is met, {shown}: more requests or blocks would tell"
    if not close(mode, highest, above):
        return UNDETERMINED, f"{highest:g} is met and {above:g} is not shown to be: nothing in between was measured"
    between = f"; {shown}" if undecided else ""
    return (
        MET,
        f"the limit lies between {highest:g} and {failed:g}, which is not met: {100 * CONFIDENCE:g} % sure of each{between}",
    )


def close(mode: str, met: float, failed: float) -> bool:
    """Whether nothing worth asking about lies between a load that is met and one that is not."""
    return failed <= met * RESOLUTION or (mode in ("concurrency", "batch") and failed <= met + 1)


def _mode(cell: Mapping[str, Any]) -> str:
    return str((cell.get("load") or {}).get("mode") or "unknown")


def _value(cell: Mapping[str, Any]) -> float | None:
    load = cell.get("load") or {}
    value = load.get("value", load.get(_mode(cell)))
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _mean(cells: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [v for c in cells if (v := ((c.get("window") or c.get("whole")) or {}).get(name)) is not None]
    return sum(values) / len(values) if values else None
