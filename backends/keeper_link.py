"""The harness's end of a keeper: start one, tell it things, hear what it says, know its tree."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from typing import IO, Any

from backends import keeper
from backends.base import LaunchPlan


class KeeperLink:
    """One keeper and what it has said so far. Not for use by several threads at once."""

    def __init__(self, plan: LaunchPlan, log: IO[bytes], grace_s: float) -> None:
        """Start a keeper and hand it the plan's command; what that writes goes to `log`."""
        self.grace_s = grace_s
        self._plan = plan
        self.said: dict[str, Any] = {}
        self._seen: set[keeper.Process] = set()
        self._buffer = b""
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            start_new_session=True,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._in, self._out = self._child.stdin, self._child.stdout
        os.set_blocking(self._out.fileno(), False)
        order = {
            "argv": list(plan.argv),
            "env": {**os.environ, **plan.env},
            "cwd": os.getcwd(),
            "grace_s": grace_s,
            "parent": os.getpid(),
            "after": list(plan.after),
            "cpus": list(plan.cpus),
        }
        self.tell(json.dumps(order))

    @property
    def pid(self) -> int:
        return self._child.pid

    def running(self) -> bool:
        """Whether the keeper itself runs; it ends when nothing of the server is left."""
        return self._child.poll() is None

    def tell(self, line: str) -> None:
        """Send one line. A keeper that is gone hears nothing, which the next look at it tells."""
        data = line.encode() + b"\n"
        with contextlib.suppress(OSError):
            while data and not self._in.closed:
                data = data[os.write(self._in.fileno(), data) :]

    def listen(self, seconds: float) -> bool:
        """Take in what the keeper says within that time; returns at once when it says something. False: nothing."""
        if self._out.closed:
            return False
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return False
        data = os.read(self._out.fileno(), 1 << 16)
        if not data:
            self._child.wait()
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self.said.update(json.loads(line))
        return True

    def tree(self) -> list[keeper.Process]:
        """All processes of the server's tree now, those that lost their parent too. They are remembered."""
        if self._child.returncode is not None:
            return []  # its number may be another process's by now
        below = keeper.descendants(self._child.pid)
        self._seen.update(below)
        return below

    def seen_pids(self) -> set[int]:
        """Processes of the tree ever seen, by number."""
        return {process.pid for process in self._seen}

    def left(self) -> list[int]:
        """Processes of the tree ever seen that still run."""
        return sorted(process.pid for process in self._seen if keeper.alive(process))

    def end(self) -> None:
        """Have the tree ended and wait for it; a second Ctrl-C cuts the server's grace short."""
        self.tree()
        self.tell("stop")
        try:
            self._await_end()
        except KeyboardInterrupt:
            self.tell("kill")
            self._await_end()
            raise
        finally:
            if not self.running():
                self._in.close()
                self._out.close()

    def _await_end(self) -> None:
        deadline = time.monotonic() + self.grace_s + keeper.LINGER_S + keeper.KILL_S + 5.0
        deadline += keeper.AFTER_S if self._plan.after else 0.0
        while self.running() and time.monotonic() < deadline:
            self.listen(0.05)
            self.tree()
        if self.running():
            self._child.kill()
            self._child.wait()
        while self.listen(0):
            pass
        # Only where the keeper itself was killed is anything left to do.
        deadline = time.monotonic() + keeper.KILL_S
        spared_until = time.monotonic() + keeper.CLEAN_S
        while (rest := [p for p in self._seen if keeper.alive(p)]) and time.monotonic() < deadline:
            keeper.kill(rest, time.monotonic() < spared_until)
            time.sleep(0.02)
        if self._plan.after and "pid" in self.said and "exit" not in self.said:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                environment = {**os.environ, **self._plan.env}
                subprocess.run(self._plan.after, timeout=keeper.AFTER_S, capture_output=True, env=environment)
