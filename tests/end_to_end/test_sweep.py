"""A sweep from the command line to the report, against the reference engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.models import open_folder
from results.arithmetic import kv_bytes_per_token
from tests.end_to_end.conftest import SMALL, Run, finish
from tests.waiting import LONG_S

CELL_KEYS = {
    *("id", "engine", "backend", "model", "session", "block", "workload", "load", "verdict", "reasons", "requests"),
    *("whole", "window", "batch", "client", "device", "server", "arithmetic"),
}
SCOPE_KEYS = {
    *("start_s", "duration_s", "input_tokens", "output_tokens", "output_tokens_per_s", "total_tokens_per_s"),
    *("requests_per_s", "prefill_tokens_per_s", "decode_tokens_per_s", "ttft_ms", "scheduled_ttft_ms", "tpot_ms"),
    *("itl_pooled_ms", "e2e_ms", "scheduled_e2e_ms"),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, tiny_dir: Path) -> tuple[Run, dict[str, Any], str]:
    run = Run(tmp_path_factory.mktemp("sweep") / "run", tiny_dir)
    code, out, err = finish(run.sweep(*SMALL, "--json"))
    assert code == 0, err
    return run, json.loads(out), err


def test_the_summary_keeps_its_contract(done: tuple[Run, dict[str, Any], str]) -> None:
    run, summary, _ = done
    assert summary == run.summary()
    assert (summary["schema"], summary["run"]) == (1, "run")
    assert [e["label"] for e in summary["engines"]] == ["reference"]
    assert len(summary["cells"]) == 4
    for cell in summary["cells"]:
        assert cell.keys() >= CELL_KEYS
        assert cell["whole"].keys() >= SCOPE_KEYS
        assert cell["window"] is None
        assert "no_window" in {reason["code"] for reason in cell["reasons"]}
        assert cell["verdict"] in ("VALID", "SUSPECT")


def test_every_token_that_was_asked_for_is_counted(done: tuple[Run, dict[str, Any], str]) -> None:
    _, summary, _ = done
    for cell in summary["cells"]:
        batch = cell["load"]["batch"]
        sent = batch * cell["load"]["waves"]
        assert cell["requests"] == {**cell["requests"], "issued": sent, "ok": sent}
        assert cell["whole"]["output_tokens"] == 6 * sent
        assert cell["whole"]["input_tokens"] == cell["workload"]["input_len"]["tokens"] * sent
        assert cell["batch"]["offered"] == batch
        assert 0 < cell["batch"]["in_flight"] <= batch
        assert cell["whole"]["ttft_ms"]["n"] == sent
        # The engine tells its step composition, so no client estimate is passed off as a rate of a phase.
        assert "client_phase_estimate" not in {reason["code"] for reason in cell["reasons"]}


def test_kv_bytes_by_the_formula_and_by_the_engine_agree_within_a_block(
    done: tuple[Run, dict[str, Any], str], tiny_dir: Path
) -> None:
    _, summary, _ = done
    per_token = kv_bytes_per_token(open_folder("tiny", tiny_dir).config, "bfloat16")
    for cell in summary["cells"]:
        found = cell["arithmetic"]
        assert found["kv_bytes_per_token"] == per_token
        others = cell["load"]["batch"] - 1
        # The client cannot see a prompt that is still being prefilled while another request of its batch ends.
        unseen = others * cell["workload"]["input_len"]["tokens"] * per_token
        assert found["kv_bytes_engine"] - unseen <= found["kv_bytes_predicted"]
        assert found["kv_bytes_predicted"] <= found["kv_bytes_engine"] + (others + 1) * per_token


def test_settings_say_where_they_were_read(done: tuple[Run, dict[str, Any], str]) -> None:
    run, _, _ = done
    (session,) = (json.loads(p.read_text()) for p in run.folder.glob("sessions/*/session.json"))
    assert session["settings"]["max_num_seqs"] == {"value": 256, "source": "endpoint"}
    assert session["exit_code"] == 0
    order = ["spawn", "kv_allocated", "weights_loaded", "ready", "first_token", "ended"]
    stamps = [session["timeline"][event] for event in order]
    assert stamps == sorted(stamps)
    assert "share them all" in session["placement"]["words"] or session["placement"]["apart"]
    assert "--truth-dir" in session["argv"]


def test_events_join_with_the_engines_own_truth(done: tuple[Run, dict[str, Any], str]) -> None:
    run, summary, _ = done
    (session,) = run.folder.glob("sessions/*")
    truth = pq.read_table(session / "truth.parquet").to_pandas()
    for cell in summary["cells"]:
        folder = run.folder / "cells" / cell["id"]
        requests = pq.read_table(folder / "requests.parquet").to_pandas().set_index("request_id")
        first = truth[truth["index"] == 0].set_index("request_id").loc[requests.index]
        # The clocks are one: the engine sampled after we sent, and wrote before we could receive.
        assert (requests["sent"] <= first["sampled"]).all()
        assert (first["sampled"] <= requests["first_token"]).all()
        assert (truth.groupby("request_id").size().loc[requests.index] == requests["output_tokens"]).all()


def test_the_report_and_the_command_that_made_it_are_there(done: tuple[Run, dict[str, Any], str]) -> None:
    run, _, _ = done
    page = (run.folder / "report.html").read_text()
    assert "dyno sweep --engine label=reference,backend=reference" in page
    assert not run.processes()


def test_the_same_command_again_runs_nothing_and_says_so(done: tuple[Run, dict[str, Any], str]) -> None:
    run, _, _ = done
    before = run.committed()
    code, out, err = finish(run.sweep(*SMALL))
    assert (code, run.committed()) == (0, before), err
    assert "All 4 cells" in out
    assert len(list(run.folder.glob("sessions/*"))) == 1


def test_another_experiment_under_the_same_name_is_refused(done: tuple[Run, dict[str, Any], str]) -> None:
    run, _, _ = done
    code, _, err = finish(run.sweep(*SMALL, "--seed", "9"))
    assert code == 2
    assert "seed was 0, is now 9" in err


def test_the_report_can_be_rebuilt_and_told_as_markdown_or_json(done: tuple[Run, dict[str, Any], str]) -> None:
    run, summary, _ = done
    (run.folder / "report.html").unlink()
    (run.folder / "summary.json").unlink()
    code, out, err = finish(run.start("report", str(run.folder), "--json"))
    assert (code, json.loads(out)) == (0, summary), err
    assert (run.folder / "report.html").exists()
    code, out, err = finish(run.start("report", str(run.folder), "--markdown"))
    assert code == 0, err
    assert "reference" in out
    assert "|" in out


def test_a_closed_loop_starts_out_of_phase(run: Run) -> None:
    code, _, err = finish(run.sweep("--concurrency", "4", "--input-len", "16", "--output-len", "40", "--quiet"))
    assert code == 0, err
    (folder,) = run.folder.glob("cells/*")
    requests = pq.read_table(folder / "requests.parquet").to_pandas()
    asked = requests["output_tokens_asked"].to_list()
    assert len(asked) == 16
    assert all(1 <= a <= 48 for a in asked)
    assert all(32 <= a <= 48 for a in asked[4:])
    assert len(set(asked[:4])) > 1
    assert (requests["output_tokens"] == requests["output_tokens_asked"]).all()
    assert set(requests["input_tokens_planned"]) <= set(range(13, 20))


def test_two_settings_of_an_engine_are_told_apart(run: Run) -> None:
    code, _, err = finish(
        run.start(
            *("sweep", "--model", str(run.model), "--batch", "2", "--input-len", "8", "--output-len", "40", "--out", str(run.folder)),
            *("--engine", "label=small,backend=reference,threads=1,kv_cache_tokens=512,max_num_seqs=1"),
            *("--engine", "label=large,backend=reference,threads=1,kv_cache_tokens=4096"),
        )
    )  # fmt: skip
    assert code == 0, err
    cells = {c["engine"]: c for c in run.summary()["cells"]}
    for label, tokens, together in (("small", 512, 1), ("large", 4096, 2)):
        session = json.loads((run.folder / "sessions" / cells[label]["session"] / "session.json").read_text())
        assert session["settings"]["kv_cache_tokens"]["value"] == tokens
        steps = pq.read_table(run.folder / "sessions" / cells[label]["session"] / "steps.parquet").to_pandas()
        assert (steps["prefills"] + steps["decodes"]).max() == together


def test_a_reader_that_goes_away_does_not_end_the_run(run: Run) -> None:
    child = run.sweep("--batch", "1", "--input-len", "8", "--output-len", "4")
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr is not None
    err = child.stderr.read()
    assert child.wait(LONG_S) == 0, err
    assert len(run.summary()["cells"]) == 1


def test_a_folder_named_like_one_of_our_packages_in_the_way_does_no_harm(run: Run, tmp_path: Path) -> None:
    for name in ("results", "harness", "backends"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
    words = [
        "sweep",
        "--backend",
        "reference",
        "--model",
        str(run.model),
        "--batch",
        "1",
        "--output-len",
        "2",
        "--out",
        "out",
    ]
    child = subprocess.run(
        [str(Path(sys.executable).with_name("dyno")), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LONG_S,
    )
    assert child.returncode == 0, child.stderr
