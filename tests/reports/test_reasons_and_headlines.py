"""What is said against a run's numbers, and the few numbers that stand above all: each with its cell, none without its doubt."""

from __future__ import annotations

from pathlib import Path

import pytest

from results.report_data import ReportData, load_report_data
from results.report_format import number
from results.report_headlines import Headline, level
from results.report_measures import Value
from results.report_reasons import EvidenceGroup, evidence_groups
from results.report_shapes import ReasonRow
from tests.reports.runs import Cell, flawed, grid, make_run, rate


def load(tmp_path: Path, cells: list[Cell]) -> ReportData:
    return load_report_data(make_run(tmp_path / "run", cells))


def headline(data: ReportData, word: str) -> Headline:
    return next(h for h in data.headlines if word in h.words)


def noted(given: Cell, code: str) -> Cell:
    return {**flawed("NOTE", code, "lag 1 ms")(given), "verdict": "VALID"}


def test_a_code_that_is_a_note_here_and_suspect_there_is_two_rows_the_worse_first(tmp_path: Path) -> None:
    cells = grid(input_lens=(128,))
    cells[0], cells[1] = noted(cells[0], "client_lag"), noted(cells[1], "client_lag")
    cells[2] = flawed("SUSPECT", "client_lag", "lag 12 ms")(cells[2])
    data = load(tmp_path, cells)
    rows = [(r.code, r.severity, len(r.evidence)) for r in data.reasons if r.code == "client_lag"]
    assert rows == [("client_lag", "suspect", 1), ("client_lag", "note", 2)]
    assert data.reasons[0].evidence == [("reference, 128 in / 64 out, batch 16", "lag 12 ms")]
    assert any("client_lag, suspect" in s.text and "lag 12 ms" in s.text for s in data.answer)


def test_evidence_is_told_in_the_order_of_the_table(tmp_path: Path) -> None:
    cells = [flawed("SUSPECT", "client_lag")(c) for c in grid()]
    data = load(tmp_path, cells[::-1])
    assert [label for label, _ in data.reasons[0].evidence] == [c.label for c in data.cells]


def test_a_sentence_that_differs_in_its_numbers_alone_is_told_once_with_each_cell_s_own(tmp_path: Path) -> None:
    seen = [
        ("a", "lag p99 9.5 ms, TPOT 1,100 ms, 7 reads"),
        ("b", "lag p99 12 ms, TPOT 900 ms, 7 reads"),
        ("c", "other"),
    ]
    assert evidence_groups(ReasonRow("x", "X", "suspect", "", seen)) == [
        EvidenceGroup(
            "lag p99 9.5 to 12 ms, TPOT 900 to 1,100 ms, 7 reads", [("a", "9.5 ms, 1,100 ms"), ("b", "12 ms, 900 ms")]
        ),
        EvidenceGroup("other", [("c", "")]),
    ]


def test_headlines_come_from_valid_cells_where_there_are_any(tmp_path: Path) -> None:
    cells = grid(input_lens=(128,))
    cells[2] = flawed("SUSPECT", "client_lag")(cells[2])
    most = headline(load(tmp_path, cells), "most output")
    assert (most.value, most.doubt) == (number(rate(4, 128)), "")
    assert "batch 4" in most.words


def test_headlines_from_suspect_cells_carry_the_reason(tmp_path: Path) -> None:
    data = load(tmp_path, [flawed("SUSPECT", "client_lag")(c) for c in grid()])
    assert len(data.headlines) == 4
    for h in data.headlines:
        assert h.doubt == "SUSPECT: client lag"


def test_latency_is_that_of_every_engine_at_the_smallest_load_and_shortest_input(tmp_path: Path) -> None:
    data = load(tmp_path, grid(("a", "b")))
    ttft = headline(data, "TTFT")
    assert ttft.value == f"{number(140.8)} / {number(140.8 / 1.2)}"
    assert ttft.words == "TTFT p50 at batch 1, 128 in / 64 out: a / b"


def test_the_highest_of_what_lies_within_the_spread_names_its_equals(tmp_path: Path) -> None:
    cells = grid(batches=(8, 16), input_lens=(128,))
    close = cells[0]["whole"]["output_tokens_per_s"] * 1.01
    cells[1]["whole"] |= {"output_tokens_per_s": close}
    cells[1]["whole"]["waves"]["output_tokens_per_s"] = {"min": close * 0.97, "max": close * 1.02}
    assert "level within the spread: 128 in / 64 out, batch 8" in headline(load(tmp_path, cells), "most output").words


def test_invalid_cells_make_no_headline(tmp_path: Path) -> None:
    assert load(tmp_path, [flawed("INVALID", "server_died")(c) for c in grid()]).headlines == []


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (Value(10, 9, 11, 3), Value(11.5, 10.5, 12, 3), True),
        (Value(10, 9, 11, 3), Value(12, 11.5, 13, 3), False),
        (Value.of(10), Value.of(10), True),
        (Value.of(10), Value(None), False),
    ],
)
def test_numbers_are_level_where_their_ranges_meet(a: Value, b: Value, expected: bool) -> None:
    assert level(a, b) == level(b, a) == expected
