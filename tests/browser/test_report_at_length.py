"""A report of many cells in a real browser: what a phone and a long table show at first, and what all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.build import render_report
from tests.browser.conftest import Open
from tests.reports.runs import REFERENCE_LIKE, VLLM_LIKE, grid, make_run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """45 cells of three engines, 15 points each."""
    cells = grid(("vllm-default", "reference-paged", "reference-static"), (1, 4, 16, 64, 256), (128, 512, 2048))
    folder = tmp_path_factory.mktemp("many") / "three-engines"
    setups = {"vllm-default": VLLM_LIKE, "reference-paged": REFERENCE_LIKE, "reference-static": REFERENCE_LIKE}
    return render_report(make_run(folder, cells, setups=setups))


def test_a_phone_has_the_answer_and_is_not_endless(many: Path, open_page: Open) -> None:
    page = open_page(many, 390).page
    assert page.evaluate("document.documentElement.scrollHeight") < 12_000
    for shown in ("#answer .topic", "#matrix tbody tr", "#figure-throughput .plot", "#figure-tradeoff .plot"):
        assert page.locator(f"{shown}:visible").count() > 0
    for shut in ("#memory table", "#figure-phases .plot", "#cell-table"):
        assert page.locator(f"{shut}:visible").count() == 0
    page.click("#figure-phases summary:visible")
    assert page.locator("#figure-phases .plot:visible").count() == 2
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_function("document.querySelectorAll('details.wide:not([open])').length === 0")
    assert page.locator("#figure-phases .plot:visible").count() == 2
    assert page.locator("#figure-phases summary:visible").count() == 0


def test_of_a_long_table_the_first_rows_are_shown_and_all_of_them_when_asked_for_and_on_paper(
    many: Path, open_page: Open
) -> None:
    page = open_page(many).page
    rows = page.locator("#matrix tbody tr:visible")
    assert rows.count() == 10
    page.emulate_media(media="print")
    assert rows.count() == 15
    assert page.locator(".show-all:visible").count() == 0
    page.emulate_media(media="screen")
    page.locator("#matrix .show-all").click()
    assert rows.count() == 15
    assert page.locator("#matrix .show-all").count() == 0
    assert open_page(many, java_script_enabled=False).page.locator("#matrix tbody tr:visible").count() == 15


@pytest.mark.parametrize("width", [1400, 390])
def test_numbers_of_seven_digits_stay_inside_their_card(many: Path, open_page: Open, width: int) -> None:
    page = open_page(many, width).page
    out = page.evaluate(
        """() => [...document.querySelectorAll('figure')].flatMap((f) => {
          const card = f.getBoundingClientRect();
          return [...f.querySelectorAll('.plot text')].map((t) => [t.textContent, t.getBoundingClientRect()])
            .filter(([, b]) => b.width && (b.left < card.left || b.right > card.right)).map(([text]) => `${f.id}: ${text}`);
        })"""
    )
    assert out == []
    assert page.locator("#figure-ttft .plot:visible .tick", has_text="1 M").count() > 0
