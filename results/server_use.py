"""What the server and its host said during a cell: maxima of gauges, growth of counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from results.clock import NS_PER_S
from results.events import Floats, Ints, Samples

_LONG_ENOUGH_S = 5.0
# CPU time is told in hundredths of a second.
_API_ENOUGH_S = 0.5

# Shown under the first name: the largest reading inside the cell of (source, metric).
MAXIMA = {
    "kv_usage_max": ("server", "kv_usage"),
    "kv_pool_bytes": ("server", "kv_pool_bytes"),
    "kv_capacity_tokens": ("server", "kv_capacity_tokens"),
    "kv_reserved_bytes_max": ("server", "kv_reserved_bytes"),
    "kv_allocated_bytes_max": ("server", "kv_allocated_bytes"),
    "kv_held_bytes_max": ("server", "kv_held_bytes"),
    "running_max": ("server", "running"),
    "waiting_max": ("server", "waiting"),
    "weight_bytes": ("server", "weight_bytes"),
    "acceptance_length": ("server", "acceptance_length"),
    "rss_bytes_max": ("host", "server_rss_bytes"),
    "host_cpus": ("host", "host_cpus"),
}
# Shown under the first name: how much (source, metric) grew over the cell.
COUNTERS = {
    "preemptions": ("server", "preemptions_total"),
    "prefix_hits": ("server", "prefix_hits_total"),
    "prefix_queries": ("server", "prefix_queries_total"),
    "prompt_tokens": ("server", "prompt_tokens_total"),
    "steps": ("server", "steps_total"),
    "step_s": ("server", "step_seconds_total"),
    "decodes": ("server", "decodes_total"),
    "drafts": ("server", "drafts_total"),
    "draft_tokens": ("server", "draft_tokens_total"),
    "accepted_tokens": ("server", "accepted_tokens_total"),
    "generation_tokens": ("server", "generation_tokens_total"),
    "cpu_s": ("host", "server_cpu_s"),
    "host_busy_s": ("host", "host_busy_s"),
    "api_thread_s": ("host", "server_api_thread_s"),
}


@dataclass(frozen=True, slots=True)
class Growth:
    """How much a counter grew from one reading to another, `seconds` apart.

    `covers` says that the first was read before the cell began and the last after it ended, so that all of the cell is in
    it. `value` is None where the counter fell (its server started over) or was read less than twice.
    """

    value: float | None = None
    covers: bool = False
    fell: bool = False
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ServerUse:
    """The `server` part of a cell's summary, and what the reason rules want to know of it."""

    numbers: dict[str, Any]
    growth: dict[str, Growth]

    @property
    def fell(self) -> str | None:
        """The server's counter that fell, if one did."""
        names = (COUNTERS[k][1] for k, g in self.growth.items() if g.fell and COUNTERS[k][0] == "server")
        return next(names, None)

    def foreign_cores(self, client_cpu_s: float | None) -> float | None:
        """Cores that neither the server nor the load client used, in the mean over the readings around the cell.

        None where the server's own use is not known (one that was not started by the run), and for cells too short to tell:
        the readings also hold the start of the load client, a good part of a second.
        """
        busy, own = self.growth["host_busy_s"], self.growth["cpu_s"]
        if busy.value is None or own.value is None or client_cpu_s is None or not busy.seconds or not own.seconds:
            return None
        if busy.seconds < _LONG_ENOUGH_S:
            return None
        return max(0.0, busy.value / busy.seconds - own.value / own.seconds - client_cpu_s / busy.seconds)

    @property
    def api_cores(self) -> float | None:
        """The share of its one core that the thread used which answers requests; None where that is not known, or too short
        a time was seen to tell."""
        used = self.growth["api_thread_s"]
        if used.value is None or not used.seconds or used.seconds < _API_ENOUGH_S:
            return None
        return used.value / used.seconds

    def covered(self, name: str) -> float | None:
        """A counter's growth where it is that of the whole cell and nothing else."""
        growth = self.growth[name]
        return growth.value if growth.covers else None


def server_use(samples: Samples, cell: tuple[int, int]) -> ServerUse:
    """Maxima and growth over [started, ended] of the cell. Counters grow over `counter_span_s`, the time between the
    readings used: less than the cell where it was not read on both sides."""
    numbers: dict[str, Any] = {}
    for name, where in MAXIMA.items():
        times, values = samples.series(*where)
        inside = values[(times >= cell[0]) & (times <= cell[1])]
        numbers[name] = _whole(float(inside.max())) if len(inside) else None
    growth = {name: counter_growth(*samples.spans(*where), *cell) for name, where in COUNTERS.items()}
    numbers |= {name: None if g.value is None else _whole(g.value) for name, g in growth.items()}
    if (told := acceptance_length(numbers["drafts"], numbers["accepted_tokens"])) is not None:
        numbers["acceptance_length"] = told
    spans = [growth[name].seconds for name in ("generation_tokens", "prompt_tokens", "cpu_s")]
    numbers["counter_span_s"] = next((s for s in spans if s is not None), None)
    return ServerUse(numbers, growth)


def acceptance_length(drafts: float | None, accepted: float | None) -> float | None:
    """Tokens a sequence gains a step: its own and the guesses that were kept. None where nothing was guessed."""
    return None if not drafts or accepted is None else 1.0 + accepted / drafts


def counter_growth(t0: Ints, t1: Ints, values: Floats, start: int, end: int) -> Growth:
    """From the last reading that was over by `start` (else the first) to the first begun after `end` (else the last)."""
    if len(values) < 2:
        return Growth()
    first = max(int(np.searchsorted(t1, start, side="right")) - 1, 0)
    last = min(int(np.searchsorted(t0, end, side="left")), len(values) - 1)
    if last <= first:
        return Growth()
    part = values[first : last + 1]
    seconds = float(t1[last] - t1[first]) / NS_PER_S
    if (np.diff(part) < 0).any():
        return Growth(fell=True, seconds=seconds)
    return Growth(float(part[-1] - part[0]), bool(t1[first] <= start and t0[last] >= end), False, seconds)


def _whole(value: float) -> float | int:
    """Counts and bytes come as floats from the samples; whole ones are shown as what they are."""
    return int(value) if value.is_integer() else value
