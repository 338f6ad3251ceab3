"""Where an answer ends is found whatever its framing and however it was cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.http_probe import ServerURL
from harness.load.http import MAX_HEAD_BYTES, Head, ProtocolError, ResponseDecoder, request_head
from harness.load.plan import BatchMode, LoadPlan, RequestPlan

PIECES = [b"data: one\n\n", b"x" * 5000, b"\r\n0\r\n\r\n", b"end"]
BODY = b"".join(PIECES)
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTRANSFER-Encoding:  Chunked\r\nx: y\r\n\r\n"
    + b"".join(b"%X;ext=1\r\n%b\r\n" % (len(piece), piece) for piece in PIECES)
    + b"000\r\nTrailer: 1\r\n\r\n"
)
# As most servers write it: read in a quick way, whole chunks at a time.
PLAIN = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in PIECES)
    + b"0\r\n\r\n"
)
WITH_LENGTH = b"HTTP/1.1 200 OK\r\ncontent-LENGTH: %d\r\n\r\n" % len(BODY) + BODY
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" + CHUNKED
BARE_LF = WITH_LENGTH.replace(b"\r\n", b"\n", 3)


def feed(decoder: ResponseDecoder, data: bytes, *cuts: int) -> bytes:
    edges = [0, *sorted(cuts), len(data)]
    return b"".join(b"".join(decoder.feed(data[a:b])) for a, b in itertools.pairwise(edges) if b > a)


@pytest.mark.parametrize("answer", [CHUNKED, PLAIN, WITH_LENGTH, INTERIM, BARE_LF])
@given(cuts=st.lists(st.integers(0, len(INTERIM)), max_size=10))
def test_any_fragmentation_gives_the_same_body_and_end(answer: bytes, cuts: list[int]) -> None:
    decoder = ResponseDecoder()
    assert feed(decoder, answer, *[min(cut, len(answer)) for cut in cuts]) == BODY
    assert decoder.done
    assert decoder.head is not None
    assert decoder.head.status == 200
    assert decoder.excess == b""


@pytest.mark.parametrize("answer", [CHUNKED, PLAIN, WITH_LENGTH, INTERIM, BARE_LF])
def test_byte_by_byte_the_end_is_seen_at_the_last_byte_and_not_before(answer: bytes) -> None:
    decoder = ResponseDecoder()
    for i in range(len(answer) - 1):
        decoder.feed(answer[i : i + 1])
        assert not decoder.done
        assert decoder.missing
    decoder.feed(answer[-1:])
    assert decoder.done
    assert not decoder.missing


@given(st.lists(st.binary(max_size=30), max_size=6))
def test_any_bytes_are_a_protocol_error_or_an_answer(reads: list[bytes]) -> None:
    decoder = ResponseDecoder()
    try:
        for data in [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *reads]:
            decoder.feed(data)
    except ProtocolError:
        pass


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    decoder = ResponseDecoder()
    assert feed(decoder, b"HTTP/1.0 200 OK\r\n\r\nhello") == b"hello"
    assert not decoder.done
    decoder.end_of_stream()
    assert decoder.done
    assert decoder.ends_with_connection


def test_a_cut_off_body_says_what_is_missing() -> None:
    decoder = ResponseDecoder()
    feed(decoder, b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
    decoder.end_of_stream()
    assert not decoder.done
    assert "7 bytes" in decoder.missing


def test_bytes_after_the_end_are_noticed() -> None:
    decoder = ResponseDecoder()
    feed(decoder, WITH_LENGTH + b"HTTP/1.1 408 Late\r\n\r\n")
    assert decoder.done
    assert decoder.excess.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("status", [204, 304])
def test_answers_that_have_no_body(status: int) -> None:
    decoder = ResponseDecoder()
    feed(decoder, b"HTTP/1.1 %d X\r\n\r\n" % status)
    assert decoder.done


@pytest.mark.parametrize(
    ("head", "keep"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nCONNECTION: Close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_keep_alive_follows_the_version_and_the_connection_header(head: bytes, keep: bool) -> None:
    decoder = ResponseDecoder()
    decoder.feed(head)
    assert decoder.head is not None
    assert decoder.head.keep_alive is keep


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"keep-alive": "timeout=5, max=100"}, 5),
        ({"keep-alive": "max=100, Timeout = 72"}, 72),
        ({"keep-alive": "notimeout=5"}, None),
        ({"keep-alive": "timeout=soon", "server": "nginx"}, None),
        ({"server": "uvicorn"}, 5),
        ({"server": "uvicorn", "keep-alive": "timeout=60"}, 60),
        ({}, None),
    ],
)
def test_how_long_a_server_lets_a_connection_idle(headers: dict[str, str], seconds: int | None) -> None:
    assert Head(200, 1, headers).patience_s == seconds


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "status line"),
        (b"HTTP/1.1 abc\r\n\r\n", "status line"),
        (b"HTTP/1.1 \xb200 OK\r\n\r\n", "status line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "content-length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1234567890123456789\r\n\r\n", "content-length"),
        (b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n", "header line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "content-length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "content-length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "transfer-encoding"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "size of a chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "size of a chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", "longer than its size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000, "longer than"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "switched protocols"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * (MAX_HEAD_BYTES + 1), "longer than"),
    ],
)
def test_what_is_not_http_is_said_so(answer: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        ResponseDecoder().feed(answer)


def test_the_request_head_names_the_request_and_asks_for_no_compression() -> None:
    plan = LoadPlan(
        target=ServerURL.parse("http://[::1]:81/api/v1/"), mode=BatchMode(1, 1), requests=(), folder="", stream=True
    )
    text = request_head(plan, RequestPlan("r-1", 3, 4, 0, 17), "secret").decode()
    lines = text.split("\r\n")
    assert lines[0] == "POST /api/v1/completions HTTP/1.1"
    assert "Host: [::1]:81" in lines
    assert "x-request-id: r-1" in lines
    assert "Content-Length: 17" in lines
    assert "Accept-Encoding: identity" in lines
    assert "Authorization: Bearer secret" in lines
    assert text.endswith("\r\n\r\n")
    assert "Authorization" not in request_head(plan, RequestPlan("r-1", 3, 4, 0, 17), None).decode()
