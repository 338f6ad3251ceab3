"""Open loops, loads that end by time, and answers that the client ends, on real sockets."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from harness.load import client as client_module
from harness.load import pool as pool_module
from harness.load import worker as worker_module
from harness.load.client import Client
from harness.load.counts import Counts
from harness.load.poller import Poller
from harness.load.recorder import EventRecorder
from results.arrivals import arrival_numbers
from results.clock import NS_PER_MS, NS_PER_S, now_ns
from results.events import read_requests
from results.schema import ENDED_BY_PLAN
from tests.harness.load.support import Ran, body, make_plan, run_load
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_steps import (
    DONE,
    Delay,
    Gate,
    Received,
    Step,
    Wait,
    Write,
    event,
    full_answer,
    json_answer,
    stream,
    text_event,
    usage_event,
)
from tests.servers.openai_fake_tokens import TokenSchedule


def evenly(count: int, rate: float) -> list[float]:
    return [i / rate for i in range(count)]


def in_order(ran: Ran) -> list[dict[str, Any]]:
    return sorted(ran.requests, key=lambda row: int(row["request_id"][1:]))


def arrivals(tmp_path: Path, **load: Any) -> dict[str, Any]:
    """The arrivals part of the summary of what `run_load` wrote."""
    found = arrival_numbers({"mode": "schedule", **load}, None, read_requests(tmp_path / "out"))
    assert found is not None
    return found


def test_requests_are_sent_at_their_times_and_none_is_delayed_by_those_before(tmp_path: Path) -> None:
    with FakeServer(full_answer()) as server:
        ran = run_load(server.url, tmp_path, times_s=evenly(200, 200))
    rows = in_order(ran)
    assert ran.outcomes == ["ok"] * 200
    # Absolute: each is intended where the plan says to the nanosecond, and never sent before.
    assert [row["intended"] - ran.client.started for row in rows] == [round(i / 200 * NS_PER_S) for i in range(200)]
    assert all(row["intended"] <= row["queued"] <= row["sent"] for row in rows)
    found = arrivals(tmp_path)
    assert found["intended_per_s"] == pytest.approx(200)
    sent = [row["sent"] for row in rows]
    assert found["achieved_per_s"] == pytest.approx(199 * NS_PER_S / (max(sent) - min(sent)))
    assert found["held"] == 0


def test_waiting_for_a_place_counts_from_the_intended_time(tmp_path: Path) -> None:
    answer: list[Step] = [Delay(0.1), *full_answer()]
    with FakeServer(answer) as server:
        ran = run_load(server.url, tmp_path, times_s=[0, 0.02, 0.04, 0.06, 0.08], max_in_flight=1)
        assert server.max_in_flight == 1
    rows = in_order(ran)
    for before, after in itertools.pairwise(rows):
        assert after["sent"] >= before["end"]
    for i, row in enumerate(rows):
        # At least the waits of those before it: 0.1, 0.18, 0.26, 0.34, 0.42 s, less a millisecond that a timer may round off.
        assert row["end"] - row["sent"] >= 0.099 * NS_PER_S
        assert row["end"] - row["intended"] >= (0.099 + 0.079 * i) * NS_PER_S
    assert ran.client.held == arrivals(tmp_path, max_in_flight=1)["held"] == 4


def test_a_server_that_freezes_gets_its_requests_all_the_same(tmp_path: Path) -> None:
    """Coordinated omission: a client that waited for answers would never send the request that ends the freeze."""
    gate = Gate()

    def script(request: Received) -> list[Step]:
        number = int(request.id[1:])
        if number == 79:
            gate.open()
        return [Wait(gate), *full_answer()] if 20 <= number < 80 else full_answer()

    with FakeServer(script) as server:
        ran = run_load(server.url, tmp_path, times_s=evenly(100, 200))
    assert ran.outcomes == ["ok"] * 100
    rows = in_order(ran)
    frozen = (rows[79]["intended"] - rows[20]["intended"]) / NS_PER_S
    assert (rows[20]["first_token"] - rows[20]["intended"]) / NS_PER_S >= frozen - 0.001
    assert ran.client.counts.max_in_flight >= 60


def test_requests_that_waited_leave_together_and_that_is_seen(tmp_path: Path) -> None:
    gates = [Gate() for _ in range(4)]

    def script(request: Received) -> list[Step]:
        wave = request.index // 8
        if request.index % 8 == 7:
            gates[wave].open()
        return [Wait(gates[wave]), Delay(0.15), *full_answer()]

    with FakeServer(script) as server:
        run_load(server.url, tmp_path, times_s=evenly(32, 100), max_in_flight=8)
    found = arrivals(tmp_path, max_in_flight=8)
    assert found["held_share"] > 0.5
    assert found["most_sent_in_100_ms"] >= 8
    assert found["gap_cv"] > 2 * found["intended_gap_cv"] + 1


def test_a_client_that_is_held_up_says_how_late_it_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_PROGRESS_NS", NS_PER_S // 4)
    with FakeServer(full_answer()) as server:
        run_load(server.url, tmp_path, times_s=evenly(40, 50), progress=lambda client, counts: time.sleep(0.15))
    found = arrivals(tmp_path)
    assert found["late_ms_p99"] >= 100
    assert found["held"] == 0


@pytest.mark.usefixtures("late_breaks_too")
def test_requests_that_come_just_after_the_server_closed_its_idle_connection_do_not_fail(tmp_path: Path) -> None:
    with FakeServer(full_answer(), close_idle_after=0.05) as server:
        ran = run_load(server.url, tmp_path, times_s=[i * 0.0525 for i in range(16)], max_in_flight=1)
        closed, opened = ran.client.pool.closed_while_idle, len(server.connections)
    assert ran.outcomes == ["ok"] * 16
    assert closed + ran.client.counts.retries >= 1
    assert opened >= 2
    # A connection that had to be opened for a request shows its time apart.
    assert all(row["connect_end"] <= row["sent"] for row in ran.requests if row["connect_end"] is not None)


def test_more_requests_than_descriptors_wait_for_one(tmp_path: Path) -> None:
    with FakeServer(TokenSchedule(ttft_s=0.05)) as server:
        plan = make_plan(server.url, tmp_path / "plan", times_s=[0.0] * 12)
        recorder = EventRecorder(plan, tmp_path)
        client = Client(plan, plan.bodies_path.read_bytes(), None, recorder, lambda counts: None, spare=3)
        client.prepare()
        client.run()
        client.close()
        recorder.commit()
        assert server.max_in_flight == 3
    assert (client.counts.ok, client.held) == (12, 9)


def test_an_open_loop_without_a_cap_takes_what_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (256, 1024)}
    monkeypatch.setattr(pool_module.resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(pool_module.resource, "setrlimit", lambda _, new: limits.update(now=new))
    assert pool_module.raise_descriptor_limit(100, needed=False) is None
    assert pool_module.raise_descriptor_limit(5000, needed=False) == 960
    assert limits["now"] == (1024, 1024)


def test_a_closed_loop_ends_by_time_and_what_is_out_still_ends(tmp_path: Path) -> None:
    gate, seconds = Gate(), 1  # longer than a busy machine takes to send three

    def progress(client: Client, counts: Counts) -> None:
        if now_ns() > client.started + seconds * NS_PER_S:
            gate.open()

    with FakeServer([Wait(gate), *full_answer()]) as server:
        ran = run_load(server.url, tmp_path, requests=500, concurrency=3, duration_s=seconds, progress=progress)
    end = ran.client.started + seconds * NS_PER_S
    assert ran.outcomes == ["ok"] * 3
    assert max(row["queued"] for row in ran.requests) <= end
    assert min(row["end"] for row in ran.requests) > end
    assert not ran.client.ran_out


def test_a_closed_loop_whose_requests_do_not_last_says_so(tmp_path: Path) -> None:
    with FakeServer(full_answer()) as server:
        ran = run_load(server.url, tmp_path, requests=4, duration_s=60)
    assert ran.outcomes == ["ok"] * 4
    assert ran.client.ran_out


# Answers that the client ends


@pytest.mark.parametrize("counted", ["chunks", "continuous_usage", "ids"])
def test_an_answer_is_ended_when_as_many_tokens_as_planned_have_come(counted: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "chunks": {},
        "continuous_usage": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        "ids": {"return_token_ids": True},
    }[counted]
    schedule = TokenSchedule(interval_s=0.005, per_chunk=1 if counted == "chunks" else 2)
    with FakeServer(schedule) as server:
        ran = run_load(
            server.url, tmp_path, requests=4, concurrency=2, cancel_after=6, bodies=[body(40_000, **more)] * 4
        )
        server.wait_until(lambda s: s.in_flight == 0 and not schedule.running)
    assert ran.outcomes == ["ok"] * 4
    for row in ran.requests:
        # A client that was kept from reading finds more than it wanted in the read that fulfils the plan.
        assert row["output_tokens_asked"] == 6 <= row["output_tokens"] < 20_000
        assert (row["finish_reason"], row["count_source"]) == (ENDED_BY_PLAN, counted)
        assert row["last_token"] == row["end"]
        assert row["error"] is None
    # The server was told by the end of the connection: it did not go on to the end.
    assert schedule.generated < 4 * 20_000
    assert ran.client.counts.ended_by_plan == 4


def test_the_request_after_one_that_the_client_ended_finds_a_connection_open(tmp_path: Path) -> None:
    with FakeServer(TokenSchedule(interval_s=0.01)) as server:
        ran = run_load(server.url, tmp_path, requests=24, concurrency=3, cancel_after=3, bodies=[body(4000)] * 24)
        server.wait_until(lambda s: s.in_flight == 0)
    assert ran.outcomes == ["ok"] * 24
    assert ran.client.counts.ended_by_plan == 24
    # Twice as many as can be in flight were open at the start, and each that was given up was replaced.
    assert {row["connect_start"] for row in ran.requests} == {None}
    assert len(server.connections) >= 24
    assert not ran.client.pool.live


def test_an_answer_that_ends_before_its_planned_end_is_short(tmp_path: Path) -> None:
    answer = stream(text_event("a"), text_event("b", "stop"), usage_event(2), DONE)
    with FakeServer(answer) as server:
        ran = run_load(server.url, tmp_path, cancel_after=3)
    assert ran.outcomes == ["short"]
    assert ran.requests[0]["finish_reason"] == "stop"


def test_an_answer_that_is_whole_in_the_read_that_fulfils_its_plan_is_simply_over(tmp_path: Path) -> None:
    whole = stream(text_event("a") + text_event("b") + text_event("c", "length") + usage_event(3) + DONE)
    at_once = [Write(b"".join(step.data for step in whole if isinstance(step, Write)))]
    with FakeServer(at_once) as server:
        ran = run_load(server.url, tmp_path, requests=2, cancel_after=2)
    assert ran.outcomes == ["ok"] * 2
    assert {row["finish_reason"] for row in ran.requests} == {"length"}
    assert {row["output_tokens"] for row in ran.requests} == {3}
    # No connection was given up for it.
    assert ran.client.counts.ended_by_plan == 0
    assert len(server.connections) == 2


def test_an_error_before_the_planned_end_is_an_error(tmp_path: Path) -> None:
    failing = stream(text_event("a"), b'data: {"error": "engine died"}\n\n', text_event("b"), DONE)
    with FakeServer(failing) as server:
        assert run_load(server.url, tmp_path, cancel_after=2).outcomes == ["stream_error"]


# The chat endpoint, and answers in one piece


def test_chat_answers_are_measured_like_completions_and_reasoning_is_told_apart(tmp_path: Path) -> None:
    def delta(text: str, key: str = "content", reason: str | None = None) -> bytes:
        return event({"choices": [{"index": 0, "delta": {key: text}, "finish_reason": reason}]})

    role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
    answer = stream(
        role,
        delta("hm", "reasoning_content"),
        delta("so", "reasoning"),
        delta("4", reason="stop"),
        usage_event(3),
        DONE,
    )
    with FakeServer(answer) as server:
        ran = run_load(server.url, tmp_path, path="/v1/chat/completions", tokens=3)
        assert server.requests[0].path == "/v1/chat/completions"
    assert ran.outcomes == ["ok"]
    assert [c["kind"] for c in ran.chunks] == ["role", "reasoning", "reasoning", "text", "usage"]
    assert ran.requests[0]["first_token"] == ran.chunks[1]["t"]


def test_an_answer_asked_for_in_one_piece_has_an_end_and_no_first_token(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    whole = {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "length"}], "usage": usage}
    with FakeServer(json_answer(whole)) as server:
        ran = run_load(server.url, tmp_path, stream=False, path="/v1/chat/completions")
    (row,) = ran.requests
    assert (row["outcome"], row["output_tokens"], row["first_token"]) == ("ok", 4, None)
    assert row["last_token"] == row["end"]
    assert ran.client.counts.not_streamed == 0  # it was not asked to


def test_a_wait_for_the_next_request_is_not_rounded_up_to_whole_milliseconds(tmp_path: Path) -> None:
    poller = Poller()
    shortest = NS_PER_S
    for _ in range(1000):  # a busy machine may prolong any of them
        before = time.monotonic_ns()
        poller.poll(0.0002)
        shortest = min(shortest, time.monotonic_ns() - before)
        if shortest < NS_PER_MS:
            break
    poller.close()
    assert 200_000 <= shortest < NS_PER_MS


def test_bodies_are_read_from_their_file_as_they_are_sent(tmp_path: Path) -> None:
    plan = make_plan("http://127.0.0.1:9", tmp_path, requests=3)
    mapped = worker_module.map_bodies(plan.bodies_path)
    assert bytes(mapped) == plan.bodies_path.read_bytes()
    (tmp_path / "empty").touch()
    assert worker_module.map_bodies(tmp_path / "empty") == b""
