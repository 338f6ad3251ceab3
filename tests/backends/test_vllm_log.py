"""vLLM's log as a witness: real logs of a GPU server (0.19.1, whole life) and of the CPU build (0.32.0)."""

from __future__ import annotations

import calendar
import time
from pathlib import Path

import pytest

from backends.server_log import read_log
from backends.vllm_log import settings_of, startup_phases, version_of
from results.clock import NS_PER_S

DATA = Path(__file__).parents[1] / "data"
GPU, CPU = DATA / "vllm_0.19_gpu_server.log", DATA / "vllm_0.32_cpu_server.log"


@pytest.fixture(scope="module")
def gpu_log() -> str:
    return read_log(GPU)


@pytest.fixture(scope="module")
def cpu_log() -> str:
    return read_log(CPU)


def local(year: int, month: int, day: int) -> int:
    return int(time.mktime((year, month, day, 12, 0, 0, 0, 0, -1))) * NS_PER_S


class TestSettings:
    def test_of_a_gpu_server_are_read_from_its_own_dump_and_remarks(self, gpu_log: str) -> None:
        told = settings_of(gpu_log)
        assert version_of(gpu_log) == "0.19.1"
        expected = {
            "dtype": "bfloat16",
            "kv_dtype": "fp8",
            "quantisation": "modelopt_fp4",
            "max_model_len": 163_840,
            "max_num_batched_tokens": 8192,
            "kv_cache_tokens": 3_305_408,
            "block_size": 32,
            "tensor_parallel": 8,
            "prefix_caching": True,
            "chunked_prefill": True,
            "cuda_graphs": True,
            "speculative_decoding": False,
            "step_log": False,
            "attention_backend": "FLASHINFER_MLA",
            "device": "cuda",
            "load_format": "auto",
            "seed": 0,
        }
        assert {name: told[name] for name in expected} == expected
        assert told["kv_cache_bytes"] == pytest.approx(108.16 * 2**30, abs=2**23)
        assert (told["cuda_graph_sizes"][0], told["cuda_graph_sizes"][-1], len(told["cuda_graph_sizes"])) == (
            1,
            512,
            51,
        )
        assert "threads" not in told

    def test_of_a_cpu_server_too(self, cpu_log: str) -> None:
        told = settings_of(cpu_log)
        assert version_of(cpu_log) == "0.32.0"
        expected = {
            "device": "cpu",
            "threads": 2,
            "kv_cache_tokens": 46_592,
            "kv_cache_bytes": 2**30,
            "max_num_batched_tokens": 2048,
            "quantisation": "none",
            "cuda_graphs": False,
            "cuda_graph_sizes": [],
            "compilation": "none",
            "sampling_source": "request",
            "step_log": True,
        }
        assert {name: told[name] for name in expected} == expected

    @pytest.mark.parametrize("log", ["", "hello\n", "non-default args: {'a': <object at 0x1>, 'b': nonsense()}\n"])
    def test_of_another_log_are_none(self, log: str) -> None:
        assert settings_of(log) == {}
        assert version_of(log) is None
        assert startup_phases(log, time.time_ns()) == {}

    @pytest.mark.parametrize(
        ("line", "backend"),
        [
            (
                "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER'].",
                "FLASH_ATTN",
            ),
            ("Using Flash Attention backend on V1 engine.", "Flash Attention"),
            ("Using CPU_MLA backend.", "CPU_MLA"),
            ("Using HND KV cache layout for FLASHINFER_MLA backend.", None),
        ],
    )
    def test_the_attention_backend_is_named_in_several_ways(self, line: str, backend: str | None) -> None:
        assert settings_of(line).get("attention_backend") == backend

    def test_threads_of_all_ranks_are_counted(self) -> None:
        lines = "\tlocal_rank=0, core ids=[0, 1]\n\tlocal_rank=1, core ids=[2, 3, 4]\n"
        assert settings_of(lines)["threads"] == 5

    def test_the_least_memory_of_several_workers_is_the_caches(self) -> None:
        lines = "Available KV cache memory: 8.00 GiB\nAvailable KV cache memory: 7.50 GiB\n"
        assert settings_of(lines)["kv_cache_bytes"] == 7.5 * 2**30


class TestStartUp:
    def test_the_phases_of_a_real_start_stand_in_their_order(self, gpu_log: str) -> None:
        phases = startup_phases(gpu_log, local(2026, 5, 1))
        began = phases["log_first_line"]
        after = {name: (at - began) // NS_PER_S for name, at in phases.items()}
        assert after == {
            "log_first_line": 0,
            "engine_config": 31,
            "weights_loaded": 334,
            "compiled": 344,
            "kv_allocated": 356,
            "graphs_captured": 468,
            "engine_ready": 468,
            "http_ready": 487,
        }

    def test_an_eager_start_has_nothing_to_compile_or_capture(self, cpu_log: str) -> None:
        phases = startup_phases(cpu_log, time.time_ns())
        assert {"weights_loaded", "kv_allocated", "http_ready"} <= phases.keys()
        assert not {"compiled", "graphs_captured"} & phases.keys()

    def test_a_date_without_a_year_is_the_latest_that_is_past(self) -> None:
        line = "(APIServer pid=1) INFO 12-31 23:59:58 [x.py:1] hello\n"
        january, december = local(2026, 1, 2), local(2026, 12, 31)
        years = [
            time.localtime(startup_phases(line, now)["log_first_line"] / NS_PER_S).tm_year
            for now in (january, december)
        ]
        assert years == [2025, 2026]

    @pytest.mark.parametrize("stamp", ["02-30 10:00:00", "13-01 10:00:00"])
    def test_a_stamp_that_is_no_date_does_no_harm(self, stamp: str) -> None:
        startup_phases(f"INFO {stamp} [x.py:1] hello\n", calendar.timegm((2026, 1, 1, 0, 0, 0)) * NS_PER_S)
