"""Three ends by force of the real vLLM under load: whatever is killed, nothing of its tree is left and nothing is held."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from backends.base import EngineSettings, LaunchContext, LaunchPlan
from backends.failures import ServerDiedError
from backends.http_probe import ProbeError
from backends.ports import free_port, port_is_free
from backends.process import ServerProcess
from backends.vllm import BACKEND
from harness.api_call import ask
from tests.vllm.conftest import EAGER, running
from tests.waiting import LONG_S, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
SHM = Path("/dev/shm")
ROOT = Path(__file__).parents[2]
READY_S = 400


class Life:
    """One vLLM on a port of its own, and what its processes hold."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.port = free_port()
        self.url, self.log = f"http://127.0.0.1:{self.port}", folder / "server.log"
        settings = EngineSettings(kv_cache_bytes=1 << 30, threads=1, load_format="dummy")
        context = LaunchContext(
            model, "m", settings, folder, "127.0.0.1", self.port, command=BACKEND.command(None), options=EAGER
        )
        self.plan: LaunchPlan = BACKEND.launch_plan(context)
        self.tree: list[psutil.Process] = []
        self.segments: set[Path] = set()

    def remember(self, pids: list[int]) -> None:
        """Its processes, and the shared memory that they have open now."""
        self.tree = [psutil.Process(pid) for pid in pids]
        assert len(self.tree) >= 3, "the API server, the engine and a helper"
        for process in self.tree:
            held = {m.path for m in process.memory_maps()} | {f.path for f in process.open_files()}
            self.segments |= {Path(path) for path in held if path.startswith(f"{SHM}/") and Path(path).exists()}
        assert self.segments, "it holds shared memory, which a kill may leave behind"

    def engine(self) -> psutil.Process:
        (found,) = [p for p in self.tree if "EngineCore" in " ".join(p.cmdline())]
        return found

    @contextmanager
    def load(self) -> Iterator[None]:
        """Two endless answers on their way, of which the first token is there."""
        begun = [threading.Event() for _ in range(2)]
        threads = [threading.Thread(target=self._stream, args=(event,), daemon=True) for event in begun]
        for thread in threads:
            thread.start()
        for event in begun:
            assert event.wait(LONG_S), "no token of the load"
        yield
        for thread in threads:
            thread.join(LONG_S)
            assert not thread.is_alive(), "a client still waits for the dead server"

    def _stream(self, begun: threading.Event) -> None:
        body = {"model": "m", "prompt": [5, 6, 7], "max_tokens": 1500, "ignore_eos": True, "stream": True}
        try:
            # A first answer that is cut says that tokens come; the second goes on until it breaks.
            ask(self.url, body, timeout_s=LONG_S, cut_after=2)
            begun.set()
            ask(self.url, body, timeout_s=LONG_S)
        except ProbeError:
            pass  # the server is gone, as it should be

    def assert_nothing_left(self) -> None:
        wait_until(lambda: running(self.tree) == [], "the end of the tree")
        assert port_is_free("127.0.0.1", self.port)
        assert [path for path in self.segments if path.exists()] == []


@pytest.fixture
def life(tmp_path: Path, tiny_dir: Path) -> Life:
    return Life(tmp_path, tiny_dir)


@contextmanager
def started(life: Life, grace_s: float) -> Iterator[ServerProcess]:
    with ServerProcess.start(life.plan, life.log, grace_s, port=life.port) as server:
        server.wait_ready(life.url, "/health", READY_S, patterns=BACKEND.failures)
        life.remember(server.pids())
        yield server


def test_a_killed_engine_takes_its_front_with_it_and_is_named(life: Life) -> None:
    with started(life, 20) as server, life.load():
        life.engine().kill()
        wait_until(lambda: not server.alive(), "the front's end")
        with pytest.raises(ServerDiedError) as caught:
            server.check()
    assert caught.value.failure.failure == "engine_died", str(caught.value)
    life.assert_nothing_left()


def test_a_front_that_does_not_hear_sigterm_is_ended_after_its_grace(life: Life) -> None:
    with started(life, 2) as server, life.load():
        psutil.Process(server.pid).suspend()
        assert server.stop() == -9
    life.assert_nothing_left()


def test_a_harness_killed_under_load_leaves_no_tree(life: Life) -> None:
    # Its environment is for it alone: our own script would not find its modules in that.
    command = ["env", *(f"{name}={value}" for name, value in life.plan.env.items()), *life.plan.argv]
    words = [str(life.port), str(life.log), "5", str(READY_S), *command]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.backends.supervisor_script", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as harness:
        assert harness.stdout is not None
        life.remember(json.loads(harness.stdout.readline())["pids"])
        with life.load():
            harness.kill()
            harness.wait()
            wait_until(lambda: running(life.tree) == [], "the end of the tree")
    life.assert_nothing_left()
