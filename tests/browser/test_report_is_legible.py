"""What a reader must be able to see in a real browser: lines without their colours, doubts, names in one piece, air."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.build import render_report
from tests.browser.conftest import Open
from tests.reports.runs import flawed, grid, make_run
from tests.results.builders import synthetic_run

pytestmark = pytest.mark.browser

# Of each figure its legend, swatch by swatch, without colours.
SWATCHES = """(figure) => [...document.querySelectorAll(`#figure-${figure} .legend li`)].map((entry) => entry.textContent.trim()
  + '|' + [...entry.querySelectorAll('path')].map((p) => `${p.getAttribute('class')} ${p.getAttribute('d')}
  ${getComputedStyle(p).strokeDasharray}`).join())"""
# Dash by colour of the lines that are drawn.
DASHES = """(figure) => [...document.querySelectorAll(`#figure-${figure} .for-wide path.curve[class=curve]`)]
  .map((p) => [p.parentElement.getAttribute('class'), getComputedStyle(p).strokeDasharray])"""


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two engines in three blocks, a point SUSPECT, its tokens/s those of another engine's point."""
    cells = grid(("engine-one", "engine-two"), (1, 4, 16), (128, 512), blocks=3)
    cells = [
        flawed("SUSPECT", "client_lag")(c) if c["engine"] == "engine-one" and c["load"]["batch"] == 4 else c
        for c in cells
    ]
    return render_report(make_run(tmp_path_factory.mktemp("blocks") / "run", cells, blocks=3))


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two engines and their requests."""
    folder = tmp_path_factory.mktemp("events")
    return render_report(
        synthetic_run(folder, engines=("one", "two"), batches=(2, 8), input_lens=(64,), mode="concurrency")
    )


@pytest.mark.parametrize("figure", ["throughput", "tradeoff", "tpot", "ttft", "phases"])
def test_lines_are_told_apart_without_their_colours(blocks: Path, open_page: Open, figure: str) -> None:
    page = open_page(blocks).page
    swatches = [entry.split("|", 1) for entry in page.evaluate(SWATCHES, figure)]
    assert [name for name, _ in swatches][:2] == ["engine-one", "engine-two"]
    assert len({look for _, look in swatches}) == len(swatches)
    drawn = {(colour, dash) for colour, dash in page.evaluate(DASHES, figure)}
    assert len(drawn) == len({dash for _, dash in drawn}) == 2


def test_boxes_of_engines_side_by_side_are_told_apart_without_their_colours(events: Path, open_page: Open) -> None:
    swatches = [entry.split("|", 1) for entry in open_page(events).page.evaluate(SWATCHES, "spread-ttft")]
    assert [name for name, _ in swatches][:2] == ["one", "two"]
    assert len({look for _, look in swatches}) == len(swatches)


def test_no_mark_lies_over_the_outline_of_a_suspect_one(blocks: Path, open_page: Open) -> None:
    page = open_page(blocks).page
    for plot in page.locator("#figure-throughput .plot, #figure-ttft .plot, #figure-tradeoff .plot").all():
        order = plot.evaluate(
            "(svg) => [...svg.querySelectorAll('.mark, .ring')].map((e) => e.classList.contains('ring'))"
        )
        hollow = plot.locator(".mark .dot.hollow").count()
        assert hollow == 2
        assert order == [False] * (len(order) - hollow) + [True] * hollow


def test_a_doubt_looks_the_same_wherever_it_stands(blocks: Path, open_page: Open) -> None:
    page = open_page(blocks).page
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    looks = page.evaluate(
        """() => [...document.querySelectorAll('.badge')].filter((b) => b.textContent.trim() === 'SUSPECT')
          .map((b) => [b.closest('section').id, getComputedStyle(b).color, getComputedStyle(b).backgroundColor])"""
    )
    assert {section for section, _, _ in looks} >= {"matrix", "sure", "cells"}
    assert len({(ink, ground) for _, ink, ground in looks}) == 1


def test_the_underline_of_a_doubtful_number_ends_with_the_number(tmp_path: Path, open_page: Open) -> None:
    doubtful = [flawed("SUSPECT", "client_lag")(c) for c in grid(batches=(4,), input_lens=(128,))]
    cells = open_page(render_report(make_run(tmp_path / "run", doubtful))).page.locator(".highlights .doubt dd")
    assert cells.count() > 0
    for cell in cells.all():
        assert cell.evaluate("e => getComputedStyle(e).textDecorationLine") == "none"
        number = cell.locator("b")
        assert number.evaluate("e => getComputedStyle(e).textDecorationLine") == "underline"
        assert number.evaluate("e => e.textContent === e.textContent.trim()")


@pytest.mark.parametrize("width", [1400, 820, 390])
def test_no_name_in_the_title_is_broken(blocks: Path, open_page: Open, width: int) -> None:
    page = open_page(blocks, width).page
    assert page.locator("h1").inner_text() == "smollm2-135m on engine-one and engine-two"
    lines = page.evaluate(
        """() => [...document.querySelectorAll('h1 .word')].map((word) => {
          const range = document.createRange(); range.selectNodeContents(word);
          return new Set([...range.getClientRects()].map((r) => r.top)).size;
        })"""
    )
    assert lines == [1] * 5


def test_there_is_air_between_words_and_what_they_introduce(events: Path, open_page: Open) -> None:
    for width in (1400, 390):
        page = open_page(events, width).page
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        gaps = page.evaluate(
            """() => [...document.querySelectorAll('.reading + .scroll, .reading + .tools')].filter((e) => e.offsetParent)
              .map((e) => e.getBoundingClientRect().top - e.previousElementSibling.getBoundingClientRect().bottom)"""
        )
        assert gaps
        assert min(gaps) >= 8


def test_the_percentiles_in_a_distribution_are_named(events: Path, open_page: Open) -> None:
    page = open_page(events).page
    for figure in page.locator("#time-view figure.half").all():
        names = figure.locator(".for-wide .point-label").all_text_contents()
        assert "p50" in names
        assert set(names) <= {"p10", "p25", "p50", "p75", "p90", "p99"}


def test_the_first_of_what_else_was_found_looks_like_the_rest(blocks: Path, open_page: Open) -> None:
    sizes = open_page(blocks).page.evaluate(
        """() => [...document.querySelectorAll('#answer .fold .topic')].map((t) =>
          [getComputedStyle(t.querySelector('li')).fontSize, getComputedStyle(t).borderTopWidth].join())"""
    )
    assert len(sizes) > 1
    assert len(set(sizes)) == 1
