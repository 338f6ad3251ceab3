"""Every preset people quote, at its own loads and scaled down in length, and the published data files, against the reference
engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from harness.cli.console import CalmConsole
from harness.cli.experiment_args import SweepFlags, build_experiment
from harness.cli.presets import preset_fields, preset_names
from harness.cli.sweep import run_sweep
from harness.experiment import Experiment
from results.files import read_json
from results.schema import Outcome
from results.store import RunStore
from results.truth import read_steps
from tests.backends.reference.server_process import ServerProcess, running_server

DATA = Path(__file__).parents[1] / "data" / "workloads"
SHAREGPT = str(DATA / "sharegpt_fastchat.json")
# One starts engines of its own.
PRESETS = [name for name in preset_names() if "engines" not in preset_fields(name)]


@pytest.fixture(scope="module")
def server(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tiny_dir, tmp_path_factory.mktemp("server") / "log") as made:
        yield made


def experiment_of(server: ServerProcess | None, tiny_dir: Path, **flags: Any) -> Experiment:
    """What `dyno sweep` with those flags is asked, of that server."""
    asked: dict[str, Any] = dict.fromkeys((f.name for f in fields(SweepFlags)), None)
    asked |= {"backends": [], "engines": [], "exact_lengths": False, "no_stream": False, "slo": (), "workload": ()}
    asked |= {
        "url": server and server.url,
        "tokenizer": str(tiny_dir),
        "require_telemetry": False,
        "telemetry": "none",
        **flags,
    }
    return build_experiment(SweepFlags(**asked))


def cells_of(experiment: Experiment, folder: Path) -> list[dict[str, Any]]:
    """The cells of that sweep, every request of them answered and every prompt as long as planned."""
    assert run_sweep(experiment, folder, CalmConsole(stderr=True), quiet=True, as_json=False) == 0
    cells: list[dict[str, Any]] = read_json(folder / "summary.json")["cells"]
    assert cells
    for cell in cells:
        codes = {reason["code"] for reason in cell["reasons"]}
        assert cell["requests"]["by_outcome"] == {Outcome.OK: cell["requests"]["issued"]}
        assert not codes & {"prompt_tokens_disagree", "bos_duplicated", "token_counts_disagree"}
    return cells


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_answered_in_full_at_its_own_loads(
    preset: str, server: ServerProcess, tiny_dir: Path, tmp_path: Path
) -> None:
    """Its own concurrencies and kinds of prompts; lengths and numbers of requests are scaled down to what a tiny model can take."""
    asked: dict[str, Any] = {"preset": preset, "scale": "1/128"}
    if preset == "sharegpt":  # its numbers of requests are its own; the file is short
        asked = {"preset": preset, "workload": (f"{SHAREGPT},max_len=256,most_output=16,oversample=true",)}
    own, experiment = preset_fields(preset), experiment_of(server, tiny_dir, **asked)
    cells = cells_of(experiment, tmp_path / "run")
    assert len(cells) == len(own["workloads"]) * len(own["loads"])
    assert sorted({cell["load"]["value"] for cell in cells}) == sorted(
        load.get("concurrency") or load["batch"] for load in own["loads"]
    )
    told = {(cell["workload"]["type"], cell["workload"].get("hit_share")) for cell in cells}
    assert told == {(workload["type"], workload.get("hit_share")) for workload in own["workloads"]}
    for cell in cells:
        assert cell["batch"]["offered"] == cell["load"]["value"]
        assert cell["workload"].get("natural_eos", False) is (preset == "sharegpt")
        repeated = [reason for reason in cell["reasons"] if reason["code"] == "prompts_repeated"]
        assert bool(repeated) is (preset == "sharegpt")


def test_a_preset_with_engines_of_its_own_runs_them(tiny_dir: Path, tmp_path: Path) -> None:
    asked = {"preset": "reserve-vs-evict", "scale": "1/2", "model": str(tiny_dir), "url": None, "tokenizer": None}
    reserve, on_demand = cells_of(experiment_of(None, tiny_dir, **asked), tmp_path / "run")
    assert (reserve["engine"], on_demand["engine"]) == ("reserve", "on-demand")
    # What it is there to show, on whatever machine: memory set aside lets in fewer at once.
    least_promised = (48 + 1024) // 2
    most = 4096 // least_promised
    assert most_at_once(tmp_path / "run", reserve) <= most < most_at_once(tmp_path / "run", on_demand)


def most_at_once(run: Path, cell: dict[str, Any]) -> int:
    """By the engine's own steps: however long each of them took."""
    store = RunStore(run)
    record = next(record for record in store.cells() if record.id == cell["id"])
    steps = read_steps(store.session_dir(record.session), record.started, record.ended)
    assert steps is not None
    return int(steps.running.max())


def test_published_conversations_are_answered_in_full(server: ServerProcess, tiny_dir: Path, tmp_path: Path) -> None:
    cut = "max_len=256,too_long=truncate,most_output=16,order=file"
    texts = [f"{SHAREGPT},{cut}", f"{DATA / 'conversations_role_content.json'},{cut},multi_turn=true"]
    first, roles = cells_of(
        experiment_of(server, tiny_dir, workload=texts, concurrency="2", requests="4"), tmp_path / "run"
    )
    if "role" in first["workload"]["path"]:
        first, roles = roles, first
    assert "workload_not_as_file" not in {reason["code"] for reason in first["reasons"]}
    (note,) = (r["evidence"] for r in roles["reasons"] if r["code"] == "workload_not_as_file")
    assert note == "3 prompts cut to max_len"


@pytest.mark.parametrize(("name", "speed"), [("azure_llm_conv_2023.csv", "50"), ("mooncake_synthetic.jsonl", "100")])
def test_a_trace_is_replayed_at_its_times(
    name: str, speed: str, server: ServerProcess, tiny_dir: Path, tmp_path: Path
) -> None:
    trace = f"{DATA / name},max_len=1200,too_long={'drop' if 'azure' in name else 'truncate'}"
    (cell,) = cells_of(experiment_of(server, tiny_dir, trace=trace, speed_up=speed, requests="12"), tmp_path / "run")
    assert cell["requests"]["issued"] == 12
    assert cell["load"]["mode"] == "schedule"
    assert cell["client"]["arrivals"]["intended_per_s"] > 0
