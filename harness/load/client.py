"""The client's loop: one thread, one poller, and nothing but framing while answers come in.

Every read is kept with its arrival in a backlog. Server-sent events are parsed from it in slices of half a millisecond,
when the sockets have been quiet for a moment or when the backlog is long. So memory stays bounded, a burst is read before
it is parsed, and the loop wakes up less often than tokens come: what it reads late still has the kernel's stamp.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from harness.load.completion import StreamResult
from harness.load.connection import Connection
from harness.load.exchange import Exchange
from harness.load.http import request_head
from harness.load.limits import FIRST_TOKEN, Limits
from harness.load.plan import LoadPlan
from harness.load.poller import Poller
from harness.load.pool import Pool
from harness.load.stamps import ReceiveClock
from harness.load.strategies import Strategy, strategy_for
from results.clock import NS_PER_MS, NS_PER_S, now_ns
from results.schema import Outcome

_BACKLOG_READS = 512
_BACKLOG_BYTES = 4 * 1024 * 1024
_QUIET_S = 0.001
# With many streams nearly every token would wake the loop by itself. Where the kernel stamps arrivals a short rest after
# each round lets several gather, for half the CPU a token. It delays the next request of a slot by as much, no stamp.
_REST_S = 0.0005
_REST_STREAMS = 32
_PARSE_SLICE_NS = NS_PER_MS // 2
_PROGRESS_NS = NS_PER_S // 5
# A connection that breaks this soon after a request was written on it had most likely been closed while idle.
_STALE_NS = NS_PER_S


class Recorder(Protocol):
    """Who keeps what was measured."""

    def add(self, exchange: Exchange, outcome: Outcome, error: str | None, result: StreamResult) -> None: ...

    def tidy(self) -> None:
        """Called when there is time to spare."""
        ...


@dataclass(slots=True)
class Counts:
    """Where the load stands. `tokens` and the outcomes follow the parsing, `in_flight` the wire."""

    issued: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    done: int = 0
    ok: int = 0
    failed: int = 0
    tokens: int = 0
    retries: int = 0
    not_streamed: int = 0
    coalesced_events: int = 0


class Client:
    """Carries a plan out: `prepare`, then `run`. `stop` (from within the loop) cancels what is in flight."""

    def __init__(
        self, plan: LoadPlan, bodies: bytes, key: str | None, recorder: Recorder, progress: Callable[[Counts], None]
    ) -> None:
        self.poller = Poller()
        self.clock = ReceiveClock()
        self.looked = now_ns()
        self.counts = Counts()
        self.kernel_stamps = False
        self.started = 0
        self.ended = 0
        self._plan, self._key = plan, key
        self._recorder, self._progress = recorder, progress
        view = memoryview(bodies)
        self._heads = [request_head(plan, request, key) for request in plan.requests]
        self._bodies = [view[r.offset : r.offset + r.length] for r in plan.requests]
        self._limits = Limits.of(plan)
        self._pool = Pool(self, plan.target, plan.connections)
        self._busy: dict[Exchange, Connection] = {}
        self._backlog: deque[tuple[Exchange, int, int | None, bytes | None]] = deque()
        self._backlog_bytes = 0
        self._strategy: Strategy | None = None
        self._stopping = False
        self._next_check = 0
        self._next_progress = 0

    @property
    def pool(self) -> Pool:
        return self._pool

    @property
    def stopped(self) -> bool:
        """Was it told to stop before it was through?"""
        return self._stopping

    def prepare(self) -> None:
        """Open the connections. One that cannot be opened is no failure yet: requests will try, and say so."""
        self._pool.fill()
        limit = self._limits.connect
        deadline = now_ns() + (limit if limit is not None else 60 * NS_PER_S)
        while not self._pool.settled and not self._stopping:
            left = deadline - now_ns()
            if left <= 0:
                break
            self._dispatch(min(left / NS_PER_S, 0.2))
        self._pool.abandon_opening()

    def run(self) -> None:
        """Send everything and wait for every answer, or for `stop`."""
        self.started = now_ns()
        strategy = self._strategy = strategy_for(self._plan, self.started)
        self._next_check = self._next_progress = self.started
        while True:
            now = now_ns()
            if not self._stopping:
                for due in strategy.due(now):
                    self._issue(due.index, due.slot, due.intended)
            if not self._busy:
                # A request that failed at once has freed its slot: ask again before believing that nothing is left.
                if self._stopping or strategy.exhausted:
                    break
                if strategy.next_time() is None:
                    continue
            self._turn(now, strategy)
        self.ended = now_ns()
        self._parse(None)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()
        self.poller.close()

    def _turn(self, now: int, strategy: Strategy) -> None:
        """One look at the sockets, then whatever time there is goes to parsing."""
        backlog = self._backlog
        if backlog:
            full = len(backlog) >= _BACKLOG_READS or self._backlog_bytes >= _BACKLOG_BYTES
            if (
                not full
                and self.kernel_stamps
                and self.counts.in_flight >= _REST_STREAMS
                and strategy.next_time() is None
            ):
                time.sleep(_REST_S)
            if not self._dispatch(0 if full else _QUIET_S) or full:
                self._parse(now_ns() + _PARSE_SLICE_NS)
        else:
            until = min(self._next_check, self._next_progress)
            next_time = strategy.next_time()
            if next_time is not None:
                until = min(until, next_time)
            if not self._dispatch(max(0, until - now) / NS_PER_S):
                self._recorder.tidy()
        now = now_ns()
        if now >= self._next_check:
            self._check_limits(now)
        if now >= self._next_progress:
            self._next_progress = now + _PROGRESS_NS
            self._progress(self.counts)

    def stop(self) -> None:
        """Issue nothing more and cancel what is in flight; what was measured stays."""
        self._stopping = True
        for exchange in list(self._busy):
            self._fail(exchange, Outcome.CANCELLED, "stopped before the answer ended")

    def _dispatch(self, timeout_s: float) -> bool:
        """Handle all sockets that are ready; False when none was."""
        handlers = self.poller.handlers
        before = now_ns()
        ready = self.poller.poll(timeout_s)
        for fd, mask in ready:
            handler = handlers.get(fd)  # gone when an earlier event of this round closed it
            if handler is not None:
                handler.handle(mask)
        # What is read next round had not arrived before this one looked.
        self.looked = before
        return bool(ready)

    def _issue(self, index: int, slot: int, intended: int) -> None:
        counts = self.counts
        exchange = Exchange(index, self._plan.requests[index], slot, intended, now_ns())
        counts.issued += 1
        counts.in_flight += 1
        counts.max_in_flight = max(counts.max_in_flight, counts.in_flight)
        self._send(exchange, self._pool.take())
        if exchange in self._busy:
            self._next_check = min(self._next_check, self._limits.next(exchange)[0])

    def _send(self, exchange: Exchange, connection: Connection | None) -> None:
        if connection is None:
            connection = self._pool.connect()
            exchange.connect_start = now_ns()
        self._busy[exchange] = connection
        connection.send(exchange, self._heads[exchange.index], self._bodies[exchange.index])
        if connection.opened_at is None:
            connection.open()

    # What connections tell.

    def opened(self, connection: Connection) -> None:
        self.kernel_stamps = self.kernel_stamps or connection.kernel_stamps
        if connection.exchange is not None:
            connection.exchange.connect_end = connection.opened_at
        self._pool.on_opened(connection)

    def received(self, exchange: Exchange, t: int, lag: int | None, data: bytes) -> None:
        self._backlog.append((exchange, t, lag, data))
        self._backlog_bytes += len(data)

    def answered(self, connection: Connection, exchange: Exchange, t: int) -> None:
        reusable = connection.reusable
        connection.exchange = None
        if reusable:
            self._pool.give(connection)
        else:
            self._pool.drop(connection)
        self._over(exchange, t)

    def lost(self, connection: Connection, why: str) -> None:
        exchange = connection.exchange
        if exchange is None:
            self._pool.on_lost(connection, why)
            return
        self._pool.live.discard(connection)
        now = now_ns()
        if connection.opened_at is None:
            self._fail(exchange, Outcome.REFUSED, why)
        elif (
            connection.reused
            and exchange.first_byte is None
            and not exchange.retried
            and (exchange.sent is None or now - exchange.sent < _STALE_NS)
        ):
            exchange.retried = True
            exchange.sent = None
            self.counts.retries += 1
            self._send(exchange, None)
        else:
            self._fail(exchange, Outcome.RESET, why)

    def _fail(self, exchange: Exchange, outcome: Outcome, why: str) -> None:
        connection = self._busy.get(exchange)
        if connection is not None:
            self._pool.drop(connection)
        exchange.failure = (outcome, why)
        self._over(exchange, now_ns())

    def _over(self, exchange: Exchange, end: int) -> None:
        """The request is off the wire. Its judgement waits in the backlog, behind its last bytes."""
        exchange.end = end
        del self._busy[exchange]
        self.counts.in_flight -= 1
        self._backlog.append((exchange, end, None, None))
        if self._strategy is not None:
            self._strategy.ended(exchange.slot, end)

    # What waits for a quiet moment.

    def _parse(self, until: int | None) -> None:
        """Work off the backlog, up to a time or wholly."""
        backlog = self._backlog
        while backlog:
            for _ in range(min(16, len(backlog))):
                exchange, t, lag, data = backlog.popleft()
                if data is None:
                    self._settle(exchange)
                else:
                    self._backlog_bytes -= len(data)
                    exchange.take(t, lag, data)
            if until is not None and now_ns() >= until:
                return

    def _settle(self, exchange: Exchange) -> None:
        outcome, error, result = exchange.settle(self._plan.ignore_eos)
        if error is not None and self._key:
            error = error.replace(self._key, "***")
        counts = self.counts
        counts.done += 1
        counts.tokens += result.output_tokens
        counts.coalesced_events += result.coalesced_events
        if outcome is Outcome.OK:
            counts.ok += 1
            counts.not_streamed += exchange.not_streamed
        else:
            counts.failed += 1
        self._recorder.add(exchange, outcome, error, result)

    def _check_limits(self, now: int) -> None:
        limits = self._limits
        soonest = now + limits.interval
        for exchange in list(self._busy):
            deadline, what = limits.next(exchange)
            if deadline <= now and what == FIRST_TOKEN:
                # Bytes may have come that are not parsed yet: look before judging.
                self._parse(None)
                deadline, what = limits.next(exchange)
            if deadline <= now:
                self._fail(exchange, Outcome.TIMEOUT, limits.words(what))
            else:
                soonest = min(soonest, deadline)
        self._next_check = soonest
