"""Baselines: what a file keeps, which machine it speaks for, what an update changes, and a metric over its versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from results.errors import StoreError, UsageError
from results.regression import FAILED, PASS, REGRESSION, GateOptions
from results.regression_baseline import Baseline, difference, parse_baseline, read_baseline, write_baseline
from results.regression_fingerprint import fingerprint_of, machine_of
from results.regression_history import Version, metric_history
from results.regression_metrics import chosen
from results.regression_runs import GateRun, baseline_gate, entry_of
from tests.reports.runs import flawed
from tests.results.test_comparison import cells, run

RATE = GateOptions(metrics=chosen(["output_tokens_per_s"], {}), asked=True)


def measured(speed: float = 1.0, seed: int = 1, **manifest: Any) -> GateRun:
    return GateRun(run(cells({"a": speed}, noise=0.001, seed=seed), f"run-{seed}", **manifest))


def baseline(*runs: GateRun) -> Baseline:
    made = Baseline("nightly")
    for one in runs:
        made.put(entry_of(one, "a", "2026-01-01"))
    return made


def test_a_file_is_small_readable_and_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "baselines" / "nightly.json"
    made = baseline(measured())
    write_baseline(path, made)
    text = path.read_text()
    assert read_baseline(path) == made
    assert len(text) < 4096
    assert '"output_tokens_per_s": [' in text
    assert max(len(line) for line in text.splitlines()) < 300
    write_baseline(path, read_baseline(path))
    assert path.read_text() == text


def test_a_run_is_held_against_its_own_machine() -> None:
    # A block's own luck moves all of a run, so equal runs differ by it: the margin is as wide.
    wide = GateOptions(metrics=chosen(["output_tokens_per_s"], {"wall": 0.10}), asked=True)
    made = baseline(measured())
    assert baseline_gate(made, measured(), "a", wide).verdict == PASS
    worse = baseline_gate(made, measured(0.7, seed=2), "a", wide)
    assert (worse.verdict, worse.mode, worse.confirmed_by) == (REGRESSION, "baseline", None)


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        ({"host": {"cpu": "B", "cores_usable": 2, "memory_bytes": 8 * 2**30}}, "knows no machine like this one"),
        ({"model": {"name": "other"}}, "model: m / other"),
        ({"device": {"name": "H200", "driver": "1"}}, "knows no machine like this one"),
    ],
)
def test_another_machine_or_model_is_refused(manifest: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        baseline_gate(baseline(measured()), measured(**manifest), "a", RATE)
    assert refused.value.exit_code == 2
    assert baseline_gate(baseline(measured()), measured(**manifest), "a", RATE, disregard=True).unlike


def test_a_point_of_the_baseline_that_was_not_measured_fails_and_a_new_one_is_told() -> None:
    made = baseline(measured())
    fewer = GateRun(run(cells({"a": 1.0}, noise=0.001, batches=[1]), "fewer"))
    assert baseline_gate(made, fewer, "a", RATE).verdict == FAILED
    more = GateRun(run(cells({"a": 1.0}, noise=0.001, batches=[1, 4, 8]), "more"))
    assert baseline_gate(made, more, "a", RATE).extra


def test_a_run_with_an_invalid_or_missing_cell_makes_no_baseline() -> None:
    bad = cells({"a": 1.0})
    bad[0] = flawed("INVALID", "client_saturated")(bad[0])
    with pytest.raises(UsageError, match="is no base"):
        entry_of(GateRun(run(bad)), "a", "2026-01-01")
    with pytest.raises(UsageError, match="is no base"):
        entry_of(GateRun(run(cells({"a": 1.0}, blocks=4)), {"blocks": 5}), "a", "2026-01-01")


def test_an_update_shows_what_changes_and_leaves_other_machines_alone() -> None:
    other = measured(host={"cpu": "B", "cores_usable": 2, "memory_bytes": 8 * 2**30})
    made = baseline(measured(), other)
    assert len(made.machines) == 2
    slower = entry_of(measured(0.5), "a", "2026-02-02")
    old = made.entry_for(slower.fingerprint)
    lines = difference(old, slower)
    assert any("output_tokens_per_s at batch 1" in line and "(-50.0 %)" in line for line in lines)
    made.put(slower)
    assert len(made.machines) == 2
    assert all("none ->" in line for line in difference(None, slower))


def test_a_manifest_of_odd_types_is_of_an_unknown_machine_and_breaks_nothing() -> None:
    odd = fingerprint_of({"host": "x", "device": 3, "model": "m"}, {}, {})
    assert (odd["cpu"], odd["memory_gib"], odd["device"], odd["model"]) == (None, None, None, "m")


def test_the_driver_is_no_part_of_the_machines_key_but_of_its_fingerprint() -> None:
    one, two = ({"device": {"name": "H200", "driver": d}, "host": {"cpu": "A"}} for d in ("1", "2"))
    a, b = (fingerprint_of(manifest, {}, {}) for manifest in (one, two))
    assert machine_of(a) == machine_of(b)
    assert a != b


@pytest.mark.parametrize(
    "text", ["[]", '{"schema": 99}', '{"schema": true}', '{"schema": 1, "name": "x", "machines": {"k": {}}}']
)
def test_what_is_no_baseline_is_named(text: str) -> None:
    with pytest.raises(StoreError, match="file"):
        parse_baseline(json.loads(text), "file")


def test_history_has_a_row_for_each_version_that_changed_a_number() -> None:
    versions = [baseline(measured(speed)) for speed in (1.0, 1.0, 0.8)]
    rows = metric_history([Version(f"c{i}", "", v) for i, v in enumerate(versions)], "output_tokens_per_s")
    points = {row.point for row in rows}
    assert len(points) == 2
    for point in points:
        mine = [row for row in rows if row.point == point]
        assert [row.commit for row in mine] == ["c0", "c2"]
        assert mine[0].change is None
        assert mine[1].change == pytest.approx(-0.2, abs=1e-3)
        assert mine[1].low <= mine[1].value <= mine[1].high


def test_every_committed_baseline_can_be_read_and_names_its_machines() -> None:
    folder = Path(__file__).resolve().parents[2] / "results" / "baselines"
    files = sorted(folder.glob("*.json"))
    assert files
    for file in files:
        found = read_baseline(file)
        assert found.name == file.stem
        assert all(key == machine_of(entry.fingerprint) for key, entry in found.machines.items())
