"""Engines side by side with verdicts and labels, and what `dyno why` decided, as the page shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.html import render_html
from results.files import to_json
from results.report_data import load_report_data
from tests.harness.verify.test_observe_and_judge import ToyArm, compared
from tests.reports.runs import REFERENCE_LIKE, VLLM_LIKE, flawed, grid, make_run

SETUPS = {"vllm-default": VLLM_LIKE, "reference-paged": REFERENCE_LIKE}


def section(page: str, name: str) -> str:
    return page.split(f'<section id="{name}"')[1].split("</section>")[0]


def test_of_enough_blocks_each_point_has_a_ratio_with_its_interval_and_a_verdict(tmp_path: Path) -> None:
    cells = grid(("a", "b"), (1, 4), (128,), blocks=6)
    for at, cell in enumerate(cells):
        # Blocks that agree to the last digit would have no spread to judge by.
        cell["whole"]["output_tokens_per_s"] *= 1 + 0.002 * (at * 7 % 5 - 2)
    data = load_report_data(make_run(tmp_path / "run", cells))
    rows = {row.load: row for row in data.matrix.rows}
    assert list(rows) == ["batch 1", "batch 4"]
    base, other = rows["batch 4"].cells
    assert base
    assert other
    assert (base.ratio, base.finding) == ("", "")
    assert abs(float(other.ratio) - 1.2) < 0.02
    assert other.finding == "faster"
    low, high = (float(v) for v in other.interval.split(" to "))
    assert low <= float(other.ratio) + 0.005
    assert float(other.ratio) - 0.005 <= high
    assert high - low < 0.05


def test_one_block_gives_a_ratio_and_no_verdict_and_says_why(tmp_path: Path) -> None:
    cells = grid(("a", "b"), (1, 4), (128,))
    cells[3] = flawed("INVALID", "server_died")(cells[3])
    data = load_report_data(make_run(tmp_path / "run", cells))
    first, second = (row.cells[1] for row in data.matrix.rows)
    assert first
    assert second
    assert (first.ratio, first.finding) == ("1.20", "no verdict")
    assert "one block" in first.why
    assert (second.output, second.ratio, second.verdict) == ("–", "", "INVALID")


def test_engines_carry_how_they_were_set_and_whether_their_tokens_are_the_same(tmp_path: Path) -> None:
    verified = compared(*(ToyArm(e) for e in SETUPS), length=24)
    store = make_run(tmp_path / "run", grid(tuple(SETUPS), (1,), (128,)), setups=SETUPS, verify=verified)
    data = load_report_data(store)
    assert [e.kind for e in data.matrix.engines] == ["set by hand", "own defaults"]
    assert data.tokens
    assert data.matrix.engines[1].tokens == data.tokens.kind_of(*SETUPS)
    shown = section(render_html(data), "matrix")
    assert "own defaults" in shown
    assert "set by hand" in shown
    assert f"tokens {data.matrix.engines[1].tokens}" in shown


def test_a_run_of_one_engine_has_nothing_side_by_side(tmp_path: Path) -> None:
    assert 'id="matrix"' not in render_html(load_report_data(make_run(tmp_path / "run", grid())))


@pytest.mark.parametrize("damaged", [False, True])
def test_what_dyno_why_found_stands_with_the_limits(tmp_path: Path, damaged: bool) -> None:
    store = make_run(tmp_path / "run", grid(batches=(1, 4), input_lens=(128,)))
    cell = "reference-4-128-0"
    document = {
        "cell": cell,
        "words": "throughput follows threads",
        "elasticities": [
            {"resource": "threads", "from": 2, "to": 1, "pairs": 5, "throughput_change": -0.41, "elasticity": 0.76}
            | {"low": 0.7, "high": 0.82, "verdict": "holds"},
            {"resource": "max_num_seqs", "from": 64, "to": 51, "pairs": 1, "throughput_change": None}
            | {"elasticity": None, "low": None, "high": None, "verdict": "undetermined"},
        ],
        "left_out": [{"resource": "kv_cache_tokens", "why": "it was not full"}],
    }
    folder = store.path / "why" / f"{cell}-0a0b0c0d"
    folder.mkdir(parents=True)
    (folder / "why.json").write_bytes(b"{" if damaged else to_json(document))
    page = render_html(load_report_data(store))
    if damaged:
        assert "Decided by experiment" not in page
        return
    shown = section(page, "limits")
    assert "Decided by experiment: reference, 128 in / 64 out, batch 4" in shown
    assert "Throughput follows threads." in shown
    assert "+0.76 [+0.70, +0.82]" in shown
    assert "-41.0 %" in shown
    assert "undetermined" in shown
    assert "kv_cache_tokens: it was not full" in shown


def test_who_is_faster_comes_first_and_each_link_of_the_answer_leads_to_its_section(tmp_path: Path) -> None:
    store = make_run(tmp_path / "run", grid(tuple(SETUPS), (1, 4), (128,)), setups=SETUPS)
    page = render_html(load_report_data(store))
    answer = section(page, "answer")
    topics = [part.split("</h3>")[0] for part in answer.split("<h3>")[1:]]
    assert topics[0] == "Engines"
    assert topics.index("What not to trust") < topics.index("Measured")
    for link in answer.split('href="#')[1:]:
        assert f'<section id="{link.split(chr(34))[0]}"' in page
