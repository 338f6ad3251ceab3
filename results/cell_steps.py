"""Where a cell's steps come from: its session's truth log, else what the engine's own log told while the cell ran.

Each gives a fault where there is such a file and it cannot be read.
"""

from __future__ import annotations

from pathlib import Path

from results.errors import StoreError
from results.events import Requests
from results.records import CellRecord, Fault
from results.step_log import read_logged
from results.store import RunStore
from results.truth import Steps, Tokens, read_steps, read_tokens

_UNREADABLE = "truth_unreadable"


def session_steps(store: RunStore, session_id: str) -> tuple[Steps | None, list[Fault]]:
    """The engine's truth log of a session."""
    try:
        return read_steps(store.session_dir(session_id)), []
    except StoreError as error:
        return None, [Fault(_UNREADABLE, str(error))]


def session_tokens(store: RunStore, record: CellRecord) -> tuple[Tokens | None, list[Fault]]:
    """The tokens of a cell by that log."""
    try:
        return read_tokens(store.session_dir(record.session), record.started, record.ended), []
    except StoreError as error:
        return None, [Fault(_UNREADABLE, str(error))]


def logged_steps(folder: Path, requests: Requests, cell: tuple[int, int]) -> tuple[Steps | None, list[Fault]]:
    """What the log of an engine without a truth log told of a cell's steps; `cell` is [started, ended] of its record."""
    try:
        return read_logged(folder, requests, cell), []
    except StoreError as error:
        return None, [Fault(_UNREADABLE, str(error))]
