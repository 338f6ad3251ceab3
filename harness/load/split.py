"""One plan for several workers: who sends what. The load as a whole stays the one that was planned."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.load.plan import BODIES_FILE, BatchMode, ConcurrencyMode, LoadPlan, Mode, OpenMode, RequestPlan
from results.errors import UsageError
from results.files import store_error


def split_plan(plan: LoadPlan, workers: int) -> list[LoadPlan]:
    """The parts of `workers` workers, requests and slots dealt out in turn.

    Times stay those of the whole plan; slots keep their numbers, so the first request of each slot is still the first. Raises
    UsageError where the load cannot be shared: the waves of a batch begin together, and no worker can be without work.
    """
    if workers == 1:
        return [plan]
    if isinstance(plan.mode, BatchMode):
        raise UsageError(
            "--workers shares out closed loops and rates; the waves of a batch begin when all of the one before has ended, "
            "which several processes cannot know of each other. Leave --workers out, or use --concurrency."
        )
    most = min(len(plan.requests), plan.most_in_flight or len(plan.requests))
    if workers > most:
        raise UsageError(
            f"{workers} workers are more than the {most} requests that this load has in flight at once: give --workers at most "
            f"{most}."
        )
    return [
        replace(
            plan,
            mode=_mode(plan.mode, worker, workers),
            requests=_share(plan, worker, workers),
            folder=str(Path(plan.folder) / f"worker-{worker}"),
            worker=worker,
            first_slot=worker,
            slot_step=workers,
            wait_for_start=True,
        )
        for worker in range(workers)
    ]


def make_folders(plan: LoadPlan, parts: Sequence[LoadPlan]) -> None:
    """A folder for each part, with the bodies of the whole plan. Raises StoreError."""
    for part in parts:
        if part.folder == plan.folder:
            continue
        bodies = Path(part.folder) / BODIES_FILE
        try:
            bodies.parent.mkdir(parents=True, exist_ok=True)
            bodies.unlink(missing_ok=True)
            try:
                os.link(plan.bodies_path, bodies)
            except OSError:  # not every file system has hard links
                shutil.copyfile(plan.bodies_path, bodies)
        except OSError as error:
            raise store_error(bodies, error) from error


def _mode(mode: Mode, worker: int, workers: int) -> Mode:
    if isinstance(mode, ConcurrencyMode):
        return ConcurrencyMode(_part(mode.slots, worker, workers), mode.think_ns)
    cap = mode.max_in_flight if isinstance(mode, OpenMode) else None
    return OpenMode(None if cap is None else _part(cap, worker, workers))


def _part(whole: int, worker: int, workers: int) -> int:
    """How many of 0, 1, ... whole - 1 are worker, worker + workers, ..."""
    return len(range(worker, whole, workers))


def _share(plan: LoadPlan, worker: int, workers: int) -> tuple[RequestPlan, ...]:
    slots = plan.mode.slots if isinstance(plan.mode, ConcurrencyMode) else 0
    mine = []
    for index, request in enumerate(plan.requests):
        slot = None if request.slot is None or not slots else request.slot % slots
        if (index if slot is None else slot) % workers == worker:
            mine.append(request if slot is None else replace(request, slot=slot // workers))
    return tuple(mine)
