"""Experiments: what is asked has one id, and what is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.experiment import Experiment, cells_of, experiment_from, load_experiment
from harness.loads import BatchLoad, ConcurrencyLoad
from harness.planner import GridPlanner
from results.errors import UsageError

LENGTHS = {"type": "random", "input_len": {"dist": "fixed", "tokens": 8}, "output_len": {"dist": "fixed", "tokens": 4}}


def experiment(**changes: object) -> Experiment:
    data = {
        "model": "m",
        "engines": [{"label": "a", "backend": "reference"}, {"label": "b", "backend": "reference"}],
        "workloads": [LENGTHS],
        "loads": [{"mode": "batch", "batch": 1, "waves": 2}, {"mode": "batch", "batch": 4, "waves": 2}],
        **changes,
    }
    return Experiment.model_validate(data)


def test_a_cell_is_named_by_what_was_asked_and_by_nothing_else() -> None:
    ids = [c.id for c in cells_of(experiment(blocks=3))]
    assert len(set(ids)) == len(ids) == 12
    assert ids == [c.id for c in cells_of(experiment(blocks=3))]
    assert not set(ids) & {c.id for c in cells_of(experiment(blocks=3, seed=1))}
    # More blocks add cells; those of the first blocks keep their names.
    assert set(ids) < {c.id for c in cells_of(experiment(blocks=4))}


def test_timeouts_and_sampling_do_not_rename_cells() -> None:
    assert [c.id for c in cells_of(experiment())] == [
        c.id for c in cells_of(experiment(timeouts={"total_s": 5}, sample_interval_s=1))
    ]


def test_an_experiment_survives_the_round_trip_through_its_file(tmp_path: Path) -> None:
    asked = experiment(blocks=2, seed=5)
    path = tmp_path / "experiment.yaml"
    path.write_text(asked.to_yaml())
    assert load_experiment(path) == asked


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loads": [{"mode": "batch", "batch": 0, "waves": 1}]}, r"loads\.0\.batch\.batch.*greater than 0.*given: 0"),
        ({"loads": [{"mode": "warp"}]}, r"loads\.0.*'warp'.*'batch'"),
        ({"engines": [{"label": "a", "backend": "x"}, {"label": "a", "backend": "y"}]}, "more than once: a"),
        ({"engines": []}, "engines"),
        ({"loads": [{"mode": "batch", "batch": 1, "waves": 2}] * 2}, "load 1 stands there twice"),
        ({"loads": [{"mode": "concurrency", "concurrency": 8, "requests": 9}]}, "9 requests are too few for 8 slots.*16"),
        ({"workloads": [LENGTHS, LENGTHS]}, "workload 1 stands there twice"),
        ({"colour": 1}, "colour"),
        ({"workloads": [{**LENGTHS, "input_len": {"dist": "uniform", "low": 9, "high": 3}}]}, r"high \(3\) is below low \(9\)"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_with_what_was_given(change: dict[str, object], words: str) -> None:
    data = {**experiment().model_dump(mode="json"), **change}
    with pytest.raises(UsageError, match=words):
        experiment_from(data, "here.yaml")


def test_files_that_are_no_experiment_are_refused_in_words(tmp_path: Path) -> None:
    for name, content, words in [
        ("list.yaml", b"- 1\n", "holds list"),
        ("broken.yaml", b"a: 1\nb: [", "not valid YAML at line 2"),
        ("twice.yaml", b"model: a\nmodel: b\n", "line 2: the key 'model' stands twice"),
        ("deep.yaml", b"[" * 3000, "not valid YAML"),
        ("date.yaml", b"seed: 2024-13-45\n", "not valid YAML"),
        ("empty.yaml", b"# nothing\n", "is empty"),
        ("binary.yaml", b"\xff\xfe\x00", "not valid YAML"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=words):
            load_experiment(tmp_path / name)
    with pytest.raises(UsageError, match="Cannot read"):
        load_experiment(tmp_path / "none.yaml")


@given(batch=st.integers(1, 512), requests=st.integers(1, 5000))
def test_a_batch_load_never_sends_fewer_than_asked_nor_a_broken_wave(batch: int, requests: int) -> None:
    load = BatchLoad.of(batch, requests)
    assert requests <= load.requests < requests + batch
    assert load.requests % batch == 0


def test_defaults_give_small_batches_enough_requests_for_a_median() -> None:
    assert BatchLoad.of(1).requests == 8
    assert BatchLoad.of(16).requests == 48
    assert ConcurrencyLoad.of(1).requests == 16
    assert ConcurrencyLoad.of(32).requests == 128


def test_the_grid_gives_each_cell_once_and_keeps_a_session_together() -> None:
    planner, results = GridPlanner(experiment(blocks=3)), {}
    order = []
    while (cell := planner.next_cell(results)) is not None:
        order.append(cell)
        results[cell.id] = {}
    assert {c.id for c in order} == {c.id for c in cells_of(experiment(blocks=3))}
    sessions = [(c.block, c.engine.label) for c in order]
    assert (
        sessions == [(0, "a")] * 2 + [(0, "b")] * 2 + [(1, "b")] * 2 + [(1, "a")] * 2 + [(2, "a")] * 2 + [(2, "b")] * 2
    )


def test_engines_of_a_block_meet_the_cells_in_one_order() -> None:
    order = GridPlanner(experiment(blocks=2)).planned()
    for block in (0, 1):
        of = {label: [c.load for c in order if c.block == block and c.engine.label == label] for label in "ab"}
        assert of["a"] == of["b"]


def test_a_planner_asked_again_goes_on_where_cells_are_missing() -> None:
    planner = GridPlanner(experiment())
    done = {c.id: {} for c in planner.planned()[1:]}
    assert planner.next_cell(done) == planner.planned()[0]


def test_a_secret_in_what_was_given_is_not_told() -> None:
    data = {**experiment().model_dump(mode="json"), "seed": '{"api_key": "sk-12345678", "n": 1}'}
    with pytest.raises(UsageError, match=r"given: '\{\"api_key\": \"\*\*\*\", \"n\": 1\}'"):
        experiment_from(data, "here.yaml")


def test_secrets_are_in_no_file_and_rename_no_cell() -> None:
    def with_key(key: str) -> Experiment:
        engine = {
            "label": "a",
            "backend": "reference",
            "env": {"HF_TOKEN": key, "OMP": "1"},
            "options": ["--api-key", key, "--hf-overrides", json.dumps({"auth_token": f"x-{key}"})],
        }
        return experiment(engines=[engine])

    old, new = with_key("hf_aaaaaaaa"), with_key("hf_bbbbbbbb")
    assert "hf_a" not in old.to_yaml()
    assert "OMP" in old.to_yaml()
    assert old.to_yaml() == new.to_yaml()
    assert [c.id for c in cells_of(old)] == [c.id for c in cells_of(new)]
    assert old.engines[0].env["HF_TOKEN"] == "hf_aaaaaaaa"
