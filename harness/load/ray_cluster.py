"""Load from several machines: which nodes of a Ray cluster send it, and whether they can.

Ray is an extra, imported only where it is used. What can be missing (Ray, a cluster, Dyno on a node, a way from a node to the
server) is told before an engine is launched.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from backends.http_probe import ServerURL
from harness.load.ray_node import LoadNode, boot_id
from harness.load.ray_worker import RayWorker
from results.clock import NS_PER_S
from results.errors import EnvironmentProblemError, UsageError

# Nodes that have this resource send, where any has it (ray start --resources '{"dyno": 1}'): a way to leave others out.
RESOURCE = "dyno"
_START_S, _REACH_S = 120.0, 5.0


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster. `here`: this process is one of its own."""

    id: str
    address: str
    here: bool


@dataclass(frozen=True, slots=True)
class OnRay:
    """Load workers on the nodes of the Ray cluster that this machine has joined (or that RAY_ADDRESS names), in turn."""

    # What it takes until the last of many nodes has heard when to begin.
    lead_ns: int = NS_PER_S

    def open(self, count: int, target: ServerURL) -> Sequence[RayWorker]:
        """`count` workers, each on a node that reaches the server. Raises EnvironmentProblemError, UsageError."""
        workers = open_workers(count)
        refuse_unreachable(workers, target)
        return workers

    def check(self, count: int, urls: Sequence[str | None]) -> None:
        """Could `open` do it for these servers (None: one that is yet to be launched here)? Raises as `open` does."""
        workers = open_workers(count)
        try:
            for url in urls:
                if url is None:
                    refuse_launched(workers)
                else:
                    refuse_unreachable(workers, ServerURL.parse(url))
        finally:
            for worker in workers:
                worker.kill()


def connect() -> None:
    """Join the cluster, once. Raises EnvironmentProblemError."""
    if importlib.util.find_spec("ray") is None:
        raise EnvironmentProblemError(
            "Load from several machines needs Ray, which is not installed here: pip install 'llm-dyno[ray]', on every node. To share "
            "the load among processes of this machine give a number instead (--workers 4)."
        )
    import ray

    if ray.is_initialized():
        return
    address = cluster_address()
    if address.startswith("ray://"):
        raise EnvironmentProblemError(
            f"RAY_ADDRESS is {address}, a proxy's address, and clocks cannot be compared well through a proxy. Make this machine a "
            "node of the cluster (ray start --address HEAD:6379) and set RAY_ADDRESS to HEAD:6379, or leave it out."
        )
    try:
        # Ray itself tries for minutes where nobody listens any more.
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        where = f"none answers at {address} ({said.rstrip('.')})" if address else "this machine is a node of none"
        raise EnvironmentProblemError(
            f"--workers ray needs a Ray cluster, and {where}. Start one: ray start --head --port 6379 --include-dashboard=false here, and "
            "ray start --address THIS_MACHINE:6379 on each of the others."
        ) from error


def cluster_address() -> str:
    """What RAY_ADDRESS names, else what Ray noted of the cluster that this machine joined last; empty where there is none."""
    asked = os.environ.get("RAY_ADDRESS", "").strip()
    if asked and asked != "auto":
        return asked
    noted = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    try:
        return noted.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def sending_nodes(listed: Sequence[Mapping[str, Any]], own: str) -> list[Node]:
    """Those of `ray.nodes()` that are to send, of other machines before the node `own`. Raises EnvironmentProblemError."""
    alive = [node for node in listed if node["Alive"]]
    named = [node for node in alive if node["Resources"].get(RESOURCE)]
    found = [Node(n["NodeID"], n["NodeManagerAddress"], n["NodeID"] == own) for n in named or alive]
    if not found:
        raise EnvironmentProblemError(
            "The Ray cluster has no node that is alive (ray status). Start one with ray start."
        )
    return sorted(found, key=lambda node: (node.here, node.address))


def open_workers(count: int) -> list[RayWorker]:
    """`count` workers, dealt out to the nodes in turn. Raises EnvironmentProblemError where a node cannot have one."""
    connect()
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = sending_nodes(ray.nodes(), ray.get_runtime_context().get_node_id())
    made: list[tuple[Node, Any]] = []
    for index in range(count):
        node = nodes[index % len(nodes)]
        # It takes no CPU of Ray's count: it must run there whatever else does, and the cell tells how late its client was.
        options = {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False)}
        made.append((node, ray.remote(LoadNode).options(**options).remote()))
    workers = []
    for node, actor in made:
        try:
            about = ray.get(actor.about.remote(), timeout=_START_S)
        except GetTimeoutError as error:
            raise _no_worker(node, f"it did not start within {_START_S:g} s") from error
        except RayError as error:
            if not any(n["NodeID"] == node.id and n["Alive"] for n in ray.nodes()):
                return open_workers(count)  # it died lately, and the cluster has noticed only now
            raise _no_worker(node, _last_line(error)) from error
        if about["dyno"] != version("llm-dyno"):
            raise _no_worker(node, f"it has llm-dyno {about['dyno']}")
        workers.append(RayWorker.on(actor, node.address, about))
    return workers


def refuse_launched(workers: Sequence[RayWorker]) -> None:
    """Raise UsageError where a node of another machine is to reach a server that is launched here."""
    if elsewhere := [w for w in workers if w.about["boot_id"] != boot_id()]:
        raise UsageError(
            f"An engine that dyno launches listens on this machine alone (127.0.0.1), where node {elsewhere[0].address} cannot reach "
            f"it. Start the server yourself on an address of the network (--host 0.0.0.0) and name it: --url http://{_address()}:8000."
        )


def refuse_unreachable(workers: Sequence[RayWorker], url: ServerURL) -> None:
    """Raise UsageError or EnvironmentProblemError where a node has no way to the server."""
    for worker in workers:
        if url.is_loopback and worker.about["boot_id"] != boot_id():
            raise UsageError(
                f"{url} is to every machine the machine itself, so node {worker.address} would not send to this one. Name the server "
                f"by an address of the network, for example --url http://{_address()}:{url.port}, and let it listen there (--host "
                "0.0.0.0)."
            )
        if why := worker.reach(url, _REACH_S):
            raise EnvironmentProblemError(
                f"Node {worker.address} cannot reach the server at {url}: {why}. See that the server listens on that address (--host "
                "0.0.0.0) and that no firewall is between, or leave that node out (docs/several-machines.md)."
            )


def _address() -> str:
    """Of this machine, as the cluster knows it."""
    import ray

    return str(ray.util.get_node_ip_address())


def _no_worker(node: Node, why: str) -> EnvironmentProblemError:
    return EnvironmentProblemError(
        f"No load worker can be started on node {node.address}: {why}. It needs this very Dyno in the environment that Ray was started "
        f"from there: pip install 'llm-dyno[ray]=={version('llm-dyno')}', then ray start again."
    )


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__
