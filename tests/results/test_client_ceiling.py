"""Cells near what their machine's client can measure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from results.client_load import ClientLoad, busiest_second, client_load
from results.reason_rules import CellFacts, Severity
from results.reasons import Verdict, reasons_of, verdict
from tests.results.test_reasons import CLEAN

CEILING = {"chunks_per_s": {"value": 10_000.0, "met": True}, "streams": {"value": 100.0, "met": False}}


def _codes(load: ClientLoad | None) -> dict[str, Any]:
    facts: CellFacts = replace(CLEAN, client_load=load)
    return {r.code: r for r in reasons_of(facts)}


@pytest.mark.parametrize(
    ("chunks", "streams", "near"),
    [(6_900, 50, False), (7_100, 50, True), (10, 71, False), (10, 100, False), (10, 101, True), (20_000, None, True)],
)
def test_past_seven_tenths_of_a_ceiling_that_was_met_or_past_what_was_tried(
    chunks: float, streams: int | None, near: bool
) -> None:
    found = _codes(ClientLoad(chunks, streams, CEILING))
    assert list(found) == (["near_client_ceiling"] if near else [])
    if near:
        assert verdict(found.values()) is Verdict.SUSPECT


def test_both_ceilings_are_told_with_their_numbers() -> None:
    evidence = _codes(ClientLoad(8_000, 200, CEILING))["near_client_ceiling"].evidence
    assert "8,000 chunks/s in the busiest second, 80% of the ceiling of 10,000" in evidence
    assert "200 streams at once, 200% of the most that calibration tried of 100" in evidence


@pytest.mark.parametrize(("streams", "near"), [(44, False), (46, True), (500, True)])
def test_where_even_the_least_load_was_too_much_cells_near_it_are_told(streams: int, near: bool) -> None:
    ceiling = {"streams": {"value": None, "met": True, "passed_at": 64.0}}
    found = _codes(ClientLoad(10, streams, ceiling))
    assert list(found) == (["near_client_ceiling"] if near else [])
    # A calibration of before that does not tell it says nothing.
    assert not _codes(ClientLoad(10, streams, {"streams": {"value": None, "met": True}}))


def test_without_a_calibration_a_note_and_no_verdict() -> None:
    found = _codes(ClientLoad(1e9, 10_000, None))
    assert list(found) == ["client_not_calibrated"]
    assert found["client_not_calibrated"].severity is Severity.NOTE
    assert verdict(found.values()) is Verdict.VALID


def test_a_record_that_does_not_speak_of_it_says_nothing() -> None:
    assert client_load({"cpu_s": 1.0}, np.array([1, 2]), np.array([0])) is None
    assert _codes(None) == {}


def test_what_was_asked_of_the_client_is_read_from_its_record() -> None:
    stamps = np.array([0, 1, 2]) * 10**9
    one, two = np.array([0, 0, 0]), np.array([0, 1, 0])
    assert client_load({"ceiling": None, "max_in_flight": 8}, stamps, one) == ClientLoad(1.0, 8, None)
    # Calibration is of one worker, so two may carry twice as much.
    assert client_load({"ceiling": CEILING, "max_in_flight": 8}, stamps, two) == ClientLoad(0.5, 4, CEILING)


def test_the_busiest_second_counts() -> None:
    second = 10**9
    burst = np.concatenate([np.arange(100) * (second // 200) + 5 * second, np.array([0, 9 * second])])
    assert busiest_second(burst) == 100
    assert busiest_second(np.array([], dtype=np.int64)) == 0
    assert busiest_second(np.arange(11) * (second // 20)) == pytest.approx(22)  # eleven in half a second
    assert busiest_second(np.array([5])) == 10  # one chunk is not a rate without end
