"""Supervision of one server: start it under a keeper, wait until it is ready, end it with everything below it.

with ServerProcess.start(plan, session_dir / "server.log", port=port) as server:
    server.wait_ready(url, "/health", timeout_s=600)
    ...

Whatever happens inside, afterwards no process of the tree is left and the port is free, or LeftBehindError says what is.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from backends import http_probe
from backends.aftermath import require_nothing_left
from backends.base import FailurePattern, LaunchPlan
from backends.devices import DeviceProbe, NoDevices, memory_words
from backends.failure_table import TIMEOUT, FailureClass
from backends.failures import (
    STAGE_WORDS,
    Failure,
    LeftBehindError,
    ServerDiedError,
    ServerError,
    Stage,
    StartupError,
    classify,
    exit_words,
)
from backends.keeper import Process
from backends.keeper_link import KeeperLink
from backends.ports import free_port, listens_on, port_holder, require_free_port
from backends.redact import public_argv, public_environment, relevant_environment
from backends.server_log import read_log, tail_lines
from backends.start_watch import StartWatch
from results.clock import now_ns
from results.errors import StoreError

__all__ = [
    "DeviceProbe",
    "NoDevices",
    "ServerProcess",
    "free_port",
    "public_argv",
    "public_environment",
    "relevant_environment",
]

_T = TypeVar("_T")
_SPAWN_S = 20.0
_PROBE_S = 5.0


class ServerProcess:
    """A running server and its tree. Not for use by several threads at once."""

    def __init__(
        self,
        link: KeeperLink,
        log_path: Path,
        host: str,
        port: int | None,
        devices: DeviceProbe,
        baseline: Mapping[str, int],
    ) -> None:
        """Use `start`."""
        self._link = link
        self._devices, self._baseline = devices, baseline
        self._stopped = False
        self.log_path, self.host, self.port = log_path, host, port
        self.patterns: Sequence[FailurePattern] = ()
        self.stage = Stage.SPAWN
        # Monotonic ns of what was seen from outside: spawn, listening, ready, stop, gone.
        self.timeline: dict[str, int] = {}

    @classmethod
    def start(
        cls,
        plan: LaunchPlan,
        log_path: Path,
        grace_s: float = 10.0,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        devices: DeviceProbe | None = None,
    ) -> Self:
        """Write the plan's files and start its command; stdout and stderr are appended to `log_path`.

        With `port` the server is refused (PortInUseError) where someone listens already, and its end includes that the
        port is free again. Raises StartupError when the command cannot be executed, StoreError when the files cannot
        be written.
        """
        if port is not None:
            require_free_port(host, port)
        try:
            for path, text in plan.files.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            log_path.parent.mkdir(parents=True, exist_ok=True)
            log = log_path.open("ab")
        except OSError as error:
            raise StoreError(
                f"Cannot write {error.filename}: {error.strerror}. Check the disk and its rights."
            ) from error
        devices = devices or NoDevices()
        baseline = dict(devices.memory_used())
        with log:
            server = cls(KeeperLink(plan, log, grace_s), log_path, host, port, devices, baseline)
        try:
            server._await_spawn(plan.argv[0])
        except BaseException:
            server.stop()
            raise
        return server

    def _await_spawn(self, program: str) -> None:
        deadline = time.monotonic() + _SPAWN_S
        said = self._link.said
        while not said.keys() & {"pid", "error"} and time.monotonic() < deadline:
            if not self._link.listen(0.1) and not self._link.running():
                break
        if "pid" in said:
            self.reached(Stage.START, "spawn")
            self._link.tree()
            return
        words = said.get("error", "the keeper did not answer")
        advice = (
            f"Check that {program!r} is installed and on PATH, or name the engine's command "
            "(`command` of the engine, or DYNO_<BACKEND>_COMMAND)."
        )
        failure = Failure("missing_dependency", f"{program}: {words}", advice)
        what = f"The server's command {program!r} cannot be executed."
        raise StartupError(what, stage=Stage.SPAWN, server_exit=None, failure=failure, log_path=self.log_path)

    @property
    def pid(self) -> int:
        """The server's own process (the leader of its group)."""
        return int(self._link.said.get("pid", 0))

    @property
    def exit_code(self) -> int | None:
        """How the server ended (negative: by that signal); None while it runs, or when nobody saw its end."""
        self._link.listen(0)
        code = self._link.said.get("exit")
        return None if code is None else int(code)

    def alive(self) -> bool:
        """Whether the server's own process runs."""
        return self.exit_code is None and self._link.running()

    def tree(self) -> list[Process]:
        """All processes of the server now, those that lost their parent too."""
        return self._link.tree()

    def pids(self) -> list[int]:
        """Their numbers."""
        return [process.pid for process in self.tree()]

    def wait_ready(
        self,
        url: str,
        path: str = "/health",
        timeout_s: float = 600.0,
        on_tick: Callable[[float], None] | None = None,
        *,
        patterns: Sequence[FailurePattern] = (),
        key_env: str | None = None,
        stall_s: float | None = None,
        listens_in_tree: bool = True,
    ) -> float:
        """Poll until GET url + path answers 200; returns the seconds since it was started.

        Raises StartupError as `watch` does. `on_tick` is called with the seconds waited so far, a few times a second;
        `patterns` are the adapter's own failure patterns, kept for later failures too.
        `listens_in_tree=False` for a server whose port is held by a process that is not below ours (a container's).
        """
        self.patterns = tuple(patterns)

        def green(left_s: float) -> bool | None:
            status = self._ask(url, path, min(_PROBE_S, max(0.1, left_s)), key_env)
            return True if status == 200 else None

        self.watch(green, timeout_s, "it was not ready", on_tick=on_tick, stall_s=stall_s)
        if listens_in_tree and self.port is not None and listens_on(self.pids(), self.port) is False:
            raise self._not_ours(url)
        self.reached(Stage.READY, "ready")
        return (self.timeline["ready"] - self.timeline["spawn"]) / 1e9

    def watch(
        self,
        step: Callable[[float], _T | None],
        timeout_s: float,
        what: str,
        *,
        on_tick: Callable[[float], None] | None = None,
        stall_s: float | None = None,
    ) -> _T:
        """Call `step` (with the seconds left) until it answers something, while the server is alive and gets on.

        Raises StartupError as soon as the server has ended, when it lost a worker and its log says that it cannot go on
        without, after `stall_s` without a line in its log and without CPU time, and after `timeout_s` (`what` says what it
        was not until then).
        """
        began = time.monotonic()
        signs = StartWatch(self.log_path, stall_s, self.patterns)
        pause = 0.02
        while True:
            done = step(timeout_s - (time.monotonic() - began))
            if not self.alive():
                raise self.failed(StartupError)
            if done is not None:
                return done
            elapsed = time.monotonic() - began
            if on_tick is not None:
                on_tick(elapsed)
            if (trouble := signs.look(self.tree())) is not None:
                raise self.failed(StartupError, trouble.words, otherwise=trouble.failure, lines=trouble.lines)
            if elapsed > timeout_s:
                raise self.failed(StartupError, f"{what} within {timeout_s:g} s")
            self._link.listen(pause)
            pause = min(pause * 1.5, 0.25)

    def reached(self, stage: Stage, event: str) -> None:
        """Note that the server has come that far, now."""
        self.stage = stage
        self.timeline[event] = now_ns()

    def _ask(self, url: str, path: str, limit_s: float, key_env: str | None) -> int | None:
        try:
            status = http_probe.get(url, path, limit_s, key_env).status
        except http_probe.ProbeError as error:
            if error.trouble is not http_probe.Trouble.REFUSED:
                self._listening()
            return None
        self._listening()
        return status

    def _listening(self) -> None:
        if self.stage is Stage.START:
            self.reached(Stage.LISTEN, "listening")

    def check(self) -> None:
        """Raise ServerDiedError when the server has ended."""
        if not self.alive():
            raise self.failed(ServerDiedError)

    def failed(
        self,
        kind: type[ServerError] = ServerDiedError,
        what: str | None = None,
        *,
        said: str = "",
        otherwise: FailureClass = TIMEOUT,
        lines: int = 15,
    ) -> ServerError:
        """The error that tells how and why the server failed, from its exit code and its whole log, with its last `lines`.

        `what` says how where it still runs; `said` is what it told of the cause beside its log, and `otherwise` its failure
        class where neither tells one.
        """
        code, running = self.exit_code, self.alive()
        if what is None:
            what = f"it ended with {exit_words(code)}" if code is not None else "it vanished together with its keeper"
        log = read_log(self.log_path)
        since = (now_ns() - self.timeline["spawn"]) / 1e9
        exit_told = code if code is not None or running else -signal.SIGKILL
        failure = classify(f"{log}\n{said}", exit_told, self.patterns, otherwise)
        words = f"The server failed {STAGE_WORDS[self.stage]}: {what}, {since:.1f} s after launch."
        if failure.is_out_of_memory:
            words = f"{words} {memory_words(self._devices, self._baseline, self._link.seen_pids())}".rstrip()
        return kind(
            words,
            stage=self.stage,
            server_exit=code,
            failure=failure,
            log_path=self.log_path,
            tail=tail_lines(log, lines),
        )

    def _not_ours(self, url: str) -> StartupError:
        holder = port_holder(self.port or 0) or "a process this user may not look at"
        failure = Failure("port_in_use", f"{url} is answered by {holder}", "Choose another port, or stop that process.")
        return StartupError(
            f"Another server answers at {url}, not the one that was started; nothing was measured.",
            stage=self.stage,
            server_exit=self.exit_code,
            failure=failure,
            log_path=self.log_path,
            tail=tail_lines(read_log(self.log_path)),
        )

    def stop(self) -> int | None:
        """End the server and all below it; returns its exit code. Safe to call again.

        SIGTERM to the server, its grace, then SIGKILL to every process left. Waits until all are gone, the port is free
        and device memory is back where it was; raises LeftBehindError when that does not happen.
        """
        if self._stopped:
            return self.exit_code
        self.timeline.setdefault("stop", now_ns())
        try:
            self._link.end()
        finally:
            self._stopped = not self._link.running()
        self.timeline["gone"] = now_ns()
        self._verify_gone()
        return self.exit_code

    def _verify_gone(self) -> None:
        require_nothing_left(self._link.left(), self.host, self.port, self._devices, self._baseline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
            return
        try:
            self.stop()
        except LeftBehindError as second:
            error.add_note(str(second))
