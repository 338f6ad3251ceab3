"""vLLM's own load client drives the reference engine, and both count the same."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from backends.reference.truth import TOKENS_FILE
from tests.backends.reference.server_process import running_server
from tests.vllm.conftest import VARIABLE
from tests.waiting import LONG_S

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
# The `vllm` command of a build that is not called vllm fails before it reads its arguments; the client behind it works.
BENCH = (
    "import argparse; from vllm.benchmarks import serve; "
    "parser = argparse.ArgumentParser(); serve.add_cli_args(parser); serve.main(parser.parse_args())"
)
REQUESTS, INPUT, OUTPUT = 8, 40, 12


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
def test_vllms_client_counts_what_the_engine_made(endpoint: str, smollm2_dir: Path, tmp_path: Path) -> None:
    python = shlex.split(os.environ[VARIABLE])[0]
    backend = "openai" if endpoint == "/v1/completions" else "openai-chat"
    flags = ("--kv-cache-tokens", "2048", "--max-model-len", "512", "--served-model-name", "smol")
    with running_server(smollm2_dir, tmp_path / "server.log", *flags, "--truth-dir", str(tmp_path)) as server:
        done = subprocess.run(
            [
                *(python, "-c", BENCH, "--backend", backend, "--base-url", server.url, "--endpoint", endpoint),
                *("--model", "smol", "--tokenizer", str(smollm2_dir), "--dataset-name", "random"),
                *("--random-input-len", str(INPUT), "--random-output-len", str(OUTPUT), "--num-prompts", str(REQUESTS)),
                *("--max-concurrency", "4", "--ignore-eos", "--ready-check-timeout-sec", "0", "--save-result"),
                *("--disable-tqdm", "--result-dir", str(tmp_path), "--result-filename", "bench.json"),
            ],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        made = server.metric("vllm:generation_tokens_total")
        finished = server.metric('vllm:request_success_total{model_name="smol",engine="0",finished_reason="length"}')
        server.process.terminate()
        server.process.wait(LONG_S)
    result = json.loads((tmp_path / "bench.json").read_text())
    assert (result["completed"], result["failed"]) == (REQUESTS, 0)
    assert result["total_output_tokens"] == REQUESTS * OUTPUT
    assert finished - REQUESTS in (0, 1)  # it may ask once beforehand, to see whether the server answers
    assert made == finished * OUTPUT
    with pa.ipc.open_stream(tmp_path / TOKENS_FILE) as stream:
        tokens = stream.read_all()
    assert tokens.num_rows == made
    # Its times follow those of the engine's own log: the fastest token gap sampled is a bound for its mean. The slowest is none, where
    # the client itself is slow to read.
    sampled = tokens.to_pandas().sort_values(["request_id", "index"])
    gaps = sampled.groupby("request_id")["sampled"].diff().dropna() / 1e6
    assert gaps.min() <= result["mean_tpot_ms"]
