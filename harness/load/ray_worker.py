"""The harness's end of a load worker on another machine: used as `LoadProcess` is, with Ray in between.

What the worker measured is brought here with its stamps on our clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backends.http_probe import ServerURL
from harness.load.plan import LoadPlan
from harness.load.process import LoadResult, LoadWorkerDiedError, Progress
from harness.load.ray_clock import NodeClock, read_offset
from harness.load.ray_node import Measured, Seen
from harness.load.worker import map_bodies
from results.errors import DynoError, StoreError
from results.files import store_error
from results.schema import CHUNKS, REQUESTS

# At the start and the end of a run, and while it lasts. The shortest of so many round trips is close to the shortest there is.
_ROUND_TRIPS, _ROUND_TRIPS_MEANWHILE = 100, 50
_READ_CLOCK_EVERY_S = 10.0
# A node that says nothing for so long is gone, whether or not the cluster has noticed.
_SILENT_S = 30.0
_CLOSE_S = 5.0
_LOOK_S = 0.02
REQUEST_STAMPS = (
    "intended", "queued", "connect_start", "connect_end", "sent", "first_byte", "first_token", "last_token", "end",
)  # fmt: skip
CHUNK_STAMPS = ("t",)


@dataclass(slots=True)
class RayWorker:
    """One run of the load worker on the node of `actor` (a `LoadNode`). `about` is what the node says of itself."""

    actor: Any
    address: str
    about: dict[str, Any]
    _clock: NodeClock
    _out_dir: Path
    _seen: Seen
    _asked: Any = None
    _asked_at: float = 0.0
    _clock_read_at: float = 0.0

    @classmethod
    def on(cls, actor: Any, address: str, about: dict[str, Any]) -> RayWorker:
        """A worker on that node, yet to be started."""
        return cls(actor, address, about, NodeClock(), Path(), Seen(None, ready=False, finished=False, pid=None))

    @property
    def pid(self) -> int | None:
        """On its node."""
        return self._seen.pid

    @property
    def ready(self) -> bool:
        return self._seen.ready

    @property
    def finished(self) -> bool:
        return self._seen.finished

    def reach(self, url: ServerURL, timeout_s: float) -> str | None:
        """Why the node cannot open a connection to the server; None where it can. Raises LoadWorkerError."""
        why: str | None = self._get(self.actor.reach.remote(url, timeout_s), timeout_s + _SILENT_S)
        return why

    def start(self, plan: LoadPlan, out_dir: Path) -> None:
        """Measure the node's clock, then hand the plan over with its bodies. Raises LoadWorkerError, UsageError, StoreError."""
        key = plan.api_key()
        self._out_dir = out_dir
        self._read_clock(_ROUND_TRIPS)
        own, bodies = own_bodies(plan)
        self._get(self.actor.start.remote(own.to_json(), bodies, key), _SILENT_S)

    def poll(self) -> Progress | None:
        """The newest progress that has come. Does not wait for the node but every 10 s, to read its clock. Raises LoadWorkerError."""
        import ray

        if self._asked is None:
            self._asked, self._asked_at = self.actor.look.remote(), time.monotonic()
        if ray.wait([self._asked], timeout=0)[0]:
            asked, self._asked = self._asked, None
            self._seen = self._get(asked, _SILENT_S)
            if time.monotonic() - self._clock_read_at > _READ_CLOCK_EVERY_S:
                self._read_clock(_ROUND_TRIPS_MEANWHILE)
        elif time.monotonic() - self._asked_at > _SILENT_S:
            raise self._gone(f"has said nothing for {_SILENT_S:g} s")
        return self._seen.progress

    def begin(self, at_ns: int) -> None:
        """Tell a worker whose plan has `wait_for_start` when to begin (monotonic ns, ours)."""
        self.actor.begin.remote(self._clock.to_node(at_ns))

    def stop(self) -> None:
        """Ask it to cancel what is in flight, write what was measured and end. Does not wait."""
        self.actor.stop.remote()

    def wait(self, timeout_s: float) -> LoadResult:
        """Until the worker has ended; what it wrote, on our clock. Raises LoadWorkerError, StoreError."""
        deadline = time.monotonic() + timeout_s
        while not self.finished:
            self.poll()
            if time.monotonic() > deadline:
                raise self._gone(f"was not through within {timeout_s:g} s")
            time.sleep(_LOOK_S)
        self._read_clock(_ROUND_TRIPS)
        left = max(_SILENT_S, deadline - time.monotonic())
        measured: Measured = self._get(self.actor.collect.remote(left), left)
        write_events(self._out_dir / "requests.parquet", measured.requests, REQUESTS, REQUEST_STAMPS, self._clock)
        write_events(self._out_dir / "chunks.parquet", measured.chunks, CHUNKS, CHUNK_STAMPS, self._clock)
        result = measured.result
        started, ended = (int(t) for t in self._clock.to_ours(np.array([result.started, result.ended])))
        node = {"address": self.address, "host": self.about["host"], **self._clock.to_dict()}
        client = {**result.client, "node": node, "ceiling": self.about["ceiling"]}
        return replace(result, started=started, ended=ended, client=client)

    def kill(self) -> None:
        """End it at once; nothing is written. Harmless when it has ended, or its node has."""
        import ray

        if self.actor is None:
            return
        actor, self.actor = self.actor, None
        if ray.is_initialized():
            ray.wait([actor.close.remote()], timeout=_CLOSE_S)
            ray.kill(actor)

    def _read_clock(self, round_trips: int) -> None:
        self._clock.add(read_offset(lambda: self._get(self.actor.clock.remote(), _SILENT_S), round_trips))
        self._clock_read_at = time.monotonic()

    def _get(self, ref: Any, timeout_s: float) -> Any:
        """The answer of the node. What it raised is raised here; a node that is gone is a worker that died."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        try:
            return ray.get(ref, timeout=timeout_s)
        except GetTimeoutError as error:
            raise self._gone(f"did not answer within {timeout_s:g} s") from error
        except RayTaskError as error:
            if isinstance(cause := error.cause, DynoError):
                cause.args = (f"On node {self.address}: {cause}",)
                raise cause from None
            raise self._gone(f"failed: {error.cause!r}") from error
        except RayError as error:
            raise self._gone("is gone") from error

    def _gone(self, what: str) -> LoadWorkerDiedError:
        return LoadWorkerDiedError(
            f"The load worker on node {self.address} {what}; what it measured is lost. See that the node is up (ray status) "
            "and run the same command again."
        )


def own_bodies(plan: LoadPlan) -> tuple[LoadPlan, bytes]:
    """The plan with only the bodies of its own requests, one after the other: no more goes over the network than is sent."""
    try:
        bodies = map_bodies(plan.bodies_path)
    except OSError as error:
        raise store_error(plan.bodies_path, error) from error
    own, requests = bytearray(), []
    for request in plan.requests:
        requests.append(replace(request, offset=len(own)))
        own += bodies[request.offset : request.offset + request.length]
    return replace(plan, requests=tuple(requests)), bytes(own)


def write_events(path: Path, data: bytes, schema: pa.Schema, stamps: tuple[str, ...], clock: NodeClock) -> None:
    """An event file of a node as one of ours, group by group. Raises StoreError."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        with pq.ParquetWriter(path, schema) as writer:
            for group in range(file.num_row_groups):
                writer.write_table(on_our_clock(file.read_row_group(group).cast(schema), stamps, clock))
    except OSError as error:
        raise store_error(path, error) from error
    except pa.ArrowException as error:
        raise StoreError(f"The events of a load worker cannot be written to {path}: {error}.") from error


def on_our_clock(table: pa.Table, stamps: tuple[str, ...], clock: NodeClock) -> pa.Table:
    """The table with the columns `stamps` converted; unknown stays unknown."""
    for name in stamps:
        column = table[name].combine_chunks()
        known = column.is_valid()
        values = clock.to_ours(column.fill_null(0).to_numpy(zero_copy_only=False))
        made = pa.array(values, pa.int64(), mask=~known.to_numpy(zero_copy_only=False))
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), made)
    return table
