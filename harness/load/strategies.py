"""When to send what: one small class a load mode. The client's loop asks, sends, and tells when a request ended.

A strategy never looks at a clock: the loop hands times in. New modes (rates, schedules) are new rows of `strategy_for`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.load.plan import BatchMode, LoadPlan, Mode, RequestPlan


@dataclass(frozen=True, slots=True)
class Due:
    """A request that is to be sent now: its index in the plan, its slot, and when the plan wanted it (ns)."""

    index: int
    slot: int
    intended: int


class Strategy(Protocol):
    """Decides what is sent when."""

    def due(self, now: int) -> Iterator[Due]:
        """All requests to be sent at `now`, each given once."""
        ...

    def ended(self, slot: int, end: int) -> None:
        """The request of `slot` ended at `end` (the arrival of its last byte)."""
        ...

    def next_time(self) -> int | None:
        """When `due` has something next even if no request ends; None when only an end can bring something."""
        ...

    @property
    def exhausted(self) -> bool:
        """True when nothing will ever be due again."""
        ...


class BatchStrategy:
    """Waves of `batch` requests, back to back; a wave is intended at the instant the last of the former one ended."""

    def __init__(self, count: int, batch: int, start: int) -> None:
        self._count, self._batch = count, batch
        self._next = 0
        self._open = 0
        self._intended = start

    def due(self, now: int) -> Iterator[Due]:
        if self._open or self._next >= self._count:
            return
        last = min(self._next + self._batch, self._count)
        # Counted before anything is sent: a request may end (refused) while the rest of its wave is being issued.
        self._open = last - self._next
        first, self._next, intended = self._next, last, self._intended
        for index in range(first, last):
            yield Due(index, index - first, intended)

    def ended(self, slot: int, end: int) -> None:
        self._open -= 1
        self._intended = max(self._intended, end)

    def next_time(self) -> int | None:
        return None

    @property
    def exhausted(self) -> bool:
        return self._next >= self._count


class ClosedLoopStrategy:
    """`slots` slots; a free slot takes the next request in order that is not bound to another slot.

    The next request of a slot is intended at the instant its last one ended.
    """

    def __init__(self, requests: Sequence[RequestPlan], slots: int, start: int) -> None:
        self._free: deque[tuple[int, int]] = deque((slot, start) for slot in range(slots))
        self._shared: deque[int] = deque()
        self._bound: dict[int, deque[int]] = {}
        self._left = len(requests)
        for index, request in enumerate(requests):
            if request.slot is None:
                self._shared.append(index)
            else:
                self._bound.setdefault(request.slot % slots, deque()).append(index)

    def due(self, now: int) -> Iterator[Due]:
        for _ in range(len(self._free)):
            slot, since = self._free.popleft()
            queues = [q for q in (self._shared, self._bound.get(slot)) if q]
            if queues:
                self._left -= 1
                yield Due(min(queues, key=lambda queue: queue[0]).popleft(), slot, since)

    def ended(self, slot: int, end: int) -> None:
        self._free.append((slot, end))

    def next_time(self) -> int | None:
        return None

    @property
    def exhausted(self) -> bool:
        return self._left == 0


def strategy_for(plan: LoadPlan, start: int) -> Strategy:
    """The strategy of a plan's mode, beginning at `start` (ns)."""
    mode: Mode = plan.mode
    if isinstance(mode, BatchMode):
        return BatchStrategy(len(plan.requests), mode.batch, start)
    return ClosedLoopStrategy(plan.requests, mode.slots, start)
