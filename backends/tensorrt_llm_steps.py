"""TensorRT-LLM's log as steps: with `print_iter_log` its loop writes a line each time it comes round.

    [07/22/2026-00:00:00] [TRT-LLM] [I] [_torch][RANK 0] iter = 12, global_rank = 0, rank = 0, currank_total_requests = 1/1,
    host_step_time = 5.02ms, prev_device_step_time = 4.98ms, timestamp = 2026-07-22 00:00:00, num_scheduled_requests: 3, states =
    {'num_ctx_requests': 1, 'num_ctx_tokens': 24, 'num_generation_tokens': 2}

(Order and spelling differ between versions; 1.0 has `elapsed_time = 0.005s` and no device time.) The line tells of the step just
behind it; the device's time is that of the step before. Its own stamp has whole seconds, in the zone of its container.

So when each step ended is rebuilt from its times: the loop's times add up to a clock c that falls behind, as what the line itself
costs (it waits for the device's events) is in none of them; evenly, it is assumed. With the stamp s of whole seconds, each line
says s <= a + b c < s + 1 s. Of all a and b that agree with every line the middle is taken; how far the others are from it is
the uncertainty. Where no a and b agree, or they leave too much open (a cell of a second or two), nothing is told.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from results.clock import NS_PER_MS, NS_PER_S
from results.logged_steps import LONGEST_NS, LoggedStep, LoggedSteps

_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_ITERATION = re.compile(r"\biter = (\d{1,18}), ")
_RANK = re.compile(r"\bglobal_rank = (\d+)")
_HOST = re.compile(rf"\b(?:host_step_time = {_NUMBER}ms|elapsed_time = {_NUMBER}s)")
_DEVICE = re.compile(rf"\bprev_device_step_time = {_NUMBER}ms")
_STAMP = re.compile(r"\btimestamp = (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_SCHEDULED = re.compile(r"\bnum_scheduled_requests\b\D{1,4}(\d{1,9})\b")
_STATE = re.compile(r"'num_(ctx_requests|ctx_tokens|generation_tokens)': (?:tensor\(\[?)?(\d{1,9})\b")
Floats = NDArray[np.float64]
# What passes outside of the loop's own times is less than this part of them; stamps may be off by so much (a busy host).
_FASTEST, _MOST_OFF_S, _MOST_UNCERTAIN_S = 1.25, 0.05, 0.1
_QUARTER_NS, _WIDEST_ZONE_NS = 15 * 60 * NS_PER_S, 15 * 3600 * NS_PER_S
# The last line of a cell is read within this time of its stamp.
_RECENT_NS = 7 * 60 * NS_PER_S


@dataclass(frozen=True, slots=True)
class _Line:
    step: int
    stamp: int
    host_ns: int
    device_ns: int | None
    prefills: int
    prefill_tokens: int
    decodes: int


def logged_steps(lines: Iterable[str], now_wall_ns: int) -> LoggedSteps | str:
    """The steps of these lines, or why they cannot be placed in time."""
    found = list(_lines(lines))
    if not found:
        return LoggedSteps()
    elapsed = np.cumsum([line.host_ns for line in found]) / NS_PER_S
    clock = _clock(elapsed, np.array([line.stamp for line in found]) / NS_PER_S)
    if isinstance(clock, str):
        return clock
    zone = _zone(now_wall_ns - found[-1].stamp)
    if zone is None:
        return "the lines of its steps are not stamped with the time of now, in any zone"
    ends = [round(at * NS_PER_S) + zone for at in (clock.offset + clock.rate * elapsed).tolist()]
    told = LoggedSteps()
    for at, line in enumerate(found):
        if not line.prefills and not line.decodes:  # nothing to do: it only says when the next one began
            continue
        before, uncertain = ends[at - 1] if at else None, round(clock.uncertain * NS_PER_S)
        # The next line may have been one that cannot be read: then nobody tells this step's time on the device.
        after = found[at + 1] if at + 1 < len(found) else None
        device = after.device_ns if after is not None and after.step == line.step + 1 else None
        held = (line.prefills, line.prefill_tokens, line.decodes)
        told.append(LoggedStep(line.step, before, ends[at], uncertain, *held, device))
    return told


@dataclass(frozen=True, slots=True)
class _Clock:
    """Seconds since the epoch of a line: offset + rate x (the loop's seconds until then), give or take `uncertain`."""

    offset: float
    rate: float
    uncertain: float


def _clock(elapsed: Floats, stamps: Floats) -> _Clock | str:
    """The clock that agrees with every stamp of whole seconds. `elapsed` rises from line to line."""
    from scipy.optimize import linprog  # slow to load, and only wanted where a log has steps

    base = float(stamps[0])
    # Of the lines with one stamp the first says the most about its lower end, the last about its upper one.
    opens = np.flatnonzero(np.diff(stamps, prepend=-1.0))
    closes = np.append(opens[1:], len(stamps)) - 1
    unknowns = [[-1.0, -at, -1.0] for at in elapsed[opens]] + [[1.0, at, -1.0] for at in elapsed[closes]]
    limits = [base - s for s in stamps[opens]] + [s + 1.0 - base for s in stamps[closes]]
    bounds = [(None, None), (1.0, _FASTEST), (0.0, None)]

    def best(weights: list[float], slack: float | None = None) -> float:
        limited = [*bounds[:2], (0.0, slack)]
        found = linprog(weights, A_ub=unknowns, b_ub=limits, bounds=limited, method="highs")
        return float(found.fun) if found.success and found.fun is not None else math.inf

    off = best([0.0, 0.0, 1.0])
    if off > _MOST_OFF_S:
        return "the whole seconds and the step times of its lines contradict each other: a clock was set, or the loop stood still"
    first, last = float(elapsed[0]), float(elapsed[-1])
    ends = []
    for at in (first, last):
        low, high = best([1.0, at, 0.0], off + 1e-6), -best([-1.0, -at, 0.0], off + 1e-6)
        ends.append(((low + high) / 2, (high - low) / 2))
    uncertain = max(half for _, half in ends) + off
    if not uncertain <= _MOST_UNCERTAIN_S:
        return f"when its steps ended is known to {uncertain:.1g} s only, as its lines carry whole seconds: let the cell run for longer"
    (start, _), (end, _) = ends
    rate = (end - start) / (last - first) if last > first else 1.0
    # What the lines added is taken to be even in time. Were it even by the line, ends would lie off by the difference of the two,
    # and the line through the stamps by as much again at either end.
    share = np.arange(len(elapsed)) / max(len(elapsed) - 1, 1)
    apart = np.abs(share * (last - first) - (elapsed - first)).max()
    uneven = (rate - 1.0) * max(3.0 * float(apart), (last - first) / math.sqrt(len(elapsed)))
    return _Clock(base + start - rate * first, rate, uncertain + uneven)


def _lines(lines: Iterable[str]) -> Iterator[_Line]:
    """What the lines of the first rank say; a line that lacks a part, or in which one cannot be read, is none."""
    for line in lines:
        step, host, stamp = _ITERATION.search(line), _host_ns(line), _stamp_ns(line)
        rank = _RANK.search(line)
        if step is None or host is None or stamp is None or (rank is not None and rank[1] != "0"):
            continue
        state = {name: int(value) for name, value in _STATE.findall(line)}
        scheduled, device = _SCHEDULED.search(line), _DEVICE.search(line)
        prefills = state.get("ctx_requests", 0)
        yield _Line(
            step=int(step[1]),
            stamp=stamp,
            host_ns=host,
            device_ns=_ns(device[1], NS_PER_MS) if device else None,
            prefills=prefills,
            prefill_tokens=state.get("ctx_tokens", 0),
            decodes=max(int(scheduled[1]) - prefills, 0) if scheduled else state.get("generation_tokens", 0),
        )


def _host_ns(line: str) -> int | None:
    found = _HOST.search(line)
    if found is None:
        return None
    return _ns(found[1], NS_PER_MS) if found[1] else _ns(found[2], NS_PER_S)


def _ns(number: str, unit: int) -> int | None:
    """None for a time that no step takes."""
    ns = float(number) * unit
    return round(ns) if ns <= LONGEST_NS else None


def _stamp_ns(line: str) -> int | None:
    """None where there is none, or a day that no calendar has."""
    found = _STAMP.search(line)
    try:
        return None if found is None else int(datetime.fromisoformat(f"{found[1]}+00:00").timestamp()) * NS_PER_S
    except ValueError:
        return None


def _zone(late_ns: int) -> int | None:
    """What the stamps' zone is off, in ns to add: whole quarters of an hour. None where what is left is no small lateness."""
    zone = round(late_ns / _QUARTER_NS) * _QUARTER_NS
    return zone if abs(late_ns - zone) <= _RECENT_NS and abs(zone) <= _WIDEST_ZONE_NS else None
