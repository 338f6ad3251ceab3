"""When to send what: one small class a load mode. The client's loop asks, sends, and tells when a request ended.

A strategy never looks at a clock: the loop hands times in. New modes (rates, schedules) are new rows of `strategy_for`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from harness.load.plan import BatchMode, ConcurrencyMode, LoadPlan, RequestPlan


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

    The next request of a slot is intended at the instant its last one ended, or `think` ns later.
    """

    def __init__(self, requests: Sequence[RequestPlan], slots: int, start: int, think: int = 0) -> None:
        self._free: deque[tuple[int, int]] = deque((slot, start) for slot in range(slots))
        self._think = think
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
            if self._think and since > now:
                self._free.append((slot, since))
                continue
            queues = [q for q in (self._shared, self._bound.get(slot)) if q]
            if queues:
                self._left -= 1
                yield Due(min(queues, key=lambda queue: queue[0]).popleft(), slot, since)

    def ended(self, slot: int, end: int) -> None:
        self._free.append((slot, end + self._think))

    def next_time(self) -> int | None:
        if not self._think or not self._left:
            return None
        return min((since for _, since in self._free), default=None)

    @property
    def exhausted(self) -> bool:
        return self._left == 0


class OpenLoopStrategy:
    """Each request at its own time, at most `cap` in flight; what the cap holds back keeps its intended time and its turn.

    A request takes the free slot of the lowest number, so slots count how many were in flight. `held` counts the requests
    that had to wait.
    """

    def __init__(self, times: Sequence[int], cap: int | None) -> None:
        self._times, self._cap = times, cap
        self._next = 0
        self._open = 0
        self._free: list[int] = []
        self._slots = 0
        self.held = 0
        self._full_until = 0  # the end that last made room

    def due(self, now: int) -> Iterator[Due]:
        times = self._times
        while self._next < len(times) and times[self._next] <= now:
            if self._full:
                return
            index = self._next
            self._next += 1
            self._open += 1
            self.held += times[index] < self._full_until
            yield Due(index, self._take_slot(), times[index])

    @property
    def _full(self) -> bool:
        return self._cap is not None and self._open >= self._cap

    def _take_slot(self) -> int:
        if self._free:
            return heappop(self._free)
        self._slots += 1
        return self._slots - 1

    def ended(self, slot: int, end: int) -> None:
        if self._full:
            self._full_until = max(self._full_until, end)
        self._open -= 1
        heappush(self._free, slot)

    def next_time(self) -> int | None:
        if self._next >= len(self._times) or self._full:
            return None
        return self._times[self._next]

    @property
    def exhausted(self) -> bool:
        return self._next >= len(self._times)


class Until:
    """A closed loop that sends nothing more from `end` on. `ran_out` says that its requests did not last until then."""

    def __init__(self, inner: Strategy, end: int) -> None:
        self._inner, self._end = inner, end
        self._over = False

    def due(self, now: int) -> Iterator[Due]:
        if now >= self._end:
            self._over = True
            return iter(())
        return self._inner.due(now)

    def ended(self, slot: int, end: int) -> None:
        self._inner.ended(slot, end)

    def next_time(self) -> int | None:
        return None if self._over else self._inner.next_time()

    @property
    def exhausted(self) -> bool:
        return self._over or self._inner.exhausted

    @property
    def ran_out(self) -> bool:
        return not self._over


def strategy_for(plan: LoadPlan, start: int, spare: int | None = None) -> Strategy:
    """The strategy of a plan's mode, beginning at `start` (ns). `spare`: how many connections the system allows at all."""
    mode = plan.mode
    strategy: Strategy
    if isinstance(mode, BatchMode):
        strategy = BatchStrategy(len(plan.requests), mode.batch, start)
    elif isinstance(mode, ConcurrencyMode):
        strategy = ClosedLoopStrategy(plan.requests, mode.slots, start, mode.think_ns)
    else:
        caps = [cap for cap in (mode.max_in_flight, spare) if cap is not None]
        return OpenLoopStrategy([start + (request.at or 0) for request in plan.requests], min(caps, default=None))
    return strategy if plan.duration_ns is None else Until(strategy, start + plan.duration_ns)
