"""Starts that fail, a server that is killed, and a whole sweep with the real vLLM beside the reference engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from backends.base import EngineSettings, LaunchContext
from backends.failures import ServerDiedError, StartupError
from backends.ports import free_port, port_is_free
from backends.process import ServerProcess
from backends.vllm import BACKEND
from tests.vllm.conftest import DTYPE, EAGER, VARIABLE, running, tree
from tests.waiting import wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]


def launch(folder: Path, model: Path, **settings: object) -> ServerProcess:
    port = free_port()
    context = LaunchContext(
        model=model,
        served_name="m",
        settings=EngineSettings.model_validate(settings),
        session_dir=folder,
        host="127.0.0.1",
        port=port,
        command=BACKEND.command(None),
        options=EAGER,
    )
    return ServerProcess.start(BACKEND.launch_plan(context), folder / "server.log", 20, port=port)


def test_a_context_beyond_the_models_own_is_named_as_the_cause(tmp_path: Path, smollm2_dir: Path) -> None:
    with launch(tmp_path, smollm2_dir, max_model_len=9_999_999) as server, pytest.raises(StartupError) as caught:
        server.wait_ready(f"http://127.0.0.1:{server.port}", "/health", 300, patterns=BACKEND.failures)
    assert caught.value.failure.failure == "bad_argument"
    assert "9999999" in caught.value.failure.evidence
    assert "max_model_len" in caught.value.failure.advice
    assert caught.value.server_exit == 1
    assert port_is_free("127.0.0.1", server.port or 0)


def test_a_killed_front_process_leaves_no_engine_behind(tmp_path: Path, tiny_dir: Path) -> None:
    """SIGKILL of the API server alone orphans vLLM's engine and workers, which go on holding memory."""
    with launch(tmp_path, tiny_dir, kv_cache_bytes=1 << 30, threads=1) as server:
        url = f"http://127.0.0.1:{server.port}"
        server.wait_ready(url, "/health", 400, patterns=BACKEND.failures)
        processes = tree(server)
        assert len(processes) >= 3
        psutil.Process(server.pid).kill()
        wait_until(lambda: not server.alive(), "the keeper tells of the server's end")
        with pytest.raises(ServerDiedError, match="SIGKILL"):
            server.check()
    assert running(processes) == []
    assert port_is_free("127.0.0.1", server.port or 0)


def test_a_sweep_measures_it_beside_the_reference_engine(tmp_path: Path, smollm2_dir: Path) -> None:
    out = tmp_path / "run"
    engines = [w for b in ("reference", "vllm") for w in ("--engine", f"label={b},backend={b},dtype={DTYPE}")]
    asked = (*engines, "--model", str(smollm2_dir), "--out", str(out))
    dyno("sweep", *asked, "--batch", "1,4", "--input-len", "96", "--output-len", "16")
    summary = json.loads((out / "summary.json").read_text())
    cells = summary["cells"]
    assert {(c["backend"], c["load"]["value"]) for c in cells} == {
        (b, n) for b in ("reference", "vllm") for n in (1, 4)
    }
    assert len(cells) == 4
    for cell in cells:
        assert cell["verdict"] != "INVALID", cell["reasons"]
        requests, whole = cell["requests"], cell["whole"]
        assert requests["ok"] == requests["issued"] > 0
        assert whole["output_tokens"] == 16 * requests["ok"]
        assert whole["input_tokens"] == cell["workload"]["input_len"]["tokens"] * requests["ok"]
        assert cell["server"]["preemptions"] == 0
    sessions = [json.loads(path.read_text()) for path in out.glob("sessions/*/session.json")]
    ours = next(s for s in sessions if s["backend"] == "vllm")
    assert ours["settings"]["kv_cache_tokens"]["source"] == "endpoint"
    assert ours["timeline"]["spawn"] < ours["timeline"]["weights_loaded"] < ours["timeline"]["ready"]
    assert ours["exit_code"] == 0
    assert ours["failure"] is None
    assert {row["id"] for row in summary["audit"]["rows"]} >= {"dtype", "max_num_seqs", "kv_cache_tokens"}
    dyno("verify", *asked, "--prompts", "4", "--output-len", "8")
    (pair,) = json.loads((out / "verify.json").read_text())["pairs"]
    # Two engines round differently: they may part where two tokens are nearly tied, not elsewhere.
    assert pair["class"] in ("identical", "near-tie", "close"), pair["why"]
    dyno("report", str(out))
    assert pair["class"] in (out / "report.html").read_text()


def dyno(*words: str) -> None:
    """A command that must end well. The one that starts vLLM is a prefix: flags of the engine's may stand in it."""
    env = {**os.environ, VARIABLE: " ".join([os.environ[VARIABLE], *EAGER])}
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", *words], env=env, capture_output=True, text=True, timeout=1400
    )
    assert done.returncode == 0, done.stdout + done.stderr
