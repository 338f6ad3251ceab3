"""Steps as an engine's own log tells them: less than a truth log does, but of engines that are not ours.

A line a step says what it held (prompts, their tokens, sequences that decoded) and, more or less finely, when it ended. It does
not say when it began: a step is taken to begin where the one before has ended, or, where the client had nothing in flight
since, when it sent the next request. So what passes between two steps is in the second one; queue and KV cache are not told.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import ClassVar

import numpy as np

from results.events import MISSING, Ints, Requests, read_table, write_table
from results.logged_steps import LoggedSteps
from results.schema import LOGGED_STEPS
from results.truth import Steps

FILE = "steps.parquet"
_NOT_TOLD = -1


class ChainedSteps(Steps):
    """Steps each of which begins where the one before has ended."""

    gaps_told: ClassVar[bool] = False
    source: ClassVar[str] = "log"


def chained(steps: Steps, requests: Requests) -> ChainedSteps:
    """Steps as an engine's log would have told them, whatever tells them: so that engines that tell more and less of their
    steps are read alike where they stand side by side."""
    before = np.concatenate([[MISSING], steps.end[:-1]])
    told = {f.name: getattr(steps, f.name) for f in fields(steps)}
    told |= {"start": _starts(before, steps.end, requests), "running": steps.prefills + steps.decodes}
    return ChainedSteps(**told)


def write_logged(folder: Path, steps: LoggedSteps, shift_ns: int) -> None:
    """Keep a cell's steps beside its events; `shift_ns` takes the wall clock to the monotonic one. Raises StoreError."""
    columns = {name: getattr(steps, name) for name in LOGGED_STEPS.names}
    columns["end"] = [t + shift_ns for t in steps.end]
    columns["before"] = [None if t is None else t + shift_ns for t in steps.before]
    write_table(folder / FILE, LOGGED_STEPS, columns)


def read_logged(folder: Path, requests: Requests, cell: tuple[int, int] | None = None) -> ChainedSteps | None:
    """The steps of a cell by its engine's log; None where it has none. Raises StoreError where they cannot be read.

    `cell` is [started, ended] of its record: a step that seems to lie beyond by no more than its end is uncertain is moved inside.
    """
    if not (folder / FILE).exists():
        return None
    table = read_table(folder / FILE, LOGGED_STEPS.names)
    column = {name: table[name].cast("int64") for name in LOGGED_STEPS.names}
    told = {
        name: column[name].fill_null(_NOT_TOLD).to_numpy() for name in ("step", "prefill_tokens", "decodes", "prefills")
    }
    end: Ints = column["end"].to_numpy()
    before: Ints = column["before"].fill_null(MISSING).to_numpy()
    start = _starts(before, end, requests)
    if cell is not None:
        off = column["uncertain_ns"].fill_null(0).to_numpy()
        start, end = _inside(start, off, cell), _inside(end, off, cell)
    unknown = np.full(len(end), _NOT_TOLD, dtype=np.int64)
    names = (
        "waiting",
        "preempted",
        "context_tokens",
        "blocks_allocated",
        "blocks_total",
        "tokens_held",
        "blocks_reserved",
    )
    return ChainedSteps(
        **told,
        start=start,
        end=end,
        running=told["prefills"] + told["decodes"],
        **dict.fromkeys(names, unknown),
    )


def _inside(stamps: Ints, off: Ints, cell: tuple[int, int]) -> Ints:
    inside = np.clip(stamps, *cell)
    return np.where(np.abs(stamps - inside) <= off, inside, stamps)


def _starts(before: Ints, end: Ints, requests: Requests) -> Ints:
    """Where each step began: at the end of the line before, or at the send that ended the last idle time since then."""
    sent, over = (
        requests.sent[requests.sent != MISSING],
        requests.end[(requests.sent != MISSING) & (requests.end != MISSING)],
    )
    if not len(sent):
        return np.where(before != MISSING, before, end)
    sent, over = np.sort(sent), np.sort(over)
    # A send with as many requests over as were sent before it ends a time in which nothing was in flight.
    woke = sent[np.searchsorted(over, sent, side="left") >= np.arange(len(sent))]
    last = np.searchsorted(woke, end, side="left") - 1
    since = np.where(last >= 0, woke[np.maximum(last, 0)], end)
    out: Ints = np.where(before != MISSING, np.maximum(before, np.where(last >= 0, since, before)), since)
    return np.minimum(out, end)
