"""Running a load tool: its command with the server's address put in, its CPU time, and nothing left of it afterwards."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.child import die_with_parent
from results.errors import EngineError, EnvironmentProblemError, UsageError

_POLL_S = 0.02
_GRACE_S = 5.0
_TAIL_BYTES = 1500
_ADDRESS = ("{url}", "{host}", "{port}")


@dataclass(frozen=True, slots=True)
class ToolRun:
    """How a tool's run went: `cpu_s` of it and all processes below it that it waited for."""

    command: list[str]
    wall_s: float
    cpu_s: float


def check_command(command: Sequence[str], *, result_named: bool) -> None:
    """Raise UsageError when the tool would not meet the server, or when nothing tells it where to write its result."""
    text = " ".join(command)
    if not any(place in text for place in _ADDRESS):
        raise UsageError(
            "The tool's command holds none of {url}, {host} and {port}, so it would not send to the truth server. Put {url} "
            "where the server's URL goes: dyno certify -- TOOL --url {url} ..."
        )
    if "{out}" not in text and not result_named:
        raise UsageError(
            "The tool's command does not hold {out}, the folder its result file goes to, and --result does not name the file."
        )


def fill_in(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The command with `{url}` and the like replaced; other braces stay."""
    filled = []
    for word in command:
        for name, value in values.items():
            word = word.replace(f"{{{name}}}", value)
        filled.append(word)
    return filled


def run_tool(command: list[str], log: Path, timeout_s: float, env: Mapping[str, str] | None = None) -> ToolRun:
    """Run it to its end, output into `log`. Raises EngineError when it fails, is killed or takes longer, UsageError when
    there is no such program."""
    with log.open("wb") as output:
        started = time.monotonic()
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except FileNotFoundError as error:
            raise UsageError(f"There is no program {command[0]!r}. Give its path, or install the tool.") from error
        except OSError as error:
            raise EnvironmentProblemError(f"{command[0]} could not be started: {error.strerror or error}.") from error
        try:
            with _ends_with_us(child.pid):
                in_time = _wait(child.pid, started + timeout_s)
        finally:
            # Before the leader is waited for: its number is the group's, and nobody else's until then.
            _signal_group(child.pid, signal.SIGKILL)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - started
    if not in_time:
        raise EngineError(
            f"The tool did not end within {timeout_s:g} s and was killed. Raise --timeout, or send less. {_tail(log)}"
        )
    if child.returncode:
        code = child.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        raise EngineError(f"The tool {how} after {wall:.1f} s ({shlex.join(command)[:300]}). {_tail(log)}")
    return ToolRun(command, wall, used.ru_utime + used.ru_stime)


def tool_version(command: Sequence[str], packages: Sequence[str]) -> str | None:
    """The version of the installed package behind a command, asked of the Python that it runs in; None if it is not told."""
    python = _interpreter(command[0])
    if python is None:
        return None
    code = (
        "import importlib.metadata as m, sys\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(m.version(name)); break\n"
        "    except m.PackageNotFoundError: pass"
    )
    try:
        done = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _interpreter(program: str) -> str | None:
    found = shutil.which(program)
    if found is None:
        return None
    if Path(found).name.startswith("python"):
        return found
    try:
        with open(found, "rb") as file:
            first = file.readline(300)
    except OSError:
        return None
    words = first.removeprefix(b"#!").decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    return words[0] if words and Path(words[0]).name.startswith("python") else None


def _wait(pid: int, deadline: float) -> bool:
    """Until the child has ended (it is not yet waited for). False when its time was up: it is asked to end then, and given up
    a little later."""
    asked = False
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        now = time.monotonic()
        if now >= deadline and not asked:
            asked = True
            _signal_group(pid, signal.SIGTERM)
        if now >= deadline + _GRACE_S:
            break
        time.sleep(_POLL_S)
    return not asked


@contextlib.contextmanager
def _ends_with_us(group: int) -> Iterator[None]:
    """While inside: should this process be killed, so is every process of that group, also those the leader left behind. A shell
    waits for the end of a pipe that this process alone holds open."""
    words = ["/bin/sh", "-c", 'read -r _; kill -KILL "-$1"', "sh", str(group)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True) as watcher:
        try:
            yield
        finally:
            watcher.kill()


def _signal_group(pid: int, number: signal.Signals) -> None:
    """To every process of the tool's own group, those that it left behind included."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _tail(log: Path) -> str:
    text = log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
    return f"It said last:\n{text}" if text else "It said nothing."
