"""Text to token ids and back. Used by the server, never by the engine, which knows ids only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from results.errors import UsageError

# What an incomplete or invalid UTF-8 sequence decodes to.
REPLACEMENT = "\ufffd"
_CONTEXT_TOKENS = 4


class Detokenizer(Protocol):
    """Turns one request's output tokens into text as they come."""

    def push(self, token_ids: Sequence[int], last: bool) -> str:
        """The new text of these tokens; `last` also gives out what was held back."""
        ...


class Tokenizer(Protocol):
    """A model's tokenizer, or its stand-in."""

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a prompt, with the special tokens the tokenizer adds by itself, if `special` (a chat template
        writes its own). UsageError when there is no tokenizer.
        """
        ...

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer:
        """For the output that follows `prompt`."""
        ...

    def token_text(self, token: int) -> str:
        """The name of a single token: what it decodes to on its own, special tokens included."""
        ...


def load_tokenizer(folder: Path) -> Tokenizer:
    """The folder's tokenizer.json, or a stand-in that takes token ids only."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return NoTokenizer(folder)
    import tokenizers

    try:
        return FileTokenizer(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # the binding raises plain Exception
        raise UsageError(f"{path} cannot be read as a tokenizer: {error}.") from error


class NoTokenizer:
    """For folders without tokenizer.json: prompts must be token ids, and generated text is empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Refuse."""
        raise UsageError(f"The model folder {self._folder} has no tokenizer.json; send the prompt as token ids.")

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer:
        """Gives empty text."""
        return _NoText()

    def token_text(self, token: int) -> str:
        """Its id, as in `return_tokens_as_token_ids`."""
        return f"token_id:{token}"


class _NoText:
    def push(self, token_ids: Sequence[int], last: bool) -> str:
        return ""


class FileTokenizer:
    """A tokenizer of the `tokenizers` library."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, special: bool = True) -> list[int]:
        """See Tokenizer."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""
        text: str = self._tokenizer.decode(list(token_ids))
        return text

    def token_text(self, token: int) -> str:
        """See Tokenizer."""
        text: str = self._tokenizer.decode([token], skip_special_tokens=False)
        return text

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer:
        """See Tokenizer."""
        return IncrementalDetokenizer(self, prompt)


class IncrementalDetokenizer:
    """Decodes a short window of tokens and gives out its growth, holding back a character that is not complete.

        ids    | given out earlier | context | new |
                                   ^ start

    The window keeps the tokens of the push before, since some tokenizers write a blank only between two tokens.
    """

    def __init__(self, tokenizer: FileTokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._window = list(prompt[-_CONTEXT_TOKENS:])
        self._given = tokenizer.decode(self._window)
        if self._given.endswith(REPLACEMENT):
            # The prompt ends within a character: its bytes must not leak into the output.
            self._window, self._given = [], ""
        self._fresh = len(self._window)

    def push(self, token_ids: Sequence[int], last: bool) -> str:
        """See Detokenizer."""
        self._window += token_ids
        text = self._tokenizer.decode(self._window)
        complete = not text.endswith(REPLACEMENT)
        # A sequence that is not complete decodes to one replacement, so only the last may still become something else.
        stable = text if complete or last else text[:-1]
        new = stable[len(self._given) :]
        self._given = stable
        if complete:
            self._window = self._window[self._fresh :]
            self._fresh = len(self._window)
            self._given = self._tokenizer.decode(self._window)
        return new
