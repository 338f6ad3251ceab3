"""The steady window of a cell: where the load was held long enough, and nothing drifts.

    starts   2 x the longest E2E after the first send: the requests that were sent into an empty server are gone. The load
             goes on meanwhile, so it hands over from warm-up to window without a drain.
    ends     with the last send of a loop or a rate (after it slots stay empty), with the last whole wave of a batch
    lasts    at least 30 s and 10 x the median E2E; a locked loop and a batch are cut at whole cycles of their cohort
    drifts   where output tokens/s change by more than 5 % from end to end by a test that allows for autocorrelation
    overload where the queue of an open loop grows: then no latency is steady, however long it runs

The outcome may be that there is no steady state. A cell that is too short keeps whole-cell figures and says so. In it
tokens count by their own time, TTFT by the first token, E2E and TPOT by completion (`results.scope`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from results.clock import NS_PER_S
from results.events import MISSING, Floats, Ints, Samples
from results.phases import waves
from results.reason_rules import lock_bar
from results.report_format import number, percent
from results.scope import ScopeData
from results.statistics import Interval
from results.statistics_series import growth, series_mean, trend
from results.tokens import slot_first

WARM_UP_E2E, LEAST_S, LEAST_E2E = 2, 30.0, 10
DRIFT, DRIFT_CONFIDENCE = 0.05, 0.99
# Thirds of a window that differ by so much, where neighbours are too alike or cycles too few for a test, are no steady state
# either; two cycles a third at least.
WANDER, LEAST_IN_THIRDS = 0.10, 6
LEAST_BINS, MOST_BINS = 20, 60
# A queue that grows by fewer requests than this over the whole cell is none.
LEAST_GROWTH, GROWTH_BINS = 4, 41
CLOSED, VARYING = ("batch", "concurrency"), ("ramp", "schedule")


@dataclass(frozen=True, slots=True)
class Window:
    """`start` and `end` (ns, None for no window) with `why` there is none; `unsteady` and `overload` say what was seen to
    move, as evidence; `rate` is the mean of output tokens/s over bins of the window, with its interval."""

    start: int | None = None
    end: int | None = None
    why: str = ""
    unsteady: str = ""
    overload: str = ""
    rate: Interval | None = None
    drift: Interval | None = None

    @property
    def known(self) -> bool:
        return self.start is not None and self.end is not None


def steady_window(data: ScopeData, samples: Samples, lock_index: float | None = None, slots: int = 0) -> Window:
    """The window of a cell, or why it has none. `lock_index` is that of a closed loop of so many slots."""
    sent, e2e = data.requests.sent[data.requests.sent != MISSING], _e2e(data)
    if not len(sent) or not len(e2e):
        return Window(why="no request came to an end")
    if data.mode in VARYING:
        return Window(why=f"a {data.mode} holds no load: it changes by plan")
    held = data.end if data.mode == "batch" else int(sent.max())
    overload = _overload(data, samples, held)
    if overload:
        return Window(why="the load is more than the server can take", overload=overload)
    needed = max(LEAST_S, LEAST_E2E * float(np.median(e2e)) / NS_PER_S)
    start, end = data.start + WARM_UP_E2E * int(e2e.max()), held
    marks = _cycles(data, lock_index, slots)
    if marks is not None:
        inside = marks[(marks >= start) & (marks <= end)]
        start, end = (int(inside[0]), int(inside[-1])) if len(inside) > 1 else (end, end)
    lasts = max(end - start, 0) / NS_PER_S
    if lasts < needed:
        return Window(
            why=f"{number(max(lasts, 0.0))} s of held load from {WARM_UP_E2E} x the longest E2E on, a window needs "
            f"{number(needed)} s ({LEAST_S:.0f} s and {LEAST_E2E} x the median E2E)"
        )
    rates = _rates(data, start, end, float(np.median(e2e)), marks)
    drift, mean = trend(rates, DRIFT_CONFIDENCE), series_mean(rates)
    if unsteady := _unsteady(rates, drift):
        return Window(why="no steady state", unsteady=unsteady, drift=drift)
    return Window(start, end, rate=mean, drift=drift)


def _e2e(data: ScopeData) -> Ints:
    """ns from send to end of the requests that were answered; the shortened first ones of slots are none."""
    r = data.requests
    which = data.answered & (r.sent != MISSING) & (r.end != MISSING) & (r.end >= np.where(r.sent == MISSING, 0, r.sent))
    usual = which & ~data.shortened
    which = usual if usual.any() else which
    out: Ints = r.end[which] - r.sent[which]
    return out


def _cycles(data: ScopeData, lock_index: float | None, slots: int) -> Ints | None:
    """Where cohorts start, ns: of a batch each wave (and the end of the last one), of a locked loop each send of one slot;
    None where there is no cohort."""
    r = data.requests
    if data.mode == "batch":
        wave = waves(r, data.width)
        known = r.sent != MISSING
        firsts = [int(r.sent[known & (wave == w)].min()) for w in np.unique(wave[known])]
        return np.array([*firsts, data.end], dtype=np.int64)
    if data.mode != "concurrency" or lock_index is None or lock_index <= lock_bar(slots):
        return None
    first = slot_first(r)
    if not first.any():
        return None
    slot = r.slot[np.flatnonzero(first)[0]]
    return np.sort(r.sent[(r.slot == slot) & (r.sent != MISSING)])


def _rates(data: ScopeData, start: int, end: int, e2e: float, marks: Ints | None) -> Floats:
    """Output tokens/s by bins of the window: cycles of the cohort, else as many as it holds median E2Es, 20 to 60."""
    if marks is not None:
        edges = marks[(marks >= start) & (marks <= end)]
    else:
        bins = int(np.clip((end - start) / max(e2e, 1.0), LEAST_BINS, MOST_BINS))
        edges = np.linspace(start, end, bins + 1).astype(np.int64)
    # (start, end]: a token at an edge belongs to the bin before.
    at = np.searchsorted(edges, data.chunks.t, side="left") - 1
    inside = (at >= 0) & (at < len(edges) - 1)
    tokens = np.bincount(at[inside], weights=data.chunks.weight[inside], minlength=len(edges) - 1)
    out: Floats = tokens / np.maximum(np.diff(edges), 1) * NS_PER_S
    return out


def _unsteady(rates: Floats, drift: Interval) -> str:
    """What says that the output rate is not steady; empty where nothing does."""
    mean = float(rates.mean()) if len(rates) else 0.0
    if mean <= 0:
        return ""
    if drift.known and drift.estimate is not None and not drift.holds(0.0) and abs(drift.estimate) > DRIFT * mean:
        return (
            f"output tokens/s {'rise' if drift.estimate > 0 else 'fall'} by {percent(abs(drift.estimate) / mean)} from the start of "
            f"the window to its end ({percent((drift.low or 0) / mean)} to {percent((drift.high or 0) / mean)}, 99 % sure)"
        )
    if drift.known or len(rates) < LEAST_IN_THIRDS:
        return ""
    thirds = [float(part.mean()) for part in np.array_split(rates, 3)]
    spread = (max(thirds) - min(thirds)) / mean
    if spread <= WANDER:
        return ""
    told = ", ".join(number(v) for v in thirds)
    return f"output tokens/s of the window's thirds are {told} ({drift.refused})"


def _overload(data: ScopeData, samples: Samples, held: int) -> str:
    """What says that the queue of an open loop grows; empty where nothing does, and for loops, whose queue cannot."""
    if data.mode in CLOSED or held <= data.start:
        return ""
    # The first fifth fills an empty server.
    at = np.linspace(data.start + (held - data.start) // 5, held, GROWTH_BINS).astype(np.int64)
    for words, levels in (("waiting at the server", _waiting(data, samples, at)), ("in flight", _in_flight(data, at))):
        if levels is None:
            continue
        grown = growth(levels, DRIFT_CONFIDENCE)
        if grown.known and (grown.low or 0) > 0 and (grown.estimate or 0) >= LEAST_GROWTH:
            return (
                f"requests {words} grow from {levels[0]:.0f} to {levels[-1]:.0f} in {(at[-1] - at[0]) / NS_PER_S:.1f} s under a "
                f"held rate (99 % sure of {grown.low:.1f} or more)"
            )
    return ""


def _waiting(data: ScopeData, samples: Samples, at: Ints) -> Floats | None:
    """Requests waiting at the server at given times: by its steps, else by its gauge; None where neither tells enough."""
    if data.steps is not None and len(data.steps) >= len(at) and data.steps.tells("waiting"):
        return _held_at(data.steps.end, data.steps.waiting.astype(np.float64), at)
    times, values = samples.series("server", "waiting")
    if int(((times >= at[0]) & (times <= at[-1])).sum()) < len(at) // 2:
        return None
    return _held_at(times, values, at)


def _held_at(times: Ints, values: Floats, at: Ints) -> Floats:
    """A level that holds from each reading to the next."""
    out: Floats = values[np.clip(np.searchsorted(times, at, side="right") - 1, 0, len(values) - 1)]
    return out


def _in_flight(data: ScopeData, at: Ints) -> Floats:
    """Requests meant to be under way at given times: from the intended send on, so that a capped client's queue counts."""
    r = data.requests
    begun = np.where(r.intended != MISSING, r.intended, r.sent)
    begun, ended = np.sort(begun[begun != MISSING]), np.sort(r.end[r.end != MISSING])
    out: Floats = (np.searchsorted(begun, at, side="right") - np.searchsorted(ended, at, side="right")).astype(
        np.float64
    )
    return out


def steady_numbers(window: Window) -> dict[str, object]:
    """What summary.json keeps of it beside the figures: why there is no window, the mean rate and the drift with intervals."""

    def shown(found: Interval | None) -> dict[str, object] | None:
        if found is None:
            return None
        return {
            "value": found.estimate,
            "low": found.low,
            "high": found.high,
            "n": found.n,
            "effective_n": found.effective_n,
            "confidence": found.confidence,
            "refused": found.refused or None,
        }

    return {
        "why": window.why or None,
        "output_tokens_per_s": shown(window.rate),
        "drift_tokens_per_s": shown(window.drift),
    }
