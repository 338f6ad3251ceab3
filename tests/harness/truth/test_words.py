"""The truth server's tokens are words: its tokenizer counts any text as it has words."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from harness.truth.answers import Answer, Form
from harness.truth.words import VOCABULARY, count_words, words, write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_words_are_all_different(tokenizer: Tokenizer) -> None:
    assert len(set(words())) == VOCABULARY == tokenizer.get_vocab_size()


def test_any_text_has_as_many_tokens_as_words_there_and_back(tokenizer: Tokenizer) -> None:
    for text in ("baba be", "To be, or not to be: that is Ünïcode!", " ".join(words()[::97])):
        ids = tokenizer.encode(text).ids
        assert len(ids) == count_words(text)
        assert len(tokenizer.encode(tokenizer.decode(ids)).ids) == len(ids)


def test_the_text_of_an_answer_has_the_tokens_that_it_counts(tokenizer: Tokenizer) -> None:
    form = Form(
        chat=False, stream=False, usage=True, continuous=False, ids=True, prompt_tokens=1, tokens=5000, per_chunk=1
    )

    choice = orjson.loads(Answer(form).whole().partition(b"\r\n\r\n")[2])["choices"][0]
    assert tokenizer.encode(choice["text"]).ids == choice["token_ids"]
    assert len(choice["token_ids"]) == 5000


def test_transformers_reads_the_folder(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(tmp_path))
    assert len(tokenizer.encode("To be or not")) == 4
    assert tokenizer.decode(tokenizer.encode("To be", add_special_tokens=False)).split() == ["[UNK]", "[UNK]"]
    assert isinstance(tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False), str)
