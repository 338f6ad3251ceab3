"""Single cells in a real browser: the time axis and its cell, by mouse and by keyboard, offline; definitions and tables."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.sync_api import Page, expect

from reports.build import render_report
from tests.browser.conftest import Open
from tests.browser.test_report import CUT, LABEL, MODEL, OVERLAPS
from tests.results.builders import synthetic_run

pytestmark = pytest.mark.browser

TURNED = f"{LABEL}\u202e"


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two engines, one of a name that would do harm, two loads, their events there."""
    folder = tmp_path_factory.mktemp("timed")
    return render_report(
        synthetic_run(
            folder, engines=("plain", TURNED), batches=(2, 8), input_lens=(64,), mode="concurrency", model=MODEL
        )
    )


def heading(page: Page) -> str:
    return page.locator("#time-view h3").first.inner_text()


def test_the_cell_of_the_time_axis_is_changed_by_keyboard_and_asks_nobody(timed: Path, open_page: Open) -> None:
    opened = open_page(timed)
    page = opened.page
    cells = page.locator("#times select option").all_inner_texts()
    assert len(cells) == 4
    for at, name in enumerate(cells):
        page.locator("#times select").select_option(str(at))
        expect(page.locator("#time-view h3").first).to_contain_text(name)
        plots = page.locator("#time-view .time-axis .plot:visible")
        assert plots.count() == 2
        assert plots.first.locator(".bar:visible").count() == (16 if ", 2 in flight" in name else 32)
        assert plots.last.locator(".cursor").count() == 80
    before = heading(page)
    page.locator("#times select").focus()
    page.keyboard.press("ArrowUp")
    expect(page.locator("#time-view h3").first).not_to_contain_text(before.splitlines()[0])
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [timed.resolve().as_uri()]
    # Names in a view that was unpacked are text as everywhere.
    assert page.locator("img, svg[onload]").count() == 0
    assert page.evaluate("/[\\u202a-\\u202e]/.test(document.documentElement.outerHTML)") is False


def test_hover_and_arrow_keys_tell_a_moment_and_a_request(timed: Path, open_page: Open) -> None:
    page = open_page(timed).page
    tip = page.locator("#tip")
    lanes, tracks = (page.locator("#time-view .time-axis .plot:visible").nth(i) for i in (0, 1))
    lanes.locator(".bar").first.hover()
    assert "first token after" in tip.inner_text()
    tracks.scroll_into_view_if_needed()
    tracks.locator(".cursor .hit").nth(40).hover()
    assert "output tokens/s: " in tip.inner_text()
    assert "KV blocks in use: " in tip.inner_text()
    box, plot = tip.bounding_box(), tracks.bounding_box()
    assert box
    assert plot
    assert box["y"] >= 0
    page.mouse.move(2, 2)
    assert tip.is_hidden()
    tracks.focus()
    page.keyboard.press("ArrowRight")
    first = tip.inner_text()
    page.keyboard.press("ArrowRight")
    assert tip.inner_text() != first
    # After another cell was chosen the new marks answer as the old ones did.
    page.locator("#times select").select_option("1")
    page.wait_for_function("n => !document.querySelector('#time-view h3').textContent.includes(n)", arg="not there")
    page.locator("#time-view .time-axis .plot:visible").first.focus()
    page.keyboard.press("ArrowRight")
    assert "request due at" in tip.inner_text()


def test_a_cell_can_be_done_again_by_itself(timed: Path, open_page: Open) -> None:
    page = open_page(timed).page
    page.locator("#reproduction summary", has_text="One cell by itself").click()
    page.locator("#reproduction select").select_option("3")
    expect(page.locator("#again-view p").first).to_contain_text("8 in flight")
    assert "concurrency: 8" in page.locator("#again-file").inner_text()
    assert page.locator("#again-view .copy:visible").count() >= 2


def test_headings_tell_what_they_mean_by_mouse_and_by_keyboard(timed: Path, open_page: Open) -> None:
    page = open_page(timed).page
    tip = page.locator("#tip")
    column = page.locator("#cell-table thead th", has_text="TTFT").first
    column.scroll_into_view_if_needed()
    column.hover()
    assert "Time to first token, from the send" in tip.inner_text()
    page.mouse.move(2, 2)
    assert tip.is_hidden()
    column.locator("button").focus()
    assert tip.is_visible()


def test_every_table_can_be_had_as_csv_without_a_request(timed: Path, open_page: Open) -> None:
    opened = open_page(timed)
    page = opened.page
    with page.expect_download() as download:
        page.locator("#matrix .table-csv").click()
    rows = list(csv.reader(io.StringIO(unquote(download.value.url.split(",", 1)[1]))))
    assert rows[0][0] == "point"
    assert len(rows) == 3
    assert page.locator(".scroll:has(table)").count() == page.locator(".table-csv").count() + 1
    assert [url for url in opened.requests if not url.startswith("data:")] == [timed.resolve().as_uri()]


@pytest.mark.parametrize("width", [1280, 820, 390])
def test_the_time_axis_fits_its_page_and_no_words_lie_on_each_other(timed: Path, open_page: Open, width: int) -> None:
    page = open_page(timed, width).page
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CUT) == []
    assert page.evaluate(OVERLAPS) == []
    assert page.locator("#time-view .time-axis .plot:visible").count() == 2


def test_on_paper_and_without_javascript_one_cell_is_there(timed: Path, open_page: Open) -> None:
    page = open_page(timed, 720).page
    page.emulate_media(media="print")
    assert page.locator("#time-view .time-axis .plot:visible").count() == 2
    assert page.locator("#times select:visible").count() == 0
    plain = open_page(timed, java_script_enabled=False).page
    assert plain.locator("#time-view .time-axis .plot:visible").count() == 2
    assert plain.locator("select:visible, .copy:visible, .table-csv:visible").count() == 0
