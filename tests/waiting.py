"""How tests wait: for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

# Bounds a hang, no more: a busy machine may take its time.
LONG_S = 300.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Until the condition holds; fails with `what` where it never does."""
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.01)
