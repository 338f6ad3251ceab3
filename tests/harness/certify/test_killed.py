"""A `dyno certify` that is killed takes the tool along, and what the tool had started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.waiting import LONG_S, wait_until

TOOL = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(600)
"""
RUNNER = """
import pathlib, sys
from harness.certify.tool import run_tool
run_tool([sys.executable, "-c", sys.argv[1], sys.argv[2]], pathlib.Path(sys.argv[3]), 600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a parent's death is told by the kernel on Linux only")
def test_what_the_tool_started_ends_with_a_killed_certify(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    words = [sys.executable, "-c", RUNNER, TOOL, str(told), str(tmp_path / "log")]
    runner = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])})
    try:
        wait_until(lambda: told.exists() and bool(told.read_text()), "the tool's child")
        grandchild = psutil.Process(int(told.read_text()))
    finally:
        runner.kill()
        runner.wait()
    grandchild.wait(LONG_S)  # raises TimeoutExpired where it lives on
