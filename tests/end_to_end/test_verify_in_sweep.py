"""`dyno sweep --verify`: a run knows whether its engines give the same tokens, and what kept one from being asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.end_to_end.conftest import Run, finish

GRID = ("--batch", "1", "--input-len", "8", "--output-len", "4", "--verify")
BF16 = "label=bf16,backend=reference,threads=1"
FP32 = "label=fp32,backend=reference,dtype=float32,threads=1"


def sweep(run: Run, *words: str) -> tuple[int, str, str]:
    return finish(run.start("sweep", "--model", str(run.model), "--out", str(run.folder), *GRID, *words))


def kept(run: Run) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((run.folder / "verify.json").read_text())
    return document


def test_the_runs_engines_are_compared_once(run: Run) -> None:
    engines = ("--engine", BF16, "--engine", FP32)
    code, out, err = sweep(run, *engines)
    assert code == 0, err
    document = kept(run)
    (pair,) = document["pairs"]
    assert (pair["a"], pair["b"]) == ("bf16", "fp32")
    assert pair["class"] in ("near-tie", "close", "identical"), pair["why"]
    assert (len(document["prompts"]), document["output_len"], document["absent"]) == (6, 24, [])
    sessions = {s["engine"]: s["fingerprint"] for s in map(json.loads, _texts(run, "sessions/*/session.json"))}
    assert {row["label"]: row["fingerprint"] for row in document["engines"]} == sessions
    assert "Same tokens?" in " ".join(out.split())
    assert 'id="tokens"' in (run.folder / "report.html").read_text()

    written = (run.folder / "verify.json").stat().st_mtime_ns
    code, out, err = sweep(run, *engines)
    assert code == 0, err
    assert "verified already" in " ".join(out.split())
    assert (run.folder / "verify.json").stat().st_mtime_ns == written


def test_an_engine_that_cannot_be_asked_leaves_a_reason_and_the_sweep_as_it_was(run: Run) -> None:
    # Cells fit into 64 tokens; the fixed prompts do not.
    code, out, err = sweep(run, "--engine", BF16, "--engine", f"{FP32},max_model_len=64", "--json")
    assert code == 0, err
    assert "engine 'fp32' was not verified" in err
    document = kept(run)
    (pair,) = document["pairs"]
    assert (pair["class"], pair["exact_match"], pair["teacher_forced"]) == (None, None, None)
    assert "more than the 64" in pair["why"]
    assert [row["label"] for row in document["absent"]] == ["fp32"]
    assert {cell["engine"] for cell in json.loads(out)["cells"]} == {"bf16", "fp32"}
    assert run.processes() == []


def test_an_engine_that_was_not_measured_is_not_started_again(run: Run) -> None:
    broken = "label=broken,backend=reference,options=--no-such-flag"
    code, _, err = sweep(run, "--engine", BF16, "--engine", broken)
    assert code == 4
    assert err.count("--no-such-flag") >= 1
    assert not list(run.folder.glob("verify/*"))
    assert {row["label"] for row in kept(run)["absent"]} == {"bf16", "broken"}


def test_one_engine_has_nothing_to_be_compared_with(run: Run) -> None:
    code, _, err = sweep(run, "--engine", BF16)
    assert code == 0
    assert "this run has one" in err
    assert not (run.folder / "verify.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "label=other,backend=reference"), "not of other"),
        (("--engine", BF16, "--model", "random-tiny"), "not of 'random-tiny'"),
    ],
)
def test_verify_into_a_run_of_something_else_is_refused(run: Run, words: tuple[str, ...], said: str) -> None:
    run.folder.mkdir()
    (run.folder / "manifest.json").write_text("{}")
    (run.folder / "experiment.yaml").write_text(
        json.dumps({"model": str(run.model), "engines": [{"label": "bf16", "backend": "reference"}]})
    )
    code, _, err = finish(run.start("verify", "--model", str(run.model), *words, "--out", str(run.folder)))
    assert code == 2
    assert said in err
    assert not (run.folder / "verify.json").exists()


def _texts(run: Run, pattern: str) -> list[str]:
    return [path.read_text() for path in sorted(run.folder.glob(pattern))]
