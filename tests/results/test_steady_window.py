"""Steady windows on cells of known course: steady, short, drifting, throttled, overloaded, locked."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.cell_summary import summarise
from results.clock import NS_PER_S
from results.events import Chunks, Requests, Samples
from results.scope import ScopeData, scope_data
from results.tokens import token_chunks
from results.window import LEAST_S, Window, steady_window
from tests.results.builders import plain_record
from tests.results.simulation import Schedule, chunk_rows, request_rows, simulate

Rows = list[dict[str, Any]]
STAMPS = ("intended", "queued", "sent", "first_byte", "first_token", "last_token", "end")
SLOW = Schedule(step_ns=100_000_000, per_sequence_ns=2_000_000)
LOOP = {"mode": "concurrency", "concurrency": 4, "requests": 160}


@cache
def loop() -> tuple[Rows, Rows]:
    """About 70 s of a closed loop of 4 slots and varying lengths; requests take about 1.7 s each."""
    draw = np.random.default_rng(1)
    lengths = [(64, int(n)) for n in draw.integers(10, 22, LOOP["requests"])]
    sim = simulate(LOOP, lengths, SLOW, 10**9)
    return request_rows(sim), chunk_rows(sim)


def warped(rows: tuple[Rows, Rows], course: Callable[[float], float]) -> tuple[Rows, Rows]:
    """The same cell on a server whose time runs otherwise: second t of the cell comes at course(t)."""

    def moved(stamp: int | None) -> int | None:
        return None if stamp is None else 10**9 + round(course((stamp - 10**9) / NS_PER_S) * NS_PER_S)

    requests = [{**row, **{name: moved(row[name]) for name in STAMPS}} for row in rows[0]]
    return requests, [{**row, "t": moved(row["t"])} for row in rows[1]]


def scope(rows: tuple[Rows, Rows], mode: str = "concurrency", width: int = 4) -> ScopeData:
    table = Requests.of(rows[0])
    end = max(row["end"] for row in rows[0])
    data = scope_data(table, token_chunks(table, Chunks.of(rows[1])), None, cell=(0, end + 1), mode=mode, width=width)
    assert data is not None
    return data


def window(rows: tuple[Rows, Rows], mode: str = "concurrency", samples: Rows | None = None) -> Window:
    return steady_window(scope(rows, mode), Samples.of(samples or []))


def summary(rows: tuple[Rows, Rows], load: dict[str, Any], samples: Rows | None = None) -> dict[str, Any]:
    record = plain_record(load, ended_s=1000.0)
    return summarise(record, {}, None, Requests.of(rows[0]), Chunks.of(rows[1]), Samples.of(samples or []), None)


def codes(cell: dict[str, Any], severity: str = "suspect") -> set[str]:
    return {reason["code"] for reason in cell["reasons"] if reason["severity"] == severity}


def test_a_steady_loop_has_a_window_between_warm_up_and_drain() -> None:
    rows = loop()
    found, data = window(rows), scope(rows)
    assert found.start is not None
    assert found.end is not None
    longest = max(row["end"] - row["sent"] for row in rows[0])
    assert found.start - data.start == 2 * longest
    assert found.end == max(row["sent"] for row in rows[0])
    assert (found.end - found.start) / NS_PER_S >= LEAST_S
    cell = summary(rows, LOOP)
    assert cell["verdict"] == "VALID"
    assert cell["window"]["duration_s"] == pytest.approx((found.end - found.start) / NS_PER_S)
    # The whole cell has the ramp and the drain in it, so it reads low.
    assert cell["window"]["output_tokens_per_s"] > cell["whole"]["output_tokens_per_s"]
    rate = cell["steady"]["output_tokens_per_s"]
    assert rate["low"] <= cell["window"]["output_tokens_per_s"] <= rate["high"]


def test_a_short_cell_keeps_whole_figures_and_says_so() -> None:
    sim = simulate({**LOOP, "requests": 40}, [(64, 15)] * 40, SLOW, 10**9)
    cell = summary((request_rows(sim), chunk_rows(sim)), {**LOOP, "requests": 40})
    assert cell["window"] is None
    note = next(reason for reason in cell["reasons"] if reason["code"] == "no_window")
    assert note["severity"] == "note"
    assert "a window needs 30.0 s" in note["evidence"]
    assert "figures are of the whole cell" in note["evidence"]
    assert cell["whole"]["output_tokens_per_s"] > 0


def test_long_requests_need_a_longer_window_than_30_seconds() -> None:
    found = window(warped(loop(), lambda t: 5 * t))
    assert found.known, "ten times the median E2E fit into it"
    lengths = [(64, 150)] * 16
    sim = simulate({**LOOP, "requests": 16}, lengths, SLOW, 10**9)
    short = window((request_rows(sim), chunk_rows(sim)))
    assert not short.known
    assert "10 x the median E2E" in short.why


@pytest.mark.parametrize(
    ("course", "name"),
    [
        (lambda t: t + 0.003 * t * t, "drifting"),
        (lambda t: t if t < 40 else 40 + (t - 40) * 1.35, "throttled half way"),
    ],
)
def test_a_server_that_slows_down_has_no_steady_state(course: Callable[[float], float], name: str) -> None:
    cell = summary(warped(loop(), course), LOOP)
    assert cell["window"] is None, name
    assert cell["verdict"] == "SUSPECT"
    assert codes(cell) == {"no_steady_state"}
    evidence = next(r["evidence"] for r in cell["reasons"] if r["code"] == "no_steady_state")
    assert "output tokens/s" in evidence


def test_a_steady_server_is_seldom_called_drifting() -> None:
    alarms = 0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        # Times that wander by a few per cent, as those of a real machine do.
        pace = np.cumsum(1 + 0.1 * draw.normal(size=200))
        alarms += bool(window(warped(loop(), lambda t, p=pace: float(np.interp(t, np.arange(200), p)))).unsteady)
    assert alarms <= 2


def open_loop(rate: float, service_s: float, seconds: float, seed: int) -> tuple[Rows, Rows, Rows]:
    """One server that takes a request after the other; its waiting gauge is read four times a second."""
    draw = np.random.default_rng(seed)
    due = np.cumsum(draw.exponential(1 / rate, int(rate * seconds)))
    end, free = np.zeros(len(due)), 0.0
    for i, at in enumerate(due):
        free = end[i] = max(free, at) + service_s * draw.uniform(0.9, 1.1)
    rows = []
    for i, (at, done) in enumerate(zip(due, end, strict=True)):
        stamp = {
            "intended": at,
            "queued": at,
            "sent": at,
            "first_byte": done,
            "first_token": done,
            "last_token": done,
            "end": done,
        }
        told = {"outcome": "ok", "output_tokens": 1, "output_tokens_asked": 1, "tokens_in_first_chunk": 1}
        rows.append(
            {"request_id": f"r{i:05d}", "slot": -1, **{k: 10**9 + round(v * 1e9) for k, v in stamp.items()}, **told}
        )
    chunks = [
        {"request_id": r["request_id"], "t": r["end"], "lag": 1000, "kind": "text", "tokens": 1, "bytes": 9}
        for r in rows
    ]
    samples = []
    for t in np.arange(0.0, float(due[-1]), 0.25):
        waiting = max(int((due <= t).sum() - (end <= t).sum()) - 1, 0)
        stamp_ns = 10**9 + round(t * 1e9)
        samples.append(
            {
                "source": "server",
                "metric": "waiting",
                "device": None,
                "t0": stamp_ns,
                "t1": stamp_ns,
                "value": float(waiting),
            }
        )
    return rows, chunks, samples


@pytest.mark.parametrize("gauge", [True, False])
def test_an_overloaded_server_is_told_by_its_growing_queue(gauge: bool) -> None:
    rows, chunks, samples = open_loop(rate=13, service_s=0.1, seconds=60, seed=1)
    cell = summary((rows, chunks), {"mode": "rate", "rate": 13.0}, samples if gauge else [])
    assert cell["window"] is None
    assert "overloaded" in codes(cell)
    evidence = next(r["evidence"] for r in cell["reasons"] if r["code"] == "overloaded")
    assert ("waiting at the server" if gauge else "in flight") in evidence


def test_a_server_that_keeps_up_is_not_called_overloaded() -> None:
    alarms = 0
    for seed in range(30):
        rows, chunks, samples = open_loop(rate=7, service_s=0.1, seconds=60, seed=seed)
        alarms += bool(window((rows, chunks), "rate", samples).overload)
    assert alarms <= 1
    rows, chunks, samples = open_loop(rate=7, service_s=0.1, seconds=60, seed=99)
    assert window((rows, chunks), "rate", samples).known


def test_a_locked_loop_is_suspect_and_its_window_holds_whole_cycles() -> None:
    # Equal lengths, none of the first ones shortened: all slots send together for ever.
    load = {**LOOP, "requests": 200}
    sim = simulate(load, [(1, 15)] * 200, SLOW, 10**9)
    rows = request_rows(sim), chunk_rows(sim)
    cell = summary(rows, load)
    assert codes(cell) == {"phase_lock"}
    assert cell["verdict"] == "SUSPECT"
    # Within a cycle the rate goes up and down; over whole ones every window holds 4 x 15 tokens a cycle.
    cycle = cell["window"]["output_tokens"] / 60
    assert cycle == pytest.approx(round(cycle), abs=0.1)


def test_the_window_of_a_batch_holds_whole_waves() -> None:
    load = {"mode": "batch", "batch": 4, "waves": 30}
    sim = simulate(load, [(64, 15)] * 120, SLOW, 10**9)
    cell = summary((request_rows(sim), chunk_rows(sim)), load)
    assert cell["window"]["output_tokens"] % 60 == 0
    assert cell["window"]["output_tokens"] == 60 * 28, "all waves but the first two"


def test_a_batch_of_few_waves_that_slows_down_has_no_steady_state() -> None:
    """Too few waves for a test of trend, and half the speed in the end all the same."""
    load = {"mode": "batch", "batch": 4, "waves": 14}
    sim = simulate(load, [(64, 15)] * 56, SLOW, 10**9)
    rows = request_rows(sim), chunk_rows(sim)
    assert codes(summary(warped(rows, lambda t: 4 * t), load)) == set()
    cell = summary(warped(rows, lambda t: 4 * (t + 0.02 * t * t)), load)
    assert cell["window"] is None
    assert "no_steady_state" in codes(cell)


@pytest.mark.parametrize("mode", ["ramp", "schedule"])
def test_a_load_that_changes_by_plan_has_no_window(mode: str) -> None:
    assert "changes by plan" in window(loop(), mode).why


def test_a_cell_of_which_nothing_ended_has_no_window() -> None:
    rows = [{**row, "end": None, "last_token": None, "outcome": "timeout"} for row in loop()[0]]
    table = Requests.of(rows)
    data = scope_data(table, token_chunks(table, Chunks.of([])), None, cell=(0, 10**12), mode="concurrency", width=4)
    assert data is not None
    assert steady_window(data, Samples.of([])).why == "no request came to an end"


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10**15), st.randoms(use_true_random=False))
def test_neither_the_clock_nor_the_order_of_rows_matters(shift: int, mix: Any) -> None:
    requests, chunks = loop()
    moved = [{**row, **{name: row[name] + shift for name in STAMPS}} for row in requests]
    mix.shuffle(moved)
    found = window((moved, [{**row, "t": row["t"] + shift} for row in chunks]))
    plain = window(loop())
    assert (found.start, found.end) == ((plain.start or 0) + shift, (plain.end or 0) + shift)
    assert found.rate is not None
    assert plain.rate is not None
    assert found.rate.estimate == pytest.approx(plain.rate.estimate)
