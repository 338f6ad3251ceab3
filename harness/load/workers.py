"""Several load workers as one: they begin at one instant, and what they measured is one pair of event files.

Used as `LoadProcess` is, in whatever place the workers are. A worker that dies takes its own share with it, and the others'
is kept: `faults` tells of it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Self

from harness.load.merge import add_counts, merge_clients, merge_events
from harness.load.places import Here, Place, Worker, told_of_nodes
from harness.load.plan import LoadPlan
from harness.load.process import LoadResult, LoadWorkerDiedError, Progress
from harness.load.split import make_folders, split_plan
from results.clock import now_ns

_LOOK_S = 0.05


@dataclass(slots=True)
class _Worker:
    process: Worker
    plan: LoadPlan
    folder: Path
    died: LoadWorkerDiedError | None = None
    progress: Progress | None = None


@dataclass(slots=True)
class LoadWorkers:
    """One run of a load by `count` workers. Used as a context manager it leaves no process behind."""

    count: int = 1
    place: Place = field(default_factory=Here)
    _workers: list[_Worker] = field(default_factory=list)
    _out_dir: Path = Path()
    _begun: bool = False
    _stopped: bool = False

    def start(self, plan: LoadPlan, out_dir: Path) -> None:
        """Write the plans and start the workers. Raises UsageError, LoadWorkerError, StoreError."""
        self._out_dir = out_dir
        parts = split_plan(plan, self.count)
        make_folders(plan, parts)
        for part, process in zip(parts, self.place.open(len(parts), plan.target), strict=True):
            folder = out_dir if len(parts) == 1 else out_dir / f"worker-{part.worker}"
            folder.mkdir(parents=True, exist_ok=True)
            self._workers.append(_Worker(process, part, folder))
        try:
            for worker in self._workers:
                with self._mourned(worker):
                    worker.process.start(worker.plan, worker.folder)
        except BaseException:
            # An interrupt (or a full disk) between two workers: those that were started have nothing to wait for.
            self.kill()
            self._workers.clear()
            raise

    @property
    def pid(self) -> int | None:
        """That of the first worker, once there is one."""
        return self._workers[0].process.pid if self._workers else None

    @property
    def faults(self) -> list[str]:
        """What became of the workers that died."""
        return [
            f"worker {worker.plan.worker} of {len(self._workers)}, with {len(worker.plan.requests)} requests: {worker.died}"
            for worker in self._workers
            if worker.died is not None
        ]

    @property
    def finished(self) -> bool:
        return bool(self._workers) and all(w.died is not None or w.process.finished for w in self._workers)

    def poll(self) -> Progress | None:
        """The newest progress of all together, or None when there was none yet. Never waits. Raises LoadWorkerError."""
        for worker in self._alive():
            with self._mourned(worker):
                worker.progress = worker.process.poll()
        self._begin()
        known = [w.progress for w in self._workers if w.progress is not None]
        if not known:
            return None
        counts = {f.name: sum(getattr(p, f.name) for p in known) for f in fields(Progress) if f.type == "int"}
        return Progress(**counts, elapsed_s=max(p.elapsed_s for p in known), finished=self.finished)

    def stop(self) -> None:
        """Ask them to cancel what is in flight, write what was measured and end. Does not wait."""
        self._stopped = True
        for worker in self._alive():
            worker.process.stop()

    def wait(self, timeout_s: float) -> LoadResult:
        """Until all have ended; what they wrote. Raises LoadWorkerError when none has anything to tell."""
        deadline = time.monotonic() + timeout_s
        while not self.finished and time.monotonic() < deadline:
            self.poll()
            time.sleep(_LOOK_S)
        results: list[tuple[_Worker, LoadResult]] = []
        for worker in self._alive():
            left = max(0.1, deadline - time.monotonic())
            with self._mourned(worker):
                results.append((worker, worker.process.wait(left)))
        nodes = told_of_nodes({worker.plan.worker: result.client for worker, result in results})
        if len(self._workers) == 1:
            results[0][1].client.update(nodes)
            return results[0][1]
        merge_events([worker.folder for worker, _ in results], self._out_dir)
        for worker in self._workers:
            shutil.rmtree(worker.folder, ignore_errors=True)
        told = [result for _, result in results]
        return LoadResult(
            started=min(r.started for r in told),
            ended=max(r.ended for r in told),
            stopped=any(r.stopped for r in told),
            issued=sum(r.issued for r in told),
            outcomes=add_counts(r.outcomes for r in told),
            client=merge_clients([r.client for r in told]) | nodes,
        )

    def kill(self) -> None:
        """End them at once; nothing is written. Harmless when they have ended or never started."""
        for worker in self._workers:
            worker.process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _alive(self) -> list[_Worker]:
        return [w for w in self._workers if w.died is None]

    def _begin(self) -> None:
        """Once every worker that lives is ready: the instant at which they all begin."""
        alive = self._alive()
        if self._begun or self._stopped or not all(w.plan.wait_for_start for w in alive):
            return
        if all(w.process.ready for w in alive):
            at = now_ns() + self.place.lead_ns
            for worker in alive:
                worker.process.begin(at)
            self._begun = True

    @contextmanager
    def _mourned(self, worker: _Worker) -> Iterator[None]:
        """A worker may turn out to have died: that is noted, and raised only when no other is left."""
        try:
            yield
        except LoadWorkerDiedError as error:
            worker.died = error
            if not self._alive():
                raise
