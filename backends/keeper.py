"""The keeper: a tiny process between the harness and one server, which outlives the harness just long enough to clean up.

It runs as a script in a session of its own (so that Ctrl-C in the terminal reaches neither it nor the server), uses the
standard library only, and imports nothing of the package. Its parent holds the other end of its stdin: a line `stop` or
the end of that pipe (the parent is dead, however it died) ends the whole tree. As subreaper it inherits what the server's
children leave behind, so a walk over /proc finds every process, those with a session of their own too.

What is no child of the server (a container) is removed by the command `after`, run once the server's own process has ended
and before that is told; what it prints goes to the server's log.

Protocol, JSON lines. In: {"argv", "env", "cwd", "grace_s", "parent", "after", "cpus"} once, then `stop` or `kill` (no grace).
Out: {"pid"} or {"error", "errno"}; {"exit": code, negative for a signal}; last {"killed": [pids], "left": [pids]}.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from typing import Any, NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

# What the server's children get between SIGTERM and SIGKILL once the server itself is gone.
LINGER_S = 3.0
# How long a killed process may take to vanish (one stuck in a driver call can take for ever).
KILL_S = 8.0
# Python's helper beside a server that removes its shared memory and semaphores once the last process using them has ended,
# and then ends by itself: killed together with the others it would leave the segments in /dev/shm until the next boot.
CLEANER = b"multiprocessing.resource_tracker"
CLEAN_S = 5.0
# How long the command that removes what is no child of the server may take.
AFTER_S = 30.0
_POLL_S = 0.02


class Process(NamedTuple):
    """A process, safe against reuse of its number: `start` is its start time in clock ticks since boot."""

    pid: int
    start: int


def _stat(pid: int) -> tuple[int, int] | None:
    """(parent, start time) of a process, or None when it is gone. A zombie is gone: only its number is left."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name in brackets may itself hold blanks and brackets: fields count from the last one.
    fields = text[text.rfind(b")") + 2 :].split()
    # A leader that has ended while its other threads run looks like a zombie, but is none.
    if fields[0] in (b"Z", b"X") and int(fields[17]) <= 1:
        return None
    return int(fields[1]), int(fields[19])


def identify(pid: int) -> Process | None:
    """The process of that number now, or None when there is none."""
    stat = _stat(pid)
    return None if stat is None else Process(pid, stat[1])


def alive(process: Process) -> bool:
    """Whether that very process still runs."""
    return identify(process.pid) == process


def descendants(root: int) -> list[Process]:
    """All living processes below `root`, parents first. Empty where there is no /proc."""
    children: dict[int, list[Process]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if name.isdigit() and (stat := _stat(int(name))) is not None:
            children.setdefault(stat[0], []).append(Process(int(name), stat[1]))
    found: list[Process] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(0), [])
        found += below
        todo += [process.pid for process in below]
    return found


def send(process: Process, number: int) -> None:
    """Send a signal to exactly that process; nothing happens when it is gone or its number was given to another."""
    try:
        handle = os.pidfd_open(process.pid)
    except AttributeError:  # no pidfd on this system: the gap between look and signal stays
        if alive(process):
            os.kill(process.pid, number)
        return
    except OSError:
        return
    try:
        if alive(process):
            signal.pidfd_send_signal(handle, number)
    except OSError:
        pass  # gone meanwhile, or not ours to signal: the caller looks again
    finally:
        os.close(handle)


def cleans_up(process: Process) -> bool:
    """Whether that process of ours is there to remove what the others leave."""
    try:
        with open(f"/proc/{process.pid}/cmdline", "rb") as file:
            return CLEANER in file.read()
    except OSError:
        return False


