"""Another machine's clock on ours: its offset, measured by an exchange, with the uncertainty that the exchange itself bounds.

The node reads its clock at some instant between our question and its answer, so (sent and received on our clock)

    offset = node - (sent + received) / 2,    true within (received - sent) / 2

however the time was split between the way there and the way back. Of many exchanges the one with the shortest round trip is
kept, as NTP does (RFC 5905, section 10, the clock filter).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from results.clock import NS_PER_MS, now_ns


@dataclass(frozen=True, slots=True)
class Reading:
    """At `node_ns` of the node's clock it was ahead of ours by `offset_ns`, true within `uncertainty_ns`."""

    node_ns: int
    offset_ns: int
    uncertainty_ns: int
    round_trips: int = 1


def read_offset(ask: Callable[[], int], round_trips: int, now: Callable[[], int] = now_ns) -> Reading:
    """The best of so many exchanges. `ask` gives the node's clock (ns), read while it was asked."""
    best: tuple[int, int, int] | None = None
    for _ in range(round_trips):
        sent = now()
        node = ask()
        received = now()
        if best is None or received - sent < best[2] - best[0]:
            best = sent, node, received
    assert best is not None
    sent, node, received = best
    return Reading(node, node - (sent + received) // 2, (received - sent + 1) // 2, round_trips)


@dataclass(slots=True)
class NodeClock:
    """The readings of one node's offset over a run, and the line through them.

    Where one offset explains them all, that of the shortest round trip is taken for the whole run, so that durations stay
    as they were measured; where the clocks have drifted apart it is drawn straight from reading to reading.
    """

    readings: list[Reading] = field(default_factory=list)

    def add(self, reading: Reading) -> None:
        """One more, later than those before."""
        self.readings.append(reading)

    @property
    def best(self) -> Reading:
        """That of the shortest round trip."""
        return min(self.readings, key=lambda r: r.uncertainty_ns)

    @property
    def drifts(self) -> bool:
        """Does no one offset lie within the uncertainty of every reading?"""
        low = max(r.offset_ns - r.uncertainty_ns for r in self.readings)
        high = min(r.offset_ns + r.uncertainty_ns for r in self.readings)
        return low > high

    @property
    def uncertainty_ns(self) -> int:
        """How far a converted stamp may be off, at the instants of the readings."""
        if self.drifts:
            return max(r.uncertainty_ns for r in self.readings)
        best = self.best.offset_ns
        return max(abs(r.offset_ns - best) + r.uncertainty_ns for r in self.readings)

    def to_node(self, ns: int) -> int:
        """An instant soon after the last reading, on the node's clock."""
        return ns + (self.readings[-1] if self.drifts else self.best).offset_ns

    def to_ours(self, stamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """The node's stamps (ns) on our clock, rounded to the ns."""
        if not self.drifts:
            steady: NDArray[np.int64] = stamps - self.best.offset_ns
            return steady
        # Floats hold the ns of a run, not those since the machine was started.
        start, first = self.readings[0].node_ns, self.readings[0].offset_ns
        at = np.array([r.node_ns - start for r in self.readings], float)
        offsets = np.array([r.offset_ns - first for r in self.readings], float)
        drift = np.rint(np.interp(stamps - start, at, offsets)).astype(np.int64)
        moved: NDArray[np.int64] = stamps - first - drift
        return moved

    def to_dict(self) -> dict[str, Any]:
        """For the run: offset, uncertainty and shortest round trip in ms, and the drift in parts per million where it shows."""
        first, last, best = self.readings[0], self.readings[-1], self.best
        drift = (last.offset_ns - first.offset_ns) / max(1, last.node_ns - first.node_ns) if self.drifts else None
        return {
            "offset_ms": best.offset_ns / NS_PER_MS,
            "uncertainty_ms": self.uncertainty_ns / NS_PER_MS,
            "shortest_round_trip_ms": 2 * best.uncertainty_ns / NS_PER_MS,
            "round_trips": sum(r.round_trips for r in self.readings),
            "drift_ppm": None if drift is None else drift * 1e6,
        }
