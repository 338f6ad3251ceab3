"""ReportData as one HTML file that opens from disk, asks nothing of any network, and keeps names from outside as text."""

from __future__ import annotations

from typing import Any

from reports.page import embed_json, render_page
from reports.sections import SECTIONS
from results.report_data import ReportData
from results.report_headlines import Headline, doubts_sentence
from results.report_measures import MEASURE


def render_html(data: ReportData) -> str:
    """The whole page."""
    sections = [(section, section.build(data)) for section in SECTIONS if section.needs(data)]
    return render_page(
        "report.html.j2",
        data=data,
        sections=sections,
        highlights=highlights(data),
        doubts=doubts_sentence(data.headlines),
        payload=embed_json(cell_payload(data)),
    )


def highlights(data: ReportData) -> list[Headline]:
    """The few numbers that stand above everything, and how many cells are VALID."""
    valid = data.verdicts.get("VALID", 0)
    rest = ", ".join(f"{n} {v}" for v, n in data.verdicts.items() if v != "VALID")
    verdicts = Headline(f"{valid} of {len(data.cells)}", "", f"cells VALID{'; ' + rest if rest else ''}")
    return [*data.headlines, verdicts]


def cell_payload(data: ReportData) -> dict[str, Any]:
    """The cell table at full precision: what the CSV is made from, and what a program may read out of the page."""
    names = ["cell", "engine", "workload", "load_mode", "load_value", "block", "verdict", "reasons", *MEASURE]
    rows = [
        [
            c.id,
            c.engine,
            c.workload.label,
            c.load_mode,
            c.load_value,
            c.block,
            c.verdict,
            " ".join(c.codes),
            *(c.values[m].mean for m in MEASURE),
        ]
        for c in data.cells
    ]
    return {"run": data.run, "scope": data.scope, "columns": names, "rows": rows}
