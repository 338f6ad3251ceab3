"""A server's log as evidence: any bytes, any length, progress bars and colours included."""

from __future__ import annotations

import re
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
    text = _ANSI.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", text)


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
