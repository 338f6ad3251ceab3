"""The truth server's vocabulary: every token is one word, so a tool that counts tokens by their text can count right.

`write_tokenizer` makes a Hugging Face folder of it: words are split at blanks, and a word that is not in it is one
token too. So text of any origin has as many tokens as words, before and after decoding and encoding.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

MODEL_NAME = "dyno-truth"
VOCABULARY = 4096
_UNKNOWN = "[UNK]"
_SYLLABLES = [consonant + vowel for consonant in "bdfghjklmnprstvwz" for vowel in "aeiou"]


def words() -> list[str]:
    """All words, by token id. Two syllables each."""
    made = ("".join(pair) for pair in itertools.product(_SYLLABLES, repeat=2))
    return [*itertools.islice(made, VOCABULARY - 1), _UNKNOWN]


def count_words(text: str) -> int:
    """How many tokens a text is."""
    return len(text.split())


def write_tokenizer(folder: Path) -> Path:
    """Write the tokenizer's files into `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {word: index for index, word in enumerate(words())}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": _UNKNOWN},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 131_072,
        "clean_up_tokenization_spaces": False,
        "chat_template": "{% for message in messages %}{{ message['content'] }}\n{% endfor %}",
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": VOCABULARY}))
    return folder
