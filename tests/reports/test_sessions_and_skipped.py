"""What an adapter chose by itself, where its parts ran, and cells that were left out: told in every form of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reports.html import render_html
from reports.markdown import render_markdown
from results.report_data import ReportData, load_report_data
from tests.reports.runs import grid, make_run
from tests.reports.test_console_and_markdown import printed

NOTE = "with 2 cores the client, the API server and the engine share them all"


@pytest.fixture
def data(tmp_path: Path) -> ReportData:
    store = make_run(tmp_path / "run", grid())
    for path in store.path.glob("sessions/*/session.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "notes": ["KV asked in <blocks>", NOTE]}))
    summary: dict[str, Any] = json.loads((store.path / "summary.json").read_text())
    first = summary["cells"][0]
    entry = {key: first[key] for key in ("engine", "block", "workload")}
    why = "batch 8 with 192 tokens a request ran out of memory on it, and this is no smaller"
    for batch in (32, 64):
        load = {"mode": "batch", "value": batch}
        skipped = {"code": "skipped_after_oom", "words": why}
        summary.setdefault("skipped", []).append({**entry, "id": str(batch), "load": load, "skipped": skipped})
    return load_report_data(store, summary)


def test_notes_about_sessions_are_told_once_an_engine(data: ReportData) -> None:
    (engine,) = data.engines
    assert engine.notes == ["KV asked in <blocks>", NOTE]
    page = render_html(data)
    assert f"About its sessions: KV asked in &lt;blocks&gt;; {NOTE}." in page
    assert "**About the sessions**" in render_markdown(data)
    assert f"- reference: KV asked in &lt;blocks&gt;; {NOTE}." in render_markdown(data)
    assert f"About the sessions of reference: KV asked in <blocks>; {NOTE}." in " ".join(printed(data).split())


def test_cells_that_were_left_out_are_told_with_the_reason(data: ReportData) -> None:
    for text in (render_html(data), render_markdown(data), printed(data)):
        words = " ".join(text.split())
        assert "2 cells without numbers" in words
        assert "ran out of memory" in words
        assert "batch 32" in words
