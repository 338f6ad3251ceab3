"""TCP ports of this machine: one that is free, who holds one, and whether a listener is ours."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable

import psutil

from results.errors import UsageError

_LISTEN = "0A"  # the state's number in /proc/net/tcp


class PortInUseError(UsageError):
    """The port a server was to listen on is taken."""

    def __init__(self, host: str, port: int, holder: str | None) -> None:
        by = f" by {holder}" if holder else " (by a process this user may not look at)"
        super().__init__(
            f"Port {port} on {host} is in use{by}, so no server was started. "
            "Choose another port, leave it out so that a free one is taken, or stop that process."
        )
        self.host, self.port, self.holder = host, port, holder


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on now. The kernel hands out others next, so a server has time to take it."""
    family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind(address)
        port: int = probe.getsockname()[1]
        return port


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen there. Connections that are only waiting to be forgotten do not count."""
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                probe.listen(1)
            except OSError:
                return False
    return True


def require_free_port(host: str, port: int) -> None:
    """Raise PortInUseError, naming who holds it where the system tells."""
    if not port_is_free(host, port):
        raise PortInUseError(host, port, port_holder(port))


def wait_port_free(host: str, port: int, timeout_s: float) -> bool:
    """Wait until a server could listen there; False when it still could not after that time."""
    deadline = time.monotonic() + timeout_s
    while not port_is_free(host, port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def port_holder(port: int) -> str | None:
    """`pid 4242 (python server.py ...)`, or None when the system does not tell."""
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return None
    for connection in connections:
        listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr[1] == port
        if listens and connection.pid:
            try:
                words = " ".join(psutil.Process(connection.pid).cmdline())[:80]
            except psutil.Error:
                words = "?"
            return f"pid {connection.pid} ({words})"
    return None


def listens_on(pids: Iterable[int], port: int) -> bool | None:
    """Whether one of these processes listens on the port; None when the system does not tell (or nobody listens)."""
    found = _listener(pids, port)
    return None if found is None else found != 0


def listener(pids: Iterable[int], port: int) -> int | None:
    """The first of these processes that listens on the port; None for none of them, or when the system does not tell."""
    return _listener(pids, port) or None


def _listener(pids: Iterable[int], port: int) -> int | None:
    """The process; 0 for none of them, None when the system does not tell."""
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not wanted:
        return None
    looked = False
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
            looked = True
        except OSError:
            continue
        for name in names:
            try:
                if os.readlink(f"/proc/{pid}/fd/{name}") in wanted:
                    return pid
            except OSError:
                continue
    return 0 if looked else None


def _listening_inodes(port: int) -> set[str]:
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                rows = file.readlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes
