"""The fixed set that engines are compared on: real texts, where the model has a tokenizer, and seeded random ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from results.errors import UsageError
from workloads.base import Vocabulary, request_seed

# Each asks for something else: a fact, prose, code, numbers, another language, a list.
TEXTS = (
    "The capital of France is",
    "Water boils at a lower temperature on a mountain because",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "1, 2, 4, 8, 16, 32,",
    "La lune tourne autour de la Terre, et la Terre tourne autour",
    "Ingredients for a simple bread:\n- 500 g flour\n- 10 g salt\n-",
    "Once upon a time there was a small engine that wanted to be fast. Every morning it",
    "Q: What is the difference between a list and a tuple in Python?\nA:",
)
# Across a block's edge (16 is common), within and beyond a few of them.
_LENGTHS = (4, 15, 16, 17, 33, 64, 100)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as token ids; `text` where it came from one."""

    ids: tuple[int, ...]
    text: str | None = None


def fixed_prompts(count: int, seed: int, vocabulary: Vocabulary, folder: Path | None) -> list[Prompt]:
    """`count` prompts: up to half of them texts, the rest random ids. The same for the same arguments.

    Raises UsageError where the vocabulary leaves nothing to draw from.
    """
    tokenizer = load_tokenizer(folder)
    texts = [] if tokenizer is None else [Prompt(tuple(tokenizer(text)), text) for text in TEXTS[: count // 2]]
    random = Random(request_seed(seed, "verify", count))
    ordinary = [i for i in range(vocabulary.size) if i not in vocabulary.special]
    if len(ordinary) < 2:
        raise UsageError(f"A vocabulary of {vocabulary.size} tokens leaves nothing to draw prompts from.")
    lengths = [_LENGTHS[i % len(_LENGTHS)] for i in range(count - len(texts))]
    return texts + [Prompt(tuple(random.choices(ordinary, k=length))) for length in lengths]


class Encoder:
    """A model's own tokenizer, text to ids with the tokens it adds itself."""

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the binding raises plain Exception
            raise UsageError(f"{file} cannot be read as a tokenizer: {error}.") from error

    def __call__(self, text: str, *, special: bool = True) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        return ids


def load_tokenizer(folder: Path | None) -> Encoder | None:
    """The tokenizer in a model folder, None where there is none."""
    if folder is None or not (folder / "tokenizer.json").is_file():
        return None
    return Encoder(folder / "tokenizer.json")
