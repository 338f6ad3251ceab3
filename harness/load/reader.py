"""Who looks at the sockets and reads them: compiled code the ordinary tokens, the connections themselves everything else.

Nearly all that a load reads is one whole chunk of an event stream on a connection that waits for just that, and in it one event
with a token. A connection in that state is *armed*, and `reader.c` reads it: the same bytes, stamps, framing and events as
connection.py, http.py and sse.py, at a fraction of the price. What is not ordinary in any way is handed back with what was
read, so that there is one place where it is understood. Where reader.c is not compiled, or without epoll, connections read
everything themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from harness.load.compiled import compiled
from harness.load.poller import Poller
from results.clock import NS_PER_S, now_ns

READ_SIZE = 16 * 1024


class Reader(Protocol):
    """`looked`: when a socket that is read now last had nothing to read (ns). Of the last `gather`: `reads`, sockets that were
    ready; `size`, bytes that it put into the backlog; `idle`, its last look found nothing.
    """

    name: str  # compiled or python
    looked: int
    reads: int
    size: int
    idle: bool

    def arm(self, fd: int, connection: Any, exchange: Any, events: bool, whole: bool) -> None:
        """This descriptor is between two chunks, and of its exchange nothing is looked at before it is parsed.

        `events`: they are of an event stream; `whole`: what came so far ended with an event.
        """
        ...

    def disarm(self, fd: int) -> None:
        """Before it is closed."""
        ...

    def gather(self, offset: int, rest: int, timeout: int, until: int, due: int, most: int) -> list[tuple[int, int]]:
        """Rest, wait at most `timeout` for sockets, read those that are armed, and give (descriptor, mask) of the others.

        Goes on while there are only armed ones, before `until`, and below `most` reads. A round ends early when it is `due`.
        The next call says that what was given is handled. Times in ns; `offset`: wall-clock less monotonic time.
        """
        ...


class PythonReader:
    """Every socket is read by its connection."""

    name = "python"

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._began = now_ns()
        self.looked = self._began
        self.reads = self.size = 0
        self.idle = True

    def arm(self, fd: int, connection: Any, exchange: Any, events: bool, whole: bool) -> None:
        pass

    def disarm(self, fd: int) -> None:
        pass

    def gather(self, offset: int, rest: int, timeout: int, until: int, due: int, most: int) -> list[tuple[int, int]]:
        if rest:
            time.sleep(rest / NS_PER_S)
        self.looked, self._began = self._began, now_ns()
        ready = self._poller.poll(timeout / NS_PER_S)
        self.reads, self.idle = len(ready), not ready
        return ready


def reader_name() -> str:
    """The reader that a client started from here has."""
    part = compiled("reader")
    return PythonReader.name if part is None else str(part.Reader.name)


def reader_for(poller: Poller, append: Callable[[Any], None], slack: int) -> Reader:
    """The compiled reader where there is one. `append` is the backlog's; a stamp may lie `slack` ns before the last look."""
    part = compiled("reader")
    if part is None or poller.epoll is None:
        return PythonReader(poller)
    made: Reader = part.Reader(poller.epoll.fileno(), append, READ_SIZE, slack)
    return made
