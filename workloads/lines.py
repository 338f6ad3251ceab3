"""Reading files that others made: what a line lacks is told with its number, and a few bad lines are skipped and counted."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from results.errors import UsageError

MOST_BYTES = 2 << 30
MOST_LINE = 64 << 20
# No prompt or answer has more tokens.
MOST_TOKENS = 10_000_000
_HALVES = re.compile("[\ud800-\udfff]")
_BOMS = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))


@dataclass(slots=True)
class Skipped:
    """The entries of a file that could not be used: how many by reason, and the first in words."""

    path: str
    what: str
    total: int = 0
    by_reason: Counter[str] = field(default_factory=Counter)
    first: str = ""

    def add(self, where: str, reason: str) -> None:
        """`where` is `line 7` or `entry 7`."""
        self.by_reason[reason] += 1
        self.first = self.first or f"{where}: {reason}"

    @property
    def count(self) -> int:
        return self.by_reason.total()

    @property
    def words(self) -> str:
        """`5 of 7 entries skipped (3 x no turns, 2 x ...)`, empty where none was."""
        if not self.count:
            return ""
        why = ", ".join(f"{n} x {reason}" for reason, n in self.by_reason.most_common(6))
        return f"{self.count:,} of {self.total:,} {self.what} skipped ({why})"

    def check(self, most: float) -> None:
        """Raise UsageError where nothing is left, or more than the share `most` was skipped."""
        if not self.total:
            raise UsageError(f"{self.path} holds no {self.what}: there is nothing to send.")
        if self.count == self.total or self.count > most * self.total:
            way = "mend the file, or name the right format"
            if self.count < self.total:
                way = f"at most {most:.0%} may be skipped: {way}, or allow more with max_skipped=0.9"
            raise UsageError(f"{self.path}: {self.words}; the first is {self.first}. {way[0].upper()}{way[1:]}.")


def read_file(path: str) -> tuple[bytes, str]:
    """The bytes of a file and their SHA-256. Raises UsageError (missing, no file, empty, too large)."""
    try:
        size = Path(path).stat().st_size
        if size > MOST_BYTES:
            raise UsageError(
                f"{path} has {size:,} bytes; a workload is read whole, up to {MOST_BYTES:,}. Cut it first."
            )
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"Cannot read the workload {path}: {reason}.") from error
    if not data.strip():
        raise UsageError(f"{path} is empty: there is nothing to send.")
    return data, hashlib.sha256(data).hexdigest()


def as_text(path: str, data: bytes) -> str:
    """UTF-8 (with or without a byte order mark) as text. Raises UsageError that names the line of the first bad byte."""
    for mark, name in _BOMS:
        if data.startswith(mark):
            raise UsageError(f"{path} is {name}, not UTF-8. Convert it: iconv -f UTF-16 -t UTF-8 {path} > utf8.txt")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path} is not UTF-8: byte 0x{data[error.start]:02x} in line {line} (offset {error.start:,}). Convert it, for example "
            f"with iconv -f LATIN1 -t UTF-8, where that is what it is."
        ) from error


def numbered_lines(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1, blank ones left out. LF and CRLF alike; the last needs no end."""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if len(line) > MOST_LINE:
            raise UsageError(
                f"{path}, line {number} has {len(line):,} characters (at most {MOST_LINE:,}): that is no line of a workload. Is it "
                "one JSON document? Then give it the ending .json."
            )
        if line.strip():
            yield number, line


def json_document(path: str, text: str) -> Any:
    """One JSON document. Raises UsageError with the line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {_why(error)}.") from error


def json_object(line: str) -> dict[str, Any] | str:
    """A line as a JSON object, or why it is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"not JSON ({_why(error)})"
    return found if isinstance(found, dict) else f"not an object but {type(found).__name__}"


def _why(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "nested too deep" if isinstance(error, RecursionError) else "a number of thousands of digits"


def is_text(value: object) -> TypeGuard[str]:
    """A string that can be sent: JSON can hold halves of characters (lone surrogates), which no encoding has."""
    return isinstance(value, str) and (value.isascii() or not _HALVES.search(value))


def whole_number(value: Any, name: str, least: int) -> int | str:
    """`value` as an int of at least `least`, or what is wrong with it."""
    if isinstance(value, str):
        try:
            value = float(value) if "." in value else int(value)
        except ValueError:
            return f"{name} is not a number"
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value % 1:
        return f"{name} is not a whole number" if value is not None else f"no {name}"
    if value < least:
        return f"{name} is negative" if value < 0 else f"{name} is {int(value)}"
    if value > MOST_TOKENS:
        return f"{name} is above {MOST_TOKENS:,}"
    return int(value)
