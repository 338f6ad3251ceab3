"""The summary of a whole run, and of one that is empty, cut short or damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from results.cell_summary import cell_summary, finite
from results.files import read_json, to_json
from results.store import RunStore, RunWriter
from results.summary import build_summary
from tests.results.builders import CellEdit, add_fault, fail_requests, synthetic_run
from tests.results.simulation import MODEL_CONFIG

CELL_KEYS = {
    *("id", "engine", "backend", "model", "session", "block", "workload", "load", "verdict", "reasons", "requests"),
    *("whole", "window", "batch", "client", "device", "server", "arithmetic"),
}


def codes(cell: dict[str, Any]) -> dict[str, str]:
    return {r["code"]: r["severity"] for r in cell["reasons"]}


def test_every_cell_of_the_grid_has_the_contracts_shape(tmp_path: Path) -> None:
    store = synthetic_run(tmp_path, ("a", "b"), (1, 4), (128, 256), blocks=2)
    found = build_summary(store)
    assert (found["schema"], found["run"]) == (1, "synthetic")
    assert [e["label"] for e in found["engines"]] == ["a", "b"]
    assert [len(e["sessions"]) for e in found["engines"]] == [2, 2]
    assert found["engines"][0]["settings"]["block_size"] == {"value": 16, "source": "endpoint"}
    assert len(found["cells"]) == 16
    asked = {
        (c["engine"], c["workload"]["input_len"]["tokens"], c["load"]["value"], c["block"]) for c in found["cells"]
    }
    assert len(asked) == 16
    for cell in found["cells"]:
        assert set(cell) >= CELL_KEYS
        assert cell["verdict"] == "VALID"
        assert set(cell["reasons"][0]) >= {"code", "severity", "evidence", "advice"}
        assert set(cell["batch"]) >= {"offered", "in_flight", "running", "decodes_per_step"}
        assert cell["window"] is None
        assert cell["device"] is None
        assert {"no_window", "no_device_telemetry"} <= set(codes(cell))
    assert json.loads(to_json(found)) == json.loads(json.dumps(found, allow_nan=False))


def test_the_slower_engine_is_slower_by_what_it_is_slower(tmp_path: Path) -> None:
    cells = build_summary(synthetic_run(tmp_path, ("a", "b"), (4,)))["cells"]
    a, b = (next(c["whole"] for c in cells if c["engine"] == e) for e in ("a", "b"))
    assert a["output_tokens_per_s"] / b["output_tokens_per_s"] == pytest.approx(1.25)
    assert b["ttft_ms"]["mean"] / a["ttft_ms"]["mean"] == pytest.approx(1.25)


def test_one_cell_alone_is_what_it_is_in_the_run(tmp_path: Path) -> None:
    store = synthetic_run(tmp_path)
    sessions = {s["id"]: s for s in store.sessions()}
    alone = [cell_summary(store, r, sessions[r.session]) for r in store.cells()]
    assert alone == build_summary(store)["cells"]


def test_a_run_in_which_nothing_was_committed(tmp_path: Path) -> None:
    with RunWriter.start(tmp_path / "run", "engines: [{label: a, backend: reference}]", {"start": {}}) as writer:
        (writer.begin_cell("half") / "requests.parquet").write_bytes(b"PAR1")
    found = build_summary(RunStore.open(tmp_path / "run"))
    assert found["cells"] == []
    assert found["engines"] == [{"label": "a", "backend": "reference", "sessions": [], "versions": {}, "settings": {}}]


@pytest.mark.parametrize("name", ["requests", "chunks", "samples"])
def test_a_cell_with_a_damaged_file_is_invalid_and_the_others_stand(tmp_path: Path, name: str) -> None:
    store = synthetic_run(tmp_path)
    hurt = store.cells()[1].id
    path = store.cell_dir(hurt) / f"{name}.parquet"
    path.write_bytes(path.read_bytes()[:100])
    for cell in build_summary(store)["cells"]:
        assert set(cell) >= CELL_KEYS
        assert cell["verdict"] == ("INVALID" if cell["id"] == hurt else "VALID")
        if cell["id"] == hurt:
            assert codes(cell) == {"unreadable_cell": "invalid"}
            assert f"{name}.parquet" in cell["reasons"][0]["evidence"]
            assert cell["whole"] is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"id": "x"}', b'{"id": "x", "from_the_future": 1}', b'{"faults": 3}']
)
def test_a_cell_with_a_damaged_record_is_invalid_and_the_others_stand(tmp_path: Path, content: bytes) -> None:
    store = synthetic_run(tmp_path)
    hurt = store.cells()[0].id
    (store.cell_dir(hurt) / "cell.json").write_bytes(content)
    cells = {c["id"]: c for c in build_summary(store)["cells"]}
    assert len(cells) == 4
    assert codes(cells[hurt]) == {"unreadable_cell": "invalid"}
    assert [c["verdict"] for c in cells.values()].count("VALID") == 3


def test_a_record_of_a_newer_version_says_so(tmp_path: Path) -> None:
    store = synthetic_run(tmp_path, ("a",), (1,))
    path = store.cell_dir(store.cells()[0].id) / "cell.json"
    path.write_bytes(to_json({**read_json(path), "schema": 99}))
    (cell,) = build_summary(store)["cells"]
    assert "schema 99" in cell["reasons"][0]["evidence"]


def test_a_damaged_step_log_leaves_the_clients_figures(tmp_path: Path) -> None:
    whole = build_summary(synthetic_run(tmp_path, ("a",), (4,), name="good"))["cells"][0]["whole"]
    store = synthetic_run(tmp_path, ("a",), (4,), name="hurt")
    path = store.session_dir(store.cells()[0].session) / "steps.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    (cell,) = build_summary(store)["cells"]
    assert cell["verdict"] == "SUSPECT"
    assert codes(cell)["truth_unreadable"] == "suspect"
    assert codes(cell)["client_phase_estimate"] == "note"
    assert cell["whole"]["ttft_ms"] == whole["ttft_ms"]


def test_a_damaged_or_missing_session_record_leaves_its_cells(tmp_path: Path) -> None:
    store = synthetic_run(tmp_path, ("a", "b"), (1,))
    first, second = (store.session_dir(r.session) / "session.json" for r in store.cells())
    first.write_bytes(b"{")
    second.unlink()
    found = build_summary(store)
    assert [c["verdict"] for c in found["cells"]] == ["VALID", "VALID"]
    assert [(e["label"], e["settings"]) for e in found["engines"]] == [("a", {}), ("b", {})]
    # Without the session's settings the KV dtype is the model's own.
    assert found["cells"][0]["arithmetic"]["kv_bytes_per_token"] == 512


def test_a_model_without_a_config_has_no_kv_prediction_and_says_why(tmp_path: Path) -> None:
    store = synthetic_run(tmp_path, ("a",), (1,))
    path = store.path / "manifest.json"
    path.write_bytes(to_json({**read_json(path), "model": {"name": "m"}}))
    (cell,) = build_summary(store)["cells"]
    assert cell["arithmetic"]["kv_bytes_per_token"] is None
    assert cell["arithmetic"]["kv_bytes_predicted"] is None
    assert codes(cell)["kv_formula_unknown"] == "note"
    path.write_bytes(to_json({**read_json(path), "model": {"config": {**MODEL_CONFIG, "layer_types": ["mamba"] * 4}}}))
    (cell,) = build_summary(store)["cells"]
    assert "mamba" in next(r["evidence"] for r in cell["reasons"] if r["code"] == "kv_formula_unknown")


def test_what_the_runner_saw_is_in_the_verdict(tmp_path: Path) -> None:
    store = synthetic_run(tmp_path, ("a",), (4,), edit=add_fault("server_died", "exit code -9 after 3 s"))
    (cell,) = build_summary(store)["cells"]
    assert cell["verdict"] == "INVALID"
    assert cell["reasons"][0]["code"] == "server_died"
    assert cell["reasons"][0]["evidence"] == "exit code -9 after 3 s"


def test_failed_requests_are_counted_and_out_of_latency(tmp_path: Path) -> None:
    store = synthetic_run(tmp_path, ("a",), (4,), edit=fail_requests("http_error", 1))
    (cell,) = build_summary(store)["cells"]
    assert cell["requests"] == {"issued": 12, "ok": 11, "by_outcome": {"http_error": 1, "ok": 11}}
    assert cell["whole"]["ttft_ms"]["n"] == 11
    assert cell["verdict"] == "SUSPECT"
    assert "503 Service Unavailable" in next(r["evidence"] for r in cell["reasons"] if r["code"] == "failures")


def test_somebody_else_on_the_server_is_noticed(tmp_path: Path) -> None:
    def double(parts: CellEdit) -> None:
        for sample in parts.samples:
            if sample["metric"] == "generation_tokens_total":
                sample["value"] *= 2

    (cell,) = build_summary(synthetic_run(tmp_path, ("a",), (4,), edit=double))["cells"]
    assert codes(cell)["token_counts_disagree"] == "suspect"


def test_a_server_that_started_over_is_noticed(tmp_path: Path) -> None:
    def restart(parts: CellEdit) -> None:
        half = (parts.record.started + parts.record.ended) // 2
        for sample in parts.samples:
            if sample["metric"].endswith("_total") and sample["t0"] > half:
                sample["value"] = 0.0

    (cell,) = build_summary(synthetic_run(tmp_path, ("a",), (4,), edit=restart))["cells"]
    assert codes(cell)["server_restarted"] == "invalid"
    assert cell["server"]["generation_tokens"] is None


def test_prompts_counted_otherwise_are_noticed(tmp_path: Path) -> None:
    def two_more(parts: CellEdit) -> None:
        for row in parts.requests:
            row["input_tokens_counted"] += 2

    (cell,) = build_summary(synthetic_run(tmp_path, ("a",), (4,), edit=two_more))["cells"]
    evidence = next(r["evidence"] for r in cell["reasons"] if r["code"] == "prompt_tokens_disagree")
    assert evidence == "12 of 12 prompts (e.g. 128 sent, 130 counted)"


def test_nothing_that_is_no_number_is_left() -> None:
    import numpy as np

    odd = {"a": float("nan"), "b": [float("inf"), np.float64("-inf"), np.int64(3)], "c": (np.bool_(True), "x", None)}
    assert finite(odd) == {"a": None, "b": [None, None, 3], "c": [True, "x", None]}
