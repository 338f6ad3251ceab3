"""The HTML report: complete, one file, nothing from outside, and names that stay text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from harness.verify import judge
from reports.build import MAX_BYTES, render_report
from reports.html import render_html
from reports.page import embed_json
from reports.sections import SECTIONS
from results.errors import StoreError
from results.report_data import load_report_data
from tests.reports.runs import Cell, cell, flawed, grid, make_run
from tests.results.builders import synthetic_run

MODEL = "</SCRIPT><img src=x onerror=alert(1)>"
LABEL = '"><svg onload=1>'
EVIDENCE = "<!-- </script> & ' \" \u2028"


class Page(HTMLParser):
    """Elements, attributes and text of a page, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.append(tag)
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[-1] += data
        else:
            self.texts.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    def ids(self) -> list[str]:
        return [a["id"] for _, a in self.elements if a.get("id")]  # type: ignore[misc]  # an attribute without a value was left out


def page_of(tmp_path: Path, cells: list[Cell], **options: Any) -> Page:
    path = render_report(make_run(tmp_path / "run", cells, **options))
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture
def hostile(tmp_path: Path) -> Page:
    cells = [flawed("SUSPECT", "client_lag", EVIDENCE)(c) for c in grid((LABEL,), (1, 4), (128,))]
    return page_of(tmp_path, cells, model=MODEL)


def test_all_sections_stand_in_order(tmp_path: Path) -> None:
    verified = judge([], [], 24, {"a": "it did not start", "b": "it did not start"})
    page = page_of(tmp_path, grid(("a", "b")), verify=verified)
    sections = [a.get("id") for tag, a in page.elements if tag == "section"]
    absent = ("device", "together", "sure", "limits", "times")  # no device was sampled, one block, no steps, no events
    assert sections == [s.id for s in SECTIONS if s.id not in absent]
    assert len(page.ids()) == len(set(page.ids()))


def test_every_figure_has_marks_a_legend_and_a_reading(tmp_path: Path) -> None:
    text = render_html(load_report_data(make_run(tmp_path / "run", grid())))
    figures = re.findall(r"<figure.*?</figure>", text, re.DOTALL)
    assert len(figures) == 7
    for figure in figures:
        # 2 lengths x 3 batches, drawn for wide and for narrow screens, in each panel.
        assert figure.count('class="mark ') % 12 == 0
        assert figure.count('class="mark ') >= 12
        assert 'class="legend"' in figure
        assert 'class="reading"' in figure


def test_nothing_is_fetched_from_anywhere(tmp_path: Path) -> None:
    page = page_of(tmp_path, grid())
    for tag, attributes in page.elements:
        assert "src" not in attributes, tag
        if "href" in attributes:
            assert str(attributes["href"]).startswith(("#", "data:")), attributes
    assert "url(" not in "".join(page.scripts)
    assert "@import" not in "".join(page.scripts)


