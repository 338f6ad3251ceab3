"""The device table in words."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from results.report_data import ReportData
from results.report_device import CorrelationRow
from results.report_format import UNKNOWN, number, percent, size
from results.report_measures import Value


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """A point; `why` tells of what is unknown, by heading."""

    engine: str
    workload: str
    load: str
    bandwidth: str
    share: str
    power: str
    energy: str
    clock: str
    memory: str
    events: str
    why: dict[str, str]


def device_lines(data: ReportData) -> list[DeviceLine]:
    """One line a point that has device numbers."""
    lines = []
    for row in data.device.rows:
        v = row.point.values
        shown = {
            "bandwidth": v["device_bandwidth_gb_per_s"],
            "power": v["device_power_w"],
            "energy": v["device_energy_j_per_token"],
            "clock": v["device_sm_clock_mhz"],
            "memory": v["device_memory_bytes"],
        }
        lines.append(
            DeviceLine(
                engine=row.point.engine,
                workload=row.point.workload.label,
                load=row.point.load_label,
                bandwidth=_number(shown["bandwidth"]),
                share=percent(share) if (share := v["device_bandwidth_fraction"].mean) is not None else UNKNOWN,
                power=_number(shown["power"]),
                energy=_number(shown["energy"]),
                clock=_number(shown["clock"]),
                memory=size(shown["memory"].mean),
                events=row.events or "none",
                why={name: value.why for name, value in shown.items() if value.mean is None and value.why},
            )
        )
    return lines


def rho_bar(row: CorrelationRow) -> Markup:
    """A correlation from -1 to +1 with its interval, 124 x 16 pixels; empty where there is none."""
    if row.rho is None:
        return Markup("")

    def at(value: float) -> str:
        return f"{62 + 58 * value:.1f}"

    reach = (
        "" if row.low is None or row.high is None else f'<path class="whisker" d="M{at(row.low)} 8H{at(row.high)}"/>'
    )
    return Markup(
        '<svg class="rho c0" viewBox="0 0 124 16" width="124" height="16" aria-hidden="true"><path class="axis" d="M4 8H120"/>'
        f'<path class="axis" d="M62 2v12"/>{reach}<circle class="dot" cx="{at(row.rho)}" cy="8" r="4"/></svg>'
    )


def _number(value: Value) -> str:
    return UNKNOWN if value.mean is None else number(value.mean)
