"""The real vLLM, on the CPU. One server is shared by all tests that only look at it; `make test-vllm` names its command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from backends.base import EngineSettings
from backends.process import ServerProcess
from harness.conformance import Bench
from harness.experiment import EngineSpec, Timeouts
from harness.models import open_folder, vocabulary
from harness.open_server import open_server

VARIABLE = "DYNO_VLLM_COMMAND"
# vLLM's CPU build makes a hundredth of the speed in bfloat16 where the processor has no AVX-512: a sweep would take half an hour.
DTYPE = "bfloat16" if "avx512f" in Path("/proc/cpuinfo").read_text() else "float32"
# No compiler: a start takes a third of the time.
EAGER = ("--enforce-eager",)
ASKED = EngineSettings(
    max_model_len=512,
    max_num_seqs=16,
    max_num_batched_tokens=256,
    kv_cache_tokens=4096,
    threads=1,
    seed=3,
    dtype=None if DTYPE == "bfloat16" else DTYPE,
)


@pytest.fixture(scope="session", autouse=True)
def _command() -> None:
    if not os.environ.get(VARIABLE):
        pytest.skip(f"{VARIABLE} does not name a vLLM: run `make test-vllm`")


def tree(process: ServerProcess) -> list[psutil.Process]:
    """Every process of a server's tree, now."""
    return [psutil.Process(pid) for pid in process.pids()]


def running(processes: list[psutil.Process]) -> list[str]:
    """Those of them that are still there, by name (a number that was given anew is another process)."""
    return [p.name() for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="session")
def bench(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A ready vLLM with the real model. After it, nothing of its tree may be left."""
    model = open_folder("smol", smollm2_dir)
    engine = EngineSpec(label="vllm", backend="vllm", settings=ASKED, options=EAGER)
    folder = tmp_path_factory.mktemp("vllm")
    with open_server(engine, model, "smol", folder, Timeouts(ready_s=400)) as server:
        assert server.process is not None
        processes = tree(server.process)
        assert len(processes) >= 3, "the API server, the engine and a worker"
        # On a machine that others use a request may wait for minutes: the limit only bounds a hang.
        yield Bench(server, timeout_s=600, vocabulary=vocabulary(model))
    assert running(processes) == []
    assert server.process.exit_code == 0
