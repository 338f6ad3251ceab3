"""A run beside a GPU (a stand-in of its driver's library): what the device did is in the result, and nothing hangs on it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from tests.end_to_end.conftest import Run, finish
from tests.nvml.stub import BOARD, Script, Stub, no_driver


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) to build the stand-in of libnvidia-ml with")
    made = Stub(tmp_path_factory.mktemp("nvml"))
    yield made
    made.close()


def experiment(folder: Path, model: Path, output: int = 96, waves: int = 6) -> str:
    """One engine, one cell; the device is named, since an engine on the CPU leaves its memory as it is."""
    length = {"dist": "fixed", "tokens": 16}
    path = folder / "experiment.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "model": str(model),
                "engines": [{"label": "reference", "backend": "reference", "settings": {"threads": 1}}],
                "workloads": [{"type": "random", "input_len": length, "output_len": {**length, "tokens": output}}],
                "loads": [{"mode": "batch", "batch": 2, "waves": waves}],
                "telemetry": {"devices": [BOARD[:12]], "interval_s": 0.2},
            }
        )
    )
    return str(path)


def test_what_the_device_did_is_in_summary_session_and_manifest(run: Run, stub: Stub, tmp_path: Path) -> None:
    script = Script().board(without=["energy"], changes={"gpm.10": 25.0, "reasons": 4}).say("integrate 0 9000")
    asked = experiment(tmp_path, run.model)
    code, _, err = finish(run.start("sweep", asked, "--out", str(run.folder), "--quiet", **stub.environment(script)))
    assert code == 0, err
    (cell,) = run.summary()["cells"]
    device = cell["device"]
    assert (device["source"], device["devices"]) == ("nvml", [BOARD])
    assert device["bandwidth_gb_per_s"] == pytest.approx(0.25 * 4916.736, rel=0.01)
    assert device["power_w"] == pytest.approx(400)
    assert device["energy_j"] == pytest.approx(400 * device["duration_s"], rel=0.01)
    assert device["duration_s"] == pytest.approx(cell[device["scope"]]["duration_s"], rel=0.01)
    codes = {r["code"] for r in cell["reasons"]}
    assert "power_capped" in codes
    assert "no_device_telemetry" not in codes
    manifest = json.loads((run.folder / "manifest.json").read_text())
    assert manifest["device"]["name"] == "1 x NVIDIA H200"
    assert manifest["device"]["devices"][0]["uuid"] == BOARD
    (session,) = run.folder.glob("sessions/*/session.json")
    told = json.loads(session.read_text())["telemetry"]
    assert (told["source"], set(told["why_not"])) == ("nvml", {"dcgm"})
    assert told["baseline_bytes"] == {BOARD: 20 * 2**30}


def test_a_killed_sampler_does_not_stop_the_run(run: Run, stub: Stub, tmp_path: Path) -> None:
    asked = experiment(tmp_path, run.model, output=200, waves=12)
    child = run.start("sweep", asked, "--out", str(run.folder), "--quiet", **stub.environment(Script().board()))
    worker = run.hold_a_worker(committed=0)
    samplers = [p for p in psutil.Process(child.pid).children() if "harness.telemetry.sampler" in " ".join(p.cmdline())]
    assert len(samplers) == 1
    samplers[0].kill()
    worker.resume()
    code, _, err = finish(child)
    assert code == 0, err
    (cell,) = run.summary()["cells"]
    assert cell["requests"]["ok"] == 24
    ended = next(r for r in cell["reasons"] if r["code"] == "sampling_ended")
    assert ended["evidence"] == "the sampler ended with code -9"


@no_driver
def test_required_telemetry_that_is_not_there_stops_before_any_load(run: Run) -> None:
    code, _, err = finish(run.sweep("--batch", "1", "--require-telemetry", PATH="/nonexistent"))
    assert code == 4
    assert "Device telemetry is required and there is none" in err
    assert "no libnvidia-ml.so.1 on this machine" in err
    assert not run.folder.exists()
    code, _, err = finish(run.sweep("--batch", "1", "--telemetry", "nvidia"))
    assert code == 2
    assert "Unknown telemetry 'nvidia'" in err
