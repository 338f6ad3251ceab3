"""Where load workers run: in processes of this machine, or on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from backends.http_probe import ServerURL
from harness.load.plan import LoadPlan
from harness.load.process import LoadProcess, LoadResult, Progress
from harness.load.ray_cluster import OnRay
from results.clock import NS_PER_MS


class Worker(Protocol):
    """What is asked of a load worker, wherever it is: `LoadProcess` tells of each. In a result from another machine
    `client["node"]` says which one, and how far its clock was off; `client["ceiling"]` is what that one is calibrated to."""

    @property
    def pid(self) -> int | None: ...
    @property
    def ready(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    def start(self, plan: LoadPlan, out_dir: Path) -> None: ...
    def poll(self) -> Progress | None: ...
    def begin(self, at_ns: int) -> None: ...
    def stop(self) -> None: ...
    def wait(self, timeout_s: float) -> LoadResult: ...
    def kill(self) -> None: ...


class Place(Protocol):
    """A way to have load workers. `lead_ns`: how long before the start all of them will have read when it is."""

    @property
    def lead_ns(self) -> int: ...
    def open(self, count: int, target: ServerURL) -> Sequence[Worker]:
        """So many workers that can reach the server, yet to be started. Raises DynoError."""
        ...

    def check(self, count: int, urls: Sequence[str | None]) -> None:
        """Raise DynoError where `open` could not do it for these servers (None: one that is to be launched here)."""
        ...


@dataclass(frozen=True, slots=True)
class Here:
    """Processes of this machine, which lack nothing."""

    lead_ns: int = 200 * NS_PER_MS

    def open(self, count: int, target: ServerURL) -> Sequence[Worker]:
        return [LoadProcess() for _ in range(count)]

    def check(self, count: int, urls: Sequence[str | None]) -> None:
        pass


PLACES: dict[str, Place] = {"here": Here(), "ray": OnRay()}


def told_of_nodes(clients: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """What the cell's client record says of other machines, from the records of its workers by number (each is relieved of it):
    `nodes`, and the `ceiling` of the weakest. Empty where all workers were processes of this one."""
    nodes = [{"worker": number, **node} for number, c in clients.items() if (node := c.pop("node", None)) is not None]
    if not nodes:
        return {}
    ceilings = [client.pop("ceiling", None) for client in clients.values()]
    known = [ceiling for ceiling in ceilings if ceiling is not None]
    weakest = min(known, key=lambda c: c["chunks_per_s"]["value"] or 0) if len(known) == len(ceilings) else None
    return {"nodes": nodes, "ceiling": weakest}