def kill(processes: list[Process], spare_cleaners: bool) -> list[Process]:
    """Send SIGKILL to each, to those that clean up after the others only without `spare_cleaners`; returns who got it."""
    chosen = [process for process in processes if not (spare_cleaners and cleans_up(process))]
    for process in chosen:
        send(process, signal.SIGKILL)
    return chosen


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class Keeper:
    """One server and the tree below it."""

    def __init__(self) -> None:
        self.buffer = b""
        self.commands: list[str] = []
        self.pid = 0
        self.exit_code: int | None = None
        self.stop_asked = False
        self.patient = True
        self.config: dict[str, Any] = {}
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        self.wake, wake_write = os.pipe()
        for end in (self.wake, wake_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        self.poll = select.poll()
        self.poll.register(0, select.POLLIN)
        self.poll.register(self.wake, select.POLLIN)
        self.parent = -1
        self.parent_fd = -1

    def run(self) -> int:
        """Start the server, wait for its end or the order to stop, leave nothing behind."""
        config = self.read_config()
        if config is None:
            return 0
        self.config = config
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.watch_parent(config["parent"])
        if not self.spawn(config):
            return 1
        while self.exit_code is None and not self.stop_asked:
            self.wait(None if self.parent_fd >= 0 else 0.5)
        deadline = time.monotonic() + float(config["grace_s"])
        if self.exit_code is None and self.patient and (server := identify(self.pid)):
            send(server, signal.SIGTERM)
            while self.exit_code is None and self.patient and (left := deadline - time.monotonic()) > 0:
                self.wait(left)
        self.ask_the_rest(deadline)
        return self.kill_the_rest()

    def read_config(self) -> dict[str, Any] | None:
        while not self.commands and not self.stop_asked:
            self.wait(None)
        if not self.commands:
            return None
        config: dict[str, Any] = json.loads(self.commands.pop(0))
        return config

    def watch_parent(self, parent: int) -> None:
        """A second sign of the parent's death: a forked sibling may hold our pipe open."""
        self.parent = parent
        try:
            self.parent_fd = os.pidfd_open(parent)
            self.poll.register(self.parent_fd, select.POLLIN)
        except (AttributeError, OSError):
            self.parent_fd = -1

    def spawn(self, config: dict[str, Any]) -> bool:
        """Start the server in its own process group. False (and a message) when it cannot be executed."""
        keeper = os.getpid()
        error_read, error_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 127
            try:
                os.setpgid(0, 0)
                _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() == keeper:
                    self.become(config)
            except OSError as error:
                report = {"error": error.strerror or str(error), "errno": error.errno}
                os.write(error_write, json.dumps(report).encode())
            finally:
                os._exit(code)
        os.close(error_write)
        failed = os.read(error_read, 4096)
        os.close(error_read)
        if failed:
            os.waitpid(pid, 0)
            say(json.loads(failed))
            return False
        self.pid = pid
        say({"pid": pid})
        return True

    def become(self, config: dict[str, Any]) -> None:
        signal.set_wakeup_fd(-1)
        # Ignored signals would stay ignored in the server.
        for number in ("SIGINT", "SIGHUP", "SIGQUIT", "SIGCHLD", "SIGTERM", "SIGPIPE", "SIGXFSZ"):
            signal.signal(getattr(signal, number), signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)  # our stderr is the server's log
        os.chdir(config["cwd"])
        if config.get("cpus"):
            with contextlib.suppress(OSError):  # a CPU that is gone meanwhile; where it runs is read back
                os.sched_setaffinity(0, config["cpus"])
        os.execvpe(config["argv"][0], config["argv"], config["env"])

    def wait(self, seconds: float | None) -> None:
        """Sleep until something happens or the time is over; then take in messages and dead children."""
        for fd, _ in self.poll.poll(None if seconds is None else max(0.0, seconds) * 1000):
            if fd == 0:
                self.read_commands()
            elif fd == self.wake:
                if signal.SIGTERM in os.read(self.wake, 1024):
                    self.stop_asked = True
            else:
                self.poll.unregister(fd)
                self.stop_asked = True
        if self.parent >= 0 and os.getppid() != self.parent:
            self.stop_asked = True
        self.reap()

    def read_commands(self) -> None:
        data = os.read(0, 1 << 16)
        if not data:
            self.poll.unregister(0)
            self.stop_asked = True
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            if line in (b"stop", b"kill"):
                self.stop_asked = True
                self.patient = self.patient and line == b"stop"
            else:
                self.commands.append(line.decode())

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
                self.clear_away()
                say({"exit": self.exit_code})

    def clear_away(self) -> None:
        """Run the command that removes what is no child of the server, in time or not at all."""
        after = self.config.get("after")
        if not after:
            return
        pid = os.fork()
        if pid == 0:
            try:
                self.become({**self.config, "argv": after})
            finally:
                os._exit(127)
        deadline = time.monotonic() + AFTER_S
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_S)

    def ask_the_rest(self, deadline: float) -> None:
        """The server is gone but not its children: SIGTERM, and a little time."""
        if self.exit_code is None or not self.patient:
            return
        deadline = min(deadline, time.monotonic() + LINGER_S)
        asked: set[Process] = set()
        while self.patient and (rest := descendants(os.getpid())) and time.monotonic() < deadline:
            for process in rest:
                if process not in asked:
                    asked.add(process)
                    send(process, signal.SIGTERM)
            self.wait(_POLL_S)

    def kill_the_rest(self) -> int:
        killed: set[int] = set()
        deadline = time.monotonic() + KILL_S
        spared_until = time.monotonic() + CLEAN_S
        while (rest := descendants(os.getpid())) and time.monotonic() < deadline:
            killed |= {process.pid for process in kill(rest, time.monotonic() < spared_until)}
            self.wait(_POLL_S)
        if self.exit_code is None and not os.path.isdir("/proc/self"):
            os.killpg(self.pid, signal.SIGKILL)
        while self.exit_code is None and time.monotonic() < deadline:
            self.wait(_POLL_S)
        say({"killed": sorted(killed), "left": [process.pid for process in rest]})
        return 1 if rest else 0


def say(message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the parent is dead: nobody to tell, and the work goes on
        os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(Keeper().run())
