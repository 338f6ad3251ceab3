"""When bytes arrived, by the kernel's own receive stamps, on the monotonic clock.

Linux stamps every segment when it comes in (SO_TIMESTAMPNS); recvmsg hands over the stamp of the last segment it
read. So the arrival is known to within tens of microseconds however late the reader is, and the reader's lateness is
known too. The stamps are wall-clock time; a (monotonic, wall) pair converts them. Slewing moves both clocks alike; a
step of the wall clock does not, so the pair is renewed and every conversion is checked against what is possible.
"""

from __future__ import annotations

import socket
import struct
import sys

from results.clock import NS_PER_MS, NS_PER_S, ClockPair, now_ns

# Not in Python's socket module. The option's number is also the type of the control message.
SO_TIMESTAMPNS = 35
CONTROL_SIZE = socket.CMSG_SPACE(16)
_unpack = struct.Struct("qq").unpack
_RENEW_NS = NS_PER_S
# How far a converted stamp may lie outside the time since the socket was last looked at, before it is not believed.
SLACK_NS = 50 * NS_PER_MS


def enable(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what this socket receives; False where it cannot."""
    if not sys.platform.startswith("linux") or struct.calcsize("P") != 8:
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


class ReceiveClock:
    """Converts receive stamps. `disbelieved` counts stamps that a step of the wall clock had made impossible."""

    def __init__(self) -> None:
        self._offset = 0
        self._renewed = 0
        self.disbelieved = 0
        self.renew(now_ns())

    def renew(self, now: int) -> None:
        """Read a new pair of clocks."""
        pair = ClockPair.read()
        self._offset = pair.wall_ns - pair.monotonic_ns
        self._renewed = now

    def offset(self, now: int) -> int:
        """Wall-clock less monotonic time (ns), read anew every second."""
        if now - self._renewed > _RENEW_NS:
            self.renew(now)
        return self._offset

    def arrival(self, control: list[tuple[int, int, bytes]], now: int, looked: int) -> tuple[int, int | None]:
        """(arrival, lag) in ns of data read at `now` from a socket that had nothing to read at `looked`.

        Without a stamp, or with one that cannot be true, the arrival is the read and the lag is not known (None).
        """
        if not control or control[0][1] != SO_TIMESTAMPNS:
            return now, None
        offset = self.offset(now)
        seconds, nanoseconds = _unpack(control[0][2])
        wall = seconds * NS_PER_S + nanoseconds
        arrived: int = wall - offset
        if looked - SLACK_NS <= arrived <= now:
            return arrived, now - arrived
        return self._doubtful(wall, now, looked)

    def _doubtful(self, wall: int, now: int, looked: int) -> tuple[int, int | None]:
        """A stamp in the future or from before the last look: the wall clock stepped. Try once with a new pair."""
        self.renew(now)
        arrived = wall - self._offset
        # The pair itself is uncertain by a fraction of a microsecond, so "just now" may come out just after now.
        if looked - SLACK_NS <= arrived <= now + NS_PER_MS:
            arrived = min(arrived, now)
            return arrived, now - arrived
        self.disbelieved += 1
        return now, None
