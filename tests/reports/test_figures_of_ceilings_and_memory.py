"""Roofline, stacked memory, fronts, spreads and the files: marks stand where the numbers say."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from reports.distributions import cell_distributions, spread_figures
from reports.figure_files import write_figures
from reports.figures import build_figures
from reports.memory_figure import memory_figure
from reports.pictures import pictures
from reports.roofline_figure import roofline_figure
from reports.sections import page_figures
from results.errors import StoreError
from results.report_data import ReportData, load_report_data
from tests.reports.runs import Cell, flawed, grid, make_run
from tests.results.builders import synthetic_run

LABEL = '"><svg onload=1>\u202e'


def with_ceilings(cell: Cell, mfu: float = 0.1, mbu: float = 0.5) -> Cell:
    steps = {"steps": 40, "mfu": 0.6, "mbu": 0.05}
    ceilings = {"words": "measured on it", "flops_per_s": 2e12, "bytes_per_s": 1e10}
    more = {"mfu": mfu, "mbu": mbu, "prefill": steps, "decode": None, "ceilings": ceilings}
    return {**cell, "arithmetic": {**cell["arithmetic"], **more}}


def data_of(folder: Path, cells: list[Cell], **options: Any) -> ReportData:
    return load_report_data(make_run(folder / "run", cells, **options))


def test_a_point_of_the_roofline_stands_at_its_flops_a_byte_under_the_measured_ceilings(tmp_path: Path) -> None:
    cells = [with_ceilings(c) for c in grid(batches=(1, 4), input_lens=(128,))]
    cells[1] = flawed("INVALID", "server_died")(cells[1])
    figure = roofline_figure(data_of(tmp_path, cells))
    assert figure
    (panel,) = figure.panels
    by_style = {s.style: s for s in panel.series}
    # 0.1 x 2 TFLOP/s over 0.5 x 10 GB/s; the cell that is INVALID is not there.
    whole, prefill = panel.points
    assert (whole.x, whole.y) == (pytest.approx(200e9 / 5e9), pytest.approx(200.0))
    assert (prefill.x, prefill.y) == (pytest.approx(1200e9 / 0.5e9), pytest.approx(1200.0))
    low, ridge, roof = (m for m in by_style["ceiling"].marks if m)
    assert (ridge.x, ridge.y, roof.y) == (pytest.approx(200.0), pytest.approx(2000.0), pytest.approx(2000.0))
    assert low.y == pytest.approx(low.x * 10.0)
    assert all(m.y <= min(10.0 * m.x, 2000.0) * (1 + 1e-9) for m in panel.points)


def test_without_ceilings_there_is_no_roofline(tmp_path: Path) -> None:
    assert roofline_figure(data_of(tmp_path, grid())) is None


@pytest.mark.parametrize(("batches", "dashes"), [((4,), 1), ((1, 4), 0)])
def test_a_predicted_line_of_one_load_is_a_dash_that_can_be_seen(
    tmp_path: Path, batches: tuple[int, ...], dashes: int
) -> None:
    figure = memory_figure(data_of(tmp_path, grid(batches=batches, input_lens=(128,))))
    assert figure
    drawn = str(pictures([figure])[0].wide[0])
    assert drawn.count('class="curve ghost"') == 1
    assert len(re.findall(r'class="curve ghost" d="M[\d.]+ [\d.]+h36"', drawn)) == dashes


def test_a_bar_of_memory_is_stacked_of_its_parts_and_the_dotted_line_is_weights_and_formula(tmp_path: Path) -> None:
    cells = grid(batches=(4,), input_lens=(128,))
    cells[0]["server"] |= {"kv_reserved_bytes_max": 40_000_000}
    cells[0]["arithmetic"] |= {"memory": {"other_bytes": 500_000_000, "weights_bytes": 269_030_016}}
    data = data_of(tmp_path, cells)
    figure = memory_figure(data)
    assert figure
    (panel,) = figure.panels
    pieces = [s.marks[0] for s in panel.series if s.style == "bars"]
    assert all(m and m.inner for m in pieces)
    edges = [m.inner for m in pieces if m and m.inner]
    gib = 2**30  # the bars pass a GiB, so they are drawn in it
    held = cells[0]["arithmetic"]["kv_bytes_engine"]
    sizes = [(high - low) * gib for low, high in edges]
    assert sizes == pytest.approx([269_030_016, held, 40_000_000 - held, 2**30 - 40_000_000, 500_000_000])
    assert all(below[1] == pytest.approx(above[0]) for below, above in pairwise(edges))
    (line,) = (s for s in panel.series if s.style == "ghost")
    predicted = line.marks[0]
    assert predicted
    assert predicted.y * gib == pytest.approx(269_030_016 + cells[0]["arithmetic"]["kv_bytes_predicted"])


def test_memory_that_an_engine_does_not_tell_stays_in_the_picture(tmp_path: Path) -> None:
    cells = grid(("told", "whole", "dark"), (4,), (128,))
    # Which blocks are reserved is not told by the first, but it leaves no gap: they are in its pool.
    del cells[0]["server"]["kv_allocated_bytes_max"]
    cells[0]["server"] |= {"rss_bytes_max": 269_030_016 + 2**30 + 500_000_000}
    cells[0]["arithmetic"] |= {"memory": {"other_bytes": 500_000_000}}
    for cell, server in ((cells[1], {"rss_bytes_max": 4 * 2**30}), (cells[2], {})):
        cell["server"] = {"weight_bytes": 269_030_016, **server}
        cell["arithmetic"] |= {"kv_bytes_engine": None}
    figure = memory_figure(data_of(tmp_path, cells))
    assert figure
    told, whole, dark = ({s.style: s.marks[-1] for s in panel.series} for panel in figure.panels)
    assert set(told) == {"bars", "ghost"}
    hatched, end = whole["hatched"], dark["open"]
    assert hatched
    assert hatched.inner == (pytest.approx(269_030_016 / 2**30), pytest.approx(4.0))
    assert "3.75 GiB not told what for" in hatched.tip
    assert end
    assert end.y == pytest.approx(269_030_016 / 2**30)
    assert "more, not told how much" in end.tip
    assert {"hatched", "open"} <= {key.style for key in figure.keys}
    assert "cannot be held against the others" in figure.spec.reading
    drawn = pictures([figure])[0]
    assert [str(svg).count('class="hatch"') for svg in drawn.wide] == [0, 1, 1]


def test_the_ceilings_of_engines_that_differ_are_named_and_one_of_all_is_not(tmp_path: Path) -> None:
    cells = [with_ceilings(c) for c in grid(("a", "b"), (1,), (128,))]
    figure = roofline_figure(data_of(tmp_path / "same", cells))
    assert figure
    assert [s.name for s in figure.panels[0].series if s.style == "ceiling"] == [""]
    arithmetic = cells[1]["arithmetic"]
    cells[1]["arithmetic"] = {**arithmetic, "ceilings": {**arithmetic["ceilings"], "flops_per_s": 5e11}}
    figure = roofline_figure(data_of(tmp_path / "two", cells))
    assert figure
    names = [s.name for s in figure.panels[0].series if s.style == "ceiling"]
    assert names == ["ceiling of b: 500 GFLOP/s", "ceiling of a: 2,000 GFLOP/s"]
    assert all(name in str(pictures([figure])[0].wide[0]) for name in names)


def test_colours_of_one_engine_s_roofline_are_in_its_legend(tmp_path: Path) -> None:
    figure = roofline_figure(data_of(tmp_path, [with_ceilings(c) for c in grid(batches=(1,), input_lens=(128, 512))]))
    assert figure
    assert [(k.text, k.colour) for k in figure.keys][:2] == [("128 in / 64 out", 0), ("512 in / 64 out", 1)]
    assert {s.colour for s in figure.panels[0].series if s.style == "line"} == {0, 1}


@pytest.mark.parametrize(("mbu", "too_low"), [(0.5, False), (1.58, True)])
def test_a_mark_above_the_ceilings_says_that_they_are_too_low(tmp_path: Path, mbu: float, too_low: bool) -> None:
    figure = roofline_figure(
        data_of(tmp_path, [with_ceilings(c, mbu=mbu) for c in grid(batches=(1,), input_lens=(128,))])
    )
    assert figure
    assert ("measured too low" in figure.spec.reading) == too_low


def test_the_band_is_explained_where_it_is_drawn_and_nowhere_else(tmp_path: Path) -> None:
    for batches, drawn in (((1, 4, 16), True), ((4,), False)):
        data = data_of(tmp_path / str(len(batches)), grid(batches=batches, input_lens=(128,)))
        figure = next(f for f in build_figures(data) if f.spec.id == "tradeoff")
        assert any(s.style == "front" for s in figure.panels[0].series) == drawn
        assert ("pale band" in figure.spec.reading) == drawn


def test_parts_of_memory_that_are_not_known_are_named_and_not_drawn(tmp_path: Path) -> None:
    figure = memory_figure(data_of(tmp_path, grid(batches=(4,), input_lens=(128,))))
    assert figure
    assert "rest of the server's memory not known of reference" in figure.missing
    assert len([s for s in figure.panels[0].series if s.style == "bars"]) == 4


def test_the_front_joins_the_points_that_none_beats_in_both(tmp_path: Path) -> None:
    figure = next(f for f in build_figures(data_of(tmp_path, grid(("a", "b")))) if f.spec.id == "tradeoff")
    fronts = [s for s in figure.panels[0].series if s.style == "front"]
    assert len(fronts) == 2  # one a workload
    for front in fronts:
        marks = [m for m in front.marks if m]
        same = [
            m for s in figure.panels[0].series if s.style == "line" and s.shape == front.shape for m in s.marks if m
        ]
        assert len(marks) > 1
        for mark in marks:
            assert not any(m.x >= mark.x and m.y >= mark.y and (m.x > mark.x or m.y > mark.y) for m in same)
        # The second engine is the faster one at every load.
        assert {m.tip.split(",")[0] for m in marks} == {"b"}


def test_throughput_of_a_gpu_is_drawn_where_a_device_was_sampled_and_gpus_are_told(tmp_path: Path) -> None:
    cells = [{**c, "device": {"power_w": 300.0}} for c in grid(batches=(1, 4), input_lens=(128,))]
    store = make_run(tmp_path / "run", cells)
    summary = {
        "run": "run",
        "cells": cells,
        "engines": [{"label": "reference", "settings": {"tensor_parallel": {"value": 2, "source": "log"}}}],
    }
    data = load_report_data(store, summary)
    point = data.points[0]
    assert point.values["output_tokens_per_s_per_gpu"].mean == pytest.approx(
        (point.values["output_tokens_per_s"].mean or 0) / 2
    )
    assert "tradeoff-gpu" in [f.spec.id for f in build_figures(data)]
    bare = load_report_data(store, {**summary, "cells": [{**c, "device": None} for c in cells]})
    assert bare.points[0].values["output_tokens_per_s_per_gpu"].why == "no device was sampled"
    assert "tradeoff-gpu" not in [f.spec.id for f in build_figures(bare)]


def test_boxes_tell_n_and_pool_the_blocks_of_a_point_and_a_cell_has_its_whole_distribution(tmp_path: Path) -> None:
    store = synthetic_run(tmp_path, engines=("a",), batches=(8,), input_lens=(64,), mode="concurrency", blocks=2)
    data = load_report_data(store)
    ttft, tpot = spread_figures(data)
    assert (ttft.spec.id, tpot.spec.id) == ("spread-ttft", "spread-tpot")
    (mark,) = ttft.panels[0].points
    one, two = (times.ttft_ms for times in data.times.cells)
    assert f"n = {one.n + two.n} requests" in mark.tip
    assert mark.inner
    assert mark.low <= mark.inner[0] <= mark.y <= mark.inner[1] <= mark.high
    figure = cell_distributions(data.times.cells[0])[0]
    steps = [m.y for m in figure.panels[0].series[0].marks if m]
    assert steps == sorted(steps)
    assert steps[-1] == pytest.approx(100.0)
    # Few requests: a percentile that they do not support is not marked.
    assert "p99" not in [m.label for m in figure.panels[0].points]


@pytest.fixture
def hostile(tmp_path: Path) -> ReportData:
    return load_report_data(
        synthetic_run(tmp_path, engines=(LABEL, "b"), batches=(2, 4), mode="concurrency", model=LABEL)
    )


def test_each_figure_and_each_cell_becomes_a_file_that_stands_alone(hostile: ReportData, tmp_path: Path) -> None:
    figures = [f for part in page_figures(hostile) for f in part]
    paths = write_figures(hostile, figures, tmp_path / "figures")
    assert len(paths) == len(figures) + len(hostile.cells)
    for path in paths:
        text = path.read_text(encoding="utf-8")
        root = ET.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(" not in text
        assert "url(" not in text
        assert "\u202e" not in text
        assert not any("onload" in e.attrib for e in root.iter())
        assert len(root.findall(".//*[@class]")) > 5
    assert len(re.findall(r"class=\"title\"", paths[0].read_text())) == 1


def test_a_folder_that_cannot_be_made_is_refused_in_words(hostile: ReportData, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        write_figures(hostile, [], tmp_path / "file" / "below")


def test_the_command_writes_the_files_and_says_that_no_browser_was_needed(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from harness.cli.commands import app

    store = synthetic_run(tmp_path, engines=("a",), batches=(1, 2), mode="concurrency")
    result = CliRunner().invoke(app, ["report", str(store.path), "--figures", str(tmp_path / "out")])
    assert result.exit_code == 0
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert {"throughput.svg", "spread-ttft.svg"} <= set(written)
    assert f"{len(written)} figures written" in result.output
    assert "no browser" in result.output


def test_an_invalid_cell_is_left_out_of_the_bars_as_such_and_its_parts_are_not_called_unknown(tmp_path: Path) -> None:
    cells = grid(batches=(1, 4), input_lens=(128,))
    cells[1] = flawed("INVALID", "server_died")(cells[1])
    figure = memory_figure(data_of(tmp_path, cells))
    assert figure
    assert figure.missing == [
        "INVALID, left out: reference, 128 in / 64 out, batch 4",
        "rest of the server's memory not known of reference",
    ]


def test_each_engine_s_marks_of_the_roofline_are_joined_by_a_dash_of_its_own(tmp_path: Path) -> None:
    cells = [with_ceilings(c) for c in grid(("one", "two"), batches=(1, 4), input_lens=(128,))]
    figure = roofline_figure(data_of(tmp_path, cells))
    assert figure
    (picture,) = pictures([figure])
    dashes = re.findall(r'<g class="c(\d)"><path class="curve"( stroke-dasharray="[^"]+")? d=', str(picture.wide[0]))
    assert set(dashes) == {("0", ""), ("1", ' stroke-dasharray="7 4"')}
