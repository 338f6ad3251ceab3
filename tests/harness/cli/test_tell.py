"""What is told on stderr: broken between words on a terminal, and nowhere else."""

from __future__ import annotations

import io
import os
import pty
import sys
import termios

import pytest

from harness.cli.tell import tell, wrapped

COMMAND = "`dyno sweep --backend reference --model smollm2-135m --batch 1,4,16 --input-len 128,512 --output-len 32`"
LINE = "export DYNO_VLLM_COMMAND='/a/b/bin/python -m vllm.entrypoints.openai.api_server'"
OTHER = 'export DYNO_SGLANG_COMMAND="/path/to/venv/bin/python -m sglang.launch_server"'


@pytest.mark.parametrize("width", [20, 40, 80])
def test_lines_break_at_spaces_and_what_is_to_be_pasted_stays_whole(width: int) -> None:
    path = "/a/path/without-a-space/that/is/longer/than-twenty-columns.yaml"
    text = f"dyno: Engine 'a' cannot be started. Look at {path}, or try {COMMAND} or {LINE} or {OTHER} before the rest."
    lines = wrapped(text, width).split("\n")
    assert " ".join(lines) == text
    assert [line for line in lines if len(line) > width and line.rstrip(",") not in (path, COMMAND, LINE, OTHER)] == []
    assert all(any(whole in line for line in lines) for whole in (path, COMMAND, LINE, OTHER))


def test_lines_that_fit_are_left_as_they_are() -> None:
    listed = "dyno: Unknown cell 'x'. The run has:\n  0f3a  reference, 4 in flight\n  9b1c  reference, 8 in flight"
    assert wrapped(listed, 80) == listed
    assert wrapped(listed, 24).split("\n")[2:] == [
        "  0f3a  reference, 4 in",
        "    flight",
        "  9b1c  reference, 8 in",
        "    flight",
    ]


def test_a_log_has_a_line_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    tell("word " * 100)
    assert out.getvalue() == f"dyno: {'word ' * 100}\n"


def test_on_a_terminal_its_own_width_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 40))
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        tell("some words " * 10)
        terminal.flush()
        said = os.read(ours, 4096).decode().splitlines()
    os.close(ours)
    assert len(said) > 2
    assert max(map(len, said)) <= 40
    assert all(line.split()[-1] in ("some", "words") for line in said)
