"""The profilers that `dyno profile` can put on a server: torch's own for the reference engine, NVIDIA's nsys for the others."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from harness.api_call import ask
from harness.cell_run import Watch
from results.errors import EngineError
from results.records import Fault

TRACE, OPERATORS, REPORT = "trace.json.gz", "operators.json", "trace.nsys-rep"
# A report of minutes of kernels takes nsys a while to write.
_NSYS_S = 300.0


class ProfileTool(Protocol):
    """What starts a server under a profiler and has it watch one load."""

    @property
    def name(self) -> str:
        """As it is told to a person."""

    def options(self, folder: Path) -> tuple[str, ...]:
        """Words for the end of the server's command line."""

    def wrapper(self) -> tuple[str, ...]:
        """Words before the server's command line."""

    def watch(self, folder: Path, url: str) -> Watch:
        """Watches what is sent inside of it; tells the cell so."""

    def found(self, folder: Path) -> dict[str, Any] | None:
        """What was seen, once the server has ended; None where nothing was written."""


@dataclass(frozen=True, slots=True)
class TorchTool:
    """The reference engine's --profile-dir. `operators`: PyTorch computes the layers, which compiled kernels do unseen."""

    steps: int
    operators: bool
    name: str = "torch.profiler"

    def options(self, folder: Path) -> tuple[str, ...]:
        kernels = ("--kernels", "off") if self.operators else ()
        return ("--profile-dir", str(folder.resolve()), "--profile-steps", str(self.steps), *kernels)

    def wrapper(self) -> tuple[str, ...]:
        return ()

    @contextmanager
    def watch(self, folder: Path, url: str) -> Iterator[Sequence[Fault]]:
        answer = ask(url, {}, path="/start_profile")
        if answer.status != 200:
            raise EngineError(f"The reference engine did not begin to profile ({answer.trouble()}).")
        yield [Fault("profiled", f"torch.profiler watched up to {self.steps} of its steps, the first ones")]

    def found(self, folder: Path) -> dict[str, Any] | None:
        if not (folder / OPERATORS).is_file():
            return None
        return {**orjson.loads((folder / OPERATORS).read_bytes()), "trace": str(folder / TRACE)}


@dataclass(frozen=True, slots=True)
class NsysTool:
    """nsys in a session of its own: the server is launched in it, and the recording spans the load alone."""

    session: str
    name: str = "nsys"

    def options(self, folder: Path) -> tuple[str, ...]:
        return ()

    def wrapper(self) -> tuple[str, ...]:
        return (
            *("nsys", "launch", f"--session-new={self.session}", "--trace=cuda,nvtx,osrt"),
            *("--cuda-graph-trace=node", "--trace-fork-before-exec=true"),
        )

    def start(self, folder: Path) -> tuple[str, ...]:
        """Begin the recording."""
        output = f"--output={folder.resolve() / REPORT.removesuffix('.nsys-rep')}"
        return ("nsys", "start", f"--session={self.session}", output, "--force-overwrite=true")

    def stop(self) -> tuple[str, ...]:
        """End it; the report is written when this has ended."""
        return ("nsys", "stop", f"--session={self.session}")

    @contextmanager
    def watch(self, folder: Path, url: str) -> Iterator[Sequence[Fault]]:
        _run(self.start(folder))
        try:
            yield [Fault("profiled", "nsys recorded it from its first request to its last")]
        finally:
            _run(self.stop())

    def found(self, folder: Path) -> dict[str, Any] | None:
        return {"trace": str(folder / REPORT)} if (folder / REPORT).is_file() else None


def _run(words: Sequence[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_NSYS_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"`{shlex.join(words)}` did not work: {error}.") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[:400]
        raise EngineError(f"`{shlex.join(words)}` ended with {done.returncode}: {said or 'it said nothing'}.")


def nsys_there() -> bool:
    """Whether nsys is on PATH."""
    return shutil.which("nsys") is not None
