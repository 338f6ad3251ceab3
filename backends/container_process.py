"""A server in a container, as supervision sees it: found by its labels, its processes by its cgroup, its end the container's."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends import keeper
from backends.base import FailurePattern
from backends.container_failures import CONTAINER_FAILURES
from backends.failures import LeftBehindError
from backends.process import ServerProcess
from results.errors import EngineError

SESSION = "dyno.session"
_ASK_S = 20.0
_CGROUPS = Path("/sys/fs/cgroup")
# The runtime is not asked again sooner for a process that it did not tell.
_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Box:
    """One session's container: how to find it, and what it was made from. `digest` is the image's, "" where none is told."""

    runtime: str
    session: str
    cidfile: Path
    image: str
    digest: str = ""

    @property
    def label(self) -> str:
        return f"{SESSION}={self.session}"

    def versions(self) -> dict[str, str]:
        """For the session's fingerprint."""
        return {"container_image": self.image, "container_digest": self.digest or "(not told)"}

    def first_process(self) -> keeper.Process | None:
        """The container's first process as this host sees it; None before it runs, or where it is not on this host."""
        try:
            cid = self.cidfile.read_text(encoding="utf-8").strip()
        except OSError:
            return None
        told, text = ask(self.runtime, "inspect", "--format", "{{.State.Pid}}", cid) if cid else (False, "")
        pid = int(text) if told and text.isdigit() else 0
        return keeper.identify(pid) if pid else None

    def left(self) -> list[str]:
        """Containers of this session that are still there. Raises EngineError where the runtime does not tell."""
        told, text = ask(self.runtime, "ps", "--all", "--quiet", "--filter", f"label={self.label}")
        if not told:
            raise EngineError(f"{self.runtime} does not answer: {text}")
        return text.split()


def ask(*words: str) -> tuple[bool, str]:
    """Run a short command of the runtime: whether it went well, and what it said (its complaint where it did not)."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ASK_S)
    except FileNotFoundError:
        return False, f"there is no {words[0]!r} on PATH"
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    return done.returncode == 0, (done.stdout if done.returncode == 0 else done.stderr).strip()


def cgroup_pids(pid: int, root: Path = _CGROUPS, proc: Path = Path("/proc")) -> list[int]:
    """Every process in the cgroup of `pid` and below it; [] where it shares ours (then it is no container's) or none is told."""
    theirs, mine = _cgroup(proc / str(pid)), _cgroup(proc / "self")
    if theirs is None or theirs in (mine, "/"):
        return []
    folder = root / theirs.lstrip("/")
    found: list[int] = []
    for file in [folder / "cgroup.procs", *folder.rglob("cgroup.procs")]:
        try:
            found += [int(word) for word in file.read_text(encoding="utf-8").split()]
        except (OSError, ValueError):
            continue
    return sorted(set(found))


def _cgroup(process: Path) -> str | None:
    try:
        lines = (process / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)


class ContainerProcess(ServerProcess):
    """A server in a container: its processes are no children of the `run` command, and its end is the container's."""

    box: Box | None = None
    _first: keeper.Process | None = None
    _asked = float("-inf")

    @property
    def pid(self) -> int:
        """The container's first process on this host; the `run` command's where that is not known."""
        if self._first is None and self.box is not None and time.monotonic() - self._asked > _AGAIN_S:
            self._asked = time.monotonic()
            self._first = self.box.first_process()
        return self._first.pid if self._first is not None else super().pid

    def tree(self) -> list[keeper.Process]:
        """The `run` command and what is in the container."""
        command = super().tree()
        first = self.pid
        if self._first is None or not keeper.alive(self._first):
            return command
        inside = [keeper.identify(pid) for pid in cgroup_pids(first)]
        found = [process for process in inside if process is not None] or [
            process for process in (keeper.identify(first), *keeper.descendants(first)) if process is not None
        ]
        return command + [process for process in found if process not in command]

    def wait_ready(self, *words: Any, patterns: Sequence[FailurePattern] = (), **more: Any) -> float:
        """As of any server; who holds the port is not asked, since it is no process below ours."""
        more["listens_in_tree"] = False
        ready_s = super().wait_ready(*words, patterns=(*CONTAINER_FAILURES, *patterns), **more)
        self._asked = float("-inf")  # It runs now, so its process is known from here on.
        return ready_s

    def _verify_gone(self) -> None:
        if self.box is not None:
            try:
                left = self.box.left()
            except EngineError as error:
                raise LeftBehindError(f"Whether the container is gone is not known. {error}") from error
            if left:
                raise LeftBehindError(
                    f"The server was stopped but its container is still there: {', '.join(left)}. Remove it: "
                    f"`{self.box.runtime} rm --force {left[0]}`."
                )
        super()._verify_gone()
