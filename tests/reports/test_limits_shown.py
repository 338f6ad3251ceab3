"""What a report shows of the limiting factors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports.build import render_report
from results.reasons import CEILING_REFUTED, reason
from results.report_data import ReportData, load_report_data
from results.report_limits import to_ask
from results.store import RunStore
from tests.reports.runs import flawed, grid, make_run


def side(factor: str, *shares: tuple[str, float], basis: str = "steps") -> dict[str, Any]:
    told = [{"name": n, "share": v, "low": max(0.0, v - 0.05), "high": min(1.0, v + 0.05)} for n, v in shares]
    return {"factor": factor, "shares": told, "evidence": "what was <seen>", "basis": basis}


ARITHMETIC = {
    "mfu": 0.12,
    "mbu": 0.34,
    "decode": {"mfu": 0.11, "mbu": 0.35, "steps": 50, "seconds": 1.0},
    "bytes_per_output_token": 271e6,
    "bytes_per_output_token_counted": 300e6,
    "ceilings": {
        "words": "measured on this CPU, 2 threads",
        "flops_per_s": 4e11,
        "bytes_per_s": 2.7e10,
        "published": {"bf16_flops_per_s": 989.4e12, "bytes_per_s": 4.8e12, "bytes_per_s_by_clock": 4.9167e12},
    },
}


def shown(tmp_path: Path, batch: list[dict[str, Any]], step: list[dict[str, Any]]) -> tuple[ReportData, str]:
    cells = grid(("a",), (1, 4)[: len(batch)], (128,))
    cells = [
        {**cell, "limits": {"batch": b, "step": s}, "arithmetic": {**cell["arithmetic"], **ARITHMETIC}}
        for cell, b, s in zip(cells, batch, step, strict=True)
    ]
    store = make_run(tmp_path / "run", cells)
    data = load_report_data(store)
    return data, render_report(store, data).read_text(encoding="utf-8")


def test_a_point_has_its_pair_with_shares_and_what_it_used(tmp_path: Path) -> None:
    unexplained = side("undetermined", ("unexplained", 0.7), ("bandwidth", 0.3))
    data, page = shown(
        tmp_path, [side("kv_reservation", ("kv_reservation", 0.9), ("offered_load", 0.1))], [unexplained]
    )
    row = data.limits.rows[0]
    assert row.batch.factor == "KV reservation"
    assert row.batch.shares[0] == "KV reservation 90\N{NO-BREAK SPACE}% (85 to 95)"
    assert (row.step.factor, row.step.named) == ("undetermined", False)
    assert row.use[0] == "MFU 12.0 %, MBU 34.0 %"
    assert "271 MB a token (300 by the device's counter)" in row.use
    assert 'id="limits"' in page
    assert f"dyno why PATH/TO/{data.run} {row.cell}" in page
    assert "admission on demand" in page
    assert "0.40 TFLOP/s and 27.0 GB/s, measured on this CPU, 2 threads" in page
    assert "Its maker says 989 TFLOP/s (bf16, dense) and 4,800 GB/s, 4,917 by its memory clock and width." in page
    assert "what was &lt;seen&gt;" in page


def test_the_command_that_decides_names_the_run_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown(tmp_path, [side("mixed", ("queue", 0.5))], [side("mixed", ("bandwidth", 0.5))])
    monkeypatch.chdir(tmp_path)
    Path("my runs").mkdir()
    Path("run").rename("my runs/run")
    data = load_report_data(RunStore(Path("my runs/run")))
    assert [line.split("   #")[0] for line in to_ask(data.limits, data.path)] == [
        f"dyno why 'my runs/run' {data.limits.rows[0].cell}"
    ]


def test_the_answer_says_what_it_means_where_all_points_agree(tmp_path: Path) -> None:
    data, _ = shown(
        tmp_path, [side("offered_load", ("offered_load", 1.0))] * 2, [side("bandwidth", ("bandwidth", 0.9))] * 2
    )
    sentence = next(s for s in data.answer if s.topic == "Why this fast")
    assert sentence.text.startswith(
        "The batch is held by the offered load: no request waited at the start of a step, so"
    )
    assert "The time of a step goes to memory bandwidth" in sentence.text
    assert "dyno why" in sentence.detail[0]


@pytest.mark.parametrize(
    ("basis", "share", "words"),
    [
        ("steps", 1.0, "no request waited at the start of a step, so the batch is"),
        ("steps", 0.8, "mostly no request waited at the start of a step, so the batch is"),
        ("gauges", 1.0, "no request waited when the server's gauges were read, so the batch is"),
        ("xray", 1.0, "no request was without its first token at the start of a step, so the batch is"),
    ],
)
def test_that_nothing_waited_is_said_of_the_moments_that_were_looked_at(
    tmp_path: Path, basis: str, share: float, words: str
) -> None:
    batch = side("offered_load", ("offered_load", share), ("unexplained", 1 - share)) | {"basis": basis}
    data, page = shown(tmp_path, [batch], [side("compute", ("compute", 1.0))])
    assert data.limits.rows[0].batch.meaning.startswith(words)
    assert words.partition(", so")[0].replace("'", "&#39;") in page


def test_what_keeps_a_factor_from_being_named_stands_beside_it(tmp_path: Path) -> None:
    close = side("undetermined", ("compute", 0.58), ("unexplained", 0.36)) | {"rivals": ["compute", "unexplained"]}
    mostly = side("undetermined", ("unexplained", 0.7), ("compute", 0.3))
    data, page = shown(tmp_path, [side("offered_load", ("offered_load", 1.0))] * 2, [close, mostly])
    assert [row.step.why for row in data.limits.rows] == [
        "compute is not clearly ahead of unexplained",
        "most is unexplained",
    ]
    assert "compute is not clearly ahead of unexplained" in page


@pytest.mark.parametrize(("suspect", "words"), [(2, "(from SUSPECT cells)"), (1, "(1 of 2 points from SUSPECT cells)")])
def test_the_answer_says_that_the_pair_rests_on_suspect_cells(tmp_path: Path, suspect: int, words: str) -> None:
    cells = [
        {**cell, "limits": {"batch": side("client", ("client", 1.0)), "step": side("compute", ("compute", 1.0))}}
        for cell in grid(("a",), (1, 4), (128,))
    ]
    cells[:suspect] = [flawed("SUSPECT", "client_lag")(cell) for cell in cells[:suspect]]
    data = load_report_data(make_run(tmp_path / "run", cells))
    sentence = next(s for s in data.answer if s.topic == "Why this fast")
    assert words in sentence.text
    assert sentence.caution


def test_a_use_above_the_ceiling_says_that_the_ceiling_is_too_low(tmp_path: Path) -> None:
    pair = {"batch": side("client", ("client", 1.0)), "step": side("compute", ("compute", 1.0))}

    def report(folder: str, mfu: float) -> ReportData:
        (cell,) = grid(("a",), (1,), (128,))
        more = {"limits": pair, "arithmetic": {**cell["arithmetic"], **ARITHMETIC, "mfu": mfu}}
        return load_report_data(make_run(tmp_path / folder, [{**cell, **more}]))

    above, below = report("above", 1.58), report("below", 0.58)
    assert "above 100 %: the ceiling is too low" in above.limits.rows[0].use
    assert "measures them again" in above.limits.ceilings
    assert not any("too low" in text for text in (*below.limits.rows[0].use, below.limits.ceilings))


def test_a_refuted_ceiling_stands_under_what_not_to_trust_though_the_cell_is_valid(tmp_path: Path) -> None:
    why = "the measured ceiling is too low, 134 GFLOP/s, since the cell itself computed at 237"
    step = side("undetermined", ("compute", 0.9)) | {"why": why}
    (cell,) = grid(("a",), (1,), (128,))
    found = reason(CEILING_REFUTED, why).to_dict()
    more = {"limits": {"batch": side("client", ("client", 1.0)), "step": step}, "reasons": [found]}
    data = load_report_data(make_run(tmp_path / "run", [{**cell, **more}]))
    assert data.limits.rows[0].step.why == why
    told = [s.text for s in data.answer if s.topic == "What not to trust"]
    assert "The one cell is VALID." in told
    assert any(f"({CEILING_REFUTED}, note)" in text and why in text for text in told)


def test_the_answer_counts_points_where_they_differ(tmp_path: Path) -> None:
    pair = [side("offered_load", ("offered_load", 1.0)), side("max_num_seqs", ("max_num_seqs", 1.0))]
    undetermined = [side("undetermined", ("unexplained", 0.9))] * 2
    data, _ = shown(tmp_path, pair, undetermined)
    sentence = next(s for s in data.answer if s.topic == "Why this fast")
    assert "the offered load (1 of 2 points) and max_num_seqs (1 of 2 points)" in sentence.text
    assert "no single factor that can be named" in sentence.text


@pytest.mark.parametrize(
    "limits", [None, {}, {"batch": None, "step": None}, {"batch": {"factor": "new_one", "shares": [{}]}}]
)
def test_limits_of_an_older_or_a_newer_version_break_no_report(tmp_path: Path, limits: Any) -> None:
    cells = [{**cell, "limits": limits} for cell in grid(("a",), (1,), (128,))]
    store = make_run(tmp_path / "run", cells)
    assert render_report(store, load_report_data(store)).is_file()
