"""What a command tells its user on stderr: errors, and notes that are no part of the answer."""

from __future__ import annotations

import os
import re
import sys
import textwrap

# Commands are there to be pasted: they stay on one line, however long.
_WHOLE = re.compile(r"""`[^`]*`|\bexport \w+=(?:'[^']*'|"[^"]*"|\S*)""")


def tell(words: str) -> None:
    """`dyno: WORDS`: on a terminal broken between words, elsewhere as it is, so that a log has a line a message."""
    text = f"dyno: {words}"
    if sys.stderr.isatty():
        text = wrapped(text, os.get_terminal_size(sys.stderr.fileno()).columns or 80)
    print(text, file=sys.stderr)


def wrapped(text: str, width: int) -> str:
    """Each line broken at spaces only, and not at those of commands: what is longer than `width` by itself stays whole."""
    kept = _WHOLE.sub(lambda command: command[0].replace(" ", "\0"), text)
    return "\n".join(_broken(line, width) for line in kept.split("\n")).replace("\0", " ")


def _broken(line: str, width: int) -> str:
    """A row of a list goes on further in than it began."""
    if len(line) <= width:
        return line
    inner = " " * (len(line) - len(line.lstrip(" ")))
    inner = inner and inner + "  "
    return textwrap.fill(line, width, subsequent_indent=inner, break_long_words=False, break_on_hyphens=False)
