"""The CI jobs that gate: their own steps, run here as they stand, with small loads and this environment for both sides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.waiting import LONG_S

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests" / "servers" / "engine_fake.py"
# One at a time: of two that are sent together the second may miss a step, and with 4 tokens each that is a tenth of all steps.
SMALL = {"BLOCKS": "2", "LOAD": "--batch 1 --requests 4 --input-len 8 --output-len 4 --telemetry none"}


def workflow(path: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The environment and the steps of its only job."""
    document = yaml.safe_load((ROOT / path).read_text())
    (job,) = document["jobs"].values()
    return document["env"], job["steps"]


def steps_run(
    path: str, folder: Path, environments: list[str], **env: str
) -> dict[str, subprocess.CompletedProcess[str]]:
    """The steps `measure` and `gate` in the shell GitHub runs them in; `environments` are made for them beforehand."""
    for name in environments:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(sys.prefix)
    given, steps = workflow(path)
    summary = folder / "summary.md"
    here = {**os.environ, **given, **SMALL, **env, "GITHUB_STEP_SUMMARY": str(summary)}
    done = {}
    for step in steps:
        if step.get("name") in ("measure", "gate"):
            script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
            done[step["name"]] = subprocess.run(
                script, cwd=folder, env=here, capture_output=True, text=True, timeout=LONG_S, check=False
            )
    return done


def found(folder: Path) -> dict[str, Any]:
    """What the gate left for the artefact and the summary, each of which must say the same."""
    gate: dict[str, Any] = json.loads((folder / "perf" / "gate.json").read_text())
    suite = ElementTree.fromstring((folder / "perf" / "gate.xml").read_text())[0]
    assert int(suite.get("tests", "")) == len(gate["points"]) + 1
    assert (folder / "summary.md").read_text().startswith("### ")
    assert (folder / "perf" / "run" / "report.html").is_file()
    return gate


def test_the_pull_request_job_measures_base_and_head_by_turns_and_gates_them(tmp_path: Path, tiny_dir: Path) -> None:
    done = steps_run(
        ".github/workflows/perf.yml", tmp_path, ["base/.venv", "head/.venv"], MODEL=str(tiny_dir), OMP_NUM_THREADS="1"
    )
    for step in done.values():
        assert step.returncode == 0, step.stdout + step.stderr
    gate = found(tmp_path)
    assert gate["faults"] == []
    exact = [p for p in gate["points"] if p["metric"] == "computed_tokens_per_token"]
    assert [p["verdict"] for p in exact] == ["pass"]
    # Two blocks make no verdict on a clock, and the job does not fail for it.
    assert gate["verdict"] == "inconclusive"
    order = [s.name.partition("-")[2] for s in sorted((tmp_path / "perf" / "run" / "sessions").iterdir())]
    assert sorted(order) == ["b0-base", "b0-head", "b1-base", "b1-head"]


def test_the_template_for_gpu_runners_gates_two_versions_of_an_engine(tmp_path: Path, tiny_dir: Path) -> None:
    done = steps_run(
        "docs/ci/perf-gpu.yml",
        tmp_path,
        ["envs/base", "envs/candidate", "envs/dyno"],
        MODEL=str(tiny_dir),
        BACKEND="reference",
        SERVE=f"-S -E {FAKE}",
        MARGINS="--metric received_bytes_per_token",
    )
    for step in done.values():
        assert step.returncode == 0, step.stdout + step.stderr
    gate = found(tmp_path)
    assert (gate["verdict"], gate["base"], gate["cand"]) == ("pass", "base", "candidate")


@pytest.mark.parametrize("path", [".github/workflows/perf.yml", "docs/ci/perf-gpu.yml"])
def test_a_job_that_gates_keeps_its_evidence_whatever_happens(path: str) -> None:
    _, steps = workflow(path)
    names = [step.get("name") for step in steps]
    assert names.index("environments") < names.index("measure") < names.index("gate")
    keep = steps[-1]
    assert keep["uses"].startswith("actions/upload-artifact@")
    assert keep["if"] == "always()"


def test_the_template_installs_dyno_from_a_clone_for_it_is_on_no_index() -> None:
    env, steps = workflow("docs/ci/perf-gpu.yml")
    (clone,) = (step["with"] for step in steps if "repository" in step.get("with", {}))
    assert clone == {"repository": "${{ env.DYNO }}", "ref": "${{ env.DYNO_REF }}", "path": "dyno"}
    (script,) = (step["run"] for step in steps if step.get("name") == "environments")
    assert f"pip install --quiet ./{clone['path']}\n" in script
    assert "llm-dyno" not in script
    head = (ROOT / "docs/ci/perf-gpu.yml").read_text().split("\nname:")[0]
    assert {name for name in env if name.startswith("DYNO")} == {name for name in ("DYNO", "DYNO_REF") if name in head}


def statuses(path: str, step: str, folder: Path, dyno: str) -> dict[int, bool]:
    """Whether a step fails, by the exit code of the `dyno` in it."""
    _, steps = workflow(path)
    (script,) = (found["run"] for found in steps if found.get("name") == step)
    stand_in, failed = folder / dyno, {}
    stand_in.parent.mkdir(parents=True)
    for code in (0, 1, 2, 3, 4):
        stand_in.write_text(f"#!/bin/sh\nexit {code}\n")
        stand_in.chmod(0o755)
        env = {
            **os.environ,
            "OUT": str(folder),
            "MODEL": "m",
            "LOAD": "",
            "BLOCKS": "5",
            "SERVE": "",
            "BACKEND": "vllm",
        }
        done = subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=folder, env=env, check=False)
        failed[code] = bool(done.returncode)
    return failed


def test_a_regression_fails_the_pull_request_job_and_an_undecided_gate_does_not(tmp_path: Path) -> None:
    found = statuses(".github/workflows/perf.yml", "gate", tmp_path, "head/.venv/bin/dyno")
    assert found == {0: False, 1: True, 2: True, 3: False, 4: True}


@pytest.mark.parametrize(
    ("path", "dyno"),
    [(".github/workflows/perf.yml", "head/.venv/bin/dyno"), ("docs/ci/perf-gpu.yml", "envs/dyno/bin/dyno")],
)
def test_an_invalid_cell_leaves_it_to_the_gate_to_fail_the_job(path: str, dyno: str, tmp_path: Path) -> None:
    assert statuses(path, "measure", tmp_path, dyno) == {0: False, 1: False, 2: True, 3: True, 4: True}
