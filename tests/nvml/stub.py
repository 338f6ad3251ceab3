"""Builds the stand-in of libnvidia-ml.so.1 and runs Python in a child that finds it: one process a scenario, since the
binding keeps its function pointers, and the loader its libraries, for as long as a process lives."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from results.clock import now_ns
from tests.waiting import LONG_S

SOURCE = Path(__file__).with_name("nvml_stub.c")
BOARD = "GPU-0a0b0c0d-1111-2222-3333-444455556666"
GIB = 1 << 30


def _driver_here() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


no_driver = pytest.mark.skipif(
    _driver_here(), reason="says what is said without NVIDIA's driver, and here it is installed"
)

# A board like an H200, with every key the stand-in knows; scenarios change some.
H200: dict[str, Any] = {
    "capability": 9.0,
    "memory.total": 141 * GIB,
    "memory.reserved": GIB // 2,
    "memory.used": 20 * GIB,
    "bus": 6144,
    "maxclock.sm": 1980,
    "maxclock.memory": 3201,
    "clock.sm": 1980,
    "clock.memory": 3201,
    "reasons": 0,
    "power.instant": 400_000,
    "power.average": 390_000,
    "power.usage": 390_000,
    "power.limit": 700_000,
    "power.default": 700_000,
    "energy": 1_000_000,
    "temperature": 41,
    "busy.gpu": 97,
    "busy.memory": 60,
    "persistence": 1,
    "ecc": 1,
    "ecc.uncorrected": 0,
    "gpm": 1,
    "gpm.10": 50.0,
    "gpm.2": 90.0,
    "gpm.3": 30.0,
    "gpm.5": 20.0,
    "gpm.20": 100.0,
    "gpm.21": 200.0,
}


@dataclass
class Script:
    """A scenario in the stand-in's language."""

    epoch: int | str = field(default_factory=now_ns)
    lines: list[str] = field(default_factory=list)

    def device(self, uuid: str = BOARD, name: str = "NVIDIA H200", index: int = 0, **_: Any) -> Script:
        self.lines.append(f"device {index} {uuid} {name.replace(' ', '_')}")
        return self

    def board(self, without: Sequence[str] = (), changes: dict[str, Any] | None = None, index: int = 0) -> Script:
        """The H200 above, less some keys; a value is constant, or a list of (second, value)."""
        self.device(BOARD if index == 0 else f"{BOARD[:-1]}{index}", index=index)
        for key, value in {**H200, **(changes or {})}.items():
            if key not in without:
                self.series(index, key, value)
        return self

    def series(self, index: int, key: str, value: Any) -> Script:
        points = value if isinstance(value, list) else [(0, value)]
        self.lines.append(f"series {index} {key} " + " ".join(f"{t} {v}" for t, v in points))
        return self

    def say(self, *lines: str) -> Script:
        self.lines += lines
        return self

    def text(self) -> str:
        return "\n".join([f"epoch {self.epoch}", *self.lines]) + "\n"


# Reads a line {"env", "code"}, runs the code in a fork of itself, and prints {"out"} or {"error"}. It has imported what
# every scenario imports; the library is looked for by the fork, in the one folder that LD_LIBRARY_PATH named at the start.
_ZYGOTE = """
import json, os, sys, traceback
import psutil, pynvml
import harness.telemetry.choose, harness.telemetry.nvml
for line in sys.stdin:
    asked = json.loads(line)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.environ.update(asked["env"])
        scope = {"json": json, "out": None}
        try:
            exec(asked["code"], scope)
            answer = {"out": scope["out"]}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        with os.fdopen(write, "w") as file:
            file.write(json.dumps(answer))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    os.waitpid(pid, 0)
    print(said or json.dumps({"error": "the scenario ended without a word"}), flush=True)
"""


class Stub:
    """The compiled stand-in, linked anew for each set of symbols an old driver lacks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._object = folder / "nvml_stub.o"
        compiler = shutil.which("cc")
        assert compiler is not None
        self._cc = compiler
        subprocess.run(
            [compiler, "-O1", "-fPIC", "-c", str(SOURCE), "-o", str(self._object)], check=True, timeout=LONG_S
        )
        self._current = folder / "current"
        self._current.mkdir()
        self._zygote = subprocess.Popen(
            [sys.executable, "-c", _ZYGOTE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_LIBRARY_PATH": str(self._current)},
        )

    def close(self) -> None:
        self._zygote.communicate(timeout=LONG_S)

    def library(self, missing: Sequence[str] = ()) -> Path:
        """The folder that holds a libnvidia-ml.so.1 without the symbols in `missing`."""
        where = self.folder / f"lib-{'-'.join(sorted(missing)) or 'all'}"[:200]
        if not where.exists():
            where.mkdir()
            hidden = "".join(f"{name}; " for name in missing)
            (where / "map").write_text(f"{{ local: {hidden or 'none_hidden;'} }};\n")
            subprocess.run(
                [
                    *(self._cc, "-shared", "-Wl,-soname,libnvidia-ml.so.1", f"-Wl,--version-script={where / 'map'}"),
                    *(str(self._object), "-o", str(where / "libnvidia-ml.so.1"), "-lm", "-lpthread"),
                ],
                check=True,
                timeout=LONG_S,
            )
        return where

    def environment(self, script: Script, missing: Sequence[str] = ()) -> dict[str, str]:
        """What a process needs in its environment to find the stand-in playing `script`."""
        path = self.folder / f"script-{now_ns()}.txt"
        path.write_text(script.text())
        return {"LD_LIBRARY_PATH": str(self.library(missing)), "NVML_STUB_SCRIPT": str(path)}

    def run(self, script: Script, code: str, missing: Sequence[str] = (), **env: str) -> Any:
        """What `code` puts into `out`, in a process of its own that has the stand-in."""
        link = self._current / "libnvidia-ml.so.1"
        link.unlink(missing_ok=True)
        link.symlink_to(self.library(missing) / "libnvidia-ml.so.1")
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(json.dumps({"env": {**self.environment(script, missing), **env}, "code": code}) + "\n")
        self._zygote.stdin.flush()
        answer = json.loads(self._zygote.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["out"]
