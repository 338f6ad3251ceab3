"""The load client over a long time: does its memory grow, is a request lost, does a connection or descriptor leak?

    python benchmarks/soak_client.py [--minutes 20] [--streams 500] [--json]

A closed loop against a truth server, 500 tokens a request, 20 ms between tokens. Resident memory is read every second,
without the pages of files that are mapped (the bodies to send are, and the system takes them back when it likes); its slope
is the median of the slopes between any two readings after the first five minutes (or the first quarter, if that is
shorter), which a short dip does not move; it is judged from 20 minutes on, since buffers fill at first. Exit code 1 when
anything is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import psutil
from scipy.stats import theilslopes

from harness.calibration.level import body
from harness.load.build import PlannedBody, anti_lock_lengths, build_plan
from harness.load.process import LoadProcess
from harness.loads import ConcurrencyLoad
from harness.truth.process import TruthServer
from harness.truth.schedule import Schedule

MIB = 1 << 20
MOST_SLOPE_MIB = 1.0
SETTLE_S = 300.0


@dataclass(slots=True)
class Soak:
    """What was seen. `samples`: (seconds, resident bytes of its own, open descriptors, connections at the server)."""

    minutes: float
    streams: int
    issued: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    answered_by_server: int = 0
    tokens_by_server: int = 0
    lost_by_server: int = 0
    connections_opened: int = 0
    connections_left: int = 0
    cpu_us_per_token: float | None = None
    samples: list[tuple[float, int, int, int]] = field(default_factory=list)

    def settled(self) -> list[tuple[float, int, int, int]]:
        """Samples after the start has passed, before the end begins (when slots have nothing more to send)."""
        begin = min(SETTLE_S, self.minutes * 60 / 4)
        return [sample for sample in self.samples if begin <= sample[0] and sample[3] >= self.streams]

    @property
    def judged(self) -> bool:
        """Whether it is long enough for the slope to be more than the filling of buffers."""
        return self.minutes * 60 / 4 >= SETTLE_S

    def slope_mib(self) -> float | None:
        """Growth of the memory in MiB a minute; None from too few samples."""
        settled = np.array([sample[:2] for sample in self.settled()], dtype=float)
        if len(settled) < 3:
            return None
        return float(theilslopes(settled[:, 1] / MIB, settled[:, 0] / 60).slope)

    def faults(self) -> list[str]:
        """What is not as it should be, in words."""
        found = []
        slope = self.slope_mib()
        if slope is None:
            found.append("too few samples of the memory")
        elif self.judged and slope >= MOST_SLOPE_MIB:
            found.append(f"the memory grows by {slope:.2f} MiB a minute")
        if self.outcomes.get("ok", 0) != self.issued or not self.issued:
            found.append(f"of {self.issued} requests these came back: {self.outcomes}")
        if self.answered_by_server != self.issued or self.lost_by_server:
            found.append(
                f"the server answered {self.answered_by_server} of {self.issued} in full, lost {self.lost_by_server}"
            )
        if self.connections_opened != self.streams:
            found.append(f"{self.connections_opened} connections were opened for {self.streams} streams")
        if self.connections_left:
            found.append(f"{self.connections_left} connections are left at the server")
        descriptors = {sample[2] for sample in self.settled()}
        if len(descriptors) > 1 and max(descriptors) > min(descriptors) + 2:
            found.append(f"open descriptors went from {min(descriptors)} to {max(descriptors)}")
        return found


def soak(minutes: float, streams: int, *, gap_ms: float = 20.0, tokens: int = 500) -> Soak:
    """Run it. The number of requests is chosen so that it takes about `minutes`."""
    one_s = (100.0 + gap_ms * tokens) / 1000
    rounds = max(2, round(minutes * 60 / one_s))
    count = streams * rounds
    lengths = anti_lock_lengths([tokens] * count, streams, 0)
    seen = Soak(minutes, streams)
    with TruthServer(Schedule(gap_ms=gap_ms)) as server, tempfile.TemporaryDirectory(prefix="dyno-soak-") as name:
        server.keep_chunks(False)
        folder = Path(name)
        out = folder / "out"
        out.mkdir()
        bodies = (PlannedBody(f"r{i}", body(n, prompt=[1, 2, 3]), 3, n) for i, n in enumerate(lengths))
        load = ConcurrencyLoad(concurrency=streams, requests=count)
        plan = build_plan(load, bodies, url=server.url, folder=folder / "plan")
        with LoadProcess() as worker:
            worker.start(plan, out)
            assert worker.pid is not None
            process = psutil.Process(worker.pid)
            began = time.monotonic()
            while not worker.finished:
                worker.poll()
                try:
                    memory, descriptors = process.memory_info(), process.num_fds()
                except psutil.Error:
                    break
                own = memory.rss - memory.shared
                seen.samples.append((time.monotonic() - began, own, descriptors, server.state()["connections"]))
                time.sleep(1.0 if minutes >= 1 else 0.05)
            result = worker.wait(120)
        state = server.state()
        deadline = time.monotonic() + 10
        while state["connections"] and time.monotonic() < deadline:
            time.sleep(0.05)
            state = server.state()
    seen.issued, seen.outcomes = result.issued, {k: v for k, v in result.outcomes.items() if v}
    seen.answered_by_server = state["by_outcome"].get("done", 0)
    seen.lost_by_server = state["by_outcome"].get("lost", 0)
    seen.tokens_by_server = state["tokens"]
    seen.connections_opened = int(result.client["connections_opened"])
    seen.connections_left = state["connections"]
    seen.cpu_us_per_token = float(result.client["cpu_s"]) * 1e6 / max(state["tokens"], 1)
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--gap-ms", type=float, default=20.0)
    parser.add_argument("--json", action="store_true", help="print everything, samples too, as JSON")
    args = parser.parse_args()
    seen = soak(args.minutes, args.streams, gap_ms=args.gap_ms, tokens=args.tokens)
    faults, slope = seen.faults(), seen.slope_mib()
    if args.json:
        print(json.dumps({**asdict(seen), "slope_mib_per_minute": slope, "faults": faults}))
    else:
        rss = [sample[1] / MIB for sample in seen.settled()] or [float("nan")]
        took = seen.samples[-1][0] if seen.samples else 0.0
        print(
            f"{seen.streams} streams, {took:.0f} s, {seen.issued:,} requests, {seen.tokens_by_server:,} tokens: {seen.outcomes}"
        )
        grows = f"{float('nan') if slope is None else slope:+.3f} MiB a minute"
        short = "" if seen.judged else f" (buffers still fill: judged from {4 * SETTLE_S / 60:g} minutes on)"
        print(f"memory {min(rss):.1f} to {max(rss):.1f} MiB, {grows}{short}")
        print(
            f"{seen.connections_opened} connections opened, {seen.connections_left} left; {seen.cpu_us_per_token:.1f} us a token"
        )
        print("\n".join(f"NOT AS IT SHOULD BE: {fault}" for fault in faults) or "all as it should be")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
