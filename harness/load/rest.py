"""How long the client's loop rests after each round, so that several tokens gather and are read for the price of one wake-up.

With many streams nearly every token would wake the loop by itself, and on a machine that is idle otherwise a wake-up costs more
than a read. Where the kernel stamps arrivals a rest delays no stamp, but two tokens of one stream that come within it are read
together and carry one stamp, and the next request of a slot is sent later by half a rest. So it is a fifth of what lies between
two reads of one stream, a fiftieth of what a request takes, and never over two milliseconds. (64 streams, 10 ms apart, each five
times in turn on two cores: a rest of 1 ms took 18.7 us CPU a token, 1.5 ms 16.7, 2 ms 15.4.)
"""

from __future__ import annotations

from results.clock import NS_PER_MS

# With fewer streams a token comes seldom enough to be read by itself.
REST_STREAMS = 32
_MOST_NS = 2 * NS_PER_MS
_OF_A_GAP, _OF_A_REQUEST = 0.2, 0.02


class Rest:
    """The rest of one load: `length` ns, by what was seen since it was last renewed: `reads` of streams, and requests `ended`."""

    def __init__(self) -> None:
        self.length = 0
        self.reads = self.ended = 0
        self._since = 0

    def begin(self, now: int) -> None:
        """The load begins, without rests: what it will be like is not known yet."""
        self._since, self.reads, self.ended, self.length = now, 0, 0, 0

    def renew(self, now: int, streams: int, in_flight: int) -> None:
        """`streams`: requests of which tokens come; `in_flight`: all that are not answered."""
        reads, ended, since = self.reads, self.ended, now - self._since
        self.reads, self.ended, self._since = 0, 0, now
        if streams < REST_STREAMS:
            self.length = 0
        elif reads:
            longest = [_MOST_NS, _OF_A_GAP * since * streams / reads]
            if ended:
                longest.append(_OF_A_REQUEST * since * in_flight / ended)
            self.length = round(min(longest))
