"""`dyno --help` loads nothing heavy: torch, pandas and pyarrow only where they are used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.cli.conftest import Result
from tests.waiting import LONG_S


def test_the_command_line_loads_nothing_heavy() -> None:
    heavy = ["torch", "pandas", "pyarrow", "numpy", "tokenizers", "scipy", "aiohttp", "pydantic"]
    code = f"import sys, harness.cli.commands; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LONG_S)
    assert done.stdout.strip() == "[]"


class Interrupted:
    """An import of everything that Ctrl-C ends."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "harness.cli.commands":
            raise KeyboardInterrupt


def test_ctrl_c_while_the_commands_are_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, dyno: Callable[..., Result]
) -> None:
    monkeypatch.delitem(sys.modules, "harness.cli.commands", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert dyno("runs") == Result(130, "", "dyno: interrupted.\n")


def test_ctrl_c_in_a_command_that_says_nothing_of_it_is_one_line(
    monkeypatch: pytest.MonkeyPatch, dyno: Callable[..., Result], tmp_path: Path
) -> None:
    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("results.store.RunStore.open", interrupted)
    assert dyno("compare", str(tmp_path)) == Result(130, "", "dyno: interrupted.\n")


def test_the_entry_imports_nothing_but_what_every_program_does() -> None:
    code = "import __future__, signal, sys; had = set(sys.modules); import harness.cli.app; print(sorted(set(sys.modules) - had))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LONG_S)
    assert done.stdout.strip() == "['harness', 'harness.cli', 'harness.cli.app']"


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no /dev/full")
def test_output_that_finds_no_space_is_told_without_a_traceback() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "harness.cli", "presets", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=LONG_S,
        )
    assert done.returncode == 4
    assert done.stderr.startswith("dyno: No space left")
    assert "Traceback" not in done.stderr
