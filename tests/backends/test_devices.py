"""Device memory is back where it was before the next server is started."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from backends import aftermath
from backends.base import LaunchPlan
from backends.devices import TOLERANCE_BYTES, wait_memory_back
from backends.failures import LeftBehindError
from backends.process import ServerProcess

GIB = 2**30


class Played:
    """A probe that gives its readings one after the other, the last for ever."""

    def __init__(self, *readings: Mapping[str, int]) -> None:
        self.readings = list(readings)

    def memory_used(self) -> Mapping[str, int]:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


def test_memory_that_comes_back_late_is_waited_for() -> None:
    probe = Played({"GPU-a": 9 * GIB}, {"GPU-a": 2 * GIB}, {"GPU-a": GIB + TOLERANCE_BYTES})
    assert wait_memory_back(probe, {"GPU-a": GIB}, timeout_s=60) == {}


def test_memory_that_stays_is_told_for_the_device_that_holds_it() -> None:
    probe = Played({"GPU-a": GIB, "GPU-b": 5 * GIB})
    assert wait_memory_back(probe, {"GPU-a": GIB, "GPU-b": GIB}, timeout_s=0.1) == {"GPU-b": 4 * GIB}


def test_a_device_that_tells_nothing_any_more_is_not_waited_for() -> None:
    assert wait_memory_back(Played({}), {"GPU-a": GIB}, timeout_s=60) == {}


def server(folder: Path, probe: Played) -> ServerProcess:
    plan = LaunchPlan((sys.executable, "-c", "import time; time.sleep(60)"), {}, {})
    return ServerProcess.start(plan, folder / "server.log", 0.5, devices=probe)


def test_a_server_whose_memory_does_not_come_back_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aftermath, "_MEMORY_BACK_S", 0.3)
    running = server(tmp_path, Played({"GPU-a": GIB}, {"GPU-a": 40 * GIB}))
    with pytest.raises(LeftBehindError, match=r"device memory is not back.*GPU-a 39936 MiB above"):
        running.stop()
    assert not running.alive()


def test_a_server_whose_memory_comes_back_ends_quietly(tmp_path: Path) -> None:
    running = server(tmp_path, Played({"GPU-a": GIB}, {"GPU-a": 40 * GIB}, {"GPU-a": GIB}))
    running.stop()
    assert not running.alive()
