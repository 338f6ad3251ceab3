"""The X-ray: steps from arrivals alone, on a server of known schedule, on the real engine, and where it must refuse."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.clock import NS_PER_MS
from results.events import Chunks, Requests
from results.tokens import TokenChunks, token_chunks
from results.truth import Steps, Tokens
from results.xray import MOST_ARRIVALS, Refused, XRay, xray
from results.xray_check import check
from tests.results.simulation import Schedule, Simulation, chunk_rows, request_rows, simulate

MS = NS_PER_MS


@dataclass
class Recorded:
    """A cell with its truth."""

    requests: Requests
    chunks: TokenChunks
    tokens: Tokens
    steps: Steps

    def xray(self) -> XRay:
        found = xray(self.requests, self.chunks)
        assert isinstance(found, XRay), found
        return found


def recorded(sim: Simulation) -> Recorded:
    requests = Requests.of(request_rows(sim))
    chunks = token_chunks(requests, Chunks.of(chunk_rows(sim)))
    columns = {name: np.array([row[name] for row in sim.tokens]) for name in ("index", "step", "sampled", "written")}
    tokens = Tokens(np.array([row["request_id"] for row in sim.tokens], dtype=object), **columns)
    steps = Steps(**{name: np.array([row.get(name, 0) for row in sim.steps]) for name in Steps.__slots__})
    return Recorded(requests, chunks, tokens, steps)


def closed_loop(streams: int, requests: int = 0, schedule: Schedule | None = None) -> Recorded:
    """Lengths vary, so that streams join and leave all the time."""
    draw = random.Random(streams)
    lengths = [(draw.randint(10, 60), draw.randint(5, 40)) for _ in range(requests or 4 * streams)]
    load = {"mode": "concurrency", "concurrency": streams}
    # A prompt takes about as long as a step: engines that prefill by itself are told by that gap.
    return recorded(simulate(load, lengths, schedule or Schedule(prefill_ns_per_token=800_000), 10**12))


def moved(cell: Recorded, order_ns: int, jitter_ns: float, seed: int = 0) -> Recorded:
    """The tokens of a step written one after the other, each later by |N(0, jitter)|, streams in order."""
    chunks, draw = cell.chunks, np.random.default_rng(seed)
    by_step = np.lexsort((chunks.request, chunks.t))
    starts = np.flatnonzero(np.diff(chunks.t[by_step], prepend=-1))
    place = np.empty(len(chunks), dtype=np.int64)
    place[by_step] = np.arange(len(chunks)) - np.repeat(starts, np.diff(starts, append=len(chunks)))
    t = chunks.t + place * order_ns
    t = t + np.abs(draw.normal(0, jitter_ns, len(t))).astype(np.int64) if jitter_ns else t
    apart = chunks.request * (int(t.max()) + 1)
    return replace(cell, chunks=replace(chunks, t=np.maximum.accumulate(t + apart) - apart))


@pytest.mark.parametrize("streams", [1, 8, 64, 256])
def test_every_step_of_a_known_schedule_is_found_whole(streams: int) -> None:
    cell = moved(closed_loop(streams), 20_000, 0)
    found = cell.xray()
    error = check(found, cell.requests, cell.chunks, cell.tokens, cell.steps)
    assert error is not None
    assert error.exact > 0.995
    assert abs(error.batch_error) < 0.002
    assert found.pauses == 0
    assert abs(error.seconds_error or 0.0) < 0.01


def test_the_realised_batch_is_that_of_the_engine() -> None:
    cell = closed_loop(8, 80)
    # The first is the end of a step that has no other before it.
    weight = np.diff(cell.steps.end)
    tokens = np.array([(cell.tokens.step == step).sum() for step in cell.steps.step])
    assert cell.xray().batch == pytest.approx(np.average(tokens[1:], weights=weight))


@given(
    streams=st.integers(2, 48),
    order_us=st.integers(0, 60),
    jitter_us=st.integers(0, 500),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=40, deadline=None)
def test_jitter_well_under_a_step_costs_next_to_nothing(streams: int, order_us: int, jitter_us: int, seed: int) -> None:
    cell = moved(closed_loop(streams), order_us * 1000, jitter_us * 1000.0, seed)
    error = check(cell.xray(), cell.requests, cell.chunks, cell.tokens, cell.steps)
    assert error is not None
    assert error.exact > 0.97
    assert abs(error.batch_error) < 0.03


@given(streams=st.integers(2, 48), jitter_ms=st.floats(0, 200), seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_whatever_the_jitter_it_is_about_right_or_refused(streams: int, jitter_ms: float, seed: int) -> None:
    cell = moved(closed_loop(streams), 0, jitter_ms * MS, seed)
    found = xray(cell.requests, cell.chunks)
    if isinstance(found, XRay):
        error = check(found, cell.requests, cell.chunks, cell.tokens, cell.steps)
        assert error is not None
        assert abs(error.batch_error) < 0.15


@given(jitter_ms=st.floats(0, 20), seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_one_stream_holds_no_prompt_beside_its_decodes(jitter_ms: float, seed: int) -> None:
    cell = moved(closed_loop(1, 12), 0, jitter_ms * MS, seed)
    found = xray(cell.requests, cell.chunks)
    if isinstance(found, XRay):
        assert not found.mixed.any()
        assert found.mixed_steps() == (0, "")


@pytest.mark.parametrize(("step_ms", "chunked", "told"), [(20, 30, 40), (1, 30, None), (1, 2, 12), (1, 0, 10)])
def test_prompt_steps_told_by_length_alone_are_counted_only_where_steps_are_long(
    step_ms: int, chunked: int, told: int | None
) -> None:
    """Two streams decode; 10 steps give a request its first token, others are half as long again while one waits."""
    seconds = np.full(200, step_ms * MS)
    waiting, first = np.zeros(200, dtype=np.int64), np.zeros(200, dtype=np.int64)
    first[10:60:5] = 1
    seconds[100 : 100 + chunked] = step_ms * MS * 3 // 2
    waiting[100 : 100 + chunked] = 1
    tokens = np.full(200, 3)
    none = np.zeros(0, dtype=np.int64)
    count, why = XRay(np.cumsum(seconds), tokens, first, waiting, none, none, 0.0, 0).mixed_steps()
    assert count == told
    assert (count is None) == ("told by their length alone" in why)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_arrivals_give_steps_that_hold_no_stream_twice(data: st.DataObject) -> None:
    count = data.draw(st.integers(20, 120))
    streams = data.draw(st.integers(1, 6))
    rows = sorted((data.draw(st.integers(0, streams - 1)), data.draw(st.integers(0, 10**9))) for _ in range(count))
    stream, t = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    ones = np.ones(count, dtype=np.int64)
    chunks = TokenChunks(stream, t, ones, ones.astype(float), np.diff(stream, prepend=-1) != 0)
    requests = Requests.of({"request_id": f"r{i}", "sent": 0, "first_token": 1} for i in range(streams))
    found = xray(requests, chunks)
    if isinstance(found, Refused):
        assert found.reason
        return
    pairs = np.stack([found.step, stream[found.order]])
    assert len(np.unique(pairs, axis=1).T) == count
    assert found.tokens.sum() == count
    assert (np.diff(found.step) >= 0).all()


def test_a_burst_that_was_interrupted_is_one_step() -> None:
    """The server is taken off its core in the middle of writing a step's tokens."""
    cell = closed_loop(16, 64)
    middle = int(np.flatnonzero(cell.steps.decodes > 12)[10])
    late = cell.steps.end[middle] == cell.chunks.t
    late &= cell.chunks.request % 2 == 1
    assert late.sum() > 2
    broken = replace(cell, chunks=replace(cell.chunks, t=cell.chunks.t + late * 9 * MS))
    assert len(broken.xray()) == len(cell.xray())


