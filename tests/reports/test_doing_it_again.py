"""Reproduction: what each server was launched with, and every cell as an experiment that asks for that cell and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.experiment import cells_of, load_experiment
from reports.html import render_html
from results.files import to_json
from results.records import CellRecord
from results.report_again import reproduction
from results.report_data import load_report_data
from results.report_measures import MEASURE, Value
from results.report_shapes import CellRow, workload_info
from results.store import RunStore
from tests.reports.runs import grid, make_run
from tests.results.builders import synthetic_run

EXPERIMENT = """
model: smollm2-135m
engines:
- {label: a, backend: reference, settings: {max_num_seqs: 4}}
- {label: b, backend: reference}
workloads:
- {type: random, input_len: {dist: fixed, tokens: 64}, output_len: {dist: fixed, tokens: 16}}
- {type: random, input_len: {dist: fixed, tokens: 128}, output_len: {dist: fixed, tokens: 16}}
loads:
- {mode: batch, batch: 1, waves: 3}
- {mode: concurrency, concurrency: 4, requests: 16}
blocks: 2
seed: 7
budget_s: 60
"""


def test_a_cell_s_own_experiment_asks_for_that_very_cell(tmp_path: Path) -> None:
    (tmp_path / "asked.yaml").write_text(EXPERIMENT)
    experiment = load_experiment(tmp_path / "asked.yaml")
    store = make_run(tmp_path / "run", grid(batches=(1,), input_lens=(128,)))
    (store.path / "experiment.yaml").write_text(experiment.to_yaml())
    for cell in cells_of(experiment):
        workload, load = cell.workload.model_dump(mode="json"), cell.load.model_dump(mode="json")
        record = CellRecord(cell.id, cell.engine.label, "reference", "m", "s", cell.block, 0, workload, load, 0, 1)
        row = CellRow(
            cell.id,
            cell.engine.label,
            workload_info(workload),
            str(load["mode"]),
            1.0,
            cell.block,
            "s",
            "VALID",
            [],
            {},
            dict.fromkeys(MEASURE, Value(None)),
        )
        (again,) = reproduction(store, [], ["a", "b"], [row], {cell.id: record}).cells
        (tmp_path / "again.yaml").write_text(again.experiment)
        found = cells_of(load_experiment(tmp_path / "again.yaml"))
        assert cell.id in [c.id for c in found]
        assert len(found) == cell.block + 1
        assert again.command == f"dyno sweep {again.file} --out runs/{again.file.removesuffix('.yaml')}"
        assert bool(again.note) == bool(cell.block)


@pytest.fixture
def written(tmp_path: Path) -> RunStore:
    """A session that had two files written for it, one of which is gone."""
    store = synthetic_run(tmp_path, engines=("trt",), batches=(1,))
    (folder,) = (store.path / "sessions").iterdir()
    (folder / "extra.yaml").write_text("max_num_tokens: 8192\nhf_token: hf_abcdef\napi-key = 'sk-123'\n")
    record = store.sessions()[0]
    record |= {
        "files": [str(folder / "extra.yaml"), "/elsewhere/gone.json"],
        "notes": ["in a container of img (sha256:0a1b)"],
    }
    (folder / "session.json").write_bytes(to_json(record))
    return store


def test_generated_files_and_the_image_stand_with_the_launch_and_secrets_do_not(written: RunStore) -> None:
    page = render_html(load_report_data(written))
    section = page.split('<section id="reproduction"')[1].split("</section>")[0]
    assert "max_num_tokens: 8192" in section
    assert "sha256:0a1b" in section
    assert "gone.json" in section
    assert "hf_abcdef" not in page
    assert "sk-123" not in page


def test_a_file_outside_the_session_s_folder_is_never_read(tmp_path: Path, written: RunStore) -> None:
    (tmp_path / "private.txt").write_text("PRIVATE")
    record = written.sessions()[0]
    record["files"] = [str(tmp_path / "private.txt")]
    (written.session_dir(record["id"]) / "session.json").write_bytes(to_json(record))
    (launch,) = load_report_data(written).reproduction.launches
    assert [file.text for file in launch.files] == [None]
