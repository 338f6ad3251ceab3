"""llama.cpp's server as a backend: its command line, the GGUF made of the model's folder, and the real server once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.base import EngineSettings, LaunchContext, Source
from backends.failures import classify
from backends.llamacpp import BACKEND, MODULE
from backends.llamacpp_gguf import gguf_of
from harness.conformance import Outcome, check_backend
from harness.experiment import EngineSpec, Timeouts
from harness.models import from_gguf, open_folder
from results.errors import UsageError
from tests.waiting import LONG_S


@pytest.fixture
def context(tmp_path: Path) -> LaunchContext:
    return LaunchContext(
        model=tmp_path,
        served_name="m",
        settings=EngineSettings(),
        session_dir=tmp_path / "s",
        host="127.0.0.1",
        port=8123,
        command=(sys.executable, "-m", MODULE),
    )


def words(context: LaunchContext, **asked: Any) -> str:
    return " ".join(BACKEND.launch_plan(replace(context, settings=EngineSettings(**asked))).argv)


def test_a_slot_gets_the_context_that_was_asked(context: LaunchContext) -> None:
    made = words(context, max_model_len=512, max_num_seqs=4, threads=2, max_num_batched_tokens=256, kv_dtype="bfloat16")
    assert "--ctx-size 2048 --parallel 4" in made
    assert "--threads 2 --threads-batch 2" in made
    assert "--batch-size 256 --ubatch-size 256" in made
    assert "--cache-type-k bf16 --cache-type-v bf16" in made
    assert "--fit off" in made
    assert "--cache-ram 0" not in made
    assert "--no-cache-prompt --cache-ram 0" in words(context, prefix_caching=False)


def test_a_program_is_started_on_the_file_that_is_made_for_it(context: LaunchContext) -> None:
    made = BACKEND.launch_plan(replace(context, command=("taskset", "-c", "0", "llama-server"))).argv
    assert made[3] == MODULE
    assert made[made.index("--program") + 1] == "taskset -c 0 llama-server"


def test_in_a_container_the_file_has_to_be_there(context: LaunchContext, tmp_path: Path) -> None:
    inside = replace(context, command=("/app/llama-server",), image="registry.example/ggml-org/llama.cpp:server")
    with pytest.raises(UsageError, match="put one into"):
        BACKEND.launch_plan(inside)
    (tmp_path / "m.gguf").touch()
    assert BACKEND.launch_plan(inside).argv[:3] == ("/app/llama-server", "--model", str(tmp_path / "m.gguf"))


@pytest.mark.parametrize("asked", [{"dtype": "float32"}, {"kv_dtype": "fp8"}, {"admission": "on-demand"}])
def test_what_it_cannot_do_is_refused(context: LaunchContext, asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        BACKEND.launch_plan(replace(context, settings=EngineSettings(**asked)))


def test_settings_are_read_from_its_pages() -> None:
    pages = {
        "/props": {"total_slots": 4},
        "/v1/models": {"data": [{"id": "m", "meta": {"n_ctx": 1024, "ftype": "BF16"}}]},
    }
    told = BACKEND.resolved_settings(
        EngineSettings(threads=8), pages, "0.00 I cmn init: threadpool init, n_threads = 2"
    )
    values = {name: one.value for name, one in told.items() if one.source is Source.ENDPOINT}
    assert values == {"max_num_seqs": 4, "max_model_len": 1024, "kv_cache_tokens": 4096, "dtype": "bfloat16"}
    assert told["threads"].value == 2
    assert BACKEND.versions({}, "xllamacpp 2026.10.11549 listening on http://127.0.0.1:1") == {
        "llamacpp": "2026.10.11549"
    }


def test_the_gguf_holds_the_very_weights_and_the_tokenizer(tiny_dir: Path, tmp_path: Path) -> None:
    """Made into a GGUF and back again it is the folder it was made from."""
    pytest.importorskip("gguf")
    made = gguf_of(tiny_dir, "bfloat16", tmp_path / "cache")
    assert gguf_of(tiny_dir, "bfloat16", tmp_path / "cache") == made
    again = tmp_path / "again"
    again.mkdir()
    from_gguf.convert(made, again)
    assert tensors(again) == tensors(tiny_dir)
    for name in ("vocab", "merges"):
        before, after = (json.loads((f / "tokenizer.json").read_text())["model"][name] for f in (tiny_dir, again))
        assert after == before
    config = json.loads((again / "config.json").read_text())
    assert config.items() >= {"bos_token_id": 256, "eos_token_id": 257, "rope_theta": 10000.0}.items()


def tensors(folder: Path) -> dict[str, bytes]:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name).float().numpy().tobytes() for name in file.keys()}  # noqa: SIM118 - a file is no mapping: it has keys() and no iterator


@pytest.mark.parametrize("change", [{"architectures": ["GPT2LMHeadModel"]}, {"rope_scaling": {"type": "llama3"}}])
def test_what_is_no_plain_llama_is_refused_with_the_way_out(
    tiny_dir: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    pytest.importorskip("gguf")
    for path in tiny_dir.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UsageError, match="own converter"):
        gguf_of(tmp_path, "bfloat16", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_real_server_keeps_every_promise(tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp")
    pytest.importorskip("gguf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DYNO_LLAMACPP_COMMAND", raising=False)
    engine = EngineSpec(
        label="l",
        backend="llamacpp",
        command=(sys.executable, "-P", "-m", MODULE),
        settings=EngineSettings(threads=1, max_num_seqs=2),
    )
    results = check_backend(
        engine, open_folder("tiny", tiny_dir), tmp_path / "s", timeouts=Timeouts(ready_s=LONG_S, stop_s=LONG_S)
    )
    failed = [r for r in results if r.outcome not in (Outcome.PASS, Outcome.NOT_CLAIMED)]
    assert failed == []
    assert {r.check for r in results if r.outcome is Outcome.NOT_CLAIMED} == {
        "continuous_usage",
        "token_ids",
        "truth_log",
    }


def test_the_process_that_made_the_file_becomes_the_program(tiny_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    command = [sys.executable, "-P", "-m", MODULE, str(tiny_dir), "--dtype", "float16", "--program", "echo started:"]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([*command, "--port", "1"], env=env, capture_output=True, text=True, check=True)
    (made,) = (tmp_path / "dyno" / "gguf").iterdir()
    assert done.stdout.splitlines()[-1] == f"started: --model {made} --port 1"


def test_a_folder_without_weights_ends_it_with_the_cause(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", MODULE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert classify(done.stdout, 1, BACKEND.failures).failure == "bad_argument"
