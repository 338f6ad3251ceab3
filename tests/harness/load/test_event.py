"""The compiled run of tokens: what it takes for ordinary means the same as with care, and the rest it leaves alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.load import sse
from harness.load.completion import StreamResult
from harness.load.run import NoRun, Run, new_run
from harness.load.sse import parse_stream
from tests.harness.load.conftest import needs_compiled

pytestmark = needs_compiled


def framed(message: Any) -> bytes:
    text = message if isinstance(message, bytes) else json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
    return b"data: " + text + b"\n\n"


def choice(**fields: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "finish_reason": None, **fields}]}


def taken(data: bytes) -> tuple[int | None, ...] | None:
    """Its ids, completion and prompt tokens, None where it is not told; None where the event is not taken."""
    run = new_run()
    if not run.take(1, None, data):
        return None
    _, (_, _, ids, used, _, with_usage, prompt) = run.fold(None, None, 0, None)
    return ids, used if with_usage else None, prompt


def usage(completion: Any, prompt: Any = 128) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": completion, "details": {"cached": [1]}}}


ORDINARY: list[tuple[Any, tuple[int | None, ...]]] = [
    (choice(text=" a"), (None, None, None)),
    (choice(delta={"content": "ä😀\\u00e4\n"}), (None, None, None)),
    (choice(delta={"role": "assistant", "content": "a", "tool_calls": []}, logprobs=None), (None, None, None)),
    (choice(text="a", token_ids=[1, 2, 3]) | usage(7), (3, 7, 128)),
    (choice(text="a", token_ids=[]) | usage(0, 0), (None, 0, 0)),
    (choice(text="a", token_ids=None) | {"usage": None, "object": "text_completion"}, (None, None, None)),
    (choice(text="", delta={"content": "a"}), (None, None, None)),
    (choice(text="a") | {"usage": {"completion_tokens": 2**31 - 1}}, (None, 2**31 - 1, None)),
    (choice(text="a", logprobs={"x": [[], {}, [{"y": -0.5e-7}], True, False, 0, 1.5, "\\"]}), (None, None, None)),
    (b' {"choices" : [ {"text": "a"} ] }\t', (None, None, None)),
]


@pytest.mark.parametrize(("message", "found"), ORDINARY)
def test_the_event_of_a_token_is_ordinary(message: Any, found: tuple[int | None, ...]) -> None:
    assert taken(framed(message)) == found


ODD: list[bytes] = [
    *(
        framed(message)
        for message in (
            choice(text=""),
            choice(text=None),
            choice(text=["a"]),
            choice(text=1),
            choice(delta={"content": ""}),
            choice(delta={"reasoning_content": "a"}),
            choice(delta={"role": "assistant"}),
            choice(text="a", finish_reason="length"),
            choice(text="a", token_ids="12"),
            choice(text="a") | {"error": None},
            choice(text="a") | {"error": "x"},
            choice(text="a") | {"object": "error"},
            choice(text="a") | {"object": 1},
            choice(text="a") | {"usage": {}},
            choice(text="a") | {"usage": 3},
            *(choice(text="a") | usage(count) for count in (-1, 2**31, 2**70, 1.0, "7", True, None)),
            *(choice(text="a") | usage(1, count) for count in (-1, 2**31, 1.5, "7", None)),
            {"choices": []},
            {"choices": None},
            {"choices": [{"text": "a"}, {"text": "b"}]},
            {"choices": {"text": "a"}},
            {"choices": ["a"]},
            usage(3),
            [],
            "a",
            3,
            choice(text="a", deep=json.loads("[" * 40 + "]" * 40)),
            b'{"choices":[{"text":"a","text":""}]}',
            b'{"choices":[{"text":"a"}],"choices":[]}',
            b'{"choices":[{"delta":{"content":"a"},"delta":{}}]}',
            b'{"choices":[{"delta":{"content":"a","content":null}}]}',
            b'{"choices":[{"text":"a"}],"usage":{"completion_tokens":1,"completion_tokens":2}}',
            b'{"choices":[{"text":"a"}],"usage":{"completion_tokens":1},"usage":null}',
            b'{"choices":[{"text":"a"}],"usage":{"completion_tokens":01}}',
            b'{"choices":[{"text":"a","token_ids":[1],"token_ids":null}]}',
            b'{"choices":[{"text":"a"}],"\\u0065rror":"x"}',
            b'{"choices":[{"text":"a"}],"object":"\\u0065rror"}',
            b'{"choices":[{"text":"a"}]',
            b'{"choices":[{"text":"a"}]}}',
            b'{"choices":[{"text":"a"}]} x',
            b'{"choices":[{"text":"a"},]}',
            b'{"choices":[{"text":"a",}]}',
            b'{"choices":[{"text":"\\x"}]}',
            b'{"choices":[{"text":"\\u00g0"}]}',
            b'{"choices":[{"text":"a\x01"}]}',
            b'{"choices":[{"text":"a\r"}]}',
            b'{"choices":[{"text":"a"}],\r"x":1}',
            b'{"choices":[{"text":"a","x":nul}]}',
            b'{"choices":[{"text":"a","x":-}]}',
            b'{"choices":[{"text":"a","x":1.}]}',
            b'{"choices":[{"text":"a","x":1e}]}',
            b'{"choices":[{"text":"a","x":NaN}]}',
            b'{"choices":[{"text":"a","x":' + b"9" * 5000 + b"}]}",
            *(
                b'{"choices":[{"text":"' + bad + b'"}]}'
                for bad in (
                    b"\x80",
                    b"\xc1\xbf",
                    b"\xe0\x80\x80",
                    b"\xed\xa0\x80",
                    b"\xf0\x80\x80\x80",
                    b"\xf5",
                    b"\xe2\x82",
                )
            ),
            b"[DONE]",
            b"",
        )
    ),
    b"data: ",
    b"\n\n",
    b'data: {"choices":[{"text":"a"}]}\n',
    b'data:{"choices":[{"text":"a"}]}\n\n',
    b'event: x\ndata: {"choices":[{"text":"a"}]}\n\n',
    framed(choice(text="a")) * 2,
    b": comment\n\n",
]


@pytest.mark.parametrize("data", ODD)
def test_what_could_mean_anything_else_is_left_alone(data: bytes) -> None:
    assert taken(data) is None


# The same answers

TEXTS = st.one_of(st.sampled_from(["", " a", "\\", '"', "\n", "ä", "😀", "\x7f"]), st.text(max_size=4), st.none())
COUNTS = st.one_of(st.integers(0, 9), st.sampled_from([2**31 - 1, 2**31, -1, None, True, 1.0]))
SCALARS: st.SearchStrategy[Any] = st.one_of(TEXTS, COUNTS, st.booleans(), st.floats(allow_nan=False))
ANY = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def having(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: st.one_of(kind, kind, kind, ANY) for name, kind in fields.items()})


CHOICES = having(
    text=TEXTS,
    delta=having(content=TEXTS, role=TEXTS, reasoning_content=TEXTS, tool_calls=ANY),
    token_ids=st.lists(st.integers(0, 9), max_size=3) | st.none(),
    finish_reason=st.none() | st.just("stop"),
    other=ANY,
)
MESSAGES = having(
    choices=st.lists(CHOICES, min_size=1, max_size=1) | st.lists(CHOICES, max_size=2),
    usage=having(completion_tokens=COUNTS, prompt_tokens=COUNTS) | st.none(),
    object=st.sampled_from(["text_completion", "error"]),
    other=ANY,
    error=st.none(),
)


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """An event, whole or with one byte changed or left out."""
    data = framed(draw(st.one_of(MESSAGES, MESSAGES, ANY)))
    if draw(st.integers(0, 3)):
        return data
    at = draw(st.integers(0, len(data) - 1))
    return data[:at] + draw(st.binary(max_size=1)) + data[at + 1 :]


def understood(run: Callable[[], Run], reads: list[bytes]) -> StreamResult:
    """Each comes a ns after the last, but every third one with the one before; every fifth without a stamp."""
    with patch.object(sse, "new_run", run):
        return parse_stream((i - (i % 3 == 2), None if i % 5 == 4 else i, data) for i, data in enumerate(reads))


def each_understood(run: Callable[[], Run], reads: list[bytes]) -> list[StreamResult]:
    with patch.object(sse, "new_run", run):
        return [parse_stream([(0, 0, read)]) for read in reads]


@settings(max_examples=400, deadline=None)
@given(st.lists(events() | st.sampled_from(ODD), max_size=6))
@example(ODD)
@example([framed(choice(text="a") | usage(n)) for n in (1, 2, 2, 5)])
@example([framed(choice(text="a", token_ids=[1]) | usage(n)) for n in (1, 3)])
@example([framed(choice(text="a")), framed(choice(text="a") | usage(3, None))])
def test_whatever_comes_means_the_same(reads: list[bytes]) -> None:
    assert understood(new_run, reads) == understood(NoRun, reads)


# Put in the place of a byte: what ends or begins something, and what belongs nowhere.
PIECES = [b"", *(bytes([byte]) for byte in b'"\\{}[],:01-.eu \n\r\x00\x80\xc3\xe2\xf0\xff')]


@pytest.mark.parametrize("data", [framed(message) for message, _ in ORDINARY])
def test_an_ordinary_event_cut_or_changed_anywhere_means_the_same(data: bytes) -> None:
    cut = [data[:at] for at in range(len(data))] + [data[:at] + b"\n\n" for at in range(len(data) - 2)]
    changed = [data[:at] + piece + data[at + 1 :] for at in range(len(data)) for piece in PIECES]
    scanned, with_care = (each_understood(run, cut + changed) for run in (new_run, NoRun))
    for read, one, other in zip(cut + changed, scanned, with_care, strict=True):
        assert one == other, read
    found = [taken(read) for read in changed]
    assert None in found
    assert any(found)  # some are as ordinary as before


def test_the_count_so_far_may_be_asked_at_any_time() -> None:
    parser = sse.StreamParser()
    seen = []
    for i in range(1, 5):
        parser.feed(i, i, framed(choice(text="a", token_ids=[1, 2])))
        seen.append(parser.tokens_so_far)
    assert seen == [2, 4, 6, 8]
    assert [chunk.t for chunk in parser.finish().chunks] == [1, 2, 3, 4]


def test_a_run_of_any_length_is_kept_whole() -> None:
    run, data = new_run(), framed(choice(text="a", token_ids=[1]) | usage(70_000))
    for i in range(1000):
        assert run.take(2**40 + i, i, data)
    assert len(run) == 1000
    (t, lag, tokens, size), sums = run.fold(5, 3, 7, True)
    assert np.frombuffer(t, np.int64).tolist() == [2**40 + i for i in range(1000)]
    assert np.frombuffer(lag, np.int64).tolist() == list(range(1000))
    assert np.frombuffer(tokens, np.int32).tolist() == [1] * 1000
    assert np.frombuffer(size, np.int32).tolist() == [len(data) - len(framed(b""))] * 1000
    assert sums == (None, 0, 1003, 70_000, True, True, 128)
    assert len(run) == 0


def test_what_is_no_bytes_is_an_error_and_nothing_is_held() -> None:
    run = new_run()
    with pytest.raises(TypeError, match="not str"):
        run.take(0, 0, "data: {}\n\n")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(TypeError):
        run.take(None, 0, framed(choice(text="a")), 1)  # type: ignore[call-arg, arg-type]  # on purpose
    with pytest.raises(TypeError):
        run.take("now", 0, framed(choice(text="a")))  # type: ignore[arg-type]  # on purpose
    assert len(run) == 0
    data = framed(choice(text="a") | usage(70_000))
    before = sys.getrefcount(data)
    for _ in range(100):
        run.take(1, 1, data)
    run.fold(None, None, 0, None)
    assert sys.getrefcount(data) == before
