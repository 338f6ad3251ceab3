"""Incremental text: the pieces join to the whole, no character is split, the prompt does not leak."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models, pre_tokenizers

from backends.reference.tokenizer import REPLACEMENT, FileTokenizer, load_tokenizer
from results.errors import UsageError


def byte_tokenizer() -> FileTokenizer:
    """One token a byte: every character beyond ASCII is split over tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = HfTokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return FileTokenizer(tokenizer)


BYTES = byte_tokenizer()


def pieces(tokenizer: FileTokenizer, prompt: list[int], output: list[int], sizes: list[int]) -> list[str]:
    """The text of each push, `sizes` tokens at a time (repeated)."""
    detokenizer = tokenizer.detokenizer(prompt)
    result, start, turn = [], 0, 0
    while start < len(output):
        end = start + sizes[turn % len(sizes)]
        result.append(detokenizer.push(output[start:end], last=end >= len(output)))
        start, turn = end, turn + 1
    return result


@given(
    prompt=st.text(max_size=8), output=st.text(min_size=1, max_size=40), sizes=st.lists(st.integers(1, 5), min_size=1)
)
def test_pieces_of_any_text_join_to_it_and_split_no_character(prompt: str, output: str, sizes: list[int]) -> None:
    made = pieces(BYTES, BYTES.encode(prompt) if prompt else [], BYTES.encode(output), sizes)
    assert "".join(made) == output
    assert REPLACEMENT in output or not any(REPLACEMENT in piece for piece in made)


@given(ids=st.lists(st.integers(0, 255), min_size=1, max_size=40), sizes=st.lists(st.integers(1, 5), min_size=1))
def test_pieces_of_any_bytes_join_to_the_whole_decoded_at_once(ids: list[int], sizes: list[int]) -> None:
    assert "".join(pieces(BYTES, [], ids, sizes)) == BYTES.decode(ids)


@given(
    text=st.text(alphabet="aé€😀", min_size=1, max_size=6),
    cut=st.integers(1, 20),
    output=st.text(alphabet="bü", min_size=1),
)
def test_prompt_that_ends_within_a_character_does_not_leak_into_the_output(text: str, cut: int, output: str) -> None:
    prompt = BYTES.encode(text)[:cut]
    assert "".join(pieces(BYTES, prompt, BYTES.encode(output), [1])) == output


def test_incomplete_character_is_held_back_and_given_out_at_the_end() -> None:
    euro = BYTES.encode("€")
    detokenizer = BYTES.detokenizer([])
    assert [detokenizer.push([token], last=False) for token in euro] == ["", "", "€"]
    assert detokenizer.push(euro[:1], last=True) == REPLACEMENT


def test_smollm2_pieces_join_to_the_whole(smollm2_dir: Path) -> None:
    tokenizer = load_tokenizer(smollm2_dir)
    assert isinstance(tokenizer, FileTokenizer)
    text = "Zoë paid 1,234.50 € for  naïve 日本語 😀👩‍👩‍👧.\n\tDone."
    ids = tokenizer.encode(text)
    assert "".join(pieces(tokenizer, [504, 3575], ids, [1])) == text == tokenizer.decode(ids)


def test_folder_without_tokenizer_takes_ids_only_and_gives_empty_text(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.detokenizer([1]).push([2, 3], last=True) == ""
    with pytest.raises(UsageError, match=r"no tokenizer\.json; send the prompt as token ids"):
        tokenizer.encode("text")


def test_broken_tokenizer_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(tmp_path)