def test_only_the_scripts_of_the_page_may_run(tmp_path: Path) -> None:
    page = page_of(tmp_path, grid())
    (policy,) = (str(a["content"]) for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    style, *_, script = page.scripts
    for text in (style, script):
        assert "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert not any(name.startswith("on") or name == "style" for _, a in page.elements for name in a)


def test_names_from_outside_stay_text(hostile: Page, tmp_path: Path) -> None:
    plain = page_of(tmp_path / "plain", [flawed("SUSPECT", "client_lag")(c) for c in grid(("x",), (1, 4), (128,))])
    for tag in ("script", "img", "svg", "style", "figure"):
        assert hostile.count(tag) == plain.count(tag), tag
    said = " ".join(hostile.texts)
    assert MODEL in said
    assert LABEL in said
    assert EVIDENCE.strip() in said


def test_embedded_data_reads_back_as_it_was(hostile: Page) -> None:
    data = next(found for text in hostile.scripts if text.startswith("{") for found in [json.loads(text)])
    row = dict(zip(data["columns"], data["rows"][0], strict=True))
    assert row["engine"] == LABEL
    assert row["reasons"] == "client_lag no_window"
    assert row["output_tokens_per_s"] == pytest.approx(grid((LABEL,), (1,), (128,))[0]["whole"]["output_tokens_per_s"])


@pytest.mark.parametrize("text", [MODEL, LABEL, EVIDENCE, "</ScRiPt", "]]>", "a&b<c>.json", "\u2029", "\\u003c"])
def test_embedded_json_has_no_character_that_ends_a_script(text: str) -> None:
    shown = str(embed_json({text: text}))
    assert not set("<>&\u2028\u2029") & set(shown)
    assert json.loads(shown) == {text: text}


def test_suspect_marks_are_hollow_and_invalid_cells_are_listed_as_not_drawn(tmp_path: Path) -> None:
    cells = grid(batches=(1, 4, 16), input_lens=(128,))
    cells[1] = flawed("SUSPECT", "client_lag")(cells[1])
    cells[2] = flawed("INVALID", "server_died")(cells[2])
    text = render_html(load_report_data(make_run(tmp_path / "run", cells)))
    figure = re.search(r'<figure id="figure-throughput".*?</figure>', text, re.DOTALL)
    assert figure
    wide = figure[0].split('class="panels for-narrow"')[0].split('class="panels for-wide"')[1]
    assert wide.count('class="mark ') == 2
    assert wide.count('class="dot hollow"') == 1
    assert "INVALID, left out: reference, 128 in / 64 out, batch 16" in figure[0]


def test_a_withheld_percentile_is_a_gap_with_its_reason(tmp_path: Path) -> None:
    cells = grid(batches=(1, 4, 16), input_lens=(128,))
    cells[1]["whole"]["ttft_ms"] |= {"p90": None, "withheld": {"p90": "needs 10 values, there are 8"}}
    text = render_html(load_report_data(make_run(tmp_path / "run", cells)))
    figure = re.search(r'<figure id="figure-ttft".*?</figure>', text, re.DOTALL)
    assert figure
    assert "TTFT p90 withheld: needs 10 values, there are 8: reference, 128 in / 64 out, batch 4" in figure[0]
    p50, p90 = re.findall(r'<svg class="plot".*?</svg>', figure[0].split("for-narrow")[0], re.DOTALL)
    curves = [re.findall(r'class="curve"[^>]* d="([^"]*)"', svg)[0] for svg in (p50, p90)]
    assert [curve.count("M") for curve in curves] == [1, 2]


def test_runs_without_anything_to_draw_still_make_a_page(tmp_path: Path) -> None:
    empty = page_of(tmp_path / "empty", [], planned=3)
    invalid = page_of(tmp_path / "invalid", [flawed("INVALID", "server_died")(c) for c in grid()])
    assert empty.count("figure") == invalid.count("figure") == 0
    assert "No cell has been committed yet" in " ".join(empty.texts)
    assert "server_died" in " ".join(invalid.texts)


def test_a_real_run_folder_makes_a_page(tmp_path: Path) -> None:
    store = synthetic_run(tmp_path, batches=(1, 2, 4), input_lens=(64, 128), blocks=2, mode="concurrency")
    page = Page(render_report(store).read_text())
    figures = [str(a.get("id")) for tag, a in page.elements if tag == "figure" and a.get("id")]
    names = ("throughput", "tradeoff", "tpot", "ttft", "phases", "spread-ttft", "spread-tpot", "memory-parts", "memory")
    assert figures == [f"figure-{name}" for name in names]
    assert "concurrency" not in [a.get("class") for _, a in page.elements]


def test_a_large_run_stays_far_below_the_size_limit(tmp_path: Path) -> None:
    engines, batches = [f"engine-{i}" for i in range(5)], (1, 2, 4, 8, 16)
    path = render_report(make_run(tmp_path / "run", grid(engines, batches, (128, 512, 1024, 2048))))
    assert path.stat().st_size < MAX_BYTES / 4


def test_a_page_over_the_limit_is_refused_and_the_old_one_kept(tmp_path: Path) -> None:
    store = make_run(tmp_path / "run", grid(batches=(1,), input_lens=(128,)))
    before = render_report(store).read_bytes()
    data = load_report_data(store)
    data.reproduction.experiment = "x" * (MAX_BYTES + 1)
    with pytest.raises(StoreError, match=r"6 MiB"):
        render_report(store, data)
    assert (store.path / "report.html").read_bytes() == before


def figure_of(tmp_path: Path, cells: list[Cell], name: str, **options: Any) -> str:
    text = render_html(load_report_data(make_run(tmp_path / "run", cells, **options)))
    found = re.search(rf'<figure id="figure-{name}".*?</figure>', text, re.DOTALL)
    assert found
    return found[0]


@pytest.mark.parametrize(("batches", "bend"), [((1,), False), ((1, 4), False), ((1, 4, 16), True)])
def test_no_bend_is_promised_where_too_few_points_could_show_one(
    tmp_path: Path, batches: tuple[int, ...], bend: bool
) -> None:
    figure = figure_of(tmp_path, grid(batches=batches), "throughput")
    assert ("Look for the bend" in figure) == bend
    assert ("cannot show a bend" in figure) != bend


def test_figures_of_a_closed_loop_speak_of_requests_in_flight(tmp_path: Path) -> None:
    cells = [{**c, "load": {"mode": "concurrency", "value": c["load"]["value"]}} for c in grid()]
    figure = figure_of(tmp_path, cells, "throughput")
    assert "Output throughput against requests in flight" in figure
    assert "against batch" not in figure
    assert "16 in flight" in figure


def test_the_spread_over_waves_is_drawn_and_told(tmp_path: Path) -> None:
    figure = figure_of(tmp_path, grid(batches=(4,), input_lens=(128,)), "ttft")
    assert figure.count('class="whisker"') == 2  # p50 alone, for wide and narrow screens
    assert "TTFT p50: 563 ms (512 to 666 over 3 waves)" in figure
    assert "lowest to the highest of the waves" in figure


@pytest.mark.parametrize("late", [False, True])
def test_memory_blames_neither_side_where_the_client_was_late(tmp_path: Path, late: bool) -> None:
    cells = grid()
    if late:
        cells[0] = {**cells[0], "client": {"lag_ms_p99": 0.2, "coalesced_events": 3}}
    assert ("either may be off" in figure_of(tmp_path, cells, "memory")) == late


def test_settings_nobody_asked_for_are_folded_away_and_differing_ones_come_first(tmp_path: Path) -> None:
    text = render_html(load_report_data(make_run(tmp_path / "run", grid())))
    section = text.split('<section id="settings"')[1].split("</section>")[0]
    shown, folded = section.split('<details class="rest">')
    assert re.findall(r"<code>(\w+)</code></th>", shown) == ["dtype", "block_size"]
    assert re.findall(r"<code>(\w+)</code></th>", folded) == ["kv_cache_bytes"]
    assert "1 setting that nobody asked for" in folded


@pytest.mark.parametrize(("blocks", "told"), [(5, True), (3, False)])
def test_the_matrix_says_how_many_of_its_verdicts_chance_would_make(tmp_path: Path, blocks: int, told: bool) -> None:
    speeds = (1.1, 1.3, 1.2, 1.4, 1.25)[:blocks]
    pairs = [(n, b, who, at) for n in (1, 4) for b, x in enumerate(speeds) for who, at in (("a", 1.0), ("b", x))]
    cells = [cell(who, n, 128, b, at) for n, b, who, at in pairs]
    text = render_html(load_report_data(make_run(tmp_path / "run", cells)))
    matrix = text.split('<section id="matrix"')[1].split("</section>")[0]
    said = "Each of the 2 verdicts on single points stands for itself: of as many without any difference, 0.10 would show one"
    assert (said in matrix) == told


def test_weights_that_were_converted_are_told_beside_the_model_s_name(tmp_path: Path) -> None:
    page = page_of(tmp_path, grid(), source="<b>a Q4_1 GGUF</b>, dequantised")
    assert "Weights from <b>a Q4_1 GGUF</b>, dequantised" in " ".join(page.texts)
    assert "Weights from" not in " ".join(page_of(tmp_path / "plain", grid()).texts)


def test_a_headline_from_a_suspect_cell_is_marked(tmp_path: Path) -> None:
    text = render_html(
        load_report_data(make_run(tmp_path / "run", [flawed("SUSPECT", "client_lag")(c) for c in grid()]))
    )
    # Not the bytes a token: they are arithmetic.
    assert text.count('class="doubt"') == 3
    assert text.count("<b>SUSPECT</b>") == 3
    assert "SUSPECT here: client lag." in text
