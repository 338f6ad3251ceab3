"""Conversations and prompts from files: both layouts, what cannot be used is counted, and lengths are exact in tokens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.errors import UsageError
from workloads.base import Vocabulary
from workloads.from_file import file_words, prompts_repeated
from workloads.texts import JsonlWorkload, ShareGPTWorkload, conversation_turns
from workloads.traces import TraceWorkload

DATA = Path(__file__).parents[1] / "data" / "workloads"
QUIRKS = """
[{"id":"1","conversations":[{"from":"human","value":"Hi"},{"from":"gpt","value":"Hello there"}]},
 {"id":"2","conversations":[]}, {"id":"3"},
 {"id":"4","conversations":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Yo"}]},
 {"id":"5","conversations":[{"from":"gpt","value":"I start"},{"from":"human","value":"?"}]},
 {"id":"6","conversations":[{"from":"human","value":""},{"from":"gpt","value":"x"}]},
 {"id":"7","conversations":[[{"from":"human","value":null}]]}]
"""
BOS = 1


def encode(text: str) -> Sequence[int]:
    """A tokenizer of one id a byte that puts BOS before a text; a written <s> is BOS too."""
    ids = [BOS]
    if text.startswith("<s>"):
        ids, text = [BOS, BOS], text[3:]
    return [*ids, *(b + 10 for b in text.encode())]


WORDS = Vocabulary(
    300, frozenset({0, BOS}), decode=lambda ids: bytes(i - 10 for i in ids if i >= 10).decode(), encode=encode
)


def written(tmp_path: Path, text: str | bytes, name: str = "f.json") -> str:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_quirks_are_skipped_each_with_its_reason_and_both_layouts_are_read(tmp_path: Path) -> None:
    workload = ShareGPTWorkload(path=written(tmp_path, QUIRKS), max_skipped=0.8, order="file")
    entries, skipped = workload.entries()
    assert [e.turns for e in entries] == [(("Hi", "Hello there"),), (("Hi", "Yo"),)]
    assert skipped.by_reason == Counter(
        {
            "no turns": 1,
            "no conversations": 1,
            "it starts with an answer": 1,
            "an empty prompt": 1,
            "a turn is not an object": 1,
        }
    )
    first, second = workload.requests(2, 0, WORDS)
    assert [len(first.prompt), first.output_len, second.output_len] == [3, len("Hello there"), 2]
    assert "5 of 7 conversations skipped" in file_words(workload, Counter())


def test_too_many_unusable_entries_refuse_the_file_and_name_the_first(tmp_path: Path) -> None:
    workload = ShareGPTWorkload(path=written(tmp_path, QUIRKS))
    with pytest.raises(UsageError, match=r"5 of 7 conversations skipped .*the first is conversation 2: no turns"):
        workload.requests(1, 0, WORDS)


def test_fewer_usable_than_asked_is_an_error_unless_they_may_be_sent_again(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"path": written(tmp_path, QUIRKS), "max_skipped": 0.8}
    with pytest.raises(UsageError, match="has 2 usable entries, and 5 requests are asked for"):
        ShareGPTWorkload(**fields).requests(5, 0, WORDS)
    again = ShareGPTWorkload(**fields, oversample=True)
    made = again.requests(5, 0, WORDS)
    marks = Counter(mark for request in made for mark in request.marks)
    assert marks == {"alike": 1, "repeated": 3}  # both entries ask the same
    assert "3 sent again (oversample)" in file_words(again, marks)


@pytest.mark.parametrize("name", ["sharegpt_fastchat.json", "conversations_role_content.json"])
def test_published_files_are_used_whole_and_every_length_is_that_of_the_tokens(name: str) -> None:
    workload = ShareGPTWorkload(path=str(DATA / name), multi_turn=True, order="file")
    turns = [turn for item in json.loads((DATA / name).read_text()) for turn in conversation_turns(item)]
    made = list(workload.stream(10_000, 0, WORDS))
    assert len(made) == len(turns) == workload.available()
    assert [r.output_len for r in made] == [max(1, min(1024, len((answer or "").encode()))) for _, answer in turns]
    assert all(r.input_tokens == len(r.prompt) and r.prompt[0] == BOS and BOS not in r.prompt[1:] for r in made)


def test_turns_of_a_conversation_hold_all_that_was_said_and_stay_together(tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "ab"}, {"from": "gpt", "value": "c"}, {"from": "human", "value": "de"}]
    workload = ShareGPTWorkload(
        path=written(tmp_path, json.dumps([{"conversations": talk}])), multi_turn=True, natural_eos=True
    )
    first, second = workload.requests(2, 0, WORDS)
    assert [WORDS.text(r.prompt) for r in (first, second)] == ["ab", "abcde"]  # type: ignore[arg-type]  # prompts of this workload are token ids
    assert first.chain == second.chain == 0


def test_a_text_that_brings_its_begin_of_text_token_gets_no_second_one(tmp_path: Path) -> None:
    workload = JsonlWorkload(path=written(tmp_path, '{"prompt": "<s>user: hi", "output_tokens": 3}', "a.jsonl"))
    (request,) = workload.requests(1, 0, WORDS)
    assert request.prompt == tuple(encode("user: hi"))


def test_without_a_tokenizer_texts_go_as_they_are_and_the_server_counts(tmp_path: Path) -> None:
    lines = '\ufeff{"prompt": "one", "output_tokens": 3}\r\n\r\n{"text": "two", "max_tokens": 4}'
    workload = JsonlWorkload(path=written(tmp_path, lines, "a.jsonl"), order="file")
    made = workload.requests(2, 0, Vocabulary(100))
    assert [(r.prompt, r.input_tokens, r.output_len) for r in made] == [("one", None, 3), ("two", None, 4)]
    recorded = JsonlWorkload(path=written(tmp_path, '{"prompt": "one", "completion": "x"}', "b.jsonl"))
    with pytest.raises(UsageError, match="No tokenizer is at hand to count its recorded answer"):
        recorded.requests(1, 0, Vocabulary(100))


def test_what_is_too_long_is_refused_dropped_or_cut_as_the_workload_says(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({"prompt": "x" * n, "output_tokens": 5}) for n in (3, 30, 4))
    fields: dict[str, Any] = {"path": written(tmp_path, lines, "a.jsonl"), "order": "file", "max_len": 12}
    with pytest.raises(UsageError, match="line 2: 31 prompt and 5 output tokens make 36, more than max_len=12"):
        JsonlWorkload(**fields).requests(2, 0, WORDS)
    dropped = JsonlWorkload(**fields, too_long="drop").requests(2, 0, WORDS)
    assert [len(r.prompt) for r in dropped] == [4, 5]
    assert [r.marks for r in dropped] == [(), ("dropped",)]
    cut = JsonlWorkload(**fields, too_long="truncate").requests(3, 0, WORDS)
    assert [len(r.prompt) for r in cut] == [4, 7, 5]
    assert cut[1].marks == ("truncated",)
    assert cut[1].prompt == tuple(encode("x" * 6))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b'{"prompt": "caf\xe9", "output_tokens": 1}\n', "is not UTF-8: byte 0xe9 in line 1"),
        ('{"prompt": "a"}'.encode("utf-16"), "is UTF-16, not UTF-8"),
        (b'{"prompt": 3}\n', "1 of 1 lines skipped .*the first is line 1: prompt is not text"),
        (b'{"prompt": "a", "output_tokens": -4}\n', "line 1: output_tokens is negative"),
        (b'{"answer": "a"}\n', "line 1: no text in prompt, text or messages"),
        (b'{"prompt": \n', "line 1: not JSON"),
        (b"[1, 2]\n", "line 1: not an object but list"),
        (b'{"prompt": "\\ud800", "output_tokens": 1}\n', "line 1: prompt is not text"),
        (b'{"prompt": "a", "output_tokens": 1e400}\n', "line 1: output_tokens is not a whole number"),
        (b'{"prompt": "a", "output_tokens": 99999999}\n', "line 1: output_tokens is above 10,000,000"),
        (b'{"prompt": "a", "output_tokens": ' + b"9" * 5000 + b"}\n", "a number of thousands of digits"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_bad_files_are_refused_with_the_line_and_what_was_expected(content: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        JsonlWorkload(path=written(tmp_path, content, "bad.jsonl")).requests(1, 0, WORDS)


def test_a_broken_document_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not valid JSON: .* at line 2"):
        ShareGPTWorkload(path=written(tmp_path, '[{"conversations":\n}]')).entries()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[" * 100_000, "cannot be read: nested too deep"),
        (f'[{{"conversations": {"9" * 5000}}}]', "a number of thousands of digits"),
        (r'[{"conversations": [{"from": "human", "value": "\udc00"}]}]', "a turn of halves of characters"),
        ('[{"conversations": [{"from": {"a": 1}, "value": "x"}]}]', "a turn of an unknown speaker"),
    ],
)
def test_documents_that_json_allows_and_nobody_can_send_are_refused(content: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        ShareGPTWorkload(path=written(tmp_path, content)).requests(1, 0, WORDS)


def test_a_huge_line_is_one_line(tmp_path: Path) -> None:
    line = json.dumps({"prompt": "y" * 3_000_000, "output_tokens": 1})
    (request,) = JsonlWorkload(path=written(tmp_path, line, "a.jsonl")).requests(1, 0, Vocabulary(100))
    assert len(request.prompt) == 3_000_000


def test_a_file_that_changed_is_another_workload(tmp_path: Path) -> None:
    path = written(tmp_path, '{"prompt": "a", "output_tokens": 1}', "a.jsonl")
    asked = JsonlWorkload(path=path).model_dump(mode="json")
    assert JsonlWorkload.model_validate(asked).sha256 == asked["sha256"]
    written(tmp_path, '{"prompt": "b", "output_tokens": 1}', "a.jsonl")
    with pytest.raises(UsageError, match="is not the file that this was asked with"):
        JsonlWorkload.model_validate(asked)


def test_a_seed_gives_an_order_and_another_seed_another(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({"prompt": f"p{i}", "output_tokens": 1}) for i in range(30))
    workload = JsonlWorkload(path=written(tmp_path, lines, "a.jsonl"))
    assert workload.requests(30, 1, WORDS) == workload.requests(30, 1, WORDS)
    assert workload.requests(30, 1, WORDS) != workload.requests(30, 2, WORDS)


def test_prompts_that_a_file_has_more_than_once_are_counted(tmp_path: Path) -> None:
    prompts = ["a", "b", "a", "a"]
    lines = "\n".join(json.dumps({"prompt": prompt, "output_tokens": 1}) for prompt in prompts)
    once = JsonlWorkload(path=written(tmp_path, lines, "a.jsonl"), order="file")
    assert [r.marks for r in once.requests(4, 0, WORDS)] == [(), (), ("alike",), ("alike",)]
    again = JsonlWorkload(path=written(tmp_path, lines, "a.jsonl"), oversample=True)
    marks = Counter(mark for request in again.requests(6, 0, WORDS) for mark in request.marks)
    assert marks == {"alike": 2, "repeated": 2}
    assert prompts_repeated(marks) == 4
    published = ShareGPTWorkload(path=str(DATA / "sharegpt_fastchat.json"), natural_eos=True)
    assert sum("alike" in r.marks for r in published.requests(60, 0, WORDS)) == 60 - 11


GOOD = {
    "sharegpt": (ShareGPTWorkload, QUIRKS.encode()),
    "jsonl": (JsonlWorkload, b'{"prompt": "one", "output_tokens": 3}\r\n{"text": "two", "completion": "t"}\n'),
    "azure": (TraceWorkload, b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"),
    "burstgpt": (TraceWorkload, b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,a,3,4,7,b\n"),
    "mooncake": (TraceWorkload, b'{"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": [1, 2]}\n'),
}


@pytest.mark.parametrize("kind", sorted(GOOD))
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), st.binary(max_size=6)), max_size=4))
@settings(max_examples=60)
def test_a_damaged_file_is_refused_in_words_or_gives_requests_that_can_be_sent(
    kind: str, damage: list[tuple[int, int, bytes]]
) -> None:
    cls, content = GOOD[kind]
    for at, cut, put in damage:
        content = content[:at] + put + content[at + cut :]
    with NamedTemporaryFile() as file:
        Path(file.name).write_bytes(content)
        with suppress(UsageError):
            made = cls(path=file.name, max_skipped=0.9, max_len=5000, too_long="drop").requests(1, 0, WORDS)
            assert all(0 < r.output_len < 5000 and isinstance(r.prompt, tuple) for r in made)
