"""The fairness audit in HTML, terminal and Markdown: there with several engines, differences first, names as text."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from reports.console import print_report
from reports.html import render_html
from reports.markdown import render_markdown
from results.report_data import ReportData, load_report_data
from tests.reports.runs import REFERENCE_LIKE, VLLM_LIKE, Setup, grid, make_run
from tests.reports.test_html import Page

HOSTILE = '"><img src=x onerror=alert(1)>|`x`'


def data_of(tmp_path: Path, engines: tuple[str, ...] = ("a", "b"), setups: tuple[Setup, ...] = ()) -> ReportData:
    cells = grid(engines, (1, 16), (128, 512))
    for cell in cells:
        del cell["server"]["kv_pool_bytes"]
    chosen = dict(zip(engines, setups or (VLLM_LIKE, REFERENCE_LIKE), strict=False))
    return load_report_data(make_run(tmp_path / "run", cells, setups=chosen))


def printed(data: ReportData) -> str:
    out = io.StringIO()
    print_report(data, Console(file=out, width=80))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def section(data: ReportData) -> str:
    return render_html(data).split('<section id="alike"')[1].split("</section>")[0]


def test_a_run_of_one_engine_has_no_audit(tmp_path: Path) -> None:
    data = data_of(tmp_path, ("a",))
    assert data.audit is None
    for text in (render_html(data), printed(data), render_markdown(data)):
        assert "alike" not in text.replace(".alike", "").lower()


def test_the_page_says_the_verdict_the_label_and_every_row_with_its_provenance(tmp_path: Path) -> None:
    data = data_of(tmp_path)
    assert data.audit
    text = section(data)
    body = Page(text)
    said = " ".join(" ".join(body.texts).split())
    assert "No: they differ in limit of tokens a step and KV block size, and that bears on these cells." in said
    assert "a (set by hand) against b (own defaults)" in said
    assert "threads and --enforce-eager" in said
    assert text.count('<tr class="a-') == len(data.audit.rows)
    for mark in ("server", "log", "fixed", "only asked", "worked out", "not told"):
        assert f'<span class="mark-of">{mark}</span>' in text
    order = [part.split('"')[0] for part in text.split('<tr class="a-')[1:]]
    assert order == sorted(order, key=["bears", "may", "open", "idle", "same"].index)
    assert "Beside each value: server read from the server" in said
    assert "The KV caches are equal neither in tokens nor in bytes." in said


def test_the_terminal_names_the_label_and_the_differences_that_bear_and_no_other(tmp_path: Path) -> None:
    text = printed(data_of(tmp_path))
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    assert "Label: a (set by hand) against b (own defaults)." in flat
    assert (
        "Limit of tokens a step: a 2,048, b 8,192 (up to 8,192 prompt tokens at once against a limit of 2,048)." in flat
    )
    assert "Prefix caching" not in flat


def test_markdown_lists_them_under_the_sentence(tmp_path: Path) -> None:
    lines = render_markdown(data_of(tmp_path)).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("- Set alike? No:"))
    assert lines[at + 1].startswith("  - Limit of tokens a step: a 2,048, b 8,192")
    assert lines[at + 2].startswith("  - KV block size: a 128, b 16")


def test_engines_set_alike_are_said_to_be(tmp_path: Path) -> None:
    data = data_of(tmp_path, setups=(REFERENCE_LIKE, REFERENCE_LIKE))
    assert data.audit
    assert data.audit.alike
    assert 'class="verdict"' in section(data)
    assert "Set alike? Yes:" in " ".join(printed(data).split())
    assert not next(s for s in data.answer if s.text.startswith("Set alike?")).caution


@pytest.mark.parametrize("place", ["label", "option", "value"])
def test_no_name_in_it_becomes_markup(tmp_path: Path, place: str) -> None:
    label = HOSTILE if place == "label" else "a"
    odd = Setup(
        {**VLLM_LIKE.told, "scheduler_policy": HOSTILE if place == "value" else "fcfs"},
        options=(HOSTILE,) if place == "option" else (),
    )
    data = data_of(tmp_path, (label, "b"), (odd, REFERENCE_LIKE))
    assert "<img" not in section(data)
    assert HOSTILE in " ".join(Page(section(data)).texts)
    assert "<img" not in render_markdown(data).split("Done with")[0]
