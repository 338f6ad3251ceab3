"""A load shared by workers is the load that was planned, and what they measured is one pair of files again."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.http_probe import ServerURL
from harness.load.merge import merge_clients, merge_events
from harness.load.plan import BatchMode, ConcurrencyMode, LoadPlan, OpenMode, RequestPlan
from harness.load.split import make_folders, split_plan
from results.errors import StoreError, UsageError
from results.events import read_chunks, read_requests, write_table
from results.schema import CHUNKS, REQUESTS
from results.tokens import token_chunks

TARGET = ServerURL("http", "h", 1)


def plan(requests: int, mode: Any, slots: list[int | None] | None = None) -> LoadPlan:
    listed = tuple(RequestPlan(f"r{i}", 1, 1, 0, 0, slots[i] if slots else None, at=i * 10) for i in range(requests))
    return LoadPlan(TARGET, mode, listed, "folder")


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 12))
def test_every_request_and_every_slot_is_in_one_part(requests: int, slots: int, workers: int) -> None:
    workers = min(workers, slots, requests)
    parts = split_plan(plan(requests, ConcurrencyMode(slots)), workers)
    given_out = [request.id for part in parts for request in part.requests]
    assert sorted(given_out) == sorted(f"r{i}" for i in range(requests))
    numbers = [
        part.first_slot + local * part.slot_step
        for part in parts
        if isinstance(part.mode, ConcurrencyMode)
        for local in range(part.mode.slots)
    ]
    assert sorted(numbers) == list(range(slots))
    # The first requests of the plan are the shortened ones: still one for each slot, and first in its part.
    for part in parts:
        assert isinstance(part.mode, ConcurrencyMode)
        first = {request.id for request in part.requests[: part.mode.slots]}
        assert first == {r.id for r in part.requests if int(r.id[1:]) < slots}


@given(st.integers(1, 60), st.one_of(st.none(), st.integers(1, 12)), st.integers(1, 12))
def test_times_stay_those_of_the_whole_and_the_cap_is_shared_out(requests: int, cap: int | None, workers: int) -> None:
    workers = min(workers, cap or requests, requests)
    whole = plan(requests, OpenMode(cap))
    parts = split_plan(whole, workers)
    assert sorted((r for part in parts for r in part.requests), key=lambda r: r.at or 0) == list(whole.requests)
    caps = [part.mode.max_in_flight for part in parts if isinstance(part.mode, OpenMode)]
    assert None in caps if cap is None else sum(c or 0 for c in caps) == cap


def test_requests_bound_to_a_slot_stay_with_it() -> None:
    parts = split_plan(plan(4, ConcurrencyMode(4), [3, 0, 2, 1]), 2)
    assert [[r.id for r in part.requests] for part in parts] == [["r1", "r2"], ["r0", "r3"]]
    assert [[r.slot for r in part.requests] for part in parts] == [[0, 1], [1, 0]]


def test_loads_that_cannot_be_shared_are_refused_in_words() -> None:
    with pytest.raises(UsageError, match="waves of a batch"):
        split_plan(plan(4, BatchMode(2, 2)), 2)
    with pytest.raises(UsageError, match=r"3 workers are more than the 2 requests.*at most 2"):
        split_plan(plan(8, ConcurrencyMode(2)), 3)
    alone = plan(8, BatchMode(2, 4))
    assert split_plan(alone, 1) == [alone]


def rows_of(ids: list[str], worker: int, start: int) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Requests and chunks of a worker: each request three chunks, two of them at the same instant."""
    n = len(ids)
    requests: dict[str, list[Any]] = {name: [None] * n for name in REQUESTS.names}
    queued = [start + i * 7 for i in range(n)]
    requests |= {"request_id": list(ids), "worker": [worker] * n, "queued": queued, "outcome": ["ok"] * n}
    chunks: dict[str, list[Any]] = {name: [None] * 3 * n for name in CHUNKS.names}
    times = [q + d for q in queued for d in (1, 5, 5)]
    chunks |= {"request_id": [i for i in ids for _ in range(3)], "t": times, "tokens": [1, 2, 3] * n}
    return requests, chunks | {"kind": ["text"] * 3 * n, "bytes": [9] * 3 * n}


