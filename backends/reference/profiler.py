"""Torch's profiler around the engine's steps, asked for with --profile-dir and begun by POST /start_profile.

Begun when the load begins, so that neither start nor warm-up is in the trace. It watches so many steps and then stands aside;
what it saw is written when the server stops, when nobody waits for a token. Runs on the engine's thread: the profiler sees
the operators of the thread that started it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import orjson
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from backends.reference.engine import Engine
from backends.reference.request import Scheduled
from backends.reference.runner import Model, ModelRunner, StepResult
from results.errors import UsageError

log = logging.getLogger(__name__)

TRACE_FILE = "trace.json.gz"
OPERATORS_FILE = "operators.json"
STEPS = {True: "step: decode", False: "step: prefill"}


class StepProfiler(Protocol):
    """What watches the steps of an engine."""

    def watch(self, engine: Engine) -> None:
        """Put itself around the engine's runner, before its first step."""

    def begin(self) -> bool:
        """From any thread: watch from the next step on. False where nothing is watched or it was begun already."""

    def close(self) -> None:
        """On the engine's thread, after its last step: write what was seen."""


class NoProfiler:
    """The profiler that is off."""

    def watch(self, engine: Engine) -> None:
        """Leave it as it is."""

    def begin(self) -> bool:
        """There is nothing to begin."""
        return False

    def close(self) -> None:
        """Nothing to write."""


class TorchProfiler:
    """Writes `trace.json.gz` (for Perfetto or chrome://tracing) and `operators.json` into `folder`, of at most `steps` steps."""

    def __init__(self, folder: Path, steps: int) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"The profile cannot be written to {folder}: {error}.") from error
        self._folder, self._most = folder, steps
        self._begun = threading.Event()
        self._profile: Any = None  # torch's; untyped, and None until the first step that is watched
        self._seen = 0
        self._wall_ns = 0

    def watch(self, engine: Engine) -> None:
        """See StepProfiler."""
        self._engine, self._runner = engine, engine.runner
        if isinstance(self._runner, ModelRunner):
            self._runner.model = _NamedParts(self._runner.model)
        engine.runner = self

    def begin(self) -> bool:
        """See StepProfiler."""
        fresh = not self._begun.is_set()
        self._begun.set()
        return fresh

    def run(self, items: Sequence[Scheduled]) -> StepResult:
        """The step, watched where it is to be; see Runner."""
        if not self._begun.is_set() or self._seen >= self._most:
            return self._runner.run(items)
        if self._profile is None:
            self._profile = profile(activities=_activities())
            self._profile.start()
        start = time.monotonic_ns()
        with record_function(STEPS[all(self._engine.scheduler.is_decode(item) for item in items)]):
            made = self._runner.run(items)
        self._wall_ns += time.monotonic_ns() - start
        self._seen += 1
        if self._seen == self._most:
            self._profile.stop()
        return made

    def close(self) -> None:
        """See StepProfiler."""
        if self._profile is None:
            return
        if self._seen < self._most:
            self._profile.stop()
        self._profile.export_chrome_trace(str(self._folder / TRACE_FILE))
        rows = [_operator(event) for event in self._profile.key_averages()]
        document = {"steps": self._seen, "most": self._most, "wall_ms": self._wall_ns / 1e6, "operators": rows}
        (self._folder / OPERATORS_FILE).write_bytes(orjson.dumps(document))
        log.info("profile of %d steps written to %s", self._seen, self._folder)


class _NamedParts:
    """A model whose two parts bear names in the trace: compiled kernels show nothing of themselves to the profiler."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, kv: Any, index: Any) -> torch.Tensor:
        """See Model."""
        with record_function("layers"):
            return self._model.hidden(token_ids, positions, kv, index)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See Model."""
        with record_function("logits"):
            return self._model.logits(hidden)


def _activities() -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]


def _operator(event: Any) -> dict[str, Any]:
    """One row of torch's averages; times in ms over all calls, `self` without what it called."""
    return {
        "name": event.key,
        "calls": event.count,
        "self_ms": event.self_cpu_time_total / 1e3,
        "total_ms": event.cpu_time_total / 1e3,
        "self_device_ms": event.self_device_time_total / 1e3,
    }
