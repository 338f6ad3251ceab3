"""`dyno studies`: JSON and page agree, and names are checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.studies import table
from harness.studies.lab import Lab
from harness.studies.study import HOLDS, Clock, Curve, Finding, Outcome
from harness.studies.table import STUDIES
from tests.harness.cli.conftest import Result


def test_the_command_prints_json_and_writes_the_page(
    dyno: Callable[..., Result],
    tiny_dir: Path,
    tmp_path: Path,
) -> None:
    words = ("studies", "batching", "--quick", "--model", str(tiny_dir), "--out", str(tmp_path), "--json")
    result = dyno(*words)
    assert result.code == 0, result.err
    printed = json.loads(result.out)
    assert printed == json.loads((tmp_path / "studies.json").read_text())
    (study,) = printed["studies"]
    assert study["verdict"] == HOLDS
    assert {arm["requests"] for arm in study["arms"]} == {study["arms"][0]["requests"]}
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_an_unknown_study_is_named_with_the_known_ones(dyno: Callable[..., Result]) -> None:
    result = dyno("studies", "pagin")
    assert result.code == 2
    assert "'paging'" in result.err
    assert all(name in dyno("studies", "--list").out for name in STUDIES)


def test_a_device_that_is_not_there_is_told(
    dyno: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = dyno("studies", "--device", "cuda", "--out", str(tmp_path))
    assert result.code == 2
    assert "needs a CUDA device" in result.err
    unknown = dyno("studies", "--device", "gpu", "--out", str(tmp_path))
    assert (unknown.code, "Known: cpu, cuda" in unknown.err) == (2, True)


def test_a_place_that_cannot_be_written_is_told_before_anything_runs(
    dyno: Callable[..., Result], tiny_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    result = dyno("studies", "--quick", "--model", str(tiny_dir), "--out", str(tmp_path / "file"))
    assert result.code == 4
    assert str(tmp_path / "file") in result.err
    assert "holds" not in result.out


def test_what_is_measured_is_kept_when_a_later_study_is_interrupted(
    dyno: Callable[..., Result], tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quickly(lab: Lab, quick: bool) -> Outcome:
        return Outcome([Finding("one", 1, 1, 1)], [Curve("line", [(1, 1), (2, 2)])])

    def never(lab: Lab, quick: bool) -> Outcome:
        raise KeyboardInterrupt

    first, second = STUDIES["paging"], STUDIES["batch"]
    monkeypatch.setattr(table, "STUDIES", {"paging": replace(first, run=quickly), "batch": replace(second, run=never)})
    result = dyno("studies", "--model", str(tiny_dir), "--out", str(tmp_path))
    assert result.code == 130
    assert [s["name"] for s in json.loads((tmp_path / "studies.json").read_text())["studies"]] == ["paging"]


def test_a_study_measured_later_leaves_the_others_where_they_are(
    dyno: Callable[..., Result], tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = 1.0

    def quickly(lab: Lab, quick: bool) -> Outcome:
        timed = Finding("by the clock", 2, 1, 3, Clock(1.5, 2.5, 7))
        return Outcome([Finding("one", value, 1, 9), timed], [Curve("line", [(1, 1), (2, 2)])], ["as quick as it goes"])

    studies = {name: replace(STUDIES[name], run=quickly) for name in ("paging", "recompute")}
    monkeypatch.setattr(table, "STUDIES", studies)
    words = ("--model", str(tiny_dir), "--out", str(tmp_path))
    assert dyno("studies", "paging", "--seed", "7", *words).code == 0
    before = json.loads((tmp_path / "studies.json").read_text())["studies"]
    assert dyno("studies", "recompute", *words).code == 0
    page, found = (tmp_path / "report.html").read_text(), json.loads((tmp_path / "studies.json").read_text())["studies"]
    assert [s["name"] for s in found] == ["paging", "recompute"]
    assert found[0] == before[0]
    assert "2 of 2 hypotheses hold" in page
    assert "Of an earlier call: " in page
    assert "seed 7" in page
    assert "as quick as it goes" in page
    # The same study anew takes the place of the earlier one.
    value = 2.0
    assert dyno("studies", "paging", *words).code == 0
    found = json.loads((tmp_path / "studies.json").read_text())["studies"]
    assert [s["findings"][0]["value"] for s in found] == [2.0, 1.0]


def test_a_file_that_is_none_of_studies_is_not_written_over(
    dyno: Callable[..., Result], tiny_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "studies.json").write_text('{"studies": "mine"}')
    result = dyno("studies", "paging", "--quick", "--model", str(tiny_dir), "--out", str(tmp_path))
    assert result.code == 4
    assert "move it away" in result.err
    assert (tmp_path / "studies.json").read_text() == '{"studies": "mine"}'


def test_each_study_says_when_it_begins_also_into_a_pipe(
    dyno: Callable[..., Result], tiny_dir: Path, tmp_path: Path
) -> None:
    result = dyno("studies", "batching", "--quick", "--model", str(tiny_dir), "--out", str(tmp_path))
    assert "[1 of 1] batching begins" in result.err
    assert "static, equal outputs" in result.err


@pytest.mark.parametrize(("verdict", "code"), [(1, 0), (2, 1), (None, 3)])
def test_the_exit_code_tells_what_does_not_hold_from_what_cannot_be_told(
    dyno: Callable[..., Result],
    tiny_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verdict: int | None,
    code: int,
) -> None:
    clock = Clock(None, None, 5, "the machine was busy") if verdict is None else None
    outcome = Outcome([Finding("one", verdict or 1, 1, 1, clock)], [Curve("line", [(1, 1), (2, 2)])])
    monkeypatch.setattr(table, "STUDIES", {"paging": replace(STUDIES["paging"], run=lambda lab, quick: outcome)})
    result = dyno("studies", "--model", str(tiny_dir), "--out", str(tmp_path))
    assert result.code == code
    assert ("undetermined: the machine was busy" in result.out) is (code == 3)
