"""The benchmark scripts of the client: what they conclude, and that they run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.client import PEERS, Row, bars, markdown
from benchmarks.soak_client import MIB, Soak, soak
from harness.certify.tool import check_command


def _soak(slope_mib: float = 0.0, descriptors: int = 70) -> Soak:
    """Twenty minutes whose memory grows evenly after a start that is forgiven."""
    seen = Soak(20, 50, 100, {"ok": 100}, answered_by_server=100, connections_opened=50)
    for second in range(0, 1200, 10):
        rss = 60 * MIB if second < 300 else int((100 + slope_mib * second / 60) * MIB)
        seen.samples.append((float(second), rss, 70 if second < 900 else descriptors, 50))
    return seen


def test_a_run_without_growth_or_loss_has_no_faults() -> None:
    assert _soak().faults() == []
    assert _soak(0.9).slope_mib() == pytest.approx(0.9)
    assert _soak(0.9).faults() == []


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (_soak(1.1), "grows by 1.10 MiB"),
        (replace(_soak(), outcomes={"ok": 99, "reset": 1}), "came back"),
        (replace(_soak(), answered_by_server=99), "answered 99 of 100"),
        (replace(_soak(), lost_by_server=1), "lost 1"),
        (replace(_soak(), connections_opened=51), "51 connections were opened"),
        (replace(_soak(), connections_left=1), "left at the server"),
        (replace(_soak(), issued=0, outcomes={}, answered_by_server=0), "of 0 requests"),
        (replace(_soak(), samples=[]), "too few samples"),
        (_soak(descriptors=80), "from 70 to 80"),
    ],
)
def test_growth_loss_and_leaks_are_told(seen: Soak, words: str) -> None:
    assert any(words in fault for fault in seen.faults()), seen.faults()


def test_growth_of_a_short_run_is_told_and_not_judged() -> None:
    short = replace(_soak(1.1), minutes=19)
    assert short.slope_mib() == pytest.approx(1.1)
    assert short.faults() == []


def test_a_soak_of_seconds_loses_nothing() -> None:
    seen = soak(0.03, 8, gap_ms=5, tokens=40)
    assert seen.outcomes == {"ok": seen.issued}
    assert seen.issued >= 8
    assert seen.samples
    # Whether memory grows, two seconds cannot tell.
    assert [fault for fault in seen.faults() if "memory" not in fault] == []


ABOUT = {
    "cpu": "a CPU",
    "cpus": 2,
    "system": "Linux",
    "python": "3",
    "date": "2026-01-01",
    "load_average": 0.1,
    "command": "python benchmarks/client.py",
    "repeats": 3,
    "requests": {"64": 384, "256": 768},
}


def test_the_table_holds_our_repeats_as_one_line_and_each_peer() -> None:
    mine = [Row("dyno", 64, 10.0, 100.1, 101.0, e, 10 * e, 0, 12 + e) for e in (0.1, 0.3, 0.2)]
    theirs = Row("vllm 0.32.0", 64, 10.0, 100.2, 102.0, 164.0, 260.0, 3, 250.0)
    broken = Row("aiperf", 256, 10.0, failed="The tool ended | badly")
    text = markdown([*mine, theirs, broken], ABOUT)
    assert "| 64 | 10 | dyno | 384 | 100.1 (100.1 to 100.1) / 101.0 (101.0 to 101.0) | 0.200 (0.100 to 0.300) |" in text
    assert "| 64 | 10 | vllm 0.32.0 | 384 | 100.2 / 102.0 | 164.000 | 260.000 | 3 | 250.0 |" in text
    assert "| 256 | 10 | aiperf | 768 | The tool ended / badly |" in text


@pytest.mark.parametrize("name", PEERS)
def test_each_peer_is_told_where_to_send_how_much_and_where_to_write(name: str, tmp_path: Path) -> None:
    command, _ = PEERS[name]
    words = command("/venv/bin/python", 64, 384, tmp_path)
    check_command(words, result_named=False)
    said = " ".join([*words, *(path.read_text() for path in tmp_path.iterdir())])
    assert "{tokenizer}" in said
    assert "64" in said
    assert "384" in said


def test_bars_are_judged_by_the_median_of_the_repeats() -> None:
    rows = [Row("dyno", 64, 10.0, 100, 100, e, 4 * e, 0, 14.0) for e in (0.2, 0.9, 1.4)]
    (line,) = bars(rows)
    assert "TTFT p50 0.90 (within 1)" in line
    assert "us/token 14.00 (within 15)" in line
    assert "every token counted" in line
    (line,) = bars([replace(row, us_per_token=15.5, tokens_off=1, error_p99=-6.0) for row in rows])
    assert "TTFT p99 6.00 (ABOVE 5)" in line
    assert "us/token 15.50 (ABOVE 15)" in line
    assert "3 runs with lost or miscounted requests" in line
