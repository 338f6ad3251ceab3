"""How far a server that is starting has come, by its log: for whoever watches it start."""

from __future__ import annotations

import time
from pathlib import Path

from backends.base import Backend
from backends.server_log import log_size, read_log
from results.clock import ClockPair

# Who waits asks several times a second; reading a log that often would take CPU from the start itself.
_AGAIN_S = 2.0
_WORDS = {"engine_config": "configuration read", "kv_allocated": "KV cache allocated", "log_first_line": ""}


class StartPhase:
    """Call it for the phase that was done last, in words; "" while the log tells none."""

    def __init__(self, backend: Backend, log: Path) -> None:
        self._backend, self._log = backend, log
        self._size, self._looked, self._words = 0, -_AGAIN_S, ""

    def __call__(self) -> str:
        size, now = log_size(self._log), time.monotonic()
        if size != self._size and now - self._looked >= _AGAIN_S:
            self._size, self._looked = size, now
            phases = self._backend.startup_phases(read_log(self._log), ClockPair.read().wall_ns)
            # Of one second the last that was found: the log is read in order.
            last = sorted(phases, key=phases.__getitem__)[-1:]
            self._words = "".join(_WORDS.get(name, name.replace("_", " ")) for name in last)
        return self._words
