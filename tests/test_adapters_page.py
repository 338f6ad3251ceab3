"""docs/adapters.md: its adapter is short, is found through the entry point, and passes the conformance suite."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LONG_S

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine where a package with that adapter is installed."""
    (tmp_path / "toyserve_dyno.py").write_text(block("python"))
    info = tmp_path / "toyserve_dyno-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toyserve-dyno\nVersion: 1.0\n")
    section = block("toml").replace('[project.entry-points."dyno.backends"]', "[dyno.backends]").replace('"', "")
    (info / "entry_points.txt").write_text(section)
    fake = [sys.executable, "-m", "tests.servers.openai_fake", "--tokens-interval-ms", "2"]
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "DYNO_TOYSERVE_COMMAND": shlex.join(fake)}


def dyno(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=LONG_S, check=False)


def test_the_adapter_on_the_page_is_under_60_lines() -> None:
    assert len(block("python").splitlines()) < 60


def test_the_adapter_on_the_page_is_found_and_keeps_every_promise(installed: dict[str, str]) -> None:
    listed = {row["name"]: row for row in json.loads(dyno(installed, "backends", "--json").stdout)}
    assert listed["toyserve"]["settings"] == ["max_model_len"]
    done = dyno(installed, "backends", "check", "toyserve", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["check"]: row["outcome"] for row in json.loads(done.stdout)["checks"]}
    assert {check for check, outcome in found.items() if outcome != "pass"} == {"truth_log"}, done.stdout


def test_an_adapter_that_cannot_be_loaded_is_one_message(installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "toyserve_dyno.py").write_text("import a_module_that_is_not_there\n")
    done = dyno(installed, "backends", "check", "toyserve")
    assert done.returncode == 4
    assert "a_module_that_is_not_there" in done.stderr
    assert "Traceback" not in done.stderr
    listed = dyno(installed, "backends")
    assert listed.returncode == 0
    assert "a_module_that_is_not_there" in listed.stdout
    assert "reference" in listed.stdout
