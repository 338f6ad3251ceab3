"""Single cells on a time axis: every cell's view is in the page, packed, with what it leaves out and what is not there."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path

import pytest
from markupsafe import Markup

from reports.html import render_html
from reports.packed import pack
from reports.times import time_notes
from results.report_data import ReportData, load_report_data
from results.store import RunStore
from results.time_tracks import Track
from tests.results.builders import CellEdit, synthetic_run
from tests.results.test_step_log import by_log


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    return synthetic_run(tmp_path_factory.mktemp("times"), batches=(2, 8), input_lens=(64,), mode="concurrency")


@pytest.fixture(scope="module")
def data(store: RunStore) -> ReportData:
    return load_report_data(store)


def views(page: str, name: str) -> list[str]:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert found
    return [zlib.decompress(base64.b64decode(text)).decode() for text in json.loads(found[1])]


def test_every_cell_has_its_view_and_the_one_in_the_page_is_that_of_the_most_output(data: ReportData) -> None:
    page = render_html(data)
    packed = views(page, "time-views")
    assert len(packed) == len(data.cells) == 4
    section = page.split('<section id="times"')[1].split("</section>")[0]
    best = max(data.cells, key=lambda c: c.values["output_tokens_per_s"].mean or 0)
    chosen = section.split('<div id="time-view"')[1]
    assert best.label in chosen
    for row, view in zip(data.cells, packed, strict=True):
        assert row.label in view
        requests = int(row.values["requests_issued"].mean or 0)
        # Each request once in the wide and once in the narrow picture.
        assert view.count('class="mark bar') == 2 * requests
        assert view.count('class="mark cursor') == 2 * 80
        assert "output tokens/s" in view
        assert "Not drawn:" in view
        assert "no device was sampled" in view


@pytest.mark.parametrize("truth", [True, False])
def test_queue_and_prefill_are_two_stretches_only_where_the_engine_tells(tmp_path: Path, truth: bool) -> None:
    made = synthetic_run(tmp_path, engines=("a",), batches=(8,), input_lens=(64,), mode="concurrency", truth=truth)
    (view,) = views(render_html(load_report_data(made)), "time-views")
    assert ('class="queues"' in view) == ("in the queue, " in view) == truth
    assert ("this engine does not tell them apart" in view) == (not truth)


def test_latencies_are_those_of_the_table(data: ReportData) -> None:
    for times in data.times.cells:
        value = times.cell.values["ttft_ms_p50"].mean
        assert times.ttft_ms.at(0.5) == pytest.approx(value)
        assert times.tpot_ms.n > 0


def test_what_is_thinned_is_told(data: ReportData) -> None:
    times = data.times.cells[0]
    assert not any("Drawn are" in line for line in time_notes(times))
    thin = times.lanes.__class__(
        **{name: getattr(times.lanes, name) for name in times.lanes.__slots__} | {"total": 9_000, "all_lanes": 64}
    )
    told = time_notes(type(times)(**{n: getattr(times, n) for n in times.__slots__} | {"lanes": thin}))
    assert "Drawn are 16 of 9,000 requests: 2 lanes of 64" in told[0]


def test_a_cell_whose_events_cannot_be_read_is_told_and_the_rest_is_drawn(tmp_path: Path) -> None:
    store = synthetic_run(tmp_path, engines=("a",), batches=(1, 2), mode="concurrency")
    broken = sorted((store.path / "cells").iterdir())[0] / "chunks.parquet"
    broken.write_bytes(b"not parquet")
    page = render_html(load_report_data(store))
    assert "chunks.parquet is damaged" in page.split('<section id="times"')[1].split("</section>")[0]
    assert len(views(page, "time-views")) == 1


def test_a_run_without_events_has_no_time_axis(tmp_path: Path) -> None:
    store = synthetic_run(tmp_path, engines=("a",), batches=(1,))
    for path in (store.path / "cells").glob("*/*.parquet"):
        path.unlink()
    assert not load_report_data(store).times


def test_steps_of_an_engine_s_own_log_are_drawn_as_those_of_a_truth_log(tmp_path: Path) -> None:
    def tracks(store: RunStore) -> dict[str, Track]:
        return {track.id: track for track in load_report_data(store).times.cells[0].tracks}

    store = synthetic_run(tmp_path, engines=("a",), batches=(2,), mode="concurrency")
    truth, logged = tracks(store), tracks(by_log(store))
    assert logged["batch"].source == truth["batch"].source == "the engine's step log"
    assert logged["batch"].n >= truth["batch"].n - 1
    # Lines of a log tell nothing of the KV cache: its gauge does, or nothing.
    assert logged["kv"].source != "the engine's step log"


def test_a_request_that_failed_is_drawn_as_such(tmp_path: Path) -> None:
    def fail(parts: CellEdit) -> None:
        parts.requests[3] |= {"outcome": "reset", "last_token": None, "error": "the peer closed"}

    page = render_html(load_report_data(synthetic_run(tmp_path, engines=("a",), batches=(2,), edit=fail)))
    section = page.split('<section id="times"')[1].split("</section>")[0]
    assert section.count("failed-bar") >= 2
    assert "; reset" in section


def test_views_beyond_the_room_are_left_out_and_counted_never_the_one_that_is_shown() -> None:
    found = pack(["a", "b", "c"], lambda at: Markup("x" * 10 + str(at)), 2, 40)
    assert found.names[found.chosen] == "c"
    assert found.left_out == 3 - len(found.names) > 0
