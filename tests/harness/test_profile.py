"""`dyno profile`: a cell once more under a profiler, apart from its run and unscored; what cannot be profiled says why."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.observer import Observer
from harness.profile import Asked, _experiment, ask_profile, can_run, paste, run_profile
from harness.profile_tools import NsysTool
from results.errors import EngineError, UsageError
from results.store import RunStore
from tests.harness.cli.conftest import Result
from tests.harness.cli.conftest import dyno as dyno  # the fixture
from tests.results.builders import synthetic_run

Dyno = Callable[..., Result]
NSYS = """#!/bin/sh
# What of nsys is used: launch runs what follows its options, stop writes what start named.
echo "$@" >> "$NSYS_SAID"
case "$1" in
launch) shift; while [ "${1#--}" != "$1" ]; do shift; done; exec "$@" ;;
start) for word in "$@"; do case "$word" in --output=*) echo "${word#--output=}" > "$NSYS_SAID.out" ;; esac; done ;;
stop) [ -z "$NSYS_FAILS" ] || { echo "no such session" >&2; exit 3; }; touch "$(cat "$NSYS_SAID.out").nsys-rep" ;;
esac
"""


def run_of(folder: Path, tiny: Path, edit: Callable[[str], str] = lambda text: text) -> tuple[RunStore, str]:
    """A run of one cell of a model that is there, and the cell's id."""
    store = synthetic_run(folder, ("e",), (2,), (16,), 8, model=str(tiny))
    file = store.path / "experiment.yaml"
    file.write_text(edit(file.read_text()))
    store = RunStore.open(store.path)
    return store, store.cells()[0].id


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nsys on PATH that does as it is told and writes it down."""
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(NSYS)
    program.chmod(0o755)
    said = tmp_path / "said"
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NSYS_SAID", str(said))
    monkeypatch.delenv("NSYS_FAILS", raising=False)
    return said


def test_the_reference_is_profiled_by_torch_and_the_run_stays_as_it_was(
    tmp_path: Path, tiny_dir: Path, dyno: Dyno
) -> None:
    store, cell = run_of(tmp_path, tiny_dir)
    before = {path: path.read_bytes() for path in store.path.rglob("*") if path.is_file()}
    first = dyno("profile", str(store.path), cell[:-1], "--operators", "--steps", "12", "--json")
    assert first.code == 0, first.err
    found: dict[str, Any] = json.loads(first.out)
    assert (found["tool"], found["steps"], found["kernels"]) == ("torch.profiler", 12, "off")
    calls = {row["name"]: row["calls"] for row in found["operators"]}
    # Prompts of 16 tokens, then a token a step: every step has one name, each computes the layers once.
    assert calls["step: prefill"] + calls["step: decode"] == calls["layers"] == calls["logits"] == 12
    assert any(name.startswith("aten::") for name in calls)
    with gzip.open(found["trace"], "rt") as file:
        assert json.load(file)["traceEvents"]
    assert all(path.read_bytes() == content for path, content in before.items())
    (scored,) = json.loads((Path(found["folder"]) / "summary.json").read_text())["cells"]
    assert scored["verdict"] == "INVALID"
    assert "profiled" in {reason["code"] for reason in scored["reasons"]}
    # The same command again shows what is there.
    again = dyno("profile", str(store.path), cell, "--operators", "--steps", "12")
    assert again.code == 0, again.err
    assert "12 steps" in again.out
    assert "step: decode" in again.out
    assert max(map(len, again.out.splitlines()[:-1])) <= 120
    assert len(RunStore(Path(found["folder"])).sessions()) == 1


def test_nsys_launches_the_server_and_records_the_load_alone(tmp_path: Path, tiny_dir: Path, nsys: Path) -> None:
    store, cell = run_of(tmp_path, tiny_dir)
    asked = under_nsys(ask_profile(store.path, cell, 8, False))
    found = run_profile(asked, Observer(), ["dyno", "profile"])
    assert Path(found["trace"]).is_file()
    launched, started, stopped = nsys.read_text().splitlines()
    assert launched.startswith("launch --session-new=dyno-x --trace=cuda,nvtx,osrt")
    assert "-m backends.reference" in launched
    assert started.startswith(f"start --session=dyno-x --output={asked.folder}")
    assert stopped == "stop --session=dyno-x"
    (session,) = RunStore(asked.folder).sessions()
    assert session["argv"][:2] == ["nsys", "launch"]


def under_nsys(asked: Asked) -> Asked:
    """The reference engine as if it were one that nsys profiles."""
    tool, folder = NsysTool("dyno-x"), asked.folder.parent / "nsys"
    cell = asked.cell.model_copy(update={"engine": asked.cell.engine.model_copy(update={"options": ()})})
    return replace(
        asked, tool=tool, folder=folder, cell=cell, experiment=_experiment(asked.experiment, cell, tool, folder)
    )


def test_a_profiler_that_fails_is_told_with_its_words(
    nsys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSYS_FAILS", "1")
    with (
        pytest.raises(EngineError, match="nsys stop --session=dyno-x` ended with 3: no such session"),
        NsysTool("dyno-x").watch(tmp_path, "http://127.0.0.1:1") as faults,
    ):
        assert [fault.code for fault in faults] == ["profiled"]


def test_without_nsys_what_to_paste_is_printed(
    tmp_path: Path, tiny_dir: Path, dyno: Dyno, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cell = run_of(tmp_path, tiny_dir, lambda text: text.replace("backend: reference", "backend: vllm"))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = dyno("profile", str(store.path), cell)
    assert found.code == 4
    assert "Install it" in found.err
    server, start, load, stop = found.out.splitlines()
    assert server.startswith("env OMP_NUM_THREADS=2 nsys launch --session-new=dyno-")
    assert server.endswith("backends.reference /models/synthetic-llama --port 8000")  # the argv that the session keeps
    assert start.startswith("nsys start --session=dyno-")
    assert stop.startswith("nsys stop --session=dyno-")
    # The load is a plan that can be run, against that server.
    words = load.split()
    plan = dyno(*words[1:], "--dry-run")
    assert plan.code == 0, plan.err
    assert "url: http://127.0.0.1:8000" in Path(words[2]).read_text()
    assert not can_run(ask_profile(store.path, cell, 8, False))
    assert len(paste(ask_profile(store.path, cell, 8, False))) == 4


def test_what_cannot_be_profiled_says_why(tmp_path: Path, tiny_dir: Path) -> None:
    def refused(edit: Callable[[str], str], operators: bool, place: str) -> str:
        store, cell = run_of(tmp_path / place, tiny_dir, edit)
        with pytest.raises(UsageError) as caught:
            ask_profile(store.path, cell, 8, operators)
        return str(caught.value)

    attached = "backend: openai\n  url: http://127.0.0.1:8000"
    said = refused(
        lambda text: text.replace("backend: reference\n  settings:\n    block_size: 16", attached), False, "a"
    )
    assert "was attached to" in said
    image = "backend: vllm\n  container: {image: 'vllm/vllm-openai:v0.11.0'}"
    assert "in a container" in refused(lambda text: text.replace("backend: reference", image), False, "b")
    vllm = refused(lambda text: text.replace("backend: reference", "backend: vllm"), True, "c")
    assert "--operators is of the reference engine" in vllm


def test_results_of_another_tool_cannot_be_run_again(tmp_path: Path, tiny_dir: Path, dyno: Dyno) -> None:
    store, cell = run_of(tmp_path, tiny_dir, lambda text: f"{text}source: imported\n")
    for command in ("why", "profile"):
        found = dyno(command, str(store.path), cell)
        assert found.code == 2
        assert "another tool measured" in found.err
