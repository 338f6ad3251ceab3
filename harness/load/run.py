"""Ordinary tokens one after the other, kept as numbers until something else comes or the answer is over.

Nearly all of a stream is such events (event.h says which), and reading them as Python objects costs more than all else that a
load client does. run.c keeps of each only what counts, and adds up what `CompletionReader` would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from harness.load.compiled import compiled

# Of each token, as bytes of machine integers: t and lag (64 bits), tokens and size (32 bits); -1 where one is not known.
Columns = tuple[bytes, bytes, bytes, bytes]
# What they add up to: tokens in the first chunk of the answer, where that is among them; coalesced events; then, of the answer
# up to here, ids, used and continuous as in `CompletionReader`; whether there was usage, and the prompt tokens of the last one.
Sums = tuple[int | None, int, int | None, int, bool, bool, int | None]


class Run(Protocol):
    """`take` says whether it kept what arrived at `t`; its length is how many tokens it holds. `read`: when the last of them was
    read (ns), by the compiled reader."""

    read: int

    def take(self, t: int, lag: int | None, data: bytes) -> bool: ...

    def fold(self, last: int | None, ids: int | None, used: int, continuous: bool | None) -> tuple[Columns, Sums]:
        """Give what it holds, which follows on an answer that stands so (`last`: arrival of its last token), and be empty."""
        ...

    def __len__(self) -> int: ...


class NoRun:
    """Where it is not compiled: no event is ordinary."""

    read = 0

    def take(self, t: int, lag: int | None, data: bytes) -> bool:
        return False

    def fold(self, last: int | None, ids: int | None, used: int, continuous: bool | None) -> tuple[Columns, Sums]:
        return (b"", b"", b"", b""), (None, 0, ids, used, bool(continuous), False, None)

    def __len__(self) -> int:
        return 0


_reader = compiled("reader")
new_run: Callable[[], Run] = NoRun if _reader is None else _reader.Run
