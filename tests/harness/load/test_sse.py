"""What a stream says does not depend on how it was cut, and every oddity of real servers has its right value."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load.completion import Chunk, StreamResult
from harness.load.sse import parse_stream
from results.schema import ChunkKind, CountSource
from tests.servers.openai_fake_steps import DONE, event, text_event, usage_event

pytestmark = pytest.mark.usefixtures("either_client")
DATA = Path(__file__).parent / "data"
MS = 1_000_000
K = ChunkKind


def parse(*timed: tuple[float, bytes], keep_text: bool = False) -> StreamResult:
    """Reads given as (ms, bytes)."""
    return parse_stream([(int(t * MS), 0, data) for t, data in timed], keep_text=keep_text)


def delta(finish_reason: str | None = None, **fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]})


def kinds(result: StreamResult) -> list[ChunkKind]:
    return [chunk.kind for chunk in result.chunks]


def content_time(result: StreamResult) -> int | None:
    return next((chunk.t for chunk in result.chunks if chunk.kind is K.TEXT), None)


def with_usage(event_bytes: bytes, used: int) -> bytes:
    message = json.loads(event_bytes[6:])
    message["usage"] = {"prompt_tokens": 3, "completion_tokens": used, "total_tokens": 3 + used}
    return event(message)


# Fragmentation


def lines_of(newline: bytes) -> bytes:
    """A stream with everything in it."""
    stream = b"".join(
        [
            b": ping\n\n",
            b"event: message\nid: 7\nretry: 3000\n",
            delta(role="assistant", content=""),
            delta(content="中文 🙂"),
            b"data:" + text_event(" a b", None, token_ids=[1, 2])[6:],
            b'data: {"choices":\ndata: [{"index":0,"text":"x"}]}\n\n',
            delta(reasoning="hm", finish_reason="stop"),
            b"data: {broken\n\n",
            usage_event(9),
            DONE,
            b"data: an event that never ends",
        ]
    )
    return stream.replace(b"\n", newline)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@given(cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_no_fragmentation_changes_the_answer(newline: bytes, cuts: list[int]) -> None:
    data = lines_of(newline)
    edges = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    # A read arrives when its last byte does, so a chunk's time is the arrival of the read that holds its last byte.
    byte_by_byte = parse_stream([(i, 0, data[i : i + 1]) for i in range(len(data))], keep_text=True)
    cut_up = parse_stream([(b - 1, 0, data[a:b]) for a, b in itertools.pairwise(edges)], keep_text=True)

    def arrival(t: int) -> int:
        return next(edge for edge in edges if edge > t) - 1

    assert list(cut_up.chunks) == [chunk._replace(t=arrival(chunk.t)) for chunk in byte_by_byte.chunks]
    for name in ("text", "token_ids", "output_tokens", "count_source", "finish_reason", "error", "terminal", "done"):
        assert getattr(cut_up, name) == getattr(byte_by_byte, name), name
    assert cut_up.text == "中文 🙂 a bx"
    assert cut_up.finish_reason == "stop"
    assert kinds(cut_up) == [K.COMMENT, K.ROLE, K.TEXT, K.TEXT, K.TEXT, K.REASONING, K.ERROR, K.USAGE]


def test_a_data_line_without_a_value_belongs_to_its_event_wherever_the_reads_are_cut() -> None:
    begin, rest = b"data:\n", text_event("x")
    whole, cut = parse((1, begin + rest + DONE)), parse((1, begin), (1, rest), (1, DONE))
    assert cut == whole
    assert kinds(cut) == [K.TEXT]


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_bytes_give_an_answer_and_never_an_exception(reads: list[bytes]) -> None:
    whole = parse_stream([(0, None, b"".join(reads))])
    cut_up = parse_stream([(0, None, data) for data in reads])
    assert whole.chunks == cut_up.chunks
    assert whole.error == cut_up.error


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["choices", "usage", "delta", "text", "token_ids", "completion_tokens", "prompt_tokens", "error"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_gives_an_answer_and_never_an_exception(value: Any) -> None:
    result = parse((1, event(value)))
    assert len(result.chunks) <= 1


def test_a_character_cut_between_reads_is_whole_and_timed_by_the_read_that_completes_the_event() -> None:
    result = parse(
        (0, b'data: {"choices":[{"index":0,"text":"\xe4\xb8'),
        (50, b"\xad\xe6\x96\x87\xf0\x9f"),
        (100, b'\x99\x82","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'),
        keep_text=True,
    )
    assert result.text == "中文🙂"
    assert result.first_token == result.last_token == 100 * MS
    assert result.error is None
    assert result.done


def test_blanks_at_the_cut_survive() -> None:
    data = b'data: {"choices":[{"index":0,"text":"a b"}]}\n\ndata: [DONE]\n\n'
    for k in range(1, len(data)):
        assert parse((0, data[:k]), (1, data[k:]), keep_text=True).text == "a b"


def test_several_events_in_one_read_are_counted_as_coalesced() -> None:
    one_read = (
        b'event: message\nid: 7\nretry: 3000\ndata:{"choices":[{"index":0,"text":"x"}]}\n\n'
        b'data:{"choices":[{"index":0,"text":"y"}]}\n\ndata:[DONE]\n\n'
    )
    result = parse((5, one_read), keep_text=True)
    assert result.text == "xy"
    assert [(c.t, c.kind) for c in result.chunks] == [(5 * MS, K.TEXT), (5 * MS, K.TEXT)]
    assert result.coalesced_events == 1


def test_all_line_ends_are_understood_even_when_cut_between_cr_and_lf() -> None:
    x, y = b'data: {"choices":[{"index":0,"text":"x"}]}', b'data: {"choices":[{"index":0,"text":"y"}]}'
    crlf = parse(
        (0, x + b"\r\n\r\n"), (200, y + b"\r"), (201, b"\n\r\n"), (202, b"data: [DONE]\r\n\r\n"), keep_text=True
    )
    assert [(c.t, c.kind) for c in crlf.chunks] == [(0, K.TEXT), (201 * MS, K.TEXT)]
    assert crlf.done
    mixed = parse((0, x + b"\n\r\n" + y + b"\r\rdata: [DONE]\n\n"), keep_text=True)
    assert mixed.text == "xy"
    assert len(mixed.chunks) == 2


def test_a_line_of_a_mebibyte_is_no_problem_in_one_read_or_many() -> None:
    data = (
        b'data: {"choices":[{"index":0,"text":"x","finish_reason":"stop"}],"prompt_token_ids":['
        + b"1," * 524_288
        + b"1]}\n\n"
        + DONE
    )
    for size in (len(data), 1000):
        result = parse(*[(i, data[i : i + size]) for i in range(0, len(data), size)])
        assert result.error is None
        assert kinds(result) == [K.TEXT]
        assert result.finish_reason == "stop"


def test_an_event_beyond_the_limit_is_an_error_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.load.sse.MAX_EVENT_BYTES", 2**20)
    endless = [(i, b"x" * 65536) for i in range(64)]
    result = parse((0, b"data: "), *endless)
    assert result.error is not None
    assert "larger than 1 MiB" in result.error


# Which chunk is a token


def test_comments_and_the_role_are_not_the_first_token() -> None:
    result = parse(
        (100, b":\n\n"),
        (200, b": keepalive\n\n"),
        (300, b":\n\n"),
        (400, delta(role="assistant", content=None)),
        (500, delta(content="hi", finish_reason="stop") + DONE),
    )
    assert result.first_token == 500 * MS
    assert result.chunks_with_tokens == 1
    assert kinds(result) == [K.COMMENT] * 3 + [K.ROLE, K.TEXT]


@pytest.mark.parametrize("content", ["", None])
def test_a_role_chunk_with_empty_content_is_not_a_token(content: str | None) -> None:
    result = parse(
        (50, delta(role="assistant", content=content)), (500, delta(content="Hi", finish_reason="stop")), (501, DONE)
    )
    assert result.first_token == 500 * MS
    assert result.chunks_with_tokens == 1


@pytest.mark.parametrize(
    ("name", "texts"),
    [("vllm_chat", 3), ("sglang_chat", 3), ("tgi_chat", 3)],
)
def test_recorded_streams_of_real_servers(name: str, texts: int) -> None:
    result = parse((1, (DATA / f"{name}.sse").read_bytes()), keep_text=True)
    assert result.text == "The capital of France is Paris."
    assert kinds(result) == [K.ROLE] + [K.TEXT] * texts + [K.USAGE]
    assert (result.output_tokens, result.count_source, result.input_tokens) == (7, CountSource.FINAL_USAGE, 12)
    assert result.tokens_in_first_chunk is None
    assert result.finish_reason == "stop"
    assert result.done


def test_reasoning_counts_as_generated_and_content_is_told_apart() -> None:
    result = parse(
        (100, delta(reasoning_content="Okay")),
        (550, delta(reasoning=" so")),
        (1000, delta(content="4", finish_reason="stop")),
        (1001, usage_event(3)),
    )
    assert result.first_token == 100 * MS
    assert content_time(result) == 1000 * MS
    assert result.output_tokens == 3


def test_an_answer_that_ends_inside_its_reasoning_has_tokens_but_no_content() -> None:
    result = parse(
        *[(100 + 50 * i, delta(reasoning="r", finish_reason="length" if i == 4 else None)) for i in range(5)],
        (400, usage_event(5) + DONE),
    )
    assert result.first_token == 100 * MS
    assert content_time(result) is None
    assert result.output_tokens == 5


def test_a_chunk_with_reasoning_and_content_counts_once() -> None:
    result = parse((1, delta(reasoning="r", reasoning_content="r", content="c")), (2, DONE))
    assert kinds(result) == [K.TEXT]
    assert result.chunks_with_tokens == 1


def test_chunks_without_choices_are_skipped_and_their_usage_read() -> None:
    result = parse(
        (50, event({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]})),
        (200, delta(content="Hi", finish_reason="stop")),
        (210, usage_event(1, prompt=12) + DONE),
    )
    assert result.first_token == 200 * MS
    assert (result.output_tokens, result.input_tokens) == (1, 12)
    assert kinds(result) == [K.EMPTY, K.TEXT, K.USAGE]


# Counting


def test_several_tokens_a_chunk_are_counted_from_final_usage() -> None:
    result = parse(
        (100, text_event("one two three four")),
        (400, text_event(" five six seven eight")),
        (700, text_event(" nine ten eleven twelve", "length")),
        (701, usage_event(12) + DONE),
    )
    assert (result.output_tokens, result.count_source) == (12, CountSource.FINAL_USAGE)
    assert result.chunks_with_tokens == 3
    assert result.tokens_in_first_chunk is None
    assert all(chunk.tokens is None for chunk in result.chunks)
    assert (result.last_token, result.first_token) == (700 * MS, 100 * MS)


def test_continuous_usage_tells_the_tokens_of_each_chunk() -> None:
    result = parse(
        (1, with_usage(delta(role="assistant", content=""), 0)),
        (2, with_usage(text_event("a b"), 2)),
        (3, with_usage(text_event(""), 3)),  # half a character: a token without text
        (4, with_usage(text_event("é"), 4)),
        (5, with_usage(text_event("", "stop"), 5)),  # the end-of-sequence token
        (6, usage_event(5) + DONE),
    )
    assert [(c.kind, c.tokens) for c in result.chunks] == [
        (K.ROLE, None),
        (K.TEXT, 2),
        (K.TEXT, 1),
        (K.TEXT, 1),
        (K.TEXT, 1),
        (K.USAGE, None),
    ]
    assert (result.output_tokens, result.count_source) == (5, CountSource.CONTINUOUS_USAGE)
    assert result.tokens_in_first_chunk == 2
    assert result.last_token == 5 * MS


def test_token_ids_are_preferred_to_usage_and_found_behind_empty_text() -> None:
    result = parse(
        (1, with_usage(text_event("", token_ids=[5, 6, 7]), 9)),
        (2, with_usage(text_event("x", "length", token_ids=[8]), 9)),
        (3, DONE),
    )
    assert [(c.kind, c.tokens) for c in result.chunks] == [(K.TEXT, 3), (K.TEXT, 1)]
    assert (result.output_tokens, result.count_source) == (4, CountSource.IDS)
    assert result.tokens_in_first_chunk == 3


def test_usage_on_the_last_chunk_only_is_a_final_count_not_that_chunks_own() -> None:
    result = parse((1, text_event("a")), (2, text_event("b")), (3, with_usage(text_event("", "length"), 2)), (4, DONE))
    assert [(c.kind, c.tokens) for c in result.chunks] == [(K.TEXT, None), (K.TEXT, None), (K.FINISH, None)]
    assert (result.output_tokens, result.count_source) == (2, CountSource.FINAL_USAGE)
    assert result.last_token == 2 * MS


def test_ids_that_are_missing_on_one_chunk_are_no_count_of_the_whole() -> None:
    result = parse((1, text_event("a", token_ids=[1])), (2, text_event("b", "stop")), (3, usage_event(2)))
    assert (result.output_tokens, result.count_source) == (2, CountSource.FINAL_USAGE)


def test_without_ids_and_usage_chunks_are_counted_and_said_so() -> None:
    result = parse((1, text_event("a")), (2, text_event("b", "stop")), (3, DONE))
    assert (result.output_tokens, result.count_source, result.input_tokens) == (2, CountSource.CHUNKS, None)


def test_a_stream_without_tokens_has_no_count() -> None:
    result = parse((1, delta(role="assistant", content="")), (2, DONE))
    assert (result.output_tokens, result.count_source, result.first_token) == (0, None, None)


def test_half_a_surrogate_pair_in_a_text_does_not_spoil_the_event() -> None:
    result = parse((1, b'data: {"choices":[{"index":0,"text":"\\ud83d","finish_reason":"stop"}]}\n\n' + DONE))
    assert result.error is None
    assert result.chunks_with_tokens == 1


@pytest.mark.parametrize("count", [-1, 2**40, "12", 1.5, None, True])
def test_a_count_that_cannot_be_one_is_not_known(count: Any) -> None:
    message = {"choices": [], "usage": {"completion_tokens": count, "prompt_tokens": count}}
    result = parse((1, text_event("a")), (2, event(message)), (3, DONE))
    assert (result.output_tokens, result.count_source, result.input_tokens) == (1, CountSource.CHUNKS, None)


# Errors and ends


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (event({"error": {"message": "engine died", "type": "InternalServerError", "code": 500}}), "engine died"),
        (event({"error": "engine died", "error_type": "generation"}), "engine died"),
        (b'event: error\ndata: {"message":"x"}\n\n', "x"),
        (event({"object": "error", "message": "too long", "code": 400}), "too long"),
        (event({"error": {"object": "error", "message": "aborted"}}), "aborted"),
        (b"data: {'error': 'not json'}\n\n", "an event that is not JSON: {'error': 'not json'}"),
    ],
)
def test_an_error_inside_the_stream_is_found_in_all_its_forms(data: bytes, message: str) -> None:
    result = parse((1, text_event("a")), (2, text_event("b")), (3, data), (4, DONE))
    assert result.error == message
    assert kinds(result) == [K.TEXT, K.TEXT, K.ERROR]
    assert result.output_tokens == 2


def test_a_null_error_is_no_error() -> None:
    result = parse((1, event({"error": None, "choices": [{"index": 0, "text": "a"}]})), (2, DONE))
    assert result.error is None
    assert result.chunks_with_tokens == 1


@pytest.mark.parametrize(
    ("events", "terminal", "done"),
    [
        ([text_event("a"), text_event("b")], False, False),
        ([text_event("a"), text_event("b", "stop")], True, False),
        ([text_event("a"), usage_event(1)], True, False),
        ([text_event("a"), DONE], True, True),
        ([with_usage(text_event("a"), 1)], False, False),
    ],
)
def test_an_end_marker_is_a_finish_reason_a_final_usage_or_done(
    events: list[bytes], terminal: bool, done: bool
) -> None:
    result = parse(*enumerate(events))
    assert (result.terminal, result.done) == (terminal, done)


def test_an_event_without_its_blank_line_is_none() -> None:
    assert not parse((1, text_event("a")[:-1])).chunks


def test_what_follows_done_is_not_taken_for_an_error() -> None:
    result = parse((1, text_event("a", "stop") + DONE + b'event: trtllm.perf_metrics\ndata: {"x": 1}\n\n'))
    assert result.error is None
    assert result.chunks_with_tokens == 1


def test_the_lag_of_a_read_goes_with_its_chunks() -> None:
    result = parse_stream([(5, 7, text_event("a")), (9, None, text_event("b"))])
    assert next(iter(result.chunks)) == Chunk(5, 7, K.TEXT, None, len(text_event("a")) - 8)
    assert list(result.chunks)[1].lag is None
