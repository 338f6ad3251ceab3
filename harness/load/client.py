"""The client's loop: one thread, one poller, and nothing but framing while answers come in.

Every read is kept with its arrival in a backlog, but for ordinary tokens, which the compiled reader keeps as numbers. Events are
parsed from the backlog in slices of half a millisecond, when the sockets have been quiet for a moment or when it is long. So
memory stays bounded, a burst is read before it is parsed, and the loop wakes up less often than tokens come: what it reads
late still has the kernel's stamp.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Protocol

from harness.load.backlog import Backlog
from harness.load.completion import StreamResult
from harness.load.connection import Connection
from harness.load.counts import Counts
from harness.load.exchange import Exchange
from harness.load.http import request_head
from harness.load.limits import FIRST_TOKEN, Limits
from harness.load.plan import LoadPlan
from harness.load.poller import Poller
from harness.load.pool import Pool
from harness.load.reader import reader_for
from harness.load.rest import Rest
from harness.load.stamps import SLACK_NS, ReceiveClock
from harness.load.strategies import OpenLoopStrategy, Strategy, Until, strategy_for
from results.clock import NS_PER_MS, NS_PER_S, now_ns
from results.schema import Outcome

_QUIET_NS = NS_PER_MS
_PARSE_SLICE_NS = NS_PER_MS // 2
# From so many times a full backlog on, parsing goes before a request that is due: memory has a bound.
_OVERFULL = 16
_PROGRESS_NS = NS_PER_S // 5
_NEVER_NS = 10**18
_WAIT_NS = NS_PER_S // 5
# With a request due within this time nothing is done that could make it late: a rest, a wait for quiet and a slice take less.
_ENOUGH_NS = 4 * NS_PER_MS
# What was read is parsed at least so often, however busy the sockets are: what is shown follows it.
_UNPARSED_NS = 20 * NS_PER_MS
# So many sockets of a round are handled before it is seen whether a request has become due (less one, a power of two).
_LOOK_AFTER = 15
# Writing a group of chunks takes some of this; it is done well before the next request is due.
_TIDY_NS = 20 * NS_PER_MS
# A connection that breaks this soon after a request was written on it had most likely been closed while idle.
_STALE_NS = NS_PER_S


class Recorder(Protocol):
    """Who keeps what was measured."""

    def add(self, exchange: Exchange, outcome: Outcome, error: str | None, result: StreamResult) -> None: ...

    def tidy(self) -> None:
        """Called when there is time to spare."""
        ...


class Client:
    """Carries a plan out: `prepare`, then `run`. `stop` (from within the loop) cancels what is in flight.

    `spare`: how many connections the system allows, where that is fewer than an open loop might need.
    """

    def __init__(
        self,
        plan: LoadPlan,
        bodies: bytes | mmap.mmap,
        key: str | None,
        recorder: Recorder,
        progress: Callable[[Counts], None],
        spare: int | None = None,
    ) -> None:
        self.poller = Poller()
        self.clock = ReceiveClock()
        self.counts = Counts()
        self.kernel_stamps = False
        self.start_at: int | None = None
        self.started = 0
        self.ended = 0
        self._plan, self._key = plan, key
        self._recorder, self._progress = recorder, progress
        view = memoryview(bodies)
        self._heads = [request_head(plan, request, key) for request in plan.requests]
        self._bodies = [view[r.offset : r.offset + r.length] for r in plan.requests]
        self._limits = Limits.of(plan)
        self._spare = spare
        self._pool = Pool(self, plan.target, plan.connections)
        self._busy: dict[Exchange, Connection] = {}
        self._backlog = Backlog(self._settle)
        self.reader = reader_for(self.poller, self._backlog.pieces.append, SLACK_NS)
        self._strategy: Strategy | None = None
        self._stopping = False
        self._next_check = 0
        self._next_progress = 0
        self._parse_by = 0
        self._stamped = False  # has an arrival come with a stamp of the kernel's?
        self._rest = Rest()

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
            self._dispatch(min(left, _WAIT_NS))
        self._pool.abandon_opening()

    def await_start(self) -> None:
        """Wait until somebody has set `start_at`, or for `stop`."""
        while self.start_at is None and not self._stopping:
            self._dispatch(_WAIT_NS)

    def run(self) -> None:
        """Send everything, from `start_at` on where that is set, and wait for every answer, or for `stop`."""
        while self.start_at is not None and (left := self.start_at - now_ns()) > 0 and not self._stopping:
            self._dispatch(min(left, _WAIT_NS))
        self.started = now_ns() if self.start_at is None else self.start_at
        strategy = self._strategy = strategy_for(self._plan, self.started, self._spare)
        self._next_check = self._next_progress = self.started
        self._rest.begin(self.started)
        while True:
            now = now_ns()
            if not self._stopping:
                self._send_due(now, strategy)
            if not self._busy and (self._stopping or strategy.exhausted):
                break
            # Also where all that was due failed at once: `stop` is heard, and what failed does not pile up.
            self._turn(now, strategy)
        self.ended = now_ns()
        self._backlog.parse(None)

    @property
    def held(self) -> int:
        """Requests that had to wait because as many as allowed were in flight."""
        return self._strategy.held if isinstance(self._strategy, OpenLoopStrategy) else 0

    @property
    def ran_out(self) -> bool:
        """Were there too few requests for the time the load was to last?"""
        return isinstance(self._strategy, Until) and not self._stopping and self._strategy.ran_out

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()
        self.poller.close()

    def _turn(self, now: int, strategy: Strategy) -> None:
        """A look at the sockets, or several, then whatever time there is goes to parsing."""
        backlog = self._backlog
        next_time = strategy.next_time()  # what is to be sent at a time of its own must not wait for anything here
        due = _NEVER_NS if next_time is None else next_time
        free = due - now
        hurry = free < _ENOUGH_NS
        until = 0 if hurry else min(due - _ENOUGH_NS, self._next_check, self._next_progress)
        rest = 0 if hurry or not self._stamped else self._rest.length
        if not backlog.pieces:
            soon = free <= _TIDY_NS
            left = max(0, min(self._next_check - now, self._next_progress - now, free if soon else free - _TIDY_NS))
            if not self._dispatch(left, rest, until, due) and due - now_ns() > _TIDY_NS:
                self._recorder.tidy()
            self._parse_by = now_ns() + _UNPARSED_NS
        elif (fullness := backlog.fullness) < 1:
            quiet = min(_QUIET_NS, max(0, free)) if hurry else _QUIET_NS
            if not self._dispatch(quiet, rest, min(until, self._parse_by), due) or now_ns() >= self._parse_by:
                backlog.parse(now_ns() + min(_PARSE_SLICE_NS, max(0, free)))
                self._parse_by = now_ns() + _UNPARSED_NS
        else:
            self._dispatch(0, due=due)
            # The further behind, the longer: where the machine gives too little, reads wait in the kernel, not here.
            slice_ns = round(_PARSE_SLICE_NS * fullness)
            backlog.parse(now_ns() + (slice_ns if fullness >= _OVERFULL else min(slice_ns, max(0, free))))
        now = now_ns()
        if now >= self._next_check:
            self._check_limits(now)
        if now >= self._next_progress:
            self._next_progress = now + _PROGRESS_NS
            self._rest.renew(now, sum(exchange.token_seen for exchange in self._busy), self.counts.in_flight)
            if not self._stopping:
                self._pool.refresh(now)
            self._progress(self.counts)

    def stop(self) -> None:
        """Issue nothing more and cancel what is in flight; what was measured stays."""
        self._stopping = True
        for exchange in list(self._busy):
            self._fail(exchange, Outcome.CANCELLED, "stopped before the answer ended")

    def _dispatch(self, timeout: int, rest: int = 0, until: int = 0, due: int = _NEVER_NS) -> bool:
        """Handle all sockets that are ready (see `Reader.gather`); False when the last look found none."""
        reader, backlog, handlers = self.reader, self._backlog, self.poller.handlers
        others = reader.gather(self.clock.offset(now_ns()), rest, timeout, until, due, backlog.room)
        self._rest.reads += reader.reads
        backlog.size += reader.size
        for number, (fd, mask) in enumerate(others):
            handler = handlers.get(fd)  # gone when an earlier event of this round closed it
            if handler is not None:
                handler.handle(mask)
            if number & _LOOK_AFTER == _LOOK_AFTER:
                self._look_for_due()
        return not reader.idle

    def _look_for_due(self) -> None:
        """In the middle of a long round: a request that has its own time is not to wait for the end of it."""
        strategy, now = self._strategy, now_ns()
        next_time = None if strategy is None or self._stopping else strategy.next_time()
        if strategy is not None and next_time is not None and next_time <= now:
            self._send_due(now, strategy)

    def _send_due(self, now: int, strategy: Strategy) -> None:
        for due in strategy.due(now):
            self._issue(due.index, due.slot, due.intended)

    def _issue(self, index: int, slot: int, intended: int) -> None:
        exchange = Exchange(index, self._plan.requests[index], slot, intended, now_ns())
        self.counts.issue()
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
        self._stamped = self._stamped or lag is not None
        if exchange.cancel_after is not None:  # its tokens are counted as they come
            exchange.take(t, lag, data)
            return
        self._backlog.add(exchange, t, lag, data)

    def answered(self, connection: Connection, exchange: Exchange, t: int) -> None:
        reusable = connection.reusable
        connection.exchange = None
        if reusable:
            self._pool.give(connection, t)
        else:
            self._pool.drop(connection)
        self._over(exchange, t)

    def satisfied(self, connection: Connection, exchange: Exchange, t: int) -> None:
        """As many tokens have come as the plan wanted: the rest is not waited for."""
        self._pool.drop(connection)
        if not self._stopping:
            self._pool.fill()
        exchange.cut = True
        self.counts.ended_by_plan += 1
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
        self._rest.ended += 1
        self._backlog.finish(exchange, end)
        if self._strategy is not None:
            self._strategy.ended(exchange.slot, end)

    # What waits for a quiet moment.

    def _settle(self, exchange: Exchange) -> None:
        outcome, error, result = exchange.settle(self._plan.ignore_eos)
        if error is not None and self._key:
            error = error.replace(self._key, "***")
        self.counts.settle(exchange, outcome, result, stream=self._plan.stream)
        self._recorder.add(exchange, outcome, error, result)

    def _check_limits(self, now: int) -> None:
        limits = self._limits
        soonest = now + limits.interval
        for exchange in list(self._busy):
            deadline, what = limits.next(exchange)
            if deadline <= now and what == FIRST_TOKEN:
                # Bytes may have come that are not parsed yet: look before judging.
                self._backlog.parse(None)
                deadline, what = limits.next(exchange)
            if deadline <= now:
                self._fail(exchange, Outcome.TIMEOUT, limits.words(what))
            else:
                soonest = min(soonest, deadline)
        self._next_check = soonest
