"""ReportData as one HTML file that opens from disk, asks nothing of any network, and keeps names from outside as text."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from reports.figures import quantity
from reports.sections import SECTIONS
from results.report_data import ReportData
from results.report_format import count, number, percent, plural, seconds, size
from results.report_headlines import Headline
from results.report_measures import MEASURE


def render_html(data: ReportData) -> str:
    """The whole page. Script and style are named by their hash in its content policy: nothing else may run."""
    script, style = _asset("report.js"), _asset("report.css")
    sections = [(section, section.build(data)) for section in SECTIONS if section.needs(data)]
    template = _environment().get_template("report.html.j2")
    return template.render(
        data=data,
        sections=sections,
        highlights=highlights(data),
        script=Markup(script),
        style=Markup(style),
        script_hash=_hash(script),
        style_hash=_hash(style),
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


def embed_json(value: Any) -> Markup:
    """JSON that can stand inside a script element: no `<`, no `>`, no `&`, no line separator that ends a statement."""
    text = orjson.dumps(value).decode()
    for character in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=number, size=size, percent=percent, seconds=seconds, count=count, plural=plural, quantity=quantity
    )
    return environment


@cache
def _asset(name: str) -> str:
    return files("reports").joinpath("templates", name).read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
