"""The truth server as a process of its own: `python -m harness.truth --ttft-ms 100 --gap-ms 10`.

It prints its URL and serves until SIGINT or SIGTERM. With --control it takes commands on stdin, a line of JSON each, and
answers each with a line (`harness.truth.process`).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson

from harness.child import die_with_parent
from harness.load.pool import raise_descriptor_limit
from harness.truth.schedule import Fault, Schedule
from harness.truth.server import Server
from results.errors import DynoError

_PR_SET_TIMERSLACK = 29
_DESCRIPTORS = 4096


class Ends:
    """The signals that end it, as a descriptor: a handler that set a flag would be late where the server has begun to wait."""

    def __init__(self) -> None:
        self.fd, told = os.pipe()
        for end in (self.fd, told):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # else nothing would be written to the pipe

    def take(self, server: Server) -> bool:
        """One came."""
        server.stopping = True
        return False


class Control:
    """Commands of the parent: {"do": "schedule" | "collect" | "state" | "keep", ...}; its end of the pipe closed: stop."""

    fd = 0

    def __init__(self) -> None:
        self._held = b""

    def take(self, server: Server) -> bool:
        """Read what came and obey; False at the end."""
        data = os.read(self.fd, 65536)
        if not data:
            server.stopping = True
            return False
        *lines, self._held = (self._held + data).split(b"\n")
        for line in lines:
            try:
                say(self._obey(server, orjson.loads(line)))
            except DynoError as problem:
                say({"error": str(problem), "exit_code": problem.exit_code})
        return True

    @staticmethod
    def _obey(server: Server, command: dict[str, Any]) -> dict[str, Any]:
        do = command["do"]
        if do == "schedule":
            server.schedule = Schedule().changed(command["schedule"])
        elif do == "keep":
            server.ledger.keeping = bool(command["chunks"])
        elif do == "collect":
            server.ledger.write(Path(command["folder"]))
        return server.state()


def say(message: dict[str, Any]) -> None:
    """One line to the parent."""
    sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
    sys.stdout.buffer.flush()


def main(argv: list[str] | None = None) -> int:
    """Serve until told to stop: the end of stdin with --control, else SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Schedule()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=default.ttft_ms)
    parser.add_argument("--gap-ms", type=float, default=default.gap_ms)
    parser.add_argument("--tokens-per-chunk", type=int, default=default.tokens_per_chunk)
    parser.add_argument("--jitter", type=float, default=0.0, help="share by which each time varies")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--early-head", action="store_true", help="send the head before the first token is due")
    parser.add_argument("--fault", choices=[str(fault) for fault in Fault])
    parser.add_argument("--fault-after", type=int, default=1, help="chunks sent before it")
    parser.add_argument("--fault-every", type=int, default=1, help="every so many requests")
    parser.add_argument("--stall-s", type=float, default=1.0)
    parser.add_argument("--idle-close-s", type=float, help="close idle connections after so long")
    parser.add_argument("--stamps", type=Path, help="folder for the stamps, written at the end")
    parser.add_argument("--control", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.control:
        die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    try:
        raise_descriptor_limit(_DESCRIPTORS)
        schedule = default.changed({field.name: getattr(args, field.name) for field in fields(Schedule)})
        server = Server(args.host, args.port, schedule, args.idle_close_s)
    except DynoError as problem:
        if args.control:
            say({"error": str(problem), "exit_code": problem.exit_code})
        else:
            sys.stderr.write(f"{problem}\n")
        return problem.exit_code
    gc.collect()
    gc.freeze()
    gc.disable()
    if args.control:
        server.listen_to(Control())
        say({"url": server.url})
    else:
        server.listen_to(Ends())
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
    server.run()
    if args.stamps is not None:
        args.stamps.mkdir(parents=True, exist_ok=True)
        server.ledger.write(args.stamps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
