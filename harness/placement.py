"""Which cores the load client, the server's API process and its engine run on: apart where there are enough, and read back.

A client that shares a core with what it measures is late when the server is busy; an API process that shares one with its
engine is slow when the engine computes. Below four cores all share, and the session says so.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

ENOUGH_CORES = 4
# From so many cores on, client and API server get two.
_MANY_CORES = 12
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


class Machine(Protocol):
    """What placement asks of the system. A process or thread that is gone, or not ours, is left as it is."""

    def cpus(self) -> frozenset[int]:
        """The CPUs that this process may use; empty where the system does not tell."""
        ...

    def siblings(self, cpu: int) -> frozenset[int]:
        """The CPUs that share a core with this one, itself among them."""
        ...

    def threads(self, pid: int) -> dict[int, frozenset[int]]:
        """The CPUs that each thread of a process may use; {} for one that is gone."""
        ...

    def pin(self, thread: int, cpus: frozenset[int]) -> None:
        """Let a thread (0: the one that calls) run there only. What it starts later runs there too."""
        ...


class ThisMachine:
    """The system this runs on."""

    def cpus(self) -> frozenset[int]:
        return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()

    def siblings(self, cpu: int) -> frozenset[int]:
        try:
            return cpu_list(Path(_SIBLINGS.format(cpu)).read_text())
        except (OSError, ValueError):
            return frozenset((cpu,))

    def threads(self, pid: int) -> dict[int, frozenset[int]]:
        found = {}
        try:
            for name in os.listdir(f"/proc/{pid}/task"):
                found[int(name)] = frozenset(os.sched_getaffinity(int(name)))
        except OSError:
            pass  # it ended meanwhile
        return found

    def pin(self, thread: int, cpus: frozenset[int]) -> None:
        with contextlib.suppress(OSError):  # gone, or not ours: reading back tells where it is
            os.sched_setaffinity(thread, cpus)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each part is to run. `api` is empty where API server and engine are one process; all are empty where everything
    shares all cores. `why` says so then."""

    client: frozenset[int] = frozenset()
    api: frozenset[int] = frozenset()
    engine: frozenset[int] = frozenset()
    why: str = ""

    @property
    def apart(self) -> bool:
        return bool(self.client)


def plan_placement(machine: Machine, own_api_process: bool, workers: int = 1) -> Placement:
    """Whole cores for each: one or two for the client (more for its `workers`), as many for an API process of its own, the
    rest for the engine."""
    cores = physical_cores(machine)
    if not cores:
        return Placement(why="this system does not tell which cores there are: all processes run where it puts them")
    if len(cores) < ENOUGH_CORES:
        n = f"{len(cores)} core{'s' if len(cores) > 1 else ''}"
        return Placement(why=f"with {n} the client, the API server and the engine share them all")
    few = 2 if len(cores) >= _MANY_CORES else 1
    clients = max(few, min(workers, len(cores) // 4))
    apis = few if own_api_process else 0
    return Placement(
        client=_together(cores[:clients]),
        api=_together(cores[clients : clients + apis]),
        engine=_together(cores[clients + apis :]),
    )


def physical_cores(machine: Machine) -> list[frozenset[int]]:
    """The usable CPUs, those of one core together, in their order."""
    usable, cores = machine.cpus(), []
    left = set(usable)
    for cpu in sorted(usable):
        if cpu in left:
            core = (machine.siblings(cpu) | {cpu}) & usable
            cores.append(frozenset(core))
            left -= core
    return cores


class ClientCores:
    """This process, and with it every child it starts, on the client's cores from `hold` to `release`."""

    def __init__(self, machine: Machine, placement: Placement) -> None:
        self._machine, self._placement, self._before = machine, placement, machine.cpus()
        self._held = False

    def hold(self) -> None:
        if self._placement.apart:
            self._held = True
            self._machine.pin(0, self._placement.client)

    def release(self) -> None:
        if self._held:
            self._held = False
            self._machine.pin(0, self._before)


def settle(machine: Machine, placement: Placement, front: int, below: Sequence[int]) -> None:
    """Move the threads of a server that is up: the front's to the API server's cores, those of the processes below it off
    them. A thread that its engine has bound to some of the engine's cores keeps those."""
    if not placement.apart:
        return
    alone = placement.engine | placement.api
    for pid in (front, *below):
        here = placement.engine
        if pid == front and placement.api:
            here = placement.api if below else alone
        for thread, cpus in machine.threads(pid).items():
            if not cpus <= here:
                machine.pin(thread, cpus & here or here)


def found_placement(machine: Machine, placement: Placement, front: int, below: Sequence[int]) -> dict[str, Any]:
    """What was asked and where the parts really may run, for the session's record; `words` says it for a reader."""
    several = bool(placement.api and below)
    found = {
        "client": machine.cpus(),
        "api": _of(machine, [front]) if several else frozenset(),
        "engine": _of(machine, below if several else [front, *below]),
    }
    asked = {"client": placement.client, "api": placement.api, "engine": placement.engine}
    record: dict[str, Any] = {name: {"asked": sorted(asked[name]), "found": sorted(found[name])} for name in found}
    return {**record, "apart": placement.apart, "words": _words(placement, found, several)}


def _words(placement: Placement, found: dict[str, frozenset[int]], several: bool) -> str:
    if not placement.apart:
        return placement.why
    server = f"API server on {cpu_words(found['api'])}, engine on {cpu_words(found['engine'])}"
    if not several:
        server = f"API server and engine together on {cpu_words(found['engine'])}"
    words = f"CPUs: client on {cpu_words(found['client'])}, {server}"
    shared = found["client"] & (found["engine"] | found["api"]) or found["api"] & found["engine"]
    return f"{words}; {cpu_words(shared)} shared although all were to be apart" if shared else words


def _of(machine: Machine, pids: Sequence[int]) -> frozenset[int]:
    return _together([cpus for pid in pids for cpus in machine.threads(pid).values()])


def _together(parts: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*parts)


def cpu_list(text: str) -> frozenset[int]:
    """`0-3,8` as Linux writes it. Raises ValueError."""
    found: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


def cpu_words(cpus: Iterable[int]) -> str:
    """The same backwards; "none" for none."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs) or "none"
