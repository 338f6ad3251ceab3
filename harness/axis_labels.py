"""What the combinations of an engine's settings are called: other values, another label, and no key or password in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from backends.redact import HIDDEN, hidden_words, public_argv

OPTIONS = "options"
MOST_LABEL = 80
# What stands in a label as it is; anything else is quoted.
_PLAIN = re.compile(r"[\w@%:,./*~-]+")
_PLAIN_WORD = re.compile(r"[\w@%:,./*~=-]+")
# What a setting is called in a label.
_SHORT = {
    "max_num_seqs": "seqs",
    "max_num_batched_tokens": "tokens",
    "max_model_len": "len",
    "kv_cache_tokens": "kv",
    "kv_cache_bytes": "kv_bytes",
    "memory_fraction": "memory",
    "block_size": "block",
    "prefix_caching": "prefix",
    "chunked_prefill": "chunked",
    "cuda_graphs": "graphs",
    "scheduler_policy": "policy",
    "tensor_parallel": "tp",
}


def label_of(base: str, values: Mapping[str, Any]) -> str:
    """`vllm-seqs=16-chunked=off`: the base's label and what differs from its other combinations; other values, another label.
    Words of options come as `public_options` gives them."""
    label = "-".join([base, *short_words(values)])
    return label if len(label) <= MOST_LABEL else f"{label[: MOST_LABEL - 9]}~{_digest(label)}"


def short_words(values: Mapping[str, Any]) -> list[str]:
    """`seqs=16`, `chunked=off`: settings by the names that labels give them."""
    return [f"{_SHORT.get(name, name)}={shown_value(value)}" for name, value in values.items()]


def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:8]


def shown_value(value: Any) -> str:
    """A value as a label or a table shows it: `on`, `16`, and of options `x+1+--y` for `--x 1 --y`, `none` for no words."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        words = [word if _PLAIN_WORD.fullmatch(word) else json.dumps(word) for word in map(str, value)]
        return "+".join([_first_word(words[0]), *words[1:]]) if words else "none"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _first_word(word: str) -> str:
    """A flag without its dashes, as most words of options begin with one; what would then be taken for one is quoted."""
    name = word.removeprefix("--")
    if name == word:
        return json.dumps(word) if word[0].isalpha() else word
    return name if name[:1].isalpha() and name != "none" else word


def public_options(values: Sequence[Sequence[str]], before: Sequence[str] = ()) -> list[list[str]]:
    """Words of `options` as they may be written down, in the same order: without secrets, and those that only a secret tells apart
    are numbered. `before` are the words that stand in front of each."""
    shown: list[list[str]] = []
    for words in values:
        whole = [*before, *words]
        public = made = public_argv(whole, hidden_words(whole))[len(before) :]
        number = 1
        while made in shown and any(HIDDEN in word for word in public):
            number += 1
            made = [word.replace(HIDDEN, f"{HIDDEN}{number}") for word in public]
        shown.append(made)
    return shown
