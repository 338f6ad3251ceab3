"""Whether a cell got the load that was asked for: numbers of open loops, and the reasons that follow from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.arrivals import arrival_numbers, held_by_cap
from results.cell_summary import load_value
from results.events import Requests
from results.load_facts import LoadFacts, load_facts
from results.reasons import reasons_of
from results.report_measures import read_cell
from results.report_readings import Readings
from results.schema import ENDED_BY_PLAN
from tests.results.builders import request_row, text_chunk
from tests.results.test_metrics import codes, evidence, summary_of
from tests.results.test_reasons import CLEAN

RATE = {"mode": "rate", "rate": 10.0, "arrival": "constant", "duration_s": 10.0}


def rows_at(intended: list[float], late: float = 0.0, lasts: float = 0.1, **changes: Any) -> list[dict[str, Any]]:
    return [
        request_row(f"r{i:03}", t + late, t + late + lasts / 2, t + late + lasts, 2, intended=round(t * 1e9), **changes)
        for i, t in enumerate(intended)
    ]


def found(severity: dict[str, Any]) -> dict[str, str]:
    facts = replace(CLEAN, load=LoadFacts(**severity))
    return {r.code: str(r.severity) for r in reasons_of(facts)}


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ({"warm_up": {"requests": 8, "ok": 0}, "warm_up_why": None}, "0 of its 8 requests were answered in full"),
        ({"warm_up": None, "warm_up_why": "nothing was recorded of it (load_failed)"}, "nothing was recorded of it"),
        ({"warm_up": {"requests": 8, "ok": 1}, "warm_up_why": None}, None),
        ({}, None),
    ],
)
def test_a_load_on_a_cold_engine_is_suspect(client: dict[str, Any], said: str | None) -> None:
    facts = load_facts(Requests.of(rows_at([0.0])), client, None, None)
    seen = {r.code: r for r in reasons_of(replace(CLEAN, load=facts))}
    if said is None:
        assert "not_warmed_up" not in seen
    else:
        assert seen["not_warmed_up"].severity == "suspect"
        assert said in seen["not_warmed_up"].evidence


def test_a_rate_that_was_kept() -> None:
    numbers = arrival_numbers(RATE, 10.0, Requests.of(rows_at([i / 10 for i in range(101)])))
    assert numbers is not None
    assert numbers["asked_per_s"] == 10.0
    assert numbers["intended_per_s"] == numbers["achieved_per_s"] == pytest.approx(10)
    assert numbers["gap_ms_mean"] == pytest.approx(100)
    assert numbers["gap_cv"] == pytest.approx(0, abs=1e-6)
    assert (numbers["held"], numbers["late_ms_max"]) == (0, 0)


def test_waiting_for_a_connection_to_be_opened_is_not_the_clients_lateness() -> None:
    rows = rows_at([i / 10 for i in range(40)], late=0.040)
    for row in rows:
        row |= {"connect_start": row["intended"] + 1_000_000, "connect_end": row["intended"] + 36_000_000}
    numbers = arrival_numbers(RATE, 10.0, Requests.of(rows))
    assert numbers is not None
    assert numbers["late_ms_max"] == pytest.approx(5)
    # One that was never opened hides nothing.
    rows[0]["connect_end"] = None
    numbers = arrival_numbers(RATE, 10.0, Requests.of(rows))
    assert numbers is not None
    assert numbers["late_ms_max"] == pytest.approx(40)


def test_a_closed_loop_has_no_arrivals() -> None:
    assert arrival_numbers({"mode": "concurrency", "concurrency": 2}, 2, Requests.of(rows_at([0, 1]))) is None


@pytest.mark.parametrize("count", [0, 1])
def test_rates_of_too_few_requests_are_not_known(count: int) -> None:
    numbers = arrival_numbers(RATE, 10.0, Requests.of(rows_at([0.0][:count])))
    assert numbers is not None
    assert (numbers["intended_per_s"], numbers["achieved_per_s"], numbers["gap_cv"]) == (None, None, None)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40).map(sorted), st.integers(1, 6))
def test_requests_held_by_a_cap_are_those_that_found_it_full(times: list[int], cap: int) -> None:
    # A queue of `cap` places, each request out for 70: what a client with that cap would have done.
    ends: list[int] = []
    rows, expected = [], []
    for i, t in enumerate(times):
        free = sorted(ends)[-cap] if len(ends) >= cap else 0
        queued = max(t, free)
        ends.append(queued + 70)
        expected.append(free > t)
        rows.append(
            request_row(f"r{i:03}", 0, None, None, None, intended=t, queued=queued, sent=queued, end=queued + 70)
        )
    assert held_by_cap(Requests.of(rows), cap).tolist() == expected
    assert held_by_cap(Requests.of(rows), None, cap).tolist() == expected
    assert held_by_cap(Requests.of(rows), 100, cap).tolist() == expected
    assert not held_by_cap(Requests.of(rows), None).any()


def test_waves_behind_a_cap_are_seen_in_the_sends() -> None:
    # 50 a second, 16 places, all of which become free at each full second.
    queued = [min(i / 50, 0.3) if i < 16 else float((i - 16) // 16 + 1) for i in range(96)]
    rows = [
        request_row(f"r{i:03}", q, q, float(int(q) + 1), 2, intended=round(i / 50 * 1e9)) for i, q in enumerate(queued)
    ]
    numbers = arrival_numbers({"mode": "rate", "rate": 50.0, "max_in_flight": 16}, 50.0, Requests.of(rows))
    assert numbers is not None
    assert numbers["most_sent_in_100_ms"] == 16
    assert numbers["held_share"] == pytest.approx(80 / 96)
    assert numbers["achieved_per_s"] < 0.5 * numbers["intended_per_s"]
    facts = replace(CLEAN, load=LoadFacts(arrivals=numbers))
    assert {r.code: str(r.severity) for r in reasons_of(facts)} == {
        "rate_not_achieved": "suspect",
        "held_by_cap": "suspect",
    }


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        ({"intended_per_s": 10.0, "achieved_per_s": 9.6}, {}),
        ({"intended_per_s": 10.0, "achieved_per_s": 9.4}, {"rate_not_achieved": "suspect"}),
        ({"intended_per_s": None, "achieved_per_s": None}, {}),
        ({"held": 9, "held_share": 0.09, "most_sent_in_100_ms": 4}, {"held_by_cap": "note"}),
        ({"held": 11, "held_share": 0.11, "most_sent_in_100_ms": 4}, {"held_by_cap": "suspect"}),
        ({"asked_per_s": 10.0, "intended_per_s": 10.9}, {}),
        ({"asked_per_s": 10.0, "intended_per_s": 8.9}, {"rate_by_chance": "note"}),
        ({"late_ms_p99": 4.9}, {}),
        ({"late_ms_p99": 5.1}, {"late_sends": "suspect"}),
    ],
)
def test_rules_of_open_loops(arrivals: dict[str, Any], expected: dict[str, str]) -> None:
    assert found({"arrivals": arrivals}) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"arrivals": {"late_ms_p99": 30.0}, "ttft_ms_p50": 301.0}, {}),
        ({"long": 2, "long_example": "e.g. 9 tokens where 8 were asked for"}, {"long_outputs": "suspect"}),
        ({"usage_disagrees": 1}, {"usage_disagrees": "suspect"}),
        ({"ran_out": True}, {"ran_out_of_requests": "note"}),
        ({"descriptor_cap": 960, "max_in_flight": 960}, {"too_few_descriptors": "suspect"}),
        ({"descriptor_cap": 960, "max_in_flight": 900}, {}),
        ({"descriptor_cap": None, "max_in_flight": 900}, {}),
        ({"prompts_repeated": 5}, {"prompts_repeated": "note"}),
        ({"prompts_repeated": 11}, {"prompts_repeated": "suspect"}),
        ({"nodes": [{"address": "a", "uncertainty_ms": 0.3}]}, {"clocks_of_nodes": "note"}),
        (
            {"nodes": [{"address": a, "uncertainty_ms": u} for a, u in (("a", 0.3), ("b", 6.0))]},
            {"clocks_of_nodes": "suspect"},
        ),
    ],
)
def test_rules_of_any_load(facts: dict[str, Any], expected: dict[str, str]) -> None:
    assert found(facts) == expected


def test_the_limit_of_descriptors_comes_with_the_command_that_raises_it() -> None:
    facts = replace(CLEAN, load=LoadFacts(descriptor_cap=960, max_in_flight=960))
    assert "ulimit -n 3840" in reasons_of(facts)[0].evidence


def test_a_server_may_make_a_few_tokens_more_of_an_answer_the_client_ended() -> None:
    more = replace(CLEAN, server_generation_tokens=1000 + 10 + 8 * 5)
    assert reasons_of(replace(more, load=LoadFacts(ended_by_plan=5))) == []
    assert [r.code for r in reasons_of(replace(more, load=LoadFacts(ended_by_plan=4)))] == ["token_counts_disagree"]


def test_more_tokens_than_asked_are_told_unless_the_client_ended_the_answer() -> None:
    chunks = [text_chunk("a", 2.0, 3), text_chunk("a", 3.0, 3)]
    row = request_row("a", 1, 2, 3, 4, output_tokens=6, tokens_in_first_chunk=3)
    told = summary_of([row], chunks)
    assert codes(told)["long_outputs"] == "suspect"
    assert "6 tokens where 4 were asked for" in evidence(told, "long_outputs")
    assert "long_outputs" not in codes(summary_of([{**row, "finish_reason": ENDED_BY_PLAN}], chunks))


def test_latencies_of_an_open_loop_count_from_the_intended_time() -> None:
    # One place, each answer takes half a second: 0.5, 0.9, 1.3, 1.7, 2.1 s from when they were to be sent.
    rows = [
        request_row(f"r{i}", 0.5 * i, 0.5 * i + 0.2, 0.5 * i + 0.5, 2, intended=round(0.1 * i * 1e9)) for i in range(5)
    ]
    chunks = [text_chunk(f"r{i}", 0.5 * i + t) for i in range(5) for t in (0.2, 0.5)]
    load = {"mode": "rate", "rate": 10.0, "arrival": "constant", "requests": 5, "max_in_flight": 1}
    whole = summary_of(rows, chunks, load=load)
    assert whole["whole"]["e2e_ms"]["mean"] == pytest.approx(500)
    assert whole["whole"]["scheduled_e2e_ms"]["mean"] == pytest.approx(1300)
    assert whole["whole"]["scheduled_e2e_ms"]["max"] == pytest.approx(2100)
    assert whole["whole"]["scheduled_ttft_ms"]["min"] == pytest.approx(200)
    assert whole["client"]["arrivals"]["held"] == 4
    assert codes(whole)["rate_not_achieved"] == "suspect"


def test_an_answer_in_one_piece_has_an_e2e_and_no_ttft() -> None:
    whole = summary_of([request_row("a", 1, None, 3, 4, first_token=None)] * 1)["whole"]
    assert whole["e2e_ms"]["mean"] == pytest.approx(2000)
    assert whole["ttft_ms"]["n"] == 0


@pytest.mark.parametrize(
    ("load", "value"),
    [
        ({"mode": "batch", "batch": 4}, 4),
        ({"mode": "rate", "rate": 2.5}, 2.5),
        ({"mode": "ramp", "from_rate": 10, "to_rate": 100}, 55),
        ({"mode": "schedule", "times_s": [0, 1, 2, 4]}, 0.75),
        ({"mode": "schedule", "times_s": [0, 1, 2, 4], "speed": 2.0}, 1.5),
        ({"mode": "schedule", "times_s": [0]}, None),
        ({"mode": "schedule"}, None),
    ],
)
def test_the_number_a_load_is_known_by(load: dict[str, Any], value: float | None) -> None:
    assert load_value(load) == value


@pytest.mark.parametrize(("counted", "disagrees"), [(30, False), (40, False), (41, True)])
def test_texts_of_unknown_length_are_held_against_the_servers_count_by_what_it_counted(
    counted: int, disagrees: bool
) -> None:
    rows = [request_row(f"r{i}", i, i + 0.5, i + 0.9, 2, input_tokens_planned=None) for i in range(3)]
    chunks = [text_chunk(f"r{i}", i + t) for i in range(3) for t in (0.5, 0.9)]
    samples = [
        {"source": "server", "metric": metric, "device": "", "t0": t, "t1": t, "value": float(value if t else 0)}
        for t in (0, 2_000 * 10**9)
        for metric, value in (("prompt_tokens_total", counted), ("generation_tokens_total", 6))
    ]
    assert ("token_counts_disagree" in codes(summary_of(rows, chunks, samples))) == disagrees


def test_timeouts_are_counted_by_what_took_too_long() -> None:
    errors = ["first token: more than 0.3 s", "connect: more than 10 s", "first token: more than 0.3 s", None]
    late = [request_row(f"t{i}", i, None, None, None, outcome="timeout", error=error) for i, error in enumerate(errors)]
    whole = summary_of([*late, *rows_at([10.0 + i for i in range(30)])])
    assert whole["requests"]["timeouts"] == {"first token": 2, "connect": 1, "unknown": 1}
    assert whole["requests"]["by_outcome"] == {"ok": 30, "timeout": 4}
    assert "4 timeout (2 first token, 1 connect, 1 unknown)" in evidence(whole, "failures")
    assert "timeouts" not in summary_of(rows_at([1.0]))["requests"]


@pytest.mark.parametrize(
    ("reason", "chunks", "severity"),
    [("length", 4, "note"), ("length", 2, "suspect"), ("stop", 2, "note"), (ENDED_BY_PLAN, 2, "note")],
)
def test_tokens_that_were_counted_by_chunks_are_told(reason: str, chunks: int, severity: str) -> None:
    row = request_row("a", 1, 2, 3, 4, output_tokens=chunks, count_source="chunks", finish_reason=reason)
    arrived = [text_chunk("a", t, None) for t in (2.0, 2.3, 2.6, 3.0)[-chunks:]]
    assert codes(summary_of([row], arrived))["tokens_counted_by_chunks"] == severity
    assert "tokens_counted_by_chunks" not in codes(summary_of([{**row, "count_source": "final_usage"}], arrived))


def test_streams_without_an_end_marker_are_told() -> None:
    assert found({"no_done": 3}) == {"no_done": "note"}


@pytest.mark.parametrize(("load", "ttft"), [(RATE, 2050.0), ({"mode": "concurrency", "concurrency": 1}, 50.0)])
def test_a_report_counts_latencies_of_an_open_loop_from_the_intended_time(load: dict[str, Any], ttft: float) -> None:
    cell = summary_of(rows_at([float(i) for i in range(9)], late=2.0), load=load)
    assert read_cell(cell, "whole", Readings())["ttft_ms_p50"].mean == pytest.approx(ttft)


def frozen_rows(times: list[float], places: int | None = None) -> list[dict[str, Any]]:
    """Requests due at these times to a server that answers after a millisecond, and what it gets from 2 to 8 s at 8 s. Once so
    many `places` are taken by the freeze, what is due in it is sent when it ends."""
    rows = []
    for i, due in enumerate(times):
        in_freeze = 2.0 <= due < 8.0
        sent = 8.0 if in_freeze and places is not None and due >= 2.0 + places / 100 else due
        ends = 8.0 if in_freeze and sent < 8.0 else sent + 0.001
        rows.append(request_row(f"r{i:04}", sent, ends, ends, 1, intended=round(due * 1e9)))
    return rows


@pytest.mark.parametrize("places", [None, 1], ids=["all sent when due", "one in flight"])
def test_an_open_loop_tells_of_a_frozen_server_by_every_request_that_was_due(places: int | None) -> None:
    """Coordinated omission, 100 requests a second for 10 s: 600 of 1,000 are due in the freeze and wait for its end."""
    load = {**RATE, "rate": 100.0, "max_in_flight": places}
    found = summary_of(frozen_rows([i / 100 for i in range(1000)], places), load=load, ended_s=10.0)
    assert found["load"]["mode"] == "rate"
    for name in ("scheduled_ttft_ms", "scheduled_e2e_ms"):
        assert found["whole"][name]["n"] == 1000
        assert found["whole"][name]["p50"] == pytest.approx(1000, abs=100)
        assert found["whole"][name]["p99"] == pytest.approx(5900, abs=100)
    since_sent = found["whole"]["ttft_ms"]["p99"]
    assert since_sent == pytest.approx(5900 if places is None else 1, abs=100)


def test_a_closed_loop_hides_a_frozen_server_in_one_request() -> None:
    # One slot sends when its answer has come: at each millisecond, and not at all for six seconds.
    times = [i / 1000 for i in (*range(2001), *range(8000, 10_000))]
    load = {"mode": "concurrency", "concurrency": 1, "requests": len(times)}
    found = summary_of(frozen_rows(times), load=load, ended_s=10.0)
    assert found["load"]["mode"] == "concurrency"
    ttft = found["whole"]["ttft_ms"]
    assert ttft["p99"] == pytest.approx(1, abs=0.01)
    assert ttft["max"] == pytest.approx(6000)
