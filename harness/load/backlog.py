"""What was read and is not parsed yet: pieces of answers in order of arrival, and finished requests behind their last piece.

The run of an exchange stands behind all of its pieces that are here, so it comes here before a further one does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from harness.load.exchange import Exchange
from harness.load.run import Run
from results.clock import now_ns

FULL_READS = 512
FULL_BYTES = 4 * 1024 * 1024
# So many are parsed before the clock is looked at.
_AT_ONCE = 16


class Backlog:
    """`settle` is called with each finished request when all that was read of it is parsed.

    `pieces` holds (exchange, arrival, lag, bytes), or for the bytes a run of tokens, or None where the request is finished;
    `size` is the sum of their bytes. Who appends to `pieces` adds to `size`.
    """

    def __init__(self, settle: Callable[[Exchange], None]) -> None:
        self.pieces: deque[tuple[Exchange, int, int | None, bytes | Run | None]] = deque()
        self.size = 0
        self._settle = settle

    @property
    def room(self) -> int:
        """How many more reads it takes before it is full."""
        return FULL_READS - len(self.pieces)

    @property
    def fullness(self) -> float:
        """From 1 on it is to be parsed before more is read."""
        return max(len(self.pieces) / FULL_READS, self.size / FULL_BYTES)

    def add(self, exchange: Exchange, t: int, lag: int | None, data: bytes) -> None:
        """A piece was read."""
        self._end_run(exchange, t)
        self.pieces.append((exchange, t, lag, data))
        self.size += len(data)

    def finish(self, exchange: Exchange, end: int) -> None:
        """Nothing more will be read of this request."""
        self._end_run(exchange, end)
        self.pieces.append((exchange, end, None, None))

    def _end_run(self, exchange: Exchange, t: int) -> None:
        if exchange.run is not None:
            self.pieces.append((exchange, t, None, exchange.run))
            exchange.run = None

    def parse(self, until: int | None) -> None:
        """Work it off, up to a time (ns) or wholly."""
        pieces = self.pieces
        while pieces:
            for _ in range(min(_AT_ONCE, len(pieces))):
                exchange, t, lag, data = pieces.popleft()
                if isinstance(data, bytes):
                    self.size -= len(data)
                    exchange.take(t, lag, data)
                elif data is None:
                    self._settle(exchange)
                else:
                    exchange.take_run(data)
            if until is not None and now_ns() >= until:
                return
