"""Writing files so that a reader sees the old content or the new, never a half: temporary name, fsync, rename."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import orjson

from results.errors import StoreError, UsageError


def check_writable(flag: str, path: Path, appended: bool = False) -> None:
    """Refuse a file that cannot be written (by `write_atomic`, or `appended` to) before the work that fills it. Raises UsageError
    naming the flag."""
    if os.path.isdir(path):
        raise UsageError(f"{flag}: {path} is a folder. Name a file in it.")
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise UsageError(f"{flag}: {path} cannot be written, {folder} is no folder. Make it, or name a file elsewhere.")
    # A plain file is replaced, for which its folder is written; pipes and devices are written into.
    into = os.path.exists(path) if appended else os.path.exists(path) and not os.path.isfile(path)
    if not os.access(path if into else folder, os.W_OK):
        raise UsageError(
            f"{flag}: {path} cannot be written: permission denied. Name another file, or mend the rights of this one."
        )


def write_atomic(path: Path, data: bytes, flag: str = "--out") -> None:
    """Replace `path` by `data`. A link keeps pointing where it does, and a device or pipe (/dev/stdout) is written into, never
    replaced. Raises StoreError (with the free space where the disk is full, and `flag` where another place would do)."""
    if path.exists() and not path.is_file() and not path.is_dir():
        return _write_into(path, data, flag)
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise store_error(path, error, flag) from error


def _write_into(path: Path, data: bytes, flag: str) -> None:
    try:
        with path.open("wb") as file:
            file.write(data)
    except OSError as error:
        raise store_error(path, error, flag) from error


def sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def store_error(path: Path, error: OSError, flag: str = "--out") -> StoreError:
    """An OSError met while writing `path`, which `flag` names, in words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = next((p for p in (path, *path.parents) if p.exists()), Path("/"))
        free = shutil.disk_usage(where).free
        return StoreError(
            f"No space left while writing {path} ({free / 2**20:.0f} MiB free). What was committed before is intact: make "
            "room and run the same command again to complete the run."
        )
    return StoreError(
        f"Cannot write {path}: {error.strerror or error}. Name a place that can be written with {flag}, or mend the rights of this one."
    )


def to_json(value: Any) -> bytes:
    """Indented, sorted JSON. NaN and infinities become null (orjson's rule), never invalid JSON."""
    return orjson.dumps(
        value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    )


def read_json(path: Path) -> Any:
    """Decode a JSON file. Bare NaN and infinities, which other writers leave in theirs, become null. Raises StoreError naming the
    file."""
    try:
        text = path.read_bytes()
        return orjson.loads(text)
    except OSError as error:
        raise StoreError(f"Cannot read {path}: {error.strerror or error}.") from error
    except orjson.JSONDecodeError as error:
        try:
            return json.loads(text, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            raise StoreError(f"{path} is damaged: {error}.") from error
