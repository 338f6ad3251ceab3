"""One choice's text as it grows: detokenised, and ended by a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from backends.reference.tokenizer import Detokenizer


class OutputText:
    """Turns tokens into text deltas. Text that may yet become a stop string is held back until it is clear.

    `stopped_by` is the stop string that ended the text, None as long as there is none. Stop strings are looked for only
    after `min_tokens` tokens.
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str], include_stop: bool, min_tokens: int = 0) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._include_stop = include_stop
        self._unchecked = min_tokens
        self._held = ""
        self.stopped_by: str | None = None

    def push(self, token: int, last: bool, hidden: bool = False) -> str:
        """The new text after one more token; `hidden` tokens (a stop token) have none of their own."""
        text = self._detokenizer.push([] if hidden else [token], last)
        if not self._stops:
            return text
        if self._unchecked > 0:
            self._unchecked -= 1
            return text
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found, key=lambda match: match[0])
            self._held = ""
            return text[: at + len(self.stopped_by)] if self._include_stop else text[:at]
        keep = 0 if last else self._may_become_a_stop(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _may_become_a_stop(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        longest = max(len(stop) for stop in self._stops) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
