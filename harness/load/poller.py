"""Readiness of many sockets: epoll where there is one, else poll, behind four words.

The selectors module does the same at about a microsecond an event more, which is a tenth of what a token may cost.
"""

from __future__ import annotations

import select
from typing import Protocol

READ, WRITE = 1, 4
ERROR = 8 | 16  # error, hang-up: the numbers are the same for poll and epoll
_SELECT_LIMIT = 1024  # descriptors that select can be asked about are below this


class Handler(Protocol):
    """Who is told that a descriptor is ready."""

    def handle(self, mask: int) -> None: ...


class Poller:
    """Descriptors and their handlers. `poll` gives (descriptor, mask) of all that are ready."""

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {}
        # Both have register, modify and unregister of the same form; only poll differs.
        self.epoll = select.epoll() if hasattr(select, "epoll") else None
        self._set = self.epoll if self.epoll is not None else select.poll()

    def add(self, fd: int, mask: int, handler: Handler) -> None:
        self._set.register(fd, mask)
        self.handlers[fd] = handler

    def change(self, fd: int, mask: int) -> None:
        self._set.modify(fd, mask)

    def remove(self, fd: int) -> None:
        self._set.unregister(fd)
        del self.handlers[fd]

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """(descriptor, mask) of all that are ready; waits at most `timeout_s`, not even a millisecond more."""
        ready = self._look(0)
        if ready or timeout_s <= 0:
            return ready
        # epoll and poll count in whole milliseconds, but an epoll can itself be waited for, by a call that counts in microseconds.
        if self.epoll is None or self.epoll.fileno() >= _SELECT_LIMIT:
            return self._look(int(timeout_s * 1000))
        select.select([self.epoll], [], [], timeout_s)
        return self._look(0)

    def _look(self, timeout_ms: int) -> list[tuple[int, int]]:
        if self.epoll is not None:
            # Without the second argument at most 1,023 are reported, and the rest would look late.
            return self.epoll.poll(timeout_ms / 1000, len(self.handlers) + 1)
        return self._set.poll(timeout_ms)

    def close(self) -> None:
        """Forget all descriptors (they are their owners' to close)."""
        self.handlers.clear()
        if self.epoll is not None:
            self.epoll.close()
