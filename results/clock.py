"""The one clock: int64 nanoseconds of the monotonic clock, with wall-clock pairs to convert what others stamp.

On Linux CLOCK_MONOTONIC is common to all processes of a machine, so stamps of the load worker, the samplers and a
local server can be compared without an exchange.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


# The monotonic clock now, in ns. The function itself and no call of it: a load client reads it for every token.
now_ns = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class ClockPair:
    """One instant on both clocks, in ns. `uncertainty_ns` is half the time the reading itself took."""

    monotonic_ns: int
    wall_ns: int
    uncertainty_ns: int

    @classmethod
    def read(cls) -> ClockPair:
        """Read both clocks; of several brackets keep the tightest."""
        best: ClockPair | None = None
        for _ in range(5):
            before = time.monotonic_ns()
            wall = time.time_ns()
            after = time.monotonic_ns()
            pair = cls((before + after) // 2, wall, (after - before + 1) // 2)
            if best is None or pair.uncertainty_ns < best.uncertainty_ns:
                best = pair
        assert best is not None
        return best

    def to_monotonic(self, wall_ns: int) -> int:
        """A wall-clock stamp taken near this pair, on the monotonic clock."""
        return self.monotonic_ns + (wall_ns - self.wall_ns)

    def to_wall(self, monotonic_ns: int) -> int:
        """A monotonic stamp as wall-clock ns since the epoch."""
        return self.wall_ns + (monotonic_ns - self.monotonic_ns)
