"""Running a load inside the test's own process, and what came of it as rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from harness.load.build import PlannedBody, build_plan
from harness.load.client import Client
from harness.load.counts import Counts
from harness.load.plan import LoadPlan, RequestTimeouts
from harness.load.recorder import EventRecorder
from harness.loads import BatchLoad, ClosedLoop, ConcurrencyLoad, ScheduleLoad
from tests.waiting import LONG_S

Row = dict[str, Any]
NO_LIMITS = RequestTimeouts(LONG_S, LONG_S, LONG_S, LONG_S)


@dataclass
class Ran:
    """Rows of requests.parquet and chunks.parquet, and the client that made them."""

    requests: list[Row]
    chunks: list[Row]
    client: Client

    @property
    def outcomes(self) -> list[str]:
        """By the order of the plan."""
        return [row["outcome"] for row in sorted(self.requests, key=lambda row: int(row["request_id"][1:]))]

    def chunks_of(self, request_id: str) -> list[Row]:
        return [chunk for chunk in self.chunks if chunk["request_id"] == request_id]


def body(tokens: int, *, stream: bool = True, prompt: Sequence[int] = (1, 2, 3), **more: Any) -> bytes:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    fields = {"model": "m", "prompt": list(prompt), "max_tokens": tokens, "stream": stream, "ignore_eos": True}
    return json.dumps({**fields, **options, **more}).encode()


def make_plan(
    url: str,
    folder: Path,
    *,
    requests: int = 1,
    batch: int | None = None,
    concurrency: int = 1,
    tokens: int = 4,
    timeouts: RequestTimeouts = NO_LIMITS,
    bodies: Sequence[bytes] | None = None,
    times_s: Sequence[float] | None = None,
    max_in_flight: int | None = None,
    duration_s: float | None = None,
    cancel_after: int | None = None,
    **plan: Any,
) -> LoadPlan:
    """A plan of `requests` requests r0, r1, ...; with `times_s` an open loop of one request at each of them.

    With `cancel_after` so many tokens are wanted of each, of the `tokens` it is asked for.
    """
    load: ClosedLoop | ScheduleLoad
    # Not validated: fewer requests than a measurement needs are enough here.
    load = ConcurrencyLoad.model_construct(concurrency=concurrency, requests=requests, duration_s=duration_s)
    if batch:
        load = BatchLoad.of(batch, requests, duration_s)
    times: Sequence[int | None] = [None] * requests
    if times_s is not None:
        load = ScheduleLoad(times_s=tuple(times_s), max_in_flight=max_in_flight)
        times = load.arrivals(0) or []
    stream = plan.get("stream", True)
    made = [
        PlannedBody(
            f"r{i}",
            bodies[i] if bodies else body(tokens, stream=stream),
            3,
            cancel_after or tokens,
            at=at,
            cancel_after_tokens=cancel_after,
        )
        for i, at in enumerate(times)
    ]
    return replace(build_plan(load, made, url=url, folder=folder, **plan), timeouts=timeouts)


def run_load(url: str, tmp_path: Path, *, progress: Callable[[Client, Counts], None] | None = None, **plan: Any) -> Ran:
    """Carry a plan out here and read back what was written."""
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    made = make_plan(url, tmp_path / "plan", **plan)
    recorder = EventRecorder(made, out)
    holder: list[Client] = []
    client = Client(
        made,
        made.bodies_path.read_bytes(),
        made.api_key(),
        recorder,
        lambda counts: progress(holder[0], counts) if progress else None,
    )
    holder.append(client)
    client.prepare()
    client.run()
    client.close()
    recorder.commit()
    ran = Ran(
        pq.read_table(out / "requests.parquet").to_pylist(), pq.read_table(out / "chunks.parquet").to_pylist(), client
    )
    check_order(ran)
    return ran


def check_order(ran: Ran) -> None:
    """What holds of every request, however it ended."""
    for row in ran.requests:
        stamps = [row[n] for n in ("intended", "queued", "connect_start", "connect_end", "sent", "first_byte", "end")]
        known = [stamp for stamp in stamps if stamp is not None]
        assert known == sorted(known), row
        tokens = [row[n] for n in ("first_byte", "first_token", "last_token", "end")]
        known = [stamp for stamp in tokens if stamp is not None]
        assert known == sorted(known), row
        times = [chunk["t"] for chunk in ran.chunks_of(row["request_id"])]
        assert times == sorted(times)
        assert row["end"] is not None
