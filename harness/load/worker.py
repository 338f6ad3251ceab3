"""The load worker, a process of its own: `python -m harness.load.worker PLAN.json`.

It writes requests.parquet, chunks.parquet and load.json into the plan's `out_dir`.
stdout: JSON lines, progress a few times a second, then one with "finished" or one with "error".
stdin: the line `stop` cancels what is in flight and keeps what was measured; `start NS` begins a plan that waits for it, at
that instant of the monotonic clock; the end of stdin means that the parent is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from harness.load.client import Client
from harness.load.compiled import not_loaded
from harness.load.counts import Counts
from harness.load.plan import RESULT_FILE, LoadPlan
from harness.load.pool import raise_descriptor_limit
from harness.load.recorder import EventRecorder
from results.clock import NS_PER_S, now_ns
from results.errors import DynoError, UsageError
from results.files import to_json, write_atomic

_PR_SET_PDEATHSIG = 1
# A handful of chunks may miss their stamp (the clock stepped) without making the others doubtful.
KERNEL_SHARE = 0.99


class _Channel:
    """The line to the parent. Progress is dropped when the parent does not read; the last word is not."""

    def __init__(self) -> None:
        self._client: Client | None = None
        self._began = now_ns()
        self._held = b""
        with contextlib.suppress(OSError):
            os.set_blocking(1, False)

    def attach(self, client: Client) -> None:
        """Listen for `stop` in the client's own loop (a stdin that cannot be polled, such as a file, says nothing)."""
        self._client = client
        with contextlib.suppress(PermissionError):
            client.poller.add(0, 1, self)

    def handle(self, mask: int) -> None:
        data = os.read(0, 4096)
        if not data:
            os._exit(1)
        self._held += data
        *lines, self._held = self._held.split(b"\n")
        if self._client is None:
            return
        for line in lines:
            word, _, rest = line.strip().partition(b" ")
            if word == b"stop":
                self._client.stop()
            elif word == b"start" and rest.isdigit():
                self._client.start_at = int(rest)

    def ready(self) -> None:
        """Tell the parent that the connections are open, and that `start` is waited for."""
        self._say({"ready": True})

    def progress(self, counts: Counts) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(1, self._line(counts))

    def last(self, message: dict[str, Any]) -> None:
        """The last word: whatever the parent does, it must be able to read it."""
        self._say(message)

    def _say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            os.set_blocking(1, True)
        # A parent that is gone cannot be told anything.
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
            sys.stdout.buffer.flush()
        with contextlib.suppress(OSError):
            os.set_blocking(1, False)

    def finished(self, counts: Counts) -> None:
        self.last({"finished": True, **orjson.loads(self._line(counts))})

    def _line(self, counts: Counts) -> bytes:
        started = self._client.started if self._client is not None else 0
        elapsed = (now_ns() - started) / NS_PER_S if started else 0.0
        fields = ("issued", "done", "ok", "failed", "in_flight", "tokens")
        return orjson.dumps({**{f: getattr(counts, f) for f in fields}, "elapsed_s": round(elapsed, 3)}) + b"\n"


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux); the end of stdin says the same everywhere."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def carry_out(plan: LoadPlan, channel: _Channel) -> Counts:
    """Send the plan's requests and write what came of them. Raises DynoError."""
    out_dir = Path(plan.out_dir)
    key = plan.api_key()
    most = plan.most_in_flight
    spare = raise_descriptor_limit(
        len(plan.requests) if most is None else min(most, len(plan.requests)), needed=most is not None
    )
    try:
        bodies = map_bodies(plan.bodies_path)
    except OSError as error:
        raise UsageError(f"Cannot read the request bodies {plan.bodies_path}: {error.strerror or error}.") from error
    recorder = EventRecorder(plan, out_dir)
    client = Client(plan, bodies, key, recorder, channel.progress, spare)
    channel.attach(client)
    client.prepare()
    if plan.wait_for_start:
        channel.ready()
    # From here on nothing makes reference cycles, and a collection would only delay reads.
    gc.collect()
    gc.freeze()
    gc.disable()
    if plan.wait_for_start:
        client.await_start()
    cpu = time.process_time_ns()
    began = now_ns()
    client.run()
    client.close()
    recorder.commit()
    counts, pool = client.counts, client.pool
    result = {
        "started": client.started,
        "ended": client.ended,
        "stopped": client.stopped,
        "issued": counts.issued,
        "outcomes": recorder.outcomes,
        "client": {
            "cpu_s": (time.process_time_ns() - cpu) / NS_PER_S,
            "wall_s": (now_ns() - began) / NS_PER_S,
            "reader": client.reader.name,
            "parts_not_loaded": not_loaded,
            "receive_stamps": receive_stamps(recorder.chunks, recorder.lags, client.kernel_stamps),
            "stamps_disbelieved": client.clock.disbelieved,
            "max_in_flight": counts.max_in_flight,
            "connections_opened": pool.opened,
            "closed_while_idle": pool.closed_while_idle,
            "replaced_while_idle": pool.replaced,
            "retries": counts.retries,
            "not_streamed": counts.not_streamed,
            "coalesced_events": counts.coalesced_events,
            "usage_disagrees": counts.usage_disagrees,
            "ended_by_plan": counts.ended_by_plan,
            "no_done": counts.no_done,
            "held_by_cap": client.held,
            "ran_out_of_requests": client.ran_out,
            "descriptor_cap": spare,
            "proxy_used": False,
        },
    }
    write_atomic(out_dir / RESULT_FILE, to_json(result))
    return counts


def map_bodies(path: Path) -> bytes | mmap.mmap:
    """The request bodies without a copy of their own: they may be more than there is memory for."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def receive_stamps(chunks: int, lags: int, promised: bool) -> str:
    """Where the arrival of chunks was read: `kernel`, `read` (by the client), or `mixed`. `lags` of `chunks` have a kernel stamp.

    A system may accept the option and give no stamps; its promise has to do only where no chunk came.
    """
    if not chunks:
        return "kernel" if promised else "read"
    if not lags:
        return "read"
    return "kernel" if lags >= KERNEL_SHARE * chunks else "mixed"


def main(argv: list[str]) -> int:
    """Exit status: 0 when what was measured is written, else the error's own."""
    if len(argv) != 1:
        sys.stderr.write("usage: python -m harness.load.worker PLAN.json\n")
        return 2
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    _die_with_parent()
    channel = _Channel()
    try:
        counts = carry_out(LoadPlan.load(Path(argv[0])), channel)
    except DynoError as error:
        channel.last({"error": str(error), "exit_code": error.exit_code, "kind": type(error).__name__})
        return error.exit_code
    channel.finished(counts)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
