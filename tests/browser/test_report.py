"""The report in a real browser: from disk, offline, light and dark, wide and narrow, on paper, by mouse and by keyboard."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.sync_api import Page

from reports.build import render_report
from tests.browser.conftest import Open
from tests.harness.verify.test_observe_and_judge import ToyArm, compared
from tests.reports.runs import REFERENCE_LIKE, VLLM_LIKE, flawed, grid, make_run

pytestmark = pytest.mark.browser

MODEL = "</SCRIPT><img src=x onerror=alert(1)>\u202eevil"
SHOWN_MODEL = MODEL.replace("\u202e", "\N{REPLACEMENT CHARACTER}")
LABEL = '"><svg onload=alert(2)>'
FORMULA = "=cmd|' /c calc'!A1"
# Marks of 11 cells that count, in each panel; a bar of memory has four pieces.
FIGURES = {"throughput": 11, "phases": 22, "ttft": 22, "tpot": 11, "tradeoff": 11, "memory": 11, "memory-parts": 44}
# Contrast of text against what lies behind it, and of each series' colour against the card.
CONTRAST = """() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => {
    const [r, g, b] = parse(c).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (parse(c).length === 3) return c;
    }
    return 'rgb(255, 255, 255)';
  };
  const found = {};
  for (const e of document.querySelectorAll('h1,h2,h3,p,li,td,th,dt,dd,.badge,.reading,.mark-of,.why,.bearing,nav a')) {
    if (e.offsetParent) found[e.tagName + '.' + e.className] = ratio(getComputedStyle(e).color, behind(e));
  }
  const series = [];
  for (const e of document.querySelectorAll('.for-wide .mark .dot:not(.hollow)')) {
    series.push(ratio(getComputedStyle(e).fill, behind(e)));
  }
  return { text: found, series: Math.min(...series) };
}"""

# Whatever is wider than its frame, and words in a plot that lie on each other (a few pixels of their boxes are air).
CUT = """() => [...document.querySelectorAll('.scroll, nav ul, pre, .badge, button, .highlights dd, .highlights dt')]
  .filter((e) => e.offsetParent && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')
  .map((e) => `${e.getAttribute('aria-label') || e.className || e.tagName}: ${e.scrollWidth} > ${e.clientWidth}`)"""
OVERLAPS = """() => [...document.querySelectorAll('.plot')].flatMap((plot) => {
  const texts = [...plot.querySelectorAll('text')].map((t) => [t.textContent, t.getBoundingClientRect()]);
  const seen = texts.filter(([, box]) => box.width);
  const over = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3;
  return seen.flatMap(([name, a], i) => seen.slice(i + 1).filter(([, b]) => over(a, b)).map(([other]) => `${name} / ${other}`));
})"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cells = grid(("vllm-default", "reference-paged"), (1, 4, 16), (128, 512))
    cells[1] = flawed("SUSPECT", "client_lag")(cells[1])
    cells[5] = flawed("INVALID", "server_died", "exit code -9")(cells[5])
    setups = {"vllm-default": VLLM_LIKE, "reference-paged": REFERENCE_LIKE}
    verified = compared(*(ToyArm(e, other_model=i == 1) for i, e in enumerate(setups)), length=24)
    folder = tmp_path_factory.mktemp("report") / "two-engines"
    return render_report(make_run(folder, cells, setups=setups, verify=verified))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cells = [flawed("SUSPECT", "client_lag")(c) for c in grid(batches=(4,), input_lens=(128,))]
    return render_report(make_run(tmp_path_factory.mktemp("single") / "one-cell", cells))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cells = [flawed("SUSPECT", "client_lag", f"<!-- {MODEL}")(c) for c in grid((LABEL, FORMULA), (1, 4), (128,))]
    return render_report(make_run(tmp_path_factory.mktemp("hostile") / "run", cells, model=MODEL))


def shown_rows(page: Page) -> list[str]:
    return page.locator("#cell-table tbody tr:visible").all_inner_texts()


def test_opens_from_disk_offline_without_complaint_or_request(report: Path, open_page: Open) -> None:
    opened = open_page(report)
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [report.resolve().as_uri()]
    assert opened.page.locator("h1").inner_text() == "smollm2-135m on vllm-default and reference-paged"


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("width", [1280, 390])
def test_each_figure_shows_its_marks_inside_the_plot(report: Path, open_page: Open, figure: str, width: int) -> None:
    page = open_page(report, width).page
    page.evaluate("document.querySelectorAll('details.wide').forEach((d) => { d.open = true; })")
    marks = page.locator(f"#figure-{figure} .mark:visible .dot")
    assert marks.count() == FIGURES[figure]
    plots = page.locator(f"#figure-{figure} .plot:visible")
    boxes = [plots.nth(i).bounding_box() for i in range(plots.count())]
    for i in range(marks.count()):
        box = marks.nth(i).bounding_box()
        assert box
        assert box["width"] > 4
        # A band of nothing but memory that is hardly used is thin, and still there.
        assert box["height"] > 0
        assert any(
            b and b["x"] <= box["x"] <= b["x"] + b["width"] and b["y"] <= box["y"] <= b["y"] + b["height"]
            for b in boxes
        )


def test_no_text_of_a_figure_leaves_its_card(report: Path, open_page: Open) -> None:
    for width in (1280, 390):
        out = open_page(report, width).page.evaluate(
            """() => [...document.querySelectorAll('figure')].flatMap((f) => {
              const card = f.getBoundingClientRect();
              return [...f.querySelectorAll('.plot text')].filter((t) => t.getBoundingClientRect().width)
                .filter((t) => { const b = t.getBoundingClientRect(); return b.left < card.left || b.right > card.right; })
                .map((t) => f.id + ': ' + t.textContent);
            })"""
        )
        assert out == []


@pytest.mark.parametrize("width", [1280, 820, 390])
def test_nothing_is_cut_at_an_edge_and_no_texts_of_a_plot_overlap(
    report: Path, single: Path, open_page: Open, width: int
) -> None:
    for path in (report, single):
        page = open_page(path, width).page
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert page.evaluate(CUT) == []
        assert page.evaluate(OVERLAPS) == []


def test_hover_and_arrow_keys_show_a_mark_s_numbers(report: Path, open_page: Open) -> None:
    page = open_page(report).page
    tip = page.locator("#tip")
    assert tip.is_hidden()
    page.locator("#figure-throughput .mark:visible .hit").last.hover()
    assert tip.is_visible()
    assert "reference-paged, 512 in / 64 out, batch 16" in tip.inner_text()
    assert "tok/s" in tip.inner_text()
    page.mouse.move(2, 2)
    assert tip.is_hidden()
    page.locator("#figure-tpot .plot:visible").focus()
    page.keyboard.press("ArrowRight")
    first = tip.inner_text()
    page.keyboard.press("ArrowRight")
    assert tip.inner_text() != first
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_the_filter_narrows_the_table_by_any_word(report: Path, open_page: Open) -> None:
    page = open_page(report).page
    assert len(shown_rows(page)) == 12
    page.fill("#filter", "vllm batch 16")
    assert len(shown_rows(page)) == 2
    assert page.locator("#filter-count").inner_text() == "2 of 12 cells"
    page.fill("#filter", "server_died")
    (row,) = shown_rows(page)
    assert "INVALID" in row
    page.fill("#filter", "nothing like it")
    assert shown_rows(page) == []
    page.fill("#filter", "")
    assert page.locator("#filter-count").inner_text() == "12 cells"


def test_headings_sort_by_number_both_ways_with_the_unknown_last(report: Path, open_page: Open) -> None:
    page = open_page(report).page
    heading = page.locator("#cell-table thead th", has_text="output")

    def column() -> list[float]:
        at = heading.evaluate("e => e.cellIndex")
        cells = page.locator(f"#cell-table tbody tr > :nth-child({at + 1})")
        return [float(cells.nth(i).get_attribute("data-sort") or "inf") for i in range(cells.count())]

    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column() == sorted(column())
    heading.locator("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert column() == sorted(column(), reverse=True)
    loads = page.locator("#cell-table thead th", has_text="load").last
    loads.locator("button").click()
    assert "batch 1\t" in shown_rows(page)[0]


def test_csv_holds_every_cell_at_full_precision_and_no_formula(hostile: Path, open_page: Open) -> None:
    page = open_page(hostile).page
    with page.expect_download() as download:
        page.click("#csv")
    assert download.value.suggested_filename == "run-cells.csv"
    url = download.value.url
    rows = list(csv.DictReader(io.StringIO(unquote(url.split(",", 1)[1]))))
    assert [row["engine"] for row in rows] == [LABEL, LABEL, f"'{FORMULA}", f"'{FORMULA}"]
    expected = grid((LABEL,), (1,), (128,))[0]["whole"]["output_tokens_per_s"]
    assert float(rows[0]["output_tokens_per_s"]) == pytest.approx(expected, rel=1e-12)


def test_hostile_names_stay_text(hostile: Path, open_page: Open) -> None:
    opened = open_page(hostile)
    assert opened.complaints == []
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator("script:not([type='application/json'])").count() == 1
    assert opened.page.locator("svg[onload]").count() == 0
    assert SHOWN_MODEL in opened.page.locator("h1").inner_text()
    assert opened.page.evaluate("/[\\u202a-\\u202e\\u2066-\\u2069]/.test(document.documentElement.outerHTML)") is False
    assert LABEL in opened.page.locator("#cell-table").inner_text()


def test_the_command_can_be_copied(report: Path, open_page: Open) -> None:
    page = open_page(report, permissions=["clipboard-read", "clipboard-write"]).page
    button = page.locator("#reproduction .copy").first
    button.click()
    page.wait_for_function("b => b.textContent !== 'Copy'", arg=button.element_handle())
    assert button.inner_text() in ("Copied", "Selected")


def test_settings_side_by_side_are_a_table_on_a_wide_screen_and_on_paper_and_cards_on_a_phone(
    report: Path, open_page: Open
) -> None:
    wide, phone = open_page(report).page, open_page(report, 390).page
    row = "table.alike tbody tr"
    assert wide.locator(row).count() == phone.locator(row).count() > 10
    for page, display in ((wide, "table-row"), (phone, "block")):
        assert page.locator(row).first.evaluate("e => getComputedStyle(e).display") == display
    for scroll in phone.locator("#alike .scroll").all():
        assert scroll.evaluate("e => e.scrollWidth <= e.clientWidth")
    phone.emulate_media(media="print")
    assert phone.locator(row).first.evaluate("e => getComputedStyle(e).display") == "table-row"
    wide.locator("#answer a[href='#alike']").click()
    assert wide.evaluate("location.hash") == "#alike"


@pytest.mark.parametrize("width", [390, 820, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_never_scrolls_sideways(report: Path, hostile: Path, open_page: Open, width: int, scheme: str) -> None:
    for path in (report, hostile):
        page = open_page(path, width, color_scheme=scheme).page
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_series_can_be_read_against_their_ground(report: Path, open_page: Open, scheme: str) -> None:
    page = open_page(report, color_scheme=scheme).page
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red = int(background.split("(")[1].split(",")[0])
    assert red > 240 if scheme == "light" else red < 40
    contrast = page.evaluate(CONTRAST)
    weak = {k: v for k, v in contrast["text"].items() if v < 4.5}
    assert weak == {}
    assert contrast["series"] >= 3


def test_paper_has_everything_and_no_controls(report: Path, open_page: Open) -> None:
    page = open_page(report, 720).page
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for hidden in ("nav", ".tools", ".copy", ".table-csv"):
        assert page.locator(f"{hidden}:visible").count() == 0
    assert page.locator("#cell-table tbody tr:visible").count() == 12
    for scroll in page.locator(".scroll").all():
        assert scroll.evaluate("e => e.scrollWidth <= e.clientWidth + 1")
    drawn = page.locator(".plot:visible text").evaluate_all(
        "all => all.map((t) => parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a)"
    )
    assert min(drawn) > 9.5
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_what_is_folded_away_is_open_on_paper_and_folded_again_afterwards(report: Path, open_page: Open) -> None:
    page = open_page(report).page
    shut = page.locator("details:not([open])").count()
    assert shut >= page.locator("#settings .fold, #reproduction .fold, #reasons .reason").count() > 4
    assert page.locator("#settings table:visible, #reasons ul:visible, #reproduction select:visible").count() == 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() == shut


def test_works_without_javascript(report: Path, open_page: Open) -> None:
    page = open_page(report, java_script_enabled=False).page
    assert page.locator("#figure-throughput .mark .dot:visible").count() == 11
    assert page.locator("#cell-table tbody tr:visible").count() == 12
    assert page.locator(".tools:visible, .copy:visible").count() == 0
