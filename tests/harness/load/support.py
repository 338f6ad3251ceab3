"""Running a load inside the test's own process, and what came of it as rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from harness.experiment import BatchLoad, ConcurrencyLoad
from harness.load.client import Client, Counts
from harness.load.plan import LoadPlan, PlannedBody, RequestTimeouts, build_plan
from harness.load.recorder import EventRecorder

Row = dict[str, Any]
NO_LIMITS = RequestTimeouts(5, 5, 5, 20)


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
    **plan: Any,
) -> LoadPlan:
    """A plan of `requests` requests r0, r1, ..."""
    # Not validated: fewer requests than a measurement needs are enough here.
    loop = ConcurrencyLoad.model_construct(concurrency=concurrency, requests=requests)
    load = BatchLoad.of(batch, requests) if batch else loop
    stream = plan.get("stream", True)
    made = [
        PlannedBody(f"r{i}", bodies[i] if bodies else body(tokens, stream=stream), 3, tokens) for i in range(requests)
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
