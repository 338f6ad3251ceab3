"""How far a start has come, as the server's log tells it while it grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.base import get_backend
from harness import start_phase
from harness.start_phase import StartPhase

STAMP = "(EngineCore pid=7) INFO 04-21 05:42:0{} [core.py:105] "
LINES = (
    ("hello", ""),
    ("Initializing a V1 LLM engine (v0.32.0) with config: model='m'", "configuration read"),
    ("Loading weights took 1.5 seconds", "weights loaded"),
    ("something that ends no phase", "weights loaded"),
    ("GPU KV cache size: 1,024 tokens", "KV cache allocated"),
)


def test_the_phase_that_was_done_last_is_told_as_the_log_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_phase, "_AGAIN_S", 0.0)
    log = tmp_path / "server.log"
    phase = StartPhase(get_backend("vllm"), log)
    assert phase() == "", "there is no log yet"
    told = []
    with log.open("a") as file:
        for second, (line, _) in enumerate(LINES):
            print(STAMP.format(second // 2) + line, file=file, flush=True)
            told.append(phase())
    assert told == [words for _, words in LINES]


def test_a_log_is_not_read_again_with_every_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "server.log"
    log.write_text(STAMP.format(0) + "hello\n")
    reads: list[Path] = []

    def read(path: Path) -> str:
        reads.append(path)
        return path.read_text()

    monkeypatch.setattr(start_phase, "read_log", read)
    monkeypatch.setattr(start_phase, "_AGAIN_S", 3600.0)
    phase = StartPhase(get_backend("vllm"), log)
    phase()
    log.write_text(STAMP.format(0) + "Loading weights took 1.5 seconds\n")
    assert (phase(), len(reads)) == ("", 1)


def test_a_backend_whose_log_tells_nothing_has_no_phase(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("listening\n")
    assert StartPhase(get_backend("openai"), log)() == ""
