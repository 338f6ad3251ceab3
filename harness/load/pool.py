"""Connections held ready, so that no request waits for one to be opened if it can be helped."""

from __future__ import annotations

import resource
import socket
import ssl

from backends.http_probe import ServerURL
from harness.load.connection import Address, Connection, Owner
from results.clock import NS_PER_S, now_ns
from results.errors import EnvironmentProblemError

_SPARE_DESCRIPTORS = 64
# A connection that the server closed while idle is replaced at once only if it lived this long: a server that closes
# every connection must not make the client open them without end.
_MIN_LIFE_NS = NS_PER_S // 2
# So long before the server would close an idle connection it is replaced (of a short patience: half of it before).
_MARGIN_NS = NS_PER_S
# How many are being opened at once: a listening socket has a queue of its own.
_OPENING_AT_ONCE = 64


def raise_descriptor_limit(connections: int, *, needed: bool = True) -> int | None:
    """Make room for so many sockets; None when there is. Where they are not all `needed` (an open loop may have all its
    requests in flight, but seldom has) it is as many as the system allows.

    Raises EnvironmentProblemError naming the limit and the command that raises it.
    """
    need = connections + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return None
    if hard != resource.RLIM_INFINITY and hard < need and not needed and hard > _SPARE_DESCRIPTORS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard - _SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < need:
        raise EnvironmentProblemError(
            f"{connections} requests in flight need {need} open files, but this process may have {hard} at most. "
            f"Raise the limit in the shell that starts dyno (ulimit -Hn {need}; ulimit -n {need}), or ask for a load of "
            f"at most {max(0, hard - _SPARE_DESCRIPTORS)}."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
    return None


def resolve(target: ServerURL) -> list[Address]:
    """All addresses of the server's host, in the system's order. Raises EnvironmentProblemError."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise EnvironmentProblemError(
            f"The host {target.host!r} of the server's URL has no address: {error.strerror or error}. Check the URL."
        ) from error
    return [(family, sockaddr) for family, _, _, _, sockaddr in found]


class Pool:
    """Idle connections of one server, up to `size` or as many as the system allows. The first address that answers is kept;
    proxies are never used."""

    def __init__(self, owner: Owner, target: ServerURL, size: int) -> None:
        allowed = raise_descriptor_limit(size, needed=False)
        self._owner, self._target, self._size = owner, target, size if allowed is None else allowed
        self._addresses = resolve(target)
        self._tls = ssl.create_default_context() if target.scheme == "https" else None
        self._idle: list[Connection] = []
        self._until: dict[Connection, int] = {}  # when an idle one is to be replaced (ns)
        self._opening = 0
        self._wanted = 0
        self._at_it = False
        self.live: set[Connection] = set()
        self.opened = 0
        self.closed_while_idle = 0
        self.replaced = 0
        self.last_error: str | None = None

    @property
    def settled(self) -> bool:
        """Nothing is being opened, and nothing is waiting to be."""
        return not self._opening and not self._wanted

    def fill(self) -> None:
        """Begin to open connections up to the size wanted."""
        self._wanted = self._size - len(self.live)
        self._open_some()

    def _open_some(self) -> None:
        if self._at_it:  # one has failed at once: the loop below goes on by itself, however many do
            return
        self._at_it = True
        while self._wanted > 0 and self._opening < _OPENING_AT_ONCE:
            self._wanted -= 1
            self._opening += 1
            self.connect().open()
        self._at_it = False

    def connect(self) -> Connection:
        """A connection yet to be opened, to the address in use."""
        connection = Connection(self._owner, self._addresses[0], self._tls, self._target.host)
        self.live.add(connection)
        return connection

    def take(self) -> Connection | None:
        """The idle connection used last (the least likely to have been closed by the server), if there is one."""
        while self._idle:
            connection = self._idle.pop()
            self._until.pop(connection, None)
            if connection.is_open:
                return connection
        return None

    def give(self, connection: Connection, since: int) -> None:
        """An open connection that has idled since the end of its answer (ns)."""
        self._idle.append(connection)
        if (patience := connection.patience_s) is not None:
            self._until[connection] = since + max(patience * NS_PER_S - _MARGIN_NS, patience * NS_PER_S // 2)

    def refresh(self, now: int) -> None:
        """Replace what the server would soon close: a request could cross with that."""
        for connection in [c for c, until in self._until.items() if until <= now]:
            self._idle.remove(connection)
            self.drop(connection)
            self.replaced += 1
            self._wanted += 1
        self._open_some()

    def on_opened(self, connection: Connection) -> None:
        """A connection became ready; one without a request is ours."""
        self.opened += 1
        if connection.exchange is None:
            self._opening -= 1
            self._idle.append(connection)
            self._open_some()

    def on_lost(self, connection: Connection, why: str) -> None:
        """A connection without a request ended, or could not be opened."""
        self.live.discard(connection)
        if connection.opened_at is None:
            self._opening -= 1
            self.last_error = why
            self._try_next_address()
            return
        if connection in self._idle:
            self._idle.remove(connection)
            self._until.pop(connection, None)
        self.closed_while_idle += 1
        if now_ns() - connection.opened_at >= _MIN_LIFE_NS:
            self._wanted += 1
            self._open_some()

    def _try_next_address(self) -> None:
        """Before the first connection is open, a refusal turns to the host's next address; else it ends the filling."""
        if self.opened == 0 and len(self._addresses) > 1 and not self._opening:
            self._addresses.pop(0)
            self._wanted = self._size
            self._open_some()
        elif self.opened == 0:
            self._wanted = 0
        else:
            self._open_some()

    def drop(self, connection: Connection) -> None:
        """Close one for good."""
        connection.close()
        self.live.discard(connection)
        self._until.pop(connection, None)

    def abandon_opening(self) -> None:
        """Close what is still being opened (it took too long); requests will try on their own."""
        for connection in [c for c in self.live if c.opened_at is None and c.exchange is None]:
            self.drop(connection)
        self._opening = self._wanted = 0

    def close(self) -> None:
        for connection in list(self.live):
            self.drop(connection)
