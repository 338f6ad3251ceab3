"""What a report shows of the devices, and of what throughput goes together with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from results.correlation import MECHANICAL, WORDS, Correlation
from results.correlation_cells import across_cells
from results.report_format import listed, number
from results.report_shapes import Line, Point

FLAT = (
    "Memory in use on a device is flat over a sweep by construction: an engine takes its KV pool at its start. What the pool "
    "holds is the engine's to tell (see Memory)."
)
# More rows over time than this are counted, not listed.
_MOST_OVER_TIME = 20


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A point with device numbers: the cells' own conditions are told by their reasons."""

    point: Point
    events: str


@dataclass(frozen=True, slots=True)
class CorrelationRow:
    """One correlation in words; `strength` is empty where there is none. `rho`, `low` and `high` are the same to be drawn."""

    measure: str
    stratum: str
    n: int
    strength: str
    doubt: str
    said: str
    rho: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(slots=True)
class DeviceReport:
    """`sentences` say where the numbers come from; `together` is empty where nothing could be shown."""

    rows: list[DeviceRow] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    together: list[CorrelationRow] = field(default_factory=list)
    left_out: str = ""
    # Why some of these go together whatever the engine does.
    ties: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.rows or self.together)


def device_report(cells: Sequence[Mapping[str, Any]], lines: Iterable[Line], names: Mapping[str, str]) -> DeviceReport:
    """`names` maps a cell's id to its label."""
    usable = [c for c in cells if c.get("verdict") != "INVALID"]
    with_device = [c for c in usable if isinstance(c.get("device"), Mapping)]
    points = [p for line in lines for p in line.points if p.values["device_power_w"].known or _any_bandwidth(p)]
    report = DeviceReport(rows=[DeviceRow(p, _events(p, with_device)) for p in points] if with_device else [])
    if report.rows:
        report.sentences = _sentences([c["device"] for c in with_device])
    report.together, report.left_out = _together(usable, names)
    there = {row.measure for row in report.together}
    report.ties = [f"{WORDS[name]}: {why}" for name, why in MECHANICAL.items() if WORDS[name] in there]
    return report


def _any_bandwidth(point: Point) -> bool:
    return point.values["device_bandwidth_gb_per_s"].known


def _events(point: Point, cells: Sequence[Mapping[str, Any]]) -> str:
    """Clock event reasons of the point's cells, at their worst: `sw_power_cap 40 %`."""
    worst: dict[str, float] = {}
    for cell in cells:
        load = cell.get("load") or {}
        if (cell.get("engine"), load.get("mode"), load.get("value")) != (
            point.engine,
            point.load_mode,
            point.load_value,
        ):
            continue
        for name, share in ((cell["device"] or {}).get("event_shares") or {}).items():
            worst[name] = max(worst.get(name, 0.0), float(share))
    return ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for name, share in worst.items() if share >= 0.005)


def _sentences(devices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each thing said once, in the words of the cells that say it."""

    def several(name: str) -> list[str]:
        return list(dict.fromkeys(str(d[name]) for d in devices if d.get(name)))

    out = []
    if sources := several("bandwidth_source"):
        peaks = listed(several("peak_from"), 3)
        out.append(f"Bandwidth is that of {listed(sources, 3)}, as a share of the peak by {peaks}.")
    else:
        why = Counter(str((d.get("why") or {}).get("bandwidth_gb_per_s")) for d in devices).most_common(1)[0][0]
        out.append(f"Memory bandwidth was not counted: {why}.")
    if kinds := several("power_kind"):
        kind = "read at instants" if kinds == ["instant"] else "the mean of the last second at each reading"
        if len(kinds) > 1:
            kind = "read at instants in some cells, and as means of a second in others: do not compare those"
        out.append(f"Power is {kind}; energy is the device's own counter between the edges of the span.")
    if any(d.get("board_shared") for d in devices):
        out.append("Of MIG instances power, energy and clocks are the whole board's.")
    return [*out, FLAT]


def _together(cells: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> tuple[list[CorrelationRow], str]:
    """Across cells and over time. Empty where nothing has an uncertainty beside it: bare coefficients only mislead."""
    across = across_cells(cells)
    over_time = [
        (names.get(str(cell.get("id")), str(cell.get("id"))), _from_dict(item))
        for cell in cells
        for item in cell.get("correlation") or []
        if isinstance(item, Mapping)
    ]
    shown = [(c.stratum, c) for c in across if c.rho is not None] if any(c.p is not None for c in across) else []
    told = [(label, c) for label, c in over_time if c.low is not None]
    told.sort(key=lambda item: -abs(item[1].rho or 0))
    rows = [_row(stratum, c) for stratum, c in [*shown, *told[:_MOST_OVER_TIME]]]
    refused = Counter(c.refused for _, c in over_time if c.refused)
    words = ""
    if rows and refused:
        reason, _ = refused.most_common(1)[0]
        words = f"{sum(refused.values())} series of single cells are left out (most often: {reason})."
    if len(told) > _MOST_OVER_TIME:
        words = f"{len(told) - _MOST_OVER_TIME} weaker ones of single cells are not listed. {words}".strip()
    return rows, words


def _from_dict(item: Mapping[str, Any]) -> Correlation:
    names = ("x", "stratum", "n", "rho", "p", "low", "high", "effective_n", "refused")
    return Correlation(**{name: item[name] for name in names if name in item})


def _row(stratum: str, c: Correlation) -> CorrelationRow:
    doubt = ""
    if c.p is not None:
        doubt = f"p {c.p:.3f}" if c.p >= 0.001 else "p < 0.001"
    elif c.low is not None and c.high is not None:
        doubt = f"{c.low:+.2f} to {c.high:+.2f}, worth {number(c.effective_n or 0)} instants"
    said = c.refused or ("tied by construction" if c.mechanical else "")
    strength = f"{c.rho:+.2f}" if c.rho is not None else ""
    return CorrelationRow(WORDS.get(c.x, c.x), stratum, c.n, strength, doubt, said, c.rho, c.low, c.high)
