"""The truth server, a process of its own, seen from the product's load client and from plain HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.load.plan import RequestTimeouts
from harness.truth.process import TruthServer, TruthServerError
from harness.truth.schedule import Fault, Schedule
from harness.truth.stamps import Truth
from results.clock import NS_PER_MS
from tests.harness.load.support import Ran, body, run_load
from tests.waiting import LONG_S, wait_until

QUICK = Schedule(ttft_ms=2, gap_ms=1)


@pytest.fixture(scope="module")
def running() -> Iterator[TruthServer]:
    with TruthServer(QUICK) as server:
        yield server


@pytest.fixture
def server(running: TruthServer) -> TruthServer:
    """One that has forgotten what was before."""
    running.set_schedule(QUICK)
    running.collect()
    return running


def post(url: str, fields: Any, *, path: str = "/v1/completions", name: str | None = None) -> tuple[int, Any]:
    """(status, JSON) of an answer that is no stream."""
    data = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    headers = {"Content-Type": "application/json"} | ({"X-Request-ID": name} if name else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=LONG_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=LONG_S) as answer:
        return json.load(answer)


def test_client_and_truth_join_by_request_id_and_agree_on_every_token(server: TruthServer, tmp_path: Path) -> None:
    ran = run_load(server.url, tmp_path, requests=6, concurrency=3, tokens=20)
    truth = server.collect()
    assert ran.outcomes == ["ok"] * 6
    assert sorted(truth.request_id) == sorted(row["request_id"] for row in ran.requests)
    assert list(truth.output_tokens) == [20] * 6
    assert list(truth.input_tokens) == [3] * 6
    assert set(truth.outcome) == {"done"}
    assert (np.diff(truth.received) >= 0).all()
    for row, name in enumerate(truth.request_id):
        one = truth.take(np.array([row]))
        sent = next(r["sent"] for r in ran.requests if r["request_id"] == name)
        arrived = [c["t"] for c in ran.chunks_of(name) if c["kind"] == "text"]
        assert len(arrived) == 20
        # Sent before it arrived, in before it was answered: one clock.
        assert (np.array(arrived) >= one.sent).all()
        assert sent <= one.received[0] <= one.sent[0]


def test_nothing_is_sent_before_it_is_due_and_the_schedule_does_not_drift(server: TruthServer, tmp_path: Path) -> None:
    schedule = Schedule(ttft_ms=5, gap_ms=2, jitter=0.5, seed=3)
    server.set_schedule(schedule)
    run_load(server.url, tmp_path, requests=2, tokens=30)
    truth = server.collect()
    assert (truth.sent >= truth.due).all()
    for row in range(len(truth)):
        due = truth.due[truth.start[row] : truth.start[row + 1]] - truth.received[row]
        assert list(due) == schedule.offsets(int(truth.index[row]), 30)


def test_figures_of_the_truth_follow_from_its_stamps(server: TruthServer) -> None:
    ms = NS_PER_MS
    truth = Truth(
        request_id=np.array(["a", "b"], dtype=object),
        index=np.array([0, 1]),
        received=np.array([0, 10 * ms]),
        input_tokens=np.array([3, 3]),
        output_tokens=np.array([5, 1]),
        outcome=np.array(["done", "lost"], dtype=object),
        start=np.array([0, 3, 4]),
        due=np.array([9, 19, 29, 20]) * ms,
        sent=np.array([10, 20, 34, 20]) * ms,
        tokens=np.array([2, 2, 1, 1]),
    )
    assert list(truth.ttft_ms()) == [10, 10]
    assert list(truth.tpot_ms()) == [8]  # 24 ms over the three tokens after the first chunk
    assert truth.duration_s() == pytest.approx(0.034)
    assert list(truth.late_ms()) == [1, 1, 5, 0]
    assert list(truth.whole.request_id) == ["a"]
    assert list(truth.last(1).sent) == [20 * ms]
    assert list(truth.take(np.array([1, 0])).sent) == [20 * ms, 10 * ms, 20 * ms, 34 * ms]


@pytest.mark.parametrize(
    ("fault", "outcome", "tokens"),
    [
        (Fault.STALL, "ok", 6),
        (Fault.RESET, "reset", 3),
        (Fault.CLOSE, "reset", 3),
        (Fault.TRUNCATE, "truncated", 3),
        (Fault.ERROR, "stream_error", 3),
        (Fault.UNAVAILABLE, "http_error", 0),
        (Fault.NEVER, "timeout", 0),
        (Fault.HANG_UP, "reset", 0),
    ],
)
def test_faults_on_request(server: TruthServer, tmp_path: Path, fault: Fault, outcome: str, tokens: int) -> None:
    own = {"fault": str(fault), "fault_after": 3, "stall_s": 0.1}
    limits = RequestTimeouts(LONG_S, 0.3 if fault is Fault.NEVER else LONG_S, LONG_S, LONG_S)
    before = server.state()["requests"]
    ran = run_load(server.url, tmp_path, tokens=6, bodies=[body(6, truth=own)], timeouts=limits)
    assert ran.outcomes == [outcome]
    assert len([c for c in ran.chunks if c["kind"] == "text"]) == tokens
    truth = _ended(server, before)
    # A connection that was closed without a byte may have been stale: the client tries once more.
    assert set(truth.outcome) == {"done" if fault is Fault.STALL else str(fault)}
    assert set(truth.output_tokens) == {tokens}
    if fault is Fault.STALL:
        assert np.diff(truth.sent).max() >= 100 * NS_PER_MS
    # The fault was that request's alone.
    assert _answered(server, tmp_path / "after")


def _ended(server: TruthServer, before: int) -> Truth:
    """The stamps, once the server has seen more requests than it had `before`, and the end of all of them."""

    def over() -> bool:
        state = server.state()
        return state["requests"] > before and not state["active"]

    wait_until(over, "the end of all it answered")
    return server.collect()


def _answered(server: TruthServer, folder: Path) -> bool:
    folder.mkdir()
    return run_load(server.url, folder, tokens=2).outcomes == ["ok"]


def test_every_so_many_requests_fail_where_the_schedule_says_so(server: TruthServer, tmp_path: Path) -> None:
    server.set_schedule(QUICK.changed({"fault": "unavailable", "fault_every": 2}))
    ran = run_load(server.url, tmp_path, requests=4, tokens=2)
    assert sorted(ran.outcomes) == ["http_error", "http_error", "ok", "ok"]


def test_a_client_that_goes_is_lost_and_its_tokens_are_those_sent(server: TruthServer, tmp_path: Path) -> None:
    before = server.state()["requests"]
    ran = run_load(
        server.url,
        tmp_path,
        tokens=10_000,
        progress=lambda client, counts: client.stop() if client.started and counts.in_flight else None,
    )
    assert ran.outcomes == ["cancelled"]
    truth = _ended(server, before)
    assert list(truth.outcome) == ["lost"]
    assert truth.output_tokens[0] == len(truth.sent) < 10_000


def test_several_tokens_a_chunk_with_ids_and_usage(server: TruthServer, tmp_path: Path) -> None:
    server.set_schedule(QUICK.changed({"tokens_per_chunk": 4}))
    ran = run_load(server.url, tmp_path, tokens=10, bodies=[body(10, return_token_ids=True)])
    assert [c["tokens"] for c in ran.chunks if c["kind"] == "text"] == [4, 4, 2]
    row = ran.requests[0]
    assert (row["count_source"], row["output_tokens"], row["tokens_in_first_chunk"]) == ("ids", 10, 4)
    assert row["input_tokens_counted"] == 3
    truth = server.collect()
    assert list(truth.tokens) == [4, 4, 2]


def test_usage_on_every_chunk_where_it_is_asked_for(server: TruthServer, tmp_path: Path) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    ran = run_load(server.url, tmp_path, tokens=5, bodies=[body(5, stream_options=options)])
    assert [c["tokens"] for c in ran.chunks if c["kind"] == "text"] == [1] * 5
    assert ran.requests[0]["count_source"] == "continuous_usage"


def test_chat_streams_a_role_first(server: TruthServer, tmp_path: Path) -> None:
    said = json.dumps(
        {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 3, "stream": True}
        | {"stream_options": {"include_usage": True}}
    ).encode()
    ran = run_load(server.url, tmp_path, tokens=3, bodies=[said], path="/v1/chat/completions")
    assert [c["kind"] for c in ran.chunks] == ["role", "text", "text", "text", "usage"]
    assert ran.requests[0]["input_tokens_counted"] == 2


def test_an_early_head_comes_before_the_first_token_is_due(server: TruthServer, tmp_path: Path) -> None:
    server.set_schedule(Schedule(ttft_ms=1000, gap_ms=1, early_head=True))
    ran = run_load(server.url, tmp_path, tokens=2)
    row = ran.requests[0]
    assert row["first_byte"] < row["first_token"]


def test_answers_that_are_no_streams(server: TruthServer) -> None:
    assert post(server.url, {"prompt": "one two three", "max_tokens": 4}, name="mine")[1]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
    }
    truth = server.collect()
    assert list(truth.request_id) == ["mine"]
    assert list(truth.output_tokens) == [4]
    answer = post(
        server.url, {"messages": [{"content": [{"text": "a b"}]}], "max_tokens": 1}, path="/v1/chat/completions"
    )
    assert answer[1]["choices"][0]["message"]["content"].split() == ["baba"]
    assert get(server.url + "/v1/models")["data"][0]["id"] == "dyno-truth"
    assert get(server.url + "/health") == {}
    assert get(server.url + "/truth")["schedule"]["ttft_ms"] == 2


@pytest.mark.parametrize(
    "bad",
    [
        b"no json",
        b"[1]",
        {"prompt": {"a": 1}},
        {"prompt": [1], "max_tokens": -1},
        {"prompt": [1], "max_tokens": 10**9},
        {"prompt": [1], "truth": {"fault": "none such"}},
        {"prompt": [1], "truth": {"ttft_ms": "x"}},
        {"prompt": [1], "stream_options": 3},
    ],
)
def test_a_request_that_cannot_be_answered_is_refused_and_the_server_lives(server: TruthServer, bad: Any) -> None:
    status, answer = post(server.url, bad)
    assert status == 400
    assert answer["error"]["message"]
    assert post(server.url, {"prompt": [1], "max_tokens": 1})[0] == 200


def test_idle_connections_are_closed_where_that_is_wanted(tmp_path: Path) -> None:
    with TruthServer(QUICK, idle_close_s=0.05) as server, socket.create_connection((server.host, server.port)) as idle:
        idle.settimeout(LONG_S)
        assert idle.recv(1) == b""


def test_the_death_of_the_server_is_an_error_with_words() -> None:
    with TruthServer(QUICK) as server:
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(TruthServerError, match="ended with status -9"):
            server.state()


def test_counts_go_on_where_stamps_are_not_kept(server: TruthServer, tmp_path: Path) -> None:
    server.keep_chunks(False)
    try:
        before = server.state()
        ran: Ran = run_load(server.url, tmp_path, requests=3, tokens=2)
        after = server.state()
        assert ran.outcomes == ["ok"] * 3
        assert after["requests"] - before["requests"] == 3
        assert after["tokens"] - before["tokens"] == 6
        assert len(server.collect()) == 0
    finally:
        server.keep_chunks(True)
