"""The one thread that owns the engine, from loading its weights to its last step.

Why loading too: OpenMP keeps a pool of workers for each thread that ever computed, and with a second pool it believes
the cores to be oversubscribed and lets workers sleep between products. That made a decode step of a small model 1.6
times slower (36 ms against 22 ms on two cores).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class OwnerThread:
    """Runs callables one after the other on a thread of its own. A daemon: it never keeps the process alive."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run `function` there; the future has its result or its exception."""
        future: Future[T] = Future()
        self._calls.put((future, function))
        return future

    def _run(self) -> None:
        while True:
            future, function = self._calls.get()
            try:
                future.set_result(function())
            except BaseException as error:  # belongs to whoever waits for the future
                future.set_exception(error)