def write_part(folder: Path, requests: dict[str, list[Any]], chunks: dict[str, list[Any]], group: int) -> Path:
    folder.mkdir()
    write_table(folder / "requests.parquet", REQUESTS, requests)
    pq.write_table(pa.Table.from_pydict(chunks, schema=CHUNKS), folder / "chunks.parquet", row_group_size=group)
    return folder


@settings(max_examples=25)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(0, 50), st.integers(1, 8))
def test_joined_files_hold_every_row_requests_by_time_and_the_chunks_of_each_in_order(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], start: int, group: int
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    parts, ids = [], []
    for worker, size in enumerate(sizes):
        mine = [f"w{worker}-{i}" for i in range(size)]
        ids += mine
        parts.append(write_part(folder / f"p{worker}", *rows_of(mine, worker, start * worker), group))
    merge_events(parts, folder)
    requests, chunks = read_requests(folder), read_chunks(folder)
    assert sorted(requests.request_id.tolist()) == sorted(ids)
    assert requests.queued.tolist() == sorted(requests.queued.tolist())
    assert len(chunks) == 3 * len(ids)
    tokens = token_chunks(requests, chunks)
    assert tokens.tokens.tolist() == [1, 2, 3] * len(ids)
    assert sorted(p.name for p in folder.iterdir() if p.is_file()) == ["chunks.parquet", "requests.parquet"]


def test_files_that_are_no_events_are_named(tmp_path: Path) -> None:
    part = write_part(tmp_path / "p", *rows_of(["a"], 0, 0), 5)
    (part / "chunks.parquet").write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(StoreError, match="cannot be joined"):
        merge_events([part], tmp_path)
    with pytest.raises(StoreError):
        merge_events([tmp_path / "none"], tmp_path)


def test_what_workers_say_of_themselves_adds_up() -> None:
    one = {
        "reader": "compiled", "cpu_s": 1.5, "wall_s": 9.0, "receive_stamps": "kernel", "retries": 1, "proxy_used": False,
        "descriptor_cap": None, "ran_out_of_requests": False,
    }  # fmt: skip
    other = {
        **one,
        "cpu_s": 0.5,
        "wall_s": 10.0,
        "reader": "python",
        "receive_stamps": "read",
        "descriptor_cap": 40,
        "ran_out_of_requests": True,
    }
    merged = merge_clients([one, other])
    assert merged == {
        "reader": "mixed", "cpu_s": 2.0, "wall_s": 10.0, "receive_stamps": "mixed", "retries": 2, "proxy_used": False,
        "descriptor_cap": 40, "ran_out_of_requests": True,
    }  # fmt: skip
    assert merge_clients([one]) == one
    # Each may have 40 connections, as `max_in_flight` is that of both together.
    assert merge_clients([other, other])["descriptor_cap"] == 80


def test_a_part_of_a_plan_survives_its_file() -> None:
    part = split_plan(replace(plan(4, OpenMode(3)), duration_ns=5), 2)[1]
    assert LoadPlan.from_json(part.to_json()) == part


def test_bodies_reach_every_part_also_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = replace(plan(4, OpenMode(3)), folder=str(tmp_path / "plan"))
    whole.bodies_path.parent.mkdir()
    whole.bodies_path.write_bytes(b"{}\n" * 4)

    def refuse(*paths: Path) -> None:
        raise PermissionError("no links here")

    for link in (os.link, refuse):
        monkeypatch.setattr(os, "link", link)
        parts = split_plan(whole, 2)
        make_folders(whole, parts)
        assert [part.bodies_path.read_bytes() for part in parts] == [b"{}\n" * 4] * 2
