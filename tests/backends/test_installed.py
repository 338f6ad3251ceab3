"""Which version a command or an image is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from backends.installed import image_version, installed_version, last_line, parse_version, python_of
from tests.servers.trtllm_fake import install


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.32.0+cpu", (0, 32, 0)),
        ("v0.10.2", (0, 10, 2)),
        ("vLLM 0.11.1rc2.dev3", (0, 11, 1)),
        ("1.4.0rc1", (1, 4, 0)),
        ("1.2", (1, 2, 0)),
        ("latest", None),
        ("py3", None),
    ],
)
def test_a_version_is_read_out_of_a_text(text: str, version: tuple[int, int, int] | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("registry.example/nvidia/tensorrt-llm/release:1.2.1", "1.2.1"),
        ("vllm/vllm-openai:v0.11.0", "0.11.0"),
        ("localhost:5000/engine", ""),
        ("localhost:5000/engine:1.1.0@sha256:2.3", "1.1.0"),
        ("engine:latest", ""),
    ],
)
def test_an_image_tells_its_version_by_its_tag_alone(image: str, version: str) -> None:
    assert image_version(image) == version


def test_a_command_is_asked_through_its_interpreter(tmp_path: Path) -> None:
    script = str(install(tmp_path, "1.2.1"))
    for command in ((script,), ("taskset", "-c", "0", script)):
        python = python_of(command, "trtllm-serve")
        assert installed_version(python, ("tensorrt_llm",)) == ("tensorrt_llm", "1.2.1")
    assert python_of((sys.executable, "-m", "x"), "trtllm-serve") == (sys.executable,)
    assert python_of(("docker", "run"), "trtllm-serve") == ()
    assert installed_version((sys.executable,), ("no-such-distribution",)) == ("", "")


def test_a_command_that_cannot_be_asked_gives_no_version(tmp_path: Path) -> None:
    assert installed_version((str(tmp_path / "none"),), ("x",)) == ("", "")
    assert last_line(("false",)) == ""
