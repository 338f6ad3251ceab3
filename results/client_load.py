"""What a cell asked of its client: chunks a second and streams of a worker, beside the machine's calibration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from results.clock import NS_PER_S
from results.events import Ints

_LEAST_NS = NS_PER_S // 10


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """What a cell asked of each of its client's workers (calibration is of one), and the calibration of the machine it ran
    on (None: there was none)."""

    chunks_per_s: float
    streams: float | None
    ceiling: Mapping[str, Any] | None


def client_load(client: Mapping[str, Any], arrivals: Ints, worker: Ints) -> ClientLoad | None:
    """From a cell's client record, the arrivals (ns) of its chunks and the worker of each request; None where the record does
    not speak of it."""
    if "ceiling" not in client:
        return None
    ceiling, streams = client["ceiling"], client.get("max_in_flight")
    workers = max(1, len(np.unique(worker)))
    return ClientLoad(
        chunks_per_s=busiest_second(arrivals) / workers,
        streams=streams / workers if isinstance(streams, int) else None,
        ceiling=ceiling if isinstance(ceiling, Mapping) else None,
    )


def busiest_second(stamps: Ints) -> float:
    """Chunks per second in the busiest second (by the clock, from the first); over all of a shorter time."""
    if not len(stamps):
        return 0.0
    since = stamps - stamps.min()
    span = int(since.max())
    if span < NS_PER_S:
        return len(stamps) * NS_PER_S / max(span, _LEAST_NS)
    return float(np.bincount(since // NS_PER_S).max())
