"""The reference engine's adapter: settings to flags, read back with provenance, its own words for failures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

import pytest

from backends.base import (
    Backend,
    CompletionRequest,
    EngineSettings,
    LaunchContext,
    Resolved,
    SettingNotSupportedError,
    Source,
    get_backend,
)
from backends.failures import StartupError, classify
from backends.http_probe import get
from backends.ports import free_port
from backends.process import ServerProcess
from backends.prometheus import metric_names, neutral_metrics, parse_prometheus
from backends.reference_adapter import BACKEND, SETTINGS_PATH
from backends.server_log import read_log
from results.errors import UsageError
from tests.waiting import LONG_S


def context(
    folder: Path, model: Path, port: int = 1, options: tuple[str, ...] = (), **settings: object
) -> LaunchContext:
    return LaunchContext(
        model=model,
        served_name="the-name",
        settings=EngineSettings.model_validate(settings),
        session_dir=folder,
        host="127.0.0.1",
        port=port,
        command=BACKEND.command(None),
        options=options,
        env={"OMP_NUM_THREADS": "1"},
    )


class TestCommandLine:
    def test_starts_the_module_with_this_python(self, tmp_path: Path) -> None:
        plan = BACKEND.launch_plan(context(tmp_path, Path("/models/m"), port=8123))
        assert plan.argv == (
            *(sys.executable, "-P", "-m", "backends.reference", "/models/m", "--host", "127.0.0.1", "--port", "8123"),
            *("--served-model-name", "the-name", "--truth-dir", str(tmp_path)),
        )
        assert plan.env["OMP_NUM_THREADS"] == "1"

    def test_every_setting_it_names_becomes_a_flag(self, tmp_path: Path) -> None:
        values: dict[str, object] = dict.fromkeys(BACKEND.settings, 7) | {
            "dtype": "float32",
            "load_format": "dummy",
            "admission": "reserve-max",
            "batching": "static-pad",
            "kv_layout": "paged",
        }
        for name in ("kv_cache_bytes", "chunked_prefill", "prefix_caching", "kv_cache"):  # asked once; without a value
            del values[name]
        argv = BACKEND.launch_plan(context(tmp_path, Path("m"), **values)).argv
        for name, value in values.items():
            flag = argv.index("--" + name.replace("_", "-"))
            assert argv[flag + 1] == str(value)

    def test_the_users_own_options_come_last(self, tmp_path: Path) -> None:
        argv = BACKEND.launch_plan(context(tmp_path, Path("m"), options=("--block-size", "8"), block_size=16)).argv
        assert argv[-2:] == ("--block-size", "8")

    def test_another_command_can_be_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DYNO_REFERENCE_COMMAND", "taskset -c 0 python -m 'my engine'")
        assert BACKEND.command(None) == ("taskset", "-c", "0", "python", "-m", "my engine")
        assert BACKEND.command(["x"]) == ("x",)

    @pytest.mark.parametrize(
        ("setting", "value"),
        [("memory_fraction", 0.9), ("kv_dtype", "fp8"), ("cuda_graphs", True), ("tensor_parallel", 2)],
    )
    def test_a_setting_it_cannot_honour_is_refused_by_name(self, tmp_path: Path, setting: str, value: object) -> None:
        with pytest.raises(SettingNotSupportedError, match=f"'{setting}'.*max_num_seqs"):
            BACKEND.launch_plan(context(tmp_path, Path("m"), **{setting: value}))

    def test_switches_that_do_not_go_together_are_refused_before_it_is_started(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="--kv-layout contiguous with --admission reserve-max"):
            BACKEND.launch_plan(context(tmp_path, Path("m"), kv_layout="contiguous", admission="reserve-max"))
        BACKEND.launch_plan(context(tmp_path, Path("m"), kv_cache=False))

    def test_the_value_it_always_has_may_be_asked_for(self, tmp_path: Path) -> None:
        plain = BACKEND.launch_plan(context(tmp_path, Path("m")))
        assert BACKEND.launch_plan(context(tmp_path, Path("m"), cuda_graphs=False, tensor_parallel=1)) == plain

    def test_switches_have_a_flag_for_each_value_and_none_when_left_out(self, tmp_path: Path) -> None:
        argv = BACKEND.launch_plan(context(tmp_path, Path("m"), prefix_caching=True, chunked_prefill=False)).argv
        assert {"--prefix-caching", "--no-chunked-prefill"} < set(argv)
        argv = BACKEND.launch_plan(context(tmp_path, Path("m"), prefix_caching=False)).argv
        assert "--no-prefix-caching" in argv
        assert not [flag for flag in argv if "chunked" in flag]
        argv = BACKEND.launch_plan(context(tmp_path, Path("m"), kv_cache=False)).argv
        assert argv[argv.index("--kv-cache") + 1] == "off"
        argv = BACKEND.launch_plan(context(tmp_path, Path("m"), admission="reserve_max")).argv
        assert argv[argv.index("--admission") + 1] == "reserve-max"

    def test_the_kv_cache_is_asked_for_once(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="kv_cache_tokens=64 and kv_cache_bytes=9"):
            BACKEND.launch_plan(context(tmp_path, Path("m"), kv_cache_tokens=64, kv_cache_bytes=9))


class TestReadBack:
    DOCUMENT: ClassVar = {
        "dtype": "bfloat16",
        "block_size": 16,
        "kv_bytes_per_token": 512,
        "versions": {"torch": "2.13.0"},
    }

    def test_what_the_endpoint_says_wins_over_what_was_asked(self) -> None:
        asked = EngineSettings(dtype="auto", seed=3)
        resolved = BACKEND.resolved_settings(asked, {SETTINGS_PATH: self.DOCUMENT}, "")
        assert resolved["dtype"] == Resolved("bfloat16", Source.ENDPOINT)
        assert resolved["kv_bytes_per_token"] == Resolved(512, Source.ENDPOINT)
        assert resolved["seed"] == Resolved(3, Source.ASKED)
        assert resolved["cuda_graphs"] == Resolved(False, Source.FIXED)
        assert "versions" not in resolved
        assert BACKEND.versions({SETTINGS_PATH: self.DOCUMENT}, "") == {"torch": "2.13.0"}

    @pytest.mark.parametrize("documents", [{}, {SETTINGS_PATH: "<html>"}, {SETTINGS_PATH: []}])
    def test_without_the_endpoint_only_what_was_asked_is_known(self, documents: dict[str, object]) -> None:
        resolved = BACKEND.resolved_settings(EngineSettings(block_size=8), documents, "")
        assert resolved["block_size"] == Resolved(8, Source.ASKED)
        assert "dtype" not in resolved
        assert BACKEND.versions(documents, "") == {}

    def test_request_bodies_ask_for_ids_usage_and_exact_lengths(self) -> None:
        body = BACKEND.completion_body(CompletionRequest("m", (1, 2), 5))
        assert (body["prompt"], body["max_tokens"], body["ignore_eos"]) == ([1, 2], 5, True)
        assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


class TestItsWordsForFailures:
    @pytest.mark.parametrize(
        ("line", "failure"),
        [
            ("error: Model folder /x does not exist; give a folder that holds config.json.", "model_not_found"),
            (
                "error: Architecture FooForCausalLM of /x/config.json is not supported; supported: x.",
                "unsupported_model",
            ),
            (
                "error: The KV pool of 9 tokens needs 9 bytes, but 1 bytes of memory are available; x",
                "out_of_memory_host",
            ),
            ("error: Cannot listen on 127.0.0.1:80: Address already in use.", "port_in_use"),
            ("error: --max-model-len 9 is more than the model's 8 positions.", "bad_argument"),
        ],
    )
    def test_are_classified(self, line: str, failure: str) -> None:
        assert classify(f"x\n{line}\n", 2, BACKEND.failures).failure == failure


class TestTheRealEngine:
    def test_is_launched_read_back_and_stopped(self, tmp_path: Path, tiny_dir: Path) -> None:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        switches = {"admission": "reserve_oracle", "batching": "static_drop", "kv_layout": "paged", "kv_cache": True}
        asked = context(
            tmp_path, tiny_dir, port, dtype="float32", kv_cache_tokens=512, block_size=8, threads=1, **switches
        )
        backend: Backend = get_backend("reference")
        with ServerProcess.start(backend.launch_plan(asked), tmp_path / "server.log", LONG_S, port=port) as server:
            server.wait_ready(url, backend.ready_path, LONG_S, patterns=backend.failures)
            documents = {path: get(url, path).document() for path in backend.settings_paths()}
            page = get(url, "/metrics").text
            assert server.stop() == 0
        resolved = backend.resolved_settings(asked.settings, documents, read_log(tmp_path / "server.log"))
        for name, value in asked.settings.asked().items():
            assert resolved[name] == Resolved(value, Source.ENDPOINT)
        assert resolved["max_num_seqs"].source is Source.ENDPOINT
        assert "torch" in backend.versions(documents, "")
        values = neutral_metrics(backend.metrics, parse_prometheus(page, metric_names(backend.metrics)))
        assert set(values) == {rule.neutral for rule in backend.metrics}
        assert values["kv_pool_bytes"] == 512 * resolved["kv_bytes_per_token"].value
        assert values["running"] == 0

    def test_that_cannot_start_says_why(self, tmp_path: Path) -> None:
        port = free_port()
        plan = BACKEND.launch_plan(context(tmp_path, tmp_path / "no-model", port))
        with (
            ServerProcess.start(plan, tmp_path / "server.log", port=port) as server,
            pytest.raises(StartupError, match="dyno models fetch") as caught,
        ):
            server.wait_ready(f"http://127.0.0.1:{port}", "/health", LONG_S, patterns=BACKEND.failures)
        assert caught.value.failure.failure == "model_not_found"
        assert caught.value.server_exit == 2


LOG = """2026-11-30 00:49:18,122 INFO backends.reference: settings: EngineSettings(...)
2026-11-30 00:49:18,258 INFO backends.reference.build: loading weights (auto) from /m as bfloat16
2026-11-30 00:49:18,497 INFO backends.reference.build: allocated KV in 0.26 s
2026-11-30 00:49:21,855 INFO backends.reference.build: loaded 256.6 MiB of weights in 3.36 s, products by x
ready on http://127.0.0.1:44895 in 5.0 s (weights 3.4 s, kv 0.3 s)
"""


def test_the_phases_of_a_start_are_read_from_the_log() -> None:
    phases = BACKEND.startup_phases(LOG, 0)
    first = phases["log_first_line"]
    assert {name: (at - first) // 1_000_000 for name, at in phases.items()} == {
        "log_first_line": 0,
        "kv_allocated": 375,
        "weights_loaded": 3733,
    }
    for line in ("no stamp: loaded 1 MiB of weights", "2026-99-30 00:49:18,258 INFO x: allocated KV in 1 s"):
        assert BACKEND.startup_phases(line, 0) == {}
