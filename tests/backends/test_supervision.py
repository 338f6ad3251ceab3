"""Whatever a server does, its failure is named with its cause, and afterwards nothing of it is left."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from backends import aftermath, keeper
from backends.base import FailurePattern, LaunchPlan
from backends.failures import LeftBehindError, ServerDiedError, ServerError, Stage, StartupError
from backends.ports import PortInUseError, free_port, listens_on, port_is_free
from backends.process import ServerProcess
from results.errors import EngineError, StoreError, UsageError
from tests.backends.conftest import FakeEngine
from tests.waiting import LONG_S, wait_until

OUT_OF_KV = "ValueError: No available memory for the cache blocks."


def start_error(
    fake: FakeEngine, *faults: str, after: str = "", timeout_s: float = LONG_S, **options: Any
) -> StartupError:
    """How that start fails. It is waited for from the moment on at which the log says `after`."""
    with fake.start(*faults, grace_s=0.5) as server:
        fake.remember(server.pids())
        wait_until(lambda: after in fake.words(), after)
        with pytest.raises(StartupError) as caught:
            server.wait_ready(fake.url, "/health", timeout_s, **options)
    fake.assert_nothing_left()
    return caught.value


class TestAHealthyServer:
    def test_becomes_ready_and_ends_on_request_with_its_own_exit_code(self, fake: FakeEngine) -> None:
        server = fake.ready()
        assert server.alive()
        assert server.exit_code is None
        assert server.pids() == [server.pid]
        assert server.stop() == 0
        assert not server.alive()
        assert "got SIGTERM" in fake.words()
        fake.assert_nothing_left()

    def test_runs_in_a_session_other_than_ours(self, fake: FakeEngine) -> None:
        server = fake.ready()
        assert os.getsid(server.pid) != os.getsid(0)
        assert os.getpgid(server.pid) == server.pid

    def test_has_a_timeline_in_order(self, fake: FakeEngine) -> None:
        server = fake.ready("--not-ready", "2")
        server.stop()
        assert list(server.timeline) == ["spawn", "listening", "ready", "stop", "gone"]
        assert sorted(server.timeline.values()) == list(server.timeline.values())

    def test_may_be_stopped_twice(self, fake: FakeEngine) -> None:
        server = fake.ready()
        assert server.stop() == server.stop() == 0

    def test_gets_the_environment_and_files_of_its_plan(self, tmp_path: Path) -> None:
        file = tmp_path / "conf" / "engine.yaml"
        code = "import os, sys; print(os.environ['DYNO_TEST_WORD'], open(sys.argv[1]).read())"
        plan = LaunchPlan((sys.executable, "-c", code, str(file)), {"DYNO_TEST_WORD": "grüß"}, {file: "a: 1"})
        with ServerProcess.start(plan, tmp_path / "log") as server:
            wait_until(lambda: not server.alive(), "its end")
            assert server.stop() == 0
        assert (tmp_path / "log").read_text().split() == ["grüß", "a:", "1"]

    def test_is_waited_for_while_it_says_not_ready(self, fake: FakeEngine) -> None:
        ticks: list[float] = []
        server = fake.start("--not-ready", "3")
        server.wait_ready(fake.url, "/health", LONG_S, ticks.append)
        assert len(ticks) >= 3
        assert ticks == sorted(ticks)


class TestAFailedStart:
    def test_names_the_first_cause_in_the_log_and_where_it_stands(self, fake: FakeEngine) -> None:
        message = f"{OUT_OF_KV}\nRuntimeError: Engine core failed: No module named x"
        error = start_error(fake, "--exit-at-spawn", "1", "--message", message)
        assert error.failure.failure == "out_of_memory_kv_cache"
        assert error.failure.is_out_of_memory
        assert error.failure.evidence == OUT_OF_KV
        assert error.stage is Stage.START
        assert error.server_exit == 1
        assert error.exit_code == 4
        text = str(error)
        assert "exit code 1" in text
        assert "| RuntimeError: Engine core failed" in text
        assert str(fake.log) in text
        assert "max_num_seqs" in text

    def test_the_adapters_own_patterns_come_first(self, fake: FakeEngine) -> None:
        pattern = FailurePattern("bad_argument", "flux capacitor", "Use 1.21 GW.")
        with (
            fake.start("--exit-at-spawn", "2", "--message", "flux capacitor: Permission denied") as server,
            pytest.raises(StartupError, match=r"1\.21 GW") as caught,
        ):
            server.wait_ready(fake.url, "/health", LONG_S, patterns=(pattern,))
        assert caught.value.failure.failure == "bad_argument"

    def test_by_a_signal_says_which(self, fake: FakeEngine) -> None:
        error = start_error(fake, "--die-after-bind", "-11")
        assert (error.failure.failure, error.stage, error.server_exit) == ("crash", Stage.LISTEN, -11)
        assert "signal 11 (SIGSEGV)" in str(error)

    def test_by_sigkill_suspects_the_memory_killer(self, fake: FakeEngine) -> None:
        error = start_error(fake, "--die-after-bind", "-9")
        assert error.failure.failure == "killed"
        assert "out-of-memory killer" in str(error)

    def test_that_hangs_before_it_listens_ends_at_the_time_limit(self, fake: FakeEngine) -> None:
        error = start_error(fake, "--hang-before-bind", after="hanging", timeout_s=0.5)
        assert (error.failure.failure, error.stage, error.server_exit) == ("timeout", Stage.START, None)
        assert "not ready within 0.5 s" in str(error)
        assert "| hanging" in str(error)

    def test_that_is_never_healthy_ends_at_the_time_limit(self, fake: FakeEngine) -> None:
        error = start_error(fake, "--not-ready", "-1", after="listening", timeout_s=0.5)
        assert (error.failure.failure, error.stage) == ("timeout", Stage.LISTEN)

    def test_that_goes_silent_ends_before_the_time_limit(self, fake: FakeEngine) -> None:
        error = start_error(fake, "--chatter", "4", "--hang-before-bind", after="hanging", stall_s=0.7)
        assert "it stalled: no line in its log and no CPU time for 0.7 s; the last line is 'hanging'" in str(error)
        assert "| loading step 3" in str(error)
        assert error.failure.failure == "stalled"

    def test_that_goes_silent_shows_its_last_fifty_lines(self, tmp_path: Path) -> None:
        code = "import time\nfor n in range(70): print('line', n, flush=True)\ntime.sleep(600)"
        plan, log = LaunchPlan((sys.executable, "-S", "-c", code)), tmp_path / "log"
        with ServerProcess.start(plan, log, 0.2) as server:
            wait_until(lambda: "line 69" in log.read_text(), "its last line")
            with pytest.raises(StartupError) as caught:
                server.watch(lambda _: None, LONG_S, "it was not ready", stall_s=0.4)
        shown = [line for line in str(caught.value).splitlines() if line.startswith("  | ")]
        assert (shown[0], shown[-1], len(shown)) == ("  | line 20", "  | line 69", 50)

    def test_that_has_lost_a_worker_to_memory_is_not_waited_for(self, fake: FakeEngine, tmp_path: Path) -> None:
        mood, ticks = tmp_path / "mood", iter(range(10**9))

        def lose_one_that_was_seen(seconds: float) -> None:
            if next(ticks) > 10 and seconds > 2:
                mood.write_text("lose")

        words = ("--lose-worker", "0", "--mood", str(mood), "--message", OUT_OF_KV, "--hang-before-bind")
        error = start_error(fake, *words, after="hanging", on_tick=lose_one_that_was_seen)
        assert error.failure.failure == "out_of_memory_kv_cache"
        assert re.search(r"its process \d+ ended, and its log names a cause", str(error))

    def test_whose_helpers_come_and_go_is_waited_for(self, fake: FakeEngine) -> None:
        # Nothing in the log says that it cannot go on without them.
        server = fake.start("--lose-worker", "0.6", "--message", "all compiled", "--not-ready", "11")
        server.wait_ready(fake.url, "/health", LONG_S)
        wait_until(lambda: "all compiled" in fake.words(), "the helper's word")

    def test_whose_worker_names_the_cause_while_the_front_stays(self, fake: FakeEngine) -> None:
        words = ("--message", "torch.OutOfMemoryError: CUDA out of memory", "--hang-before-bind")
        error = start_error(fake, *words, after="hanging", timeout_s=0.5)
        assert error.failure.failure == "out_of_memory_device"

    def test_of_a_missing_command_says_how_to_name_another(self, tmp_path: Path) -> None:
        with pytest.raises(StartupError, match="'no-such-engine' is installed") as caught:
            ServerProcess.start(LaunchPlan(("no-such-engine", "serve")), tmp_path / "log")
        assert caught.value.stage is Stage.SPAWN
        assert "No such file or directory" in str(caught.value)

    def test_with_an_unwritable_log_is_an_error_of_the_store(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match="file"):
            ServerProcess.start(LaunchPlan(("true",)), tmp_path / "file" / "log")

    def test_reads_a_log_of_any_bytes(self, fake: FakeEngine) -> None:
        fake.log.parent.mkdir()
        fake.log.write_bytes(b"\xff\xfe\x00 loading\r 50%\r100%\x1b[31m done\x1b[0m\n")
        error = start_error(fake, "--exit-at-spawn", "1")
        assert "| 100% done" in str(error)
        assert error.failure.failure == "unknown"

    def test_can_be_kept_in_a_session_record(self, fake: FakeEngine) -> None:
        record = start_error(
            fake, "--exit-at-spawn", "3", "--message", "error: unrecognized arguments: --x"
        ).to_record()
        assert (record["class"], record["stage"], record["exit"]) == ("bad_argument", "start", "exit code 3")


class TestAPortThatIsTaken:
    def test_is_refused_before_launch_with_its_holder(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with pytest.raises(PortInUseError, match=rf"Port {port} .* pid {os.getpid()}") as caught:
                ServerProcess.start(LaunchPlan((sys.executable, "-c", "")), tmp_path / "log", port=port)
        assert isinstance(caught.value, UsageError)
        assert not (tmp_path / "log").exists()

    def test_by_all_addresses_counts_as_taken(self) -> None:
        with socket.create_server(("0.0.0.0", 0)) as other:
            assert not port_is_free("127.0.0.1", other.getsockname()[1])

    def test_between_check_and_launch_is_never_measured(self, fake: FakeEngine) -> None:
        class Healthy(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        server = fake.start("--hang-before-bind", grace_s=0.5)
        with HTTPServer(("127.0.0.1", fake.port), Healthy) as other:
            threading.Thread(target=other.serve_forever, daemon=True).start()
            with pytest.raises(StartupError, match="Another server answers") as caught:
                server.wait_ready(fake.url, "/health", LONG_S)
            other.shutdown()
        assert f"pid {os.getpid()}" in str(caught.value)
        assert caught.value.failure.failure == "port_in_use"

    def test_by_a_process_of_the_tree_is_ours(self, fake: FakeEngine) -> None:
        server = fake.ready()
        assert listens_on(server.pids(), fake.port) is True
        assert listens_on([os.getpid()], fake.port) is False
        assert listens_on([os.getpid()], free_port()) is None


class TestTheEnd:
    def test_takes_workers_of_every_kind_away_that_ignore_sigterm(self, fake: FakeEngine) -> None:
        kinds = ("stubborn", "session", "orphan", "port")
        server = fake.ready(*(word for kind in kinds for word in ("--worker", kind)))
        workers = fake.worker_pids()
        assert len(workers) == len(kinds)
        assert set(workers) < set(server.pids())
        assert server.stop() == 0
        assert not [p for p in workers if keeper.identify(p)]
        fake.assert_nothing_left()

    def test_kills_a_server_that_ignores_sigterm(self, fake: FakeEngine) -> None:
        server = fake.ready("--ignore-term", "--worker", "stubborn", grace_s=3)  # time to say that it heard
        assert server.stop() == -signal.SIGKILL
        assert "got SIGTERM" in fake.words()
        fake.assert_nothing_left()

    def test_waits_the_grace_for_a_server_that_takes_its_time(self, tmp_path: Path) -> None:
        code = (
            "import signal, time, sys\n"
            "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), print('clean', flush=True), sys.exit(7)))\n"
            "print('up', flush=True)\ntime.sleep(600)"
        )
        log = tmp_path / "log"
        with ServerProcess.start(LaunchPlan((sys.executable, "-c", code)), log, LONG_S) as server:
            wait_until(lambda: "up" in log.read_text(), "the server's first line")
            assert server.stop() == 7
        assert "clean" in log.read_text()

    def test_of_a_server_that_left_workers_behind_sweeps_them(self, fake: FakeEngine) -> None:
        server = fake.start("--worker", "orphan", "--worker", "port", "--exit-with-workers", "5", grace_s=0.3)
        with pytest.raises(StartupError):
            server.wait_ready(fake.url, "/health", LONG_S)
        workers = fake.worker_pids()
        assert len(workers) == 2
        wait_until(lambda: not [p for p in workers if keeper.identify(p)], "the sweep, before anybody asked to stop")
        assert server.stop() == 5
        fake.assert_nothing_left()

    def test_of_a_front_killed_from_outside_takes_its_workers_away(self, fake: FakeEngine) -> None:
        server = fake.ready("--worker", "session", "--worker", "stubborn", grace_s=0.3)
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not [p for p in fake.seen if keeper.alive(p)], "the sweep, before anybody asked to stop")
        assert server.exit_code == -signal.SIGKILL
        assert server.stop() == -signal.SIGKILL
        assert server.pids() == []
        fake.assert_nothing_left()

    def test_comes_when_the_body_fails_and_the_error_stays_the_bodys(self, fake: FakeEngine) -> None:
        with pytest.raises(ZeroDivisionError), fake.ready("--worker", "session", grace_s=0.3):
            _ = 1 / 0
        fake.assert_nothing_left()

    def test_comes_when_the_keepers_pipe_is_closed(self, fake: FakeEngine) -> None:
        server = fake.ready("--worker", "session")
        server._link._in.close()
        wait_until(lambda: not [p for p in fake.seen if keeper.alive(p)], "the end of the tree")
        assert "got SIGTERM" in fake.words()

    def test_comes_when_the_keeper_was_killed(self, fake: FakeEngine) -> None:
        server = fake.ready("--worker", "session", "--worker", "stubborn")
        front = keeper.identify(server.pid)
        assert front is not None
        os.kill(server._link.pid, signal.SIGKILL)
        wait_until(lambda: not keeper.alive(front), "the server's end with its keeper")
        assert not server.alive()
        with pytest.raises(ServerDiedError, match="vanished together with its keeper"):
            server.check()
        assert server.stop() is None
        fake.assert_nothing_left()

    def test_a_second_ctrl_c_cuts_the_grace_short(self, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        server = fake.ready("--ignore-term", grace_s=120)
        listen = server._link.listen
        pressed = iter([KeyboardInterrupt()])

        def press_once(seconds: float) -> bool:
            if error := next(pressed, None):
                raise error
            return listen(seconds)

        monkeypatch.setattr(server._link, "listen", press_once)
        with pytest.raises(KeyboardInterrupt):
            server.stop()
        assert server.stop() == -signal.SIGKILL
        fake.assert_nothing_left()

    def test_waits_until_device_memory_is_back(self, tmp_path: Path) -> None:
        class Device:
            readings = iter([1 << 30, 9 << 30, 9 << 30, 1 << 30])
            left = 4

            def memory_used(self) -> dict[str, int]:
                self.left -= 1
                return {"gpu0": next(self.readings)}

        device = Device()
        ServerProcess.start(LaunchPlan((sys.executable, "-c", "")), tmp_path / "log", devices=device).stop()
        assert device.left == 0

    def test_for_want_of_memory_says_what_was_in_use_and_by_whom(self, tmp_path: Path) -> None:
        class Device:
            readings = iter([60 << 30])

            def memory_used(self) -> dict[str, int]:
                return {"gpu0": next(self.readings, 61 << 30)}

            def holders(self) -> dict[str, list[int]]:
                return {"gpu0": [4242]}

        code = f"import sys; sys.exit({OUT_OF_KV!r})"
        plan, log = LaunchPlan((sys.executable, "-c", code)), tmp_path / "log"
        with ServerProcess.start(plan, log, devices=Device()) as server:
            wait_until(lambda: not server.alive(), "its end")
            said = "gpu0 had 60.0 GiB before the launch, 61.0 GiB in use now, held by process 4242"
            with pytest.raises(ServerDiedError, match=said):
                server.check()
            Device.readings = iter([60 << 30])

    def test_that_leaves_processes_names_them_and_is_an_error(
        self, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = fake.ready()
        monkeypatch.setattr(server._link, "left", lambda: [4242, 4243])
        with pytest.raises(LeftBehindError, match=r"2 of its processes cannot be ended: \[4242, 4243\]") as caught:
            server.stop()
        assert caught.value.exit_code == 4

    def test_that_leaves_device_memory_held_says_how_much(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Device:
            readings = iter([1 << 30])

            def memory_used(self) -> dict[str, int]:
                return {"gpu0": next(self.readings, 9 << 30)}

        monkeypatch.setattr(aftermath, "_MEMORY_BACK_S", 0.3)
        server = ServerProcess.start(LaunchPlan((sys.executable, "-c", "")), tmp_path / "log", devices=Device())
        with pytest.raises(LeftBehindError, match="gpu0 8192 MiB"):
            server.stop()


class TestADeathInUse:
    def test_in_mid_stream_is_seen_with_its_signal(self, fake: FakeEngine) -> None:
        server = fake.ready("--die-after-tokens", "3", "--message", "Fatal Python error: Segmentation fault")
        server.check()
        connection = http.client.HTTPConnection("127.0.0.1", fake.port, timeout=LONG_S)
        connection.request("POST", "/v1/completions", json.dumps({"max_tokens": 9}))
        assert connection.getresponse().read().count(b"data:") == 3
        wait_until(lambda: not server.alive(), "the server's end")
        with pytest.raises(ServerDiedError, match="while it was in use: it ended with signal 11") as caught:
            server.check()
        error: ServerError = caught.value
        assert isinstance(error, EngineError)
        assert error.failure.failure == "crash"
        assert server.stop() == -11
        fake.assert_nothing_left()


class TestTheHarnessDies:
    def supervisor(self, fake: FakeEngine, *faults: str) -> subprocess.Popen[str]:
        fake.log.parent.mkdir(exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "tests.backends.supervisor_script",
            str(fake.port),
            str(fake.log),
            str(LONG_S),
            str(LONG_S),
        ]
        return subprocess.Popen(
            [*command, *fake.command(*faults)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )

    def test_by_sigkill_and_the_whole_tree_goes_with_it(self, fake: FakeEngine) -> None:
        faults = ("--worker", "stubborn", "--worker", "session", "--worker", "orphan", "--worker", "port")
        with self.supervisor(fake, *faults) as harness:
            assert harness.stdout is not None
            pids = json.loads(harness.stdout.readline())["pids"]
            assert len(pids) == 5
            fake.remember(pids)
            harness.kill()
            harness.wait()
            wait_until(lambda: not [p for p in fake.seen if keeper.alive(p)], "the end of the tree")
        fake.assert_nothing_left()
        assert "got SIGTERM" in fake.words()

    def test_ctrl_c_reaches_the_server_only_through_the_harness(self, fake: FakeEngine) -> None:
        with self.supervisor(fake) as harness:
            assert harness.stdout is not None
            fake.remember(json.loads(harness.stdout.readline())["pids"])
            os.killpg(harness.pid, signal.SIGINT)
            assert json.loads(harness.stdout.readline()) == {"interrupted": True, "health": 200}
            assert json.loads(harness.stdout.readline()) == {"exit": 0}
            assert harness.wait(LONG_S) == 0
        assert "got SIGINT" not in fake.words()
        fake.assert_nothing_left()

    def test_and_a_sibling_that_holds_the_pipe_open_does_not_keep_the_server(self, fake: FakeEngine) -> None:
        code = (
            "import os, sys, time\nfrom pathlib import Path\nfrom backends.base import LaunchPlan\n"
            "from backends.process import ServerProcess\n"
            "s = ServerProcess.start(LaunchPlan(tuple(sys.argv[2:])), Path(sys.argv[1]), 1.0)\n"
            "sibling = os.fork()\n"
            "if sibling == 0:\n    os.close(1)\n    os.close(2)\n    time.sleep(600)\n    os._exit(0)\n"
            "print(sibling, s.pid, flush=True)\nos._exit(0)"
        )
        fake.log.parent.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", code, str(fake.log), *fake.command()],
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=True,
        )
        sibling, server = map(int, done.stdout.split())
        try:
            wait_until(lambda: keeper.identify(server) is None, "the server's end")
            assert keeper.identify(sibling) is not None
        finally:
            os.kill(sibling, signal.SIGKILL)


class TestProcessIdentity:
    def test_a_reused_number_is_another_process(self) -> None:
        us = keeper.identify(os.getpid())
        assert us is not None
        assert keeper.alive(us)
        other = keeper.Process(us.pid, us.start - 1)
        assert not keeper.alive(other)
        keeper.send(other, signal.SIGKILL)  # or this test would not end well

    def test_a_zombie_is_gone(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", ""])
        wait_until(lambda: keeper.identify(child.pid) is None, "the zombie")
        assert child.pid not in [p.pid for p in keeper.descendants(os.getpid())]
        child.wait()

    def test_the_keeper_starts_without_the_package(self) -> None:
        code = f"import runpy, sys; runpy.run_path({keeper.__file__!r}); print(*sys.modules)"
        done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
        loaded = set(done.stdout.split())
        assert "json" in loaded
        assert not loaded & {"backends", "results", "pydantic", "subprocess", "asyncio", "psutil"}
