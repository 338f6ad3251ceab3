"""A page in the report's clothes: one file that opens from disk, asks nothing of any network, and keeps names from outside as
text."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from reports.figures import quantity
from results.report_format import count, number, percent, plural, seconds, size

# Characters that turn the direction of the text after them: a name must not rewrite its surroundings.
_TURNING = re.compile("[\u202a-\u202e\u2066-\u2069]")


def render_page(template: str, **context: Any) -> str:
    """Script and style are named by their hash in the page's content policy: nothing else may run."""
    script, style = _asset("report.js"), _asset("report.css")
    page = (
        _environment()
        .get_template(template)
        .render(
            script=Markup(script),
            style=Markup(style),
            script_hash=_hash(script),
            style_hash=_hash(style),
            **context,
        )
    )
    return without_turns(page)


def render_part(template: str, **context: Any) -> Markup:
    """A part of a page by itself."""
    return Markup(without_turns(_environment().get_template(template).render(**context)))


def without_turns(text: str) -> str:
    """The text with each character that would turn its direction made visible."""
    return _TURNING.sub("\N{REPLACEMENT CHARACTER}", text)


def stylesheet() -> str:
    """The style of a page, for pictures that stand alone."""
    return _asset("report.css")


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
