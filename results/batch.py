"""The four numbers of a batch (offered, in flight, running, decodes per step), and whether a closed loop has locked."""

from __future__ import annotations

from typing import Any

import numpy as np

from results.events import MISSING, Floats, Ints, Requests, Samples
from results.step_log import ChainedSteps, chained
from results.truth import Steps

# With more slots than this, the lock index uses the first so many as reference: the mean over slots has settled by then.
_REFERENCE_SLOTS = 64
# A gauge read less often than this in a cell says little about its mean.
_ENOUGH_READINGS = 10


def in_flight_mean(requests: Requests, start: int, end: int) -> float | None:
    """Requests in flight at the client (sent, not ended), time-weighted over [start, end]."""
    known = (requests.sent != MISSING) & (requests.end != MISSING)
    if end <= start or not known.any():
        return None
    low = np.clip(requests.sent[known], start, end)
    high = np.clip(requests.end[known], start, end)
    return float(np.maximum(high - low, 0).sum() / (end - start))


def gauge_mean(times: Ints, values: Floats, start: int, end: int) -> float | None:
    """A gauge, time-weighted over [start, end]: each reading holds until the next; the first also before itself."""
    if end <= start or not len(times):
        return None
    before = max(int(np.searchsorted(times, start, side="right")) - 1, 0)
    after = int(np.searchsorted(times, end, side="left"))
    times, values = times[before : max(after, before + 1)], values[before : max(after, before + 1)]
    if times[0] > end:
        return None
    edges = np.concatenate([[start], np.clip(times[1:], start, end), [end]])
    return float((np.diff(edges) * values).sum() / (end - start))


def decodes_per_step(steps: Steps | None) -> float | None:
    """Sequences decoded together, time-weighted over the steps that decode."""
    if steps is None:
        return None
    doing = steps.decodes > 0
    weight = (steps.end - steps.start)[doing]
    if not len(weight):
        return None
    return float(np.average(steps.decodes[doing], weights=weight if weight.sum() > 0 else None))


def running_mean(steps: Steps | None, start: int, end: int) -> float | None:
    """Sequences the engine works on together (prefilling or decoding), time-weighted over [start, end]: 0 between steps."""
    if steps is None or not len(steps) or end <= start:
        return None
    time = np.clip(steps.end, start, end) - np.clip(steps.start, start, end)
    return float((time * steps.running).sum() / (end - start))


def batch_numbers(
    offered: float | None,
    requests: Requests,
    samples: Samples,
    steps: Steps | None,
    span: tuple[int, int],
    cell: tuple[int, int],
) -> dict[str, Any]:
    """The `batch` part of a cell's summary. `span` is the scope, `cell` [started, ended] of its record.

    `running` comes from the engine's own steps where it tells them, else from its gauge. `readings` holds, best first, all
    that the cell's realised batch can be read from (the gauge only where it was read often enough); `realised` is the best
    of them. A figure of several cells takes the best that all of them have. Each is a mean over the whole span.
    """
    times, values = samples.series("server", "running")
    readings = int(((times >= cell[0]) & (times <= cell[1])).sum())
    told, gauge = running_mean(steps, *span), gauge_mean(times, values, *span)
    running = gauge if told is None else told
    in_flight = in_flight_mean(requests, *span)
    by_steps = "steps" if steps is None else steps.source
    # What engines with a log of their own can be held against, whatever else this one tells.
    chain = None if steps is None or not len(steps) else running_mean(chained(steps, requests), *span)
    found = {
        by_steps: told,
        ChainedSteps.source: chain,
        "gauge": gauge if readings >= _ENOUGH_READINGS else None,
        "in_flight": in_flight,
    }
    known = {name: value for name, value in found.items() if value is not None}
    source = next(iter(known), None)
    return {
        "offered": offered,
        "in_flight": in_flight,
        "running": running,
        "decodes_per_step": decodes_per_step(steps),
        "running_source": by_steps if told is not None else "gauge" if running is not None else None,
        "running_readings": readings,
        "readings": known,
        "realised": known[source] if source else None,
        "realised_source": source,
    }


def lock_index(requests: Requests) -> tuple[float | None, int]:
    """How far the slots of a closed loop send together: (index, number of phases it rests on).

    Each send of a slot falls somewhere between two sends of any other slot: its phase in that slot's cycle, 0 to 1. The
    index is the mean of cos(2 pi phase) over all pairs: 1 when all slots send at the same instants for ever, about 0 when
    they are spread, negative (shown as 0) when they keep apart. Each slot's first send is the common start and is left out.
    """
    known = (requests.sent != MISSING) & (requests.slot >= 0)
    slots = np.unique(requests.slot[known])
    sends = [np.sort(requests.sent[known & (requests.slot == slot)])[1:] for slot in slots]
    total, count = 0.0, 0
    for own, cycle in enumerate(sends[:_REFERENCE_SLOTS]):
        others = [s for other, s in enumerate(sends) if other != own]
        if len(cycle) < 2 or not others:
            continue
        when = np.concatenate(others)
        # The nearest cycle before and after, one more on either side so that simultaneous first and last sends count.
        when = when[(when >= cycle[0]) & (when <= cycle[-1])]
        at = np.clip(np.searchsorted(cycle, when, side="right") - 1, 0, len(cycle) - 2)
        length = cycle[at + 1] - cycle[at]
        usable = length > 0
        phase = (when[usable] - cycle[at][usable]) / length[usable]
        total += float(np.cos(2 * np.pi * phase).sum())
        count += len(phase)
    return (max(0.0, total / count), count) if count else (None, 0)
