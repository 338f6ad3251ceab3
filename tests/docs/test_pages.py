"""Pages are found, their links and pictures are there, and the page of metrics knows every metric."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from results.metrics import METRICS, Direction
from tests.docs.blocks import PAGES, ROOT

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
DOCS = ROOT / "docs"


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    found = _HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_has_a_number_that_was_to_be_filled_in(page: Path) -> None:
    assert re.findall(r"@@[^@\n]*@@", page.read_text(encoding="utf-8")) == []


def test_the_index_names_every_page() -> None:
    listed = set(_LINK.findall((DOCS / "README.md").read_text(encoding="utf-8")))
    there = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    assert there - listed == set()


def test_the_page_of_metrics_has_every_metric_with_its_unit_and_direction() -> None:
    rows = {
        cells[0].strip("` "): (cells[1].strip(), cells[2].strip())
        for line in (DOCS / "metrics.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `") and len(cells := line.strip("|").split("|")) >= 4
    }
    better = {Direction.HIGHER: "higher", Direction.LOWER: "lower", Direction.NONE: ""}
    assert rows == {metric.id: (metric.unit, better[metric.direction]) for metric in METRICS}


@pytest.mark.parametrize("picture", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.name)
def test_pictures_are_drawings_that_ask_nobody_for_anything(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    assert root.get("viewBox")
    assert root.get("aria-label")
    text = picture.read_text(encoding="utf-8")
    assert "href" not in text
    assert "<script" not in text
