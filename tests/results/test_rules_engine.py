"""An engine that ran out of memory, or whose API thread ran out of its core."""

from __future__ import annotations

import pytest

from results.clock import NS_PER_S
from results.events import Samples
from results.reason_rules import CellFacts
from results.reasons import Verdict, reasons_of, verdict
from results.server_use import server_use


def api_thread(cores: float | None, seconds: float, step_s: float = 0.25) -> Samples:
    """Readings of a thread that uses that share of a core."""
    rows = []
    for n in range(round(seconds / step_s) + 1):
        t = round(n * step_s * NS_PER_S)
        value = None if cores is None else 3 + cores * n * step_s
        rows.append({"source": "host", "metric": "server_api_thread_s", "t0": t, "t1": t, "value": value})
    return Samples.of(rows)


@pytest.mark.parametrize(("cores", "told"), [(0.97, True), (0.86, True), (0.8, False), (0.0, False)])
def test_an_api_thread_near_its_one_core_makes_the_cell_suspect(cores: float, told: bool) -> None:
    found = server_use(api_thread(cores, 4), (NS_PER_S, 3 * NS_PER_S)).api_cores
    assert found == pytest.approx(cores)
    reasons = {r.code: r for r in reasons_of(CellFacts(issued=9, ok=9, api_server_cores=found))}
    assert ("api_server_saturated" in reasons) == told
    if told:
        assert f"used {cores:.2f} of the one core" in reasons["api_server_saturated"].evidence
        assert verdict([reasons["api_server_saturated"]]) is Verdict.SUSPECT


def test_nothing_is_said_of_an_api_thread_that_was_not_seen_for_long_enough() -> None:
    assert server_use(api_thread(0.99, 0.25), (0, NS_PER_S)).api_cores is None
    assert server_use(api_thread(None, 4), (0, NS_PER_S)).api_cores is None
    assert "api_server_saturated" not in {r.code for r in reasons_of(CellFacts(issued=9, ok=9))}


@pytest.mark.parametrize(
    "error",
    [
        "http_error: HTTP 500: CUDA out of memory. Tried to allocate 2.00 GiB",
        "http_error: HTTP 500: OutOfMemoryError",
        "stream_error: ValueError: No available memory for the cache blocks.",
        "http_error: HTTP 503: std::bad_alloc",
    ],
)
def test_an_answer_that_names_a_lack_of_memory_is_one(error: str) -> None:
    reasons = reasons_of(CellFacts(issued=10, ok=0, by_outcome={"http_error": 10}, first_error=error))
    (found,) = [r for r in reasons if r.code == "out_of_memory"]
    assert found.severity == "invalid"
    assert error in found.evidence


def test_a_few_such_answers_leave_the_rest_standing() -> None:
    facts = CellFacts(issued=100, ok=97, by_outcome={"ok": 97, "http_error": 3}, first_error="HTTP 500: out of memory")
    assert {r.code: str(r.severity) for r in reasons_of(facts)}["out_of_memory"] == "suspect"


@pytest.mark.parametrize(
    "error", [None, "http_error: HTTP 400: prompt too long", "reset: Connection reset by peer", "BOOM"]
)
def test_other_failures_are_not_taken_for_it(error: str | None) -> None:
    facts = CellFacts(issued=10, ok=0, by_outcome={"http_error": 10}, first_error=error)
    assert "out_of_memory" not in {r.code for r in reasons_of(facts)}
