"""Where a command that keeps no run puts its servers' logs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from results.errors import EngineError


@contextmanager
def work_folder(out: Path | None, prefix: str) -> Iterator[Path]:
    """`out`, else a temporary folder: kept where an engine failed in it (its log is evidence) or the command ends early."""
    if out is not None:
        yield out
        return
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    except (EngineError, typer.Exit):
        if not any(path.is_file() for path in folder.rglob("*")):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
