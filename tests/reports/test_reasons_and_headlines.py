"""What is said against a run's numbers, and the few numbers that stand above all: each with its cell, none without its doubt."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.html import render_html
from results.report_data import ReportData, load_report_data
from results.report_format import number
from results.report_headlines import Headline, doubts_sentence, level
from results.report_measures import Value
from results.report_reasons import EvidenceGroup, evidence_groups
from results.report_shapes import ReasonRow
from tests.reports.runs import Cell, cell, flawed, grid, make_run, rate


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


def test_sentences_that_differ_in_their_numbers_alone_are_one_group_and_each_stays_whole() -> None:
    seen = [
        ("a", "lag p99 9.5 ms, TPOT 1,100 ms, 7 reads"),
        ("b", "lag p99 12 ms, TPOT 900 ms, 7 reads"),
        ("c", "other"),
    ]
    lag, other = evidence_groups(ReasonRow("x", "X", "suspect", "", seen))
    assert (lag, other) == (EvidenceGroup(seen[0][1], seen[:2]), EvidenceGroup("other", [("c", "")]))
    assert lag.named() == "a (1 more has numbers of its own)"
    assert evidence_groups(ReasonRow("x", "X", "suspect", "", [("a", "7"), ("b", "7")]))[0].named() == "a and b"


def test_headlines_come_from_valid_cells_where_there_are_any(tmp_path: Path) -> None:
    cells = grid(input_lens=(128,))
    cells[2] = flawed("SUSPECT", "client_lag")(cells[2])
    most = headline(load(tmp_path, cells), "most output")
    assert (most.value, most.doubt) == (number(rate(4, 128)), "")
    assert "batch 4" in most.words


def test_headlines_from_suspect_cells_carry_the_reason(tmp_path: Path) -> None:
    data = load(tmp_path, [flawed("SUSPECT", "client_lag")(c) for c in grid()])
    *measured, cache = data.headlines
    assert [h.doubt for h in measured] == ["SUSPECT"] * 3
    assert doubts_sentence(data.headlines) == "SUSPECT here: client lag."
    # Bytes a token are arithmetic: no other process on the machine changes them.
    assert (cache.unit, cache.doubt) == ("KiB a token", "")
    page = render_html(data).split("</header>")[0]
    assert page.count("client lag") == 1


def test_a_number_over_blocks_says_that_it_is_their_mean(tmp_path: Path) -> None:
    data = load(tmp_path, grid(batches=(4,), input_lens=(128,), blocks=2))
    assert "most output (mean of 2 blocks)" in headline(data, "most output").words


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
    assert "not told apart: 128 in / 64 out, batch 8" in headline(load(tmp_path, cells), "most output").words


def test_what_the_comparison_has_judged_is_not_called_level_by_its_spread(tmp_path: Path) -> None:
    def most(name: str, speeds: list[float]) -> str:
        # Each block is 10 % faster than the one before, so the spreads meet whatever each block says.
        pairs = [(("a", 1.0), ("b", speed)) for speed in speeds]
        cells = [cell(who, 4, 128, b, at * (1 + 0.1 * b)) for b, pair in enumerate(pairs) for who, at in pair]
        return headline(load(tmp_path / name, cells), "most output").words

    assert most("scattered", [0.8, 2.4, 0.7, 2.2, 1.9]).endswith("; not told apart: a, 128 in / 64 out, batch 4")
    assert most("same", [1.002, 1.001, 1.003, 1.002, 1.001]).endswith("; equivalent: a, 128 in / 64 out, batch 4")
    assert most("faster", [1.2, 1.21, 1.2, 1.19, 1.2]).endswith(": b, 128 in / 64 out, batch 4")


def test_the_most_output_says_of_which_cells_it_is_where_a_suspect_one_may_stand_higher(tmp_path: Path) -> None:
    cells = grid(input_lens=(128,))
    assert headline(load(tmp_path / "all", cells), "most output:").value == number(rate(16, 128))
    cells[2] = flawed("SUSPECT", "client_lag")(cells[2])
    assert headline(load(tmp_path / "some", cells), "most output of VALID cells:").value == number(rate(4, 128))


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
