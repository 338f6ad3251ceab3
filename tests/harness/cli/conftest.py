"""`dyno` in this process: what it prints and how it exits, without the cost of a new interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from harness.cli.app import main


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def dyno(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    def run(*words: str, columns: int = 120) -> Result:
        monkeypatch.setattr(sys, "argv", ["dyno", *words])
        monkeypatch.setenv("COLUMNS", str(columns))
        capfd.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return run
