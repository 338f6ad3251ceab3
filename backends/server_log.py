"""A server's log as evidence: any bytes, any length, progress bars and colours included."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

# Of a huge log both ends are read: causes stand early, consequences late.
_HEAD_BYTES = 2 << 20
_TAIL_BYTES = 1 << 20
_LINE_CHARS = 300
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def read_log(path: Path) -> str:
    """The log as text, or "" when there is none. Bytes that are not UTF-8 are replaced, colours dropped."""
    try:
        with path.open("rb") as file:
            data = file.read(_HEAD_BYTES)
            size = path.stat().st_size
            if size > _HEAD_BYTES:
                file.seek(max(_HEAD_BYTES, size - _TAIL_BYTES))
                data += b"\n" + file.read(_TAIL_BYTES)
    except OSError:
        return ""
    return _clean(data)


def _clean(data: bytes) -> str:
    text = _ANSI.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", text)


def read_since(path: Path, offset: int) -> tuple[str, int]:
    """The whole lines written after `offset`, and where they end. Of very much new text only the end is read."""
    try:
        with path.open("rb") as file:
            file.seek(max(offset, path.stat().st_size - _TAIL_BYTES))
            data = file.read()
            end = file.tell()
    except OSError:
        return "", offset
    whole = data[: data.rfind(b"\n") + 1]
    return _clean(whole), end - (len(data) - len(whole))


def lines_between(path: Path, start: int, end: int) -> Iterator[str]:
    """The lines that stand between two sizes of the log, one after the other however many; the log is gone: none."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            while start < end and (line := file.readline()):
                start += len(line)
                yield _clean(line).rstrip("\n")
    except OSError:
        return


def tail_lines(log: str, count: int = 15) -> list[str]:
    """The last lines that hold something, each cut to a readable length."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip()][-count:]
    return [line if len(line) <= _LINE_CHARS else line[:_LINE_CHARS] + " ..." for line in lines]


def log_size(path: Path) -> int:
    """Bytes written so far; 0 when there is no log."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
