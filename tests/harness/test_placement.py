"""Client, API server and engine on cores of their own where there are enough; where they really run is read back."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.base import LaunchPlan
from backends.process import ServerProcess
from harness.observer import Observer
from harness.placement import (
    ClientCores,
    Placement,
    ThisMachine,
    cpu_list,
    cpu_words,
    found_placement,
    physical_cores,
    plan_placement,
    settle,
)
from harness.session_open import open_session
from tests.harness.fake_sessions import Runs, fake_engine, grid
from tests.waiting import wait_until

FRONT, ENGINE = 100, 200


class FakeMachine:
    """`cores` of `smt` CPUs each, numbered as Linux does: the siblings of CPU c are c, c + cores, ..."""

    def __init__(self, cores: int, smt: int = 1, threads: dict[int, dict[int, set[int]]] | None = None) -> None:
        self.cores, self.here = cores, frozenset(range(cores * smt))
        self.running = {pid: {t: frozenset(c) for t, c in of.items()} for pid, of in (threads or {}).items()}
        self.stuck: set[int] = set()

    def cpus(self) -> frozenset[int]:
        return self.here

    def siblings(self, cpu: int) -> frozenset[int]:
        return frozenset(c for c in self.here if c % self.cores == cpu % self.cores)

    def threads(self, pid: int) -> dict[int, frozenset[int]]:
        return dict(self.running.get(pid, {}))

    def pin(self, thread: int, cpus: frozenset[int]) -> None:
        if thread in self.stuck:
            return
        if thread == 0:
            self.here = cpus
        for of in self.running.values():
            if thread in of:
                of[thread] = cpus


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_few_cores_are_shared_by_all_and_that_is_said(cores: int) -> None:
    placement = plan_placement(FakeMachine(cores, smt=2), own_api_process=True)
    assert not placement.apart
    assert f"{cores} core" in placement.why
    assert "share them all" in placement.why


def test_four_cores_are_enough() -> None:
    placement = plan_placement(FakeMachine(4), own_api_process=True)
    assert (placement.client, placement.api, placement.engine) == ({0}, {1}, {2, 3})


def test_an_engine_in_the_api_servers_own_process_gets_all_but_the_clients() -> None:
    placement = plan_placement(FakeMachine(4), own_api_process=False)
    assert (placement.client, placement.api, placement.engine) == ({0}, frozenset(), {1, 2, 3})


def test_the_two_threads_of_a_core_stay_together() -> None:
    placement = plan_placement(FakeMachine(4, smt=2), own_api_process=True)
    assert (placement.client, placement.api, placement.engine) == ({0, 4}, {1, 5}, {2, 3, 6, 7})


def test_several_load_workers_get_as_many_cores_but_leave_the_engine_most() -> None:
    assert len(plan_placement(FakeMachine(32), True, workers=6).client) == 6
    assert len(plan_placement(FakeMachine(8), True, workers=6).client) == 2


def test_a_system_that_tells_no_cores_is_left_alone() -> None:
    assert "does not tell" in plan_placement(FakeMachine(0), True).why


@given(st.integers(1, 96), st.sampled_from([1, 2]), st.booleans(), st.integers(1, 64))
def test_parts_never_share_a_core_and_none_is_lost(cores: int, smt: int, own: bool, workers: int) -> None:
    machine = FakeMachine(cores, smt)
    placement = plan_placement(machine, own, workers)
    if not placement.apart:
        assert cores < 4
        return
    parts = [placement.client, placement.engine, *([placement.api] if own else [])]
    assert frozenset().union(*parts) == machine.cpus()
    assert sum(map(len, parts)) == len(machine.cpus())
    assert len(placement.engine) >= len(machine.cpus()) / 2
    for core in physical_cores(machine):
        assert sum(bool(core & part) for part in parts) == 1


PLACEMENT = Placement(frozenset({0}), frozenset({1}), frozenset({2, 3}))


class TestAServerThatIsUp:
    def test_has_its_threads_moved_and_those_its_engine_bound_left(self) -> None:
        machine = FakeMachine(4, threads={FRONT: {100: {2, 3}, 101: {2, 3}}, ENGINE: {200: {0, 1, 2, 3}, 201: {3}}})
        settle(machine, PLACEMENT, FRONT, [ENGINE])
        assert machine.threads(FRONT) == {100: {1}, 101: {1}}
        assert machine.threads(ENGINE) == {200: {2, 3}, 201: {3}}

    def test_and_has_one_process_after_all_keeps_both_parts(self) -> None:
        machine = FakeMachine(4, threads={FRONT: {100: {0, 1, 2, 3}}})
        settle(machine, PLACEMENT, FRONT, [])
        assert machine.threads(FRONT) == {100: {1, 2, 3}}

    def test_is_read_back_with_what_was_asked(self) -> None:
        machine = FakeMachine(4, threads={FRONT: {100: {0, 1, 2, 3}}, ENGINE: {200: {0, 1, 2, 3}}})
        cores = ClientCores(machine, PLACEMENT)
        cores.hold()
        settle(machine, PLACEMENT, FRONT, [ENGINE])
        found = found_placement(machine, PLACEMENT, FRONT, [ENGINE])
        assert found["client"] == {"asked": [0], "found": [0]}
        assert found["api"] == {"asked": [1], "found": [1]}
        assert found["engine"] == {"asked": [2, 3], "found": [2, 3]}
        assert found["words"] == "CPUs: client on 0, API server on 1, engine on 2-3"
        cores.release()
        assert machine.cpus() == {0, 1, 2, 3}

    def test_that_lets_itself_not_be_moved_is_told(self) -> None:
        machine = FakeMachine(4, threads={FRONT: {100: {0, 1, 2, 3}}, ENGINE: {200: {0, 1, 2, 3}}})
        machine.stuck = {200}
        ClientCores(machine, PLACEMENT).hold()
        settle(machine, PLACEMENT, FRONT, [ENGINE])
        words = found_placement(machine, PLACEMENT, FRONT, [ENGINE])["words"]
        assert words.endswith("engine on 0-3; 0 shared although all were to be apart")

    def test_is_left_where_it_is_without_room(self) -> None:
        machine = FakeMachine(2, threads={FRONT: {100: {0, 1}}})
        placement = plan_placement(machine, True)
        cores = ClientCores(machine, placement)
        cores.hold()
        settle(machine, placement, FRONT, [])
        assert machine.cpus() == machine.threads(FRONT)[100] == {0, 1}
        cores.release()


class TestASession:
    def test_says_where_its_parts_run(self, tmp_path: Path) -> None:
        runs, machine = Runs(tmp_path), FakeMachine(8)
        experiment = grid(fake_engine())
        with runs.store(experiment) as store:
            session = open_session(experiment.engines[0], 0, experiment, store, runs.model, Observer(), machine)
            assert machine.cpus() == {0}, "what is started now runs on the client's core"
            session.close(store)
        assert machine.cpus() == set(range(8))
        (record,) = (json.loads(path.read_text()) for path in tmp_path.glob("run/sessions/*/session.json"))
        assert record["placement"]["engine"]["asked"] == [1, 2, 3, 4, 5, 6, 7]
        assert record["notes"][-1] == record["placement"]["words"]

    def test_that_does_not_start_gives_the_cores_back(self, tmp_path: Path) -> None:
        runs, machine = Runs(tmp_path), FakeMachine(8)
        experiment = grid(fake_engine("--exit-at-spawn", "2"))
        with runs.store(experiment) as store, pytest.raises(Exception, match="exit code 2"):
            open_session(experiment.engines[0], 0, experiment, store, runs.model, Observer(), machine)
        assert machine.cpus() == set(range(8))

    @pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin processes")
    def test_starts_a_server_on_the_cpus_of_its_plan(self, tmp_path: Path) -> None:
        cpu = min(os.sched_getaffinity(0))
        code = "import os; print(sorted(os.sched_getaffinity(0)), flush=True)"
        plan = LaunchPlan((sys.executable, "-c", code), cpus=(cpu,))
        with ServerProcess.start(plan, tmp_path / "log") as server:
            wait_until(lambda: not server.alive(), "its end")
        assert json.loads((tmp_path / "log").read_text()) == [cpu]

    @pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin processes")
    def test_of_this_machine_is_read_back_as_it_is(self) -> None:
        found = ThisMachine().threads(os.getpid())
        assert os.getpid() in found
        assert found[os.getpid()] <= ThisMachine().cpus()
        assert ThisMachine().threads(2**22 + 1) == {}


@given(st.sets(st.integers(0, 300), min_size=1))
def test_cpu_lists_read_as_they_are_written(cpus: set[int]) -> None:
    assert cpu_list(cpu_words(cpus)) == cpus