def test_a_client_that_read_late_hides_no_step() -> None:
    """For 40 ms nothing was read: what came meanwhile bears one stamp."""
    cell = closed_loop(8, 400)
    t = cell.chunks.t
    start = int(np.median(t))
    late = (t > start) & (t < start + 40 * MS)
    broken = replace(cell, chunks=replace(cell.chunks, t=np.where(late, start + 40 * MS, t)))
    assert len(broken.xray()) == pytest.approx(len(cell.xray()), rel=0.01)


def test_a_stall_and_the_steps_with_a_prompt_in_them_are_told_apart() -> None:
    cell = closed_loop(8, 80)
    at = int(cell.steps.end[len(cell.steps) // 2])
    stalled = replace(cell, chunks=replace(cell.chunks, t=cell.chunks.t + (cell.chunks.t > at) * 300 * MS))
    last = stalled.requests.first_token
    stalled.requests.first_token = last + (last > at) * 300 * MS
    stalled.requests.sent = stalled.requests.sent + (stalled.requests.sent > at) * 300 * MS
    found = stalled.xray()
    assert found.stalls.sum() == 1
    assert found.seconds[found.stalls][0] > 0.3
    assert cell.xray().stalls.sum() == 0


def several(cell: Recorded) -> Recorded:
    """Pairs of tokens in one chunk."""
    return replace(cell, chunks=replace(cell.chunks, tokens=cell.chunks.tokens * 2))


def silent(cell: Recorded) -> Recorded:
    """Chunks that do not say what they carry, fewer than the tokens that were counted."""
    cell.requests.output_tokens = cell.requests.output_tokens * 3
    return replace(cell, chunks=replace(cell.chunks, tokens=np.full(len(cell.chunks), -1)))


def coalesced(cell: Recorded) -> Recorded:
    """A proxy hands on what it got every 50 ms."""
    return replace(cell, chunks=replace(cell.chunks, t=-(-cell.chunks.t // (50 * MS)) * 50 * MS))


def scattered(cell: Recorded) -> Recorded:
    """Noise of half a step's length: the order of arrivals says nothing."""
    return moved(cell, 0, 9.0 * MS)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (several, "several tokens"),
        (silent, "several tokens"),
        (coalesced, "arrived together"),
        (scattered, "too scattered"),
    ],
)
def test_it_is_refused_where_a_chunk_is_no_step(spoil: Any, reason: str) -> None:
    cell = spoil(closed_loop(16, 80))
    found = xray(cell.requests, cell.chunks)
    assert isinstance(found, Refused)
    assert reason in found.reason


def test_too_few_arrivals_are_refused() -> None:
    cell = recorded(simulate({"mode": "batch", "batch": 1}, [(5, 6)], Schedule(), 10**12))
    found = xray(cell.requests, cell.chunks)
    assert isinstance(found, Refused)
    assert "too few" in found.reason


def test_chunks_without_counts_are_read_where_there_is_one_a_token() -> None:
    cell = closed_loop(8)
    blind = replace(cell, chunks=replace(cell.chunks, tokens=np.full(len(cell.chunks), -1)))
    assert len(blind.xray()) == len(cell.xray())


def test_of_a_long_cell_the_middle_is_read() -> None:
    n = MOST_ARRIVALS + 1000
    ones = np.ones(n, dtype=np.int64)
    chunks = TokenChunks(0 * ones, np.arange(n) * MS, ones, ones.astype(float), np.arange(n) == 0)
    found = xray(Requests.of([{"request_id": "r", "sent": 0, "first_token": 1}]), chunks)
    assert isinstance(found, XRay)
    assert len(found) == MOST_ARRIVALS


class MemoryTruth:
    """A truth log in lists."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, ...]] = []

    def token(self, request_id: str, index: int, step: int, sampled: int, written: int | None) -> None:
        """Nothing: the test collects what the steps return."""

    def step(self, *row: int) -> None:
        self.steps.append(row)

    def scheduled(self, request_id: str, step: int, start: int) -> None:
        """Not needed here."""

    def close(self) -> None:
        """Nothing to end."""


def engine_cell(folder: Path, pool: int, streams: int) -> Recorded:
    """The reference engine with the tiny model, stepped here; its tokens arrive 5 us apart after each step."""
    from backends.reference.build import build_engine
    from backends.reference.config import EngineSettings, read_model_config
    from backends.reference.messages import Submit
    from results.schema import TRUTH_STEPS

    truth, draw = MemoryTruth(), random.Random(1)
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 64, "block_size": 16}
    options |= {"max_num_batched_tokens": 64, "kv_cache_tokens": pool, "threads": 1}
    engine = build_engine(folder, read_model_config(folder), EngineSettings(**options), truth).engine
    rows: list[dict[str, Any]] = []
    made: list[dict[str, Any]] = []
    sent: dict[int, int] = {}
    for key in range(3 * streams):
        prompt = [draw.randrange(500) for _ in range(draw.randint(8, 90))]
        rows.append({"request_id": f"r{key:03d}", "prompt": prompt, "output_tokens": draw.randint(10, 60)})
    pending = list(range(len(rows)))
    live = 0
    now = 10**12
    while pending or engine.scheduler.has_work:
        while pending and live < streams:
            key = pending.pop(0)
            sent[key], live = now, live + 1
            engine.submit(Submit(key, rows[key]["request_id"], rows[key]["prompt"], rows[key]["output_tokens"]))
        for place, token in enumerate(engine.step()):
            now = token.sampled
            made.append({"key": token.key, "index": token.index, "step": token.step, "t": token.sampled + 5000 * place})
            live -= token.finish_reason is not None
    made.sort(key=lambda row: (row["key"], row["index"]))
    of, index, step, t = (np.array([row[name] for row in made]) for name in ("key", "index", "step", "t"))
    first = index == 0
    requests = Requests.of(
        {**row, "sent": sent[k], "first_token": int(t[first][k]), "outcome": "ok"} for k, row in enumerate(rows)
    )
    ones = np.ones(len(t), dtype=np.int64)
    ids = requests.request_id[of]
    logged = dict(zip(TRUTH_STEPS.names, np.array(truth.steps).T, strict=True))
    return Recorded(
        requests,
        TokenChunks(of, t, ones, ones.astype(float), first),
        Tokens(ids, index, step, t, t),
        Steps(**{name: logged[name] for name in Steps.__slots__}),
    )


def test_against_the_real_engine(tiny_dir: Path) -> None:
    cell = engine_cell(tiny_dir, pool=8192, streams=8)
    found = cell.xray()
    error = check(found, cell.requests, cell.chunks, cell.tokens, cell.steps)
    assert error is not None
    assert error.exact > 0.95
    assert abs(error.batch_error) < 0.05
    assert error.preempted == 0
    assert found.pauses <= 1


def test_requests_that_the_engine_took_off_are_seen_as_pauses(tiny_dir: Path) -> None:
    cell = engine_cell(tiny_dir, pool=512, streams=8)
    error = check(cell.xray(), cell.requests, cell.chunks, cell.tokens, cell.steps)
    assert error is not None
    assert error.preempted >= 5
    assert 0.6 * error.preempted <= error.pauses <= 1.4 * error.preempted
