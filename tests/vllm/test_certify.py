"""vLLM's own load client is certified: its result file is understood, and its tokens are those of the truth."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from benchmarks.client import PEERS
from harness.certify.certify import certify
from harness.truth.schedule import Schedule
from tests.vllm.conftest import VARIABLE

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


def test_vllms_client_has_an_error_card(tmp_path: Path) -> None:
    python = shlex.split(os.environ[VARIABLE])[0]
    command, env = PEERS["vllm"]
    card = certify(command(python, 8, 16, tmp_path), tmp_path, Schedule(ttft_ms=50, gap_ms=5), timeout_s=600, env=env)
    assert card.reported.tool == "vllm"
    assert card.version
    assert card.row("requests").error == 0
    assert card.row("output tokens").error == 0
    assert card.row("output tokens").true == 16 * 100
    for name in ("TTFT mean", "TTFT p50", "TTFT p99", "TPOT mean", "output tokens/s"):
        assert card.row(name).error is not None, name
    # It cannot have seen a token before it was sent.
    error = card.row("TTFT mean").error
    assert error is not None
    assert error > 0
