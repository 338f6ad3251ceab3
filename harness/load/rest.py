"""How long the client's loop rests after each round, so that several tokens gather and are read for the price of one wake-up.

With many streams nearly every token would wake the loop by itself, and on a machine that is idle otherwise a wake-up costs more
than a read. Where the kernel stamps arrivals a rest delays no stamp, but two tokens of one stream that come within it are read
together and carry one stamp, and the next request of a slot is sent later by half a rest. So it is a fifth of what lies between
two reads of one stream, and never over two milliseconds. (64 streams, 10 ms apart, each five times in turn on two cores: a rest
of 1 ms took 18.7 us CPU a token, 1.5 ms 16.7, 2 ms 15.4.)
"""

from __future__ import annotations

from results.clock import NS_PER_MS

# With fewer streams a token comes seldom enough to be read by itself.
REST_STREAMS = 32
_FIRST_NS, _MOST_NS = NS_PER_MS // 2, 2 * NS_PER_MS
_SHARE = 0.2


class Rest:
    """The rest of one load: `length` ns, by how often each stream was read (`reads`) since it was last renewed."""

    def __init__(self) -> None:
        self.length = _FIRST_NS
        self.reads = 0
        self._since = 0

    def begin(self, now: int) -> None:
        self._since = now

    def renew(self, now: int, in_flight: int) -> None:
        reads, since = self.reads, now - self._since
        self.reads, self._since = 0, now
        if reads and in_flight:
            self.length = min(_MOST_NS, round(_SHARE * since * in_flight / reads))
