"""Every way a request can end, met on a real socket, has its own outcome and says why."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.load import client as client_module
from harness.load.client import Client
from harness.load.completion import shorten
from harness.load.counts import Counts
from harness.load.plan import RequestTimeouts
from results.clock import NS_PER_S, now_ns
from results.schema import Outcome
from tests.harness.load.support import NO_LIMITS, body, run_load
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_steps import (
    DONE,
    END,
    Close,
    Delay,
    Gate,
    Reset,
    Step,
    Wait,
    Write,
    chunk,
    event,
    full_answer,
    head,
    json_answer,
    stream,
    text_event,
    usage_event,
)
from tests.waiting import LONG_S

pytestmark = pytest.mark.usefixtures("either_client")
DATA = Path(__file__).parent / "data"


def row_of(script: Sequence[Step], tmp_path: Path, **plan: Any) -> dict[str, Any]:
    """One request answered by `script`."""
    with FakeServer(script) as server:
        ran = run_load(server.url, tmp_path, **plan)
    assert len(ran.requests) == 1
    return {**ran.requests[0], "chunks": ran.chunks}


def test_ok(tmp_path: Path) -> None:
    row = row_of(full_answer(4), tmp_path)
    assert (row["outcome"], row["error"], row["http_status"]) == (Outcome.OK, None, 200)
    assert (row["output_tokens"], row["input_tokens_counted"], row["finish_reason"]) == (4, 3, "length")
    assert (row["connect_start"], row["connect_end"]) == (None, None)  # it was open before the start
    assert row["first_token"] is not None


def test_a_finish_reason_without_done_is_ok(tmp_path: Path) -> None:
    answers = [stream(text_event("a"), text_event("b", "stop")), stream(text_event("a", "stop"), DONE)]
    with FakeServer(lambda request: answers[request.index]) as server:
        ran = run_load(server.url, tmp_path, requests=2, ignore_eos=False)
    assert ran.outcomes == ["ok", "ok"]
    assert ran.client.counts.no_done == 1  # and it is told


def test_a_clean_end_without_any_end_marker_is_truncated(tmp_path: Path) -> None:
    row = row_of(stream(text_event("a"), text_event("b")), tmp_path)
    assert row["outcome"] == Outcome.TRUNCATED
    assert row["output_tokens"] == 2


def test_an_empty_answer_is_truncated(tmp_path: Path) -> None:
    assert row_of(stream(), tmp_path)["outcome"] == Outcome.TRUNCATED


@pytest.mark.parametrize(
    "failure",
    [
        event({"error": {"message": "engine died", "type": "InternalServerError", "param": None, "code": 500}}),
        event({"error": "engine died", "error_type": "generation"}),
        b'event: error\ndata: {"message":"engine died"}\n\n',
    ],
)
@pytest.mark.parametrize("end", [[Write(chunk(DONE)), END], [END], [Reset()]])
def test_an_error_inside_a_200_is_a_stream_error_with_its_message(
    failure: bytes, end: list[Step], tmp_path: Path
) -> None:
    steps = [*stream(text_event("a"), text_event("b"), failure, end=False), Delay(0.02), *end]
    row = row_of(steps, tmp_path)
    assert (row["outcome"], row["error"]) == (Outcome.STREAM_ERROR, "engine died")
    assert row["output_tokens"] == 2


def test_an_answer_the_server_aborted_is_a_stream_error(tmp_path: Path) -> None:
    row = row_of(stream(text_event("a"), text_event("", "abort"), DONE), tmp_path)
    assert row["outcome"] == Outcome.STREAM_ERROR
    assert "abort" in row["error"]


def test_a_reset_in_the_middle_keeps_what_came_before(tmp_path: Path) -> None:
    steps = stream(text_event("a"), text_event("b"), text_event("c"), end=False)
    row = row_of([*steps, Delay(0.05), Reset()], tmp_path)
    assert row["outcome"] == Outcome.RESET
    assert [c["kind"] for c in row["chunks"]] == ["text"] * 3
    assert row["output_tokens"] == 3


def test_a_connection_closed_inside_the_body_is_a_reset_that_says_what_was_missing(tmp_path: Path) -> None:
    row = row_of([*stream(text_event("a"), end=False), Close()], tmp_path)
    assert row["outcome"] == Outcome.RESET
    assert "before the last chunk" in row["error"]


def test_an_answer_that_ended_with_done_is_ok_whatever_the_connection_did_next(tmp_path: Path) -> None:
    steps = stream(*[text_event("a", "length")] * 4, usage_event(4), DONE, end=False)
    assert row_of([*steps, Close()], tmp_path)["outcome"] == "ok"


def test_something_that_is_not_http_is_a_reset_with_its_words(tmp_path: Path) -> None:
    row = row_of([Write(b"SSH-2.0-OpenSSH_9\r\n\r\n"), Delay(0.05), Close()], tmp_path)
    assert row["outcome"] == Outcome.RESET
    assert "SSH-2.0" in row["error"]


def test_one_broken_request_does_not_disturb_the_others(tmp_path: Path) -> None:
    broken = [*stream(text_event("a"), text_event("b"), text_event("c"), end=False), Delay(0.05), Reset()]
    with FakeServer(lambda request: broken if request.id == "r4" else full_answer()) as server:
        ran = run_load(server.url, tmp_path, requests=10, concurrency=2)
    assert ran.outcomes == ["ok"] * 4 + ["reset"] + ["ok"] * 5
    assert [c["kind"] for c in ran.chunks_of("r4")] == ["text"] * 3


@pytest.mark.parametrize("server_name", ["vllm", "sglang", "tgi"])
def test_http_errors_keep_status_and_message_of_every_body_shape(server_name: str, tmp_path: Path) -> None:
    answer = json.loads((DATA / "error_bodies.json").read_text())[server_name]
    row = row_of(json_answer(answer, 400), tmp_path)
    assert (row["outcome"], row["http_status"]) == (Outcome.HTTP_ERROR, 400)
    assert row["error"].startswith("HTTP 400: ")
    assert "4096" in row["error"]
    assert row["first_token"] is None


def test_a_long_error_page_is_shortened(tmp_path: Path) -> None:
    row = row_of(json_answer("<html>\n" + "x" * 100_000, 503, content_type="text/html"), tmp_path)
    assert (row["outcome"], row["http_status"]) == (Outcome.HTTP_ERROR, 503)
    assert len(row["error"]) < 600


def test_an_error_without_a_body(tmp_path: Path) -> None:
    assert row_of([head(500, chunked=False, content_length=0)], tmp_path)["error"] == "HTTP 500: no body"


def test_a_redirect_is_not_followed_and_named(tmp_path: Path) -> None:
    row = row_of([head(307, chunked=False, content_length=0, location="http://elsewhere/v1")], tmp_path)
    assert row["outcome"] == Outcome.HTTP_ERROR
    assert "http://elsewhere/v1" in row["error"]


def test_the_bearer_key_is_sent_but_never_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_KEY", "sk-very-secret")
    answer = json_answer({"error": {"message": "Incorrect API key provided: sk-very-secret"}}, 401)
    with FakeServer(answer) as server:
        ran = run_load(server.url, tmp_path, api_key_env="FAKE_KEY")
        assert server.requests[0].headers["authorization"] == "Bearer sk-very-secret"
    assert ran.requests[0]["outcome"] == Outcome.HTTP_ERROR
    assert "Incorrect API key" in ran.requests[0]["error"]
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"sk-very-secret" not in file.read_bytes()


def test_a_closed_port_is_refused(tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        ran = run_load(f"http://127.0.0.1:{sock.getsockname()[1]}", tmp_path, requests=6, batch=2)
    assert ran.outcomes == ["refused"] * 6
    row = ran.requests[0]
    assert row["error"] == "Connection refused"
    assert (row["sent"], row["first_byte"]) == (None, None)
    assert row["connect_start"] is not None


def test_a_host_that_does_not_answer_is_a_connect_timeout(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        # Fill the queue of connections that nobody accepts; the kernel then lets further ones wait.
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        limits = replace(NO_LIMITS, connect_s=0.2)
        ran = run_load(f"http://127.0.0.1:{address[1]}", tmp_path, timeouts=limits)
        for filler in fillers:
            filler.close()
    assert ran.outcomes == ["timeout"]
    assert ran.requests[0]["error"] == "connect: more than 0.2 s"


@pytest.mark.parametrize(
    "before",
    [
        [],
        [head()],
        [head(), *(step for _ in range(20_000) for step in (Delay(0.05), Write(chunk(b": keepalive\n\n"))))],
        [head(), Write(chunk(event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})))],
    ],
    ids=["nothing", "head", "comments", "role"],
)
def test_what_is_not_a_token_does_not_stop_the_first_token_clock(before: list[Step], tmp_path: Path) -> None:
    limits = replace(NO_LIMITS, first_token_s=0.3)
    row = row_of([*before, Wait(Gate())], tmp_path, timeouts=limits)
    assert (row["outcome"], row["error"]) == (Outcome.TIMEOUT, "first token: more than 0.3 s")
    assert row["first_token"] is None
    assert row["end"] - row["sent"] >= 0.3e9


def test_a_stalled_stream_ends_at_the_between_tokens_limit_and_the_rest_goes_on(tmp_path: Path) -> None:
    stalled = [*stream(text_event("a"), end=False), Wait(Gate())]
    limits = replace(NO_LIMITS, between_tokens_s=0.3)
    # In one piece: nothing lies between its tokens.
    whole = [Write(b"".join(step.data for step in full_answer() if isinstance(step, Write)))]
    with FakeServer(lambda request: stalled if request.id == "r1" else whole) as server:
        ran = run_load(server.url, tmp_path, requests=3, timeouts=limits)
    assert ran.outcomes == ["ok", "timeout", "ok"]
    row = next(r for r in ran.requests if r["request_id"] == "r1")
    assert row["error"] == "between tokens: more than 0.3 s"
    assert row["output_tokens"] == 1
    assert row["end"] - row["last_token"] >= 0.3e9


SLOW = [
    head(),
    *(s for i in range(10) for s in (Delay(0.05), Write(chunk(text_event("t", "length" if i == 9 else None))))),
]


def test_the_total_limit_cuts_a_long_answer_and_keeps_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = 0
    monkeypatch.setattr(client_module, "now_ns", lambda: now_ns() + ahead)

    def progress(client: Client, counts: Counts) -> None:
        nonlocal ahead
        if any(exchange.tokens_seen == 2 for exchange in client._busy):
            ahead = 3600 * NS_PER_S

    limits = RequestTimeouts(None, None, None, LONG_S)
    cut = [*stream(text_event("a"), text_event("b"), end=False), Wait(Gate())]
    row = row_of(cut, tmp_path, timeouts=limits, tokens=10, progress=progress)
    assert (row["outcome"], row["error"]) == (Outcome.TIMEOUT, f"total: more than {LONG_S:g} s")
    assert row["output_tokens"] == 2


def test_no_limit_means_no_limit(tmp_path: Path) -> None:
    row = row_of([*SLOW, END], tmp_path, timeouts=RequestTimeouts(None, None, None, None), tokens=10)
    assert row["outcome"] == "ok"


def test_fewer_tokens_than_asked_with_ignore_eos_is_short(tmp_path: Path) -> None:
    answer = stream(text_event("a"), text_event("b", "stop"), usage_event(2), DONE)
    row = row_of(answer, tmp_path, tokens=4)
    assert row["outcome"] == Outcome.SHORT
    assert "2 of 4" in row["error"]
    assert (row["finish_reason"], row["output_tokens"], row["output_tokens_asked"]) == ("stop", 2, 4)
    assert row_of(answer, tmp_path, tokens=4, ignore_eos=False)["outcome"] == "ok"


def test_fewer_chunks_than_tokens_are_not_called_short(tmp_path: Path) -> None:
    # Two chunks may well carry four tokens: without a count nobody can tell.
    assert row_of(stream(text_event("a b"), text_event("c d", "length"), DONE), tmp_path, tokens=4)["outcome"] == "ok"
    assert row_of(stream(text_event("a b"), text_event("c d", "stop"), DONE), tmp_path, tokens=4)["outcome"] == "short"


def test_stopping_cancels_what_is_in_flight_and_keeps_what_was_measured(tmp_path: Path) -> None:
    open_end = [*stream(text_event("a"), end=False), Wait(Gate())]
    with FakeServer(lambda request: full_answer() if request.index < 3 else open_end) as server:

        def stop_when_stuck(client: Any, counts: Any) -> None:
            stuck = list(client._busy)
            if counts.done >= 3 and len(stuck) == 2 and all(exchange.token_seen for exchange in stuck):
                client.stop()

        ran = run_load(server.url, tmp_path, requests=50, concurrency=2, progress=stop_when_stuck)
    assert sorted(ran.outcomes) == ["cancelled"] * 2 + ["ok"] * 3
    cancelled = [row for row in ran.requests if row["outcome"] == "cancelled"]
    assert [row["output_tokens"] for row in cancelled] == [1, 1]


# Answers that are no stream


def plain(tokens: int = 4) -> list[Step]:
    usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}
    return json_answer({"choices": [{"index": 0, "text": "x", "finish_reason": "length"}], "usage": usage})


def test_an_answer_without_streaming_is_counted_from_its_usage(tmp_path: Path) -> None:
    row = row_of(plain(), tmp_path, stream=False)
    assert (row["outcome"], row["output_tokens"], row["count_source"]) == ("ok", 4, "final_usage")
    assert (row["first_token"], row["chunks"]) == (None, [])
    assert row_of(plain(3), tmp_path, stream=False)["outcome"] == Outcome.SHORT


def test_a_server_that_does_not_stream_although_asked_is_understood_and_counted_apart(tmp_path: Path) -> None:
    with FakeServer(plain()) as server:
        ran = run_load(server.url, tmp_path, requests=3)
    assert ran.outcomes == ["ok"] * 3
    assert ran.client.counts.not_streamed == 3
    assert ran.requests[0]["first_token"] is None


NO_USAGE = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}


@pytest.mark.parametrize(
    ("answer", "outcome", "counted"),
    [
        (stream(DONE), "stream_error", None),
        (stream(b": hello\n\n", DONE), "stream_error", None),
        (stream(text_event("", "length")), "short", None),
        (stream(text_event("", "length"), DONE), "short", None),
        (stream(text_event("", "length"), usage_event(0), DONE), "short", 0),
        (json_answer(NO_USAGE), "short", None),
    ],
)
def test_an_answer_without_a_token_is_not_ok_and_an_unknown_count_is_null(
    answer: list[Step], outcome: str, counted: int | None, tmp_path: Path
) -> None:
    row = row_of(answer, tmp_path)
    assert (row["outcome"], row["output_tokens"]) == (outcome, counted)
    assert "4" in row["error"]
    # Free to end by itself, a model may say nothing; but not without reason.
    assert row_of(answer, tmp_path, ignore_eos=False)["outcome"] == outcome


def test_a_model_free_to_end_by_itself_may_say_nothing(tmp_path: Path) -> None:
    row = row_of(stream(text_event("", "stop"), usage_event(0), DONE), tmp_path, ignore_eos=False)
    assert (row["outcome"], row["output_tokens"], row["count_source"]) == ("ok", 0, "final_usage")


def test_text_in_one_piece_that_nobody_counted_has_no_count(tmp_path: Path) -> None:
    row = row_of(
        json_answer({"choices": [{"index": 0, "text": "four words of text", "finish_reason": "length"}]}), tmp_path
    )
    assert (row["outcome"], row["output_tokens"], row["count_source"]) == ("ok", None, None)


@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        (json_answer({"error": {"message": "overloaded"}}), "stream_error", "overloaded"),
        (json_answer("<html>hello</html>"), "stream_error", "neither an event stream nor JSON"),
        (json_answer({"choices": []}), "truncated", "without finish_reason"),
        (json_answer("not really", content_encoding="gzip"), "stream_error", "content-encoding 'gzip'"),
    ],
)
def test_a_200_that_is_no_answer_is_named(answer: list[Step], outcome: str, words: str, tmp_path: Path) -> None:
    row = row_of(answer, tmp_path)
    assert row["outcome"] == outcome
    assert words in row["error"]


def test_a_stream_without_a_content_type_is_recognised(tmp_path: Path) -> None:
    steps = full_answer()
    assert row_of([head(content_type="application/octet-stream"), *steps[1:]], tmp_path)["outcome"] == "ok"


def test_an_early_refusal_of_a_large_body_is_an_http_error(tmp_path: Path) -> None:
    refusal = [*json_answer({"error": "too large"}, 413), Delay(0.2), Close()]
    with FakeServer(refusal, read_body=False) as server:
        ran = run_load(server.url, tmp_path, bodies=[body(4, prompt=range(2_000_000))], timeouts=NO_LIMITS)
    assert ran.requests[0]["outcome"] == Outcome.HTTP_ERROR
    assert ran.requests[0]["http_status"] == 413


def test_words_of_a_server_cannot_move_a_terminals_cursor() -> None:
    assert shorten("a\x1b[31mb\n c\u202e", 20) == "a\ufffd[31mb c\ufffd"
