"""Steps as an engine's own log tells them stand in for a truth log as far as they go, and nothing is made of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.clock import NS_PER_MS
from results.events import MISSING, Requests, read_requests
from results.limits_step import context_held
from results.logged_steps import LoggedSteps
from results.regression_counters import with_counters
from results.report_readings import readings_of
from results.step_log import FILE, read_logged, write_logged
from results.store import RunStore
from results.summary import build_summary
from results.tokens import TokenChunks
from results.truth import Steps, read_steps
from tests.results.builders import synthetic_run
from tests.results.test_summary import codes

WALL = 7_000_000_000


def logged(steps: Steps, late_ns: int = 0) -> LoggedSteps:
    """What lines of a log would say of these steps, on a wall clock; each line `late_ns` after its step."""
    end = (steps.end + WALL + late_ns).tolist()
    nothing: list[int | None] = [None] * len(end)
    return LoggedSteps(
        step=steps.step.tolist(),
        before=[None, *end[:-1]],
        end=end,
        uncertain_ns=nothing,
        prefills=steps.prefills.tolist(),
        prefill_tokens=steps.prefill_tokens.tolist(),
        decodes=steps.decodes.tolist(),
        device_ns=nothing,
    )


def by_log(store: RunStore) -> RunStore:
    """The same run of an engine that keeps no truth log and writes a line a step."""
    for cell in store.cells():
        steps = read_steps(store.session_dir(cell.session), cell.started, cell.ended)
        assert steps is not None
        write_logged(store.cell_dir(cell.id), logged(steps), -WALL)
    for session in store.sessions():
        for name in ("steps.parquet", "truth.parquet", "scheduled.parquet"):
            (store.session_dir(session["id"]) / name).unlink()
    return store


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], list[dict[str, Any]], RunStore]:
    """The cells of a run with a truth log, and of the same one with lines of a log instead."""
    options: dict[str, Any] = {"engines": ("a",), "batches": (1, 4), "mode": "concurrency", "output_len": 40}
    truth = build_summary(synthetic_run(tmp_path_factory.mktemp("truth"), **options))["cells"]
    store = by_log(synthetic_run(tmp_path_factory.mktemp("log"), **options))
    return truth, build_summary(store)["cells"], store


def test_batch_and_phases_are_those_of_the_truth_log(pair: tuple[Any, Any, Any]) -> None:
    for truth, found in zip(*pair[:2], strict=True):
        assert found["batch"]["decodes_per_step"] == pytest.approx(truth["batch"]["decodes_per_step"], rel=0.01)
        assert found["batch"]["running_source"] == found["batch"]["realised_source"] == "log"
        # Lines tell who is in a step; who runs and is left out of one (while a prompt is computed by itself) is in the truth log.
        assert 0.9 * truth["batch"]["running"] <= found["batch"]["running"] <= truth["batch"]["running"] + 0.01
        for phase in ("prefill", "decode"):
            assert (found["phases"][phase]["source"], truth["phases"][phase]["source"]) == ("log", "steps")
            rate = f"{phase}_tokens_per_s"
            assert found["whole"][rate] == pytest.approx(truth["whole"][rate], rel=0.05)


def test_rates_of_a_truth_log_and_of_lines_share_no_figure_and_their_batch_an_axis(pair: tuple[Any, Any, Any]) -> None:
    assert readings_of(pair[1]).estimates == readings_of(pair[0]).estimates == frozenset()
    both = readings_of([*pair[0], *pair[1]])
    assert both.estimated("prefill_tokens_per_s")
    # A truth log holds what lines of a log would tell of the batch.
    assert both.batch == "log"


def test_what_the_log_does_not_tell_is_taken_from_gauges_or_is_not_there(pair: tuple[Any, Any, Any]) -> None:
    for truth, found in zip(*pair[:2], strict=True):
        assert (truth["limits"]["batch"]["basis"], truth["arithmetic"]["kv_engine_source"]) == ("steps", "steps")
        assert found["limits"]["batch"]["basis"] != "steps"
        assert found["arithmetic"]["kv_engine_source"] != "steps"
        assert found["limits"]["step"]["basis"] == "steps"
        assert "between steps" not in found["limits"]["step"]["evidence"]
        assert codes(found) == codes(truth)
    counters = [cell["counters"] for cell in with_counters(pair[2], {"cells": pair[1]})["cells"]]
    assert all(one["steps_per_output_token"] and one["kv_blocks_peak"] is None for one in counters)


def test_the_xray_is_held_against_it(pair: tuple[Any, Any, Any]) -> None:
    for found in pair[1]:
        seen = found["limits"]["xray"]
        assert seen["steps_logged"] >= seen["decode_steps_logged"] > 0
        assert abs(seen["steps_error"]) < 0.02
        assert abs(seen["decode_batch_error"]) < 0.05


def test_a_log_cut_off_is_not_believed_and_one_damaged_is_told(tmp_path: Path) -> None:
    store = by_log(synthetic_run(tmp_path, ("a",), (4,)))
    (cell,) = store.cells()
    folder = store.cell_dir(cell.id)
    steps = read_logged(folder, read_requests(folder))
    assert steps is not None
    write_logged(folder, logged(steps.take(np.arange(3))), -WALL)
    (found,) = build_summary(store)["cells"]
    assert codes(found)["truth_incomplete"] == "suspect"
    assert found["batch"]["decodes_per_step"] is None
    (folder / FILE).write_bytes(b"PAR1 no more")
    (found,) = build_summary(store)["cells"]
    assert codes(found)["truth_unreadable"] == "suspect"


def requests_of(*spans: tuple[int, int]) -> Requests:
    return Requests.of([{"sent": sent * NS_PER_MS, "end": end * NS_PER_MS} for sent, end in spans])


def starts(folder: Path, ends: list[int], requests: Requests) -> list[float]:
    n = len(ends)
    stamps = [t * NS_PER_MS for t in ends]
    told = LoggedSteps(
        list(range(n)), [None, *stamps[:-1]], list(stamps), [None] * n, [0] * n, [0] * n, [1] * n, [None] * n
    )
    write_logged(folder, told, 0)
    steps = read_logged(folder, requests)
    assert steps is not None
    return (steps.start / NS_PER_MS).tolist()


def test_a_step_begins_where_the_one_before_ended_or_with_the_send_that_ended_idleness(tmp_path: Path) -> None:
    # One request, then nothing for a while, then two that overlap.
    requests = requests_of((100, 130), (500, 560), (520, 580))
    assert starts(tmp_path, [110, 120, 130, 520, 540, 560, 580], requests) == [100, 110, 120, 500, 520, 540, 560]


def test_a_step_that_is_beyond_the_cell_by_less_than_its_uncertainty_is_in_it(tmp_path: Path) -> None:
    ends, off = [90, 100, 204, 215], 5 * NS_PER_MS
    stamps = [t * NS_PER_MS for t in ends]
    told = LoggedSteps(
        [0, 1, 2, 3], [80 * NS_PER_MS, *stamps[:-1]], stamps, [off] * 4, [0] * 4, [0] * 4, [1] * 4, [None] * 4
    )
    write_logged(tmp_path, told, 0)
    steps = read_logged(tmp_path, requests_of((60, 300)), (93 * NS_PER_MS, 200 * NS_PER_MS))
    assert steps is not None
    inside = steps.between(93 * NS_PER_MS, 200 * NS_PER_MS)
    assert (inside.start / NS_PER_MS).tolist() == [93, 100]
    assert (inside.end / NS_PER_MS).tolist() == [100, 200]


def test_without_requests_the_first_step_has_no_length(tmp_path: Path) -> None:
    assert starts(tmp_path, [5, 9], requests_of()) == [5, 5]


@given(
    gaps=st.lists(st.integers(0, 50), min_size=1, max_size=30),
    spans=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 300)), max_size=10),
)
def test_steps_never_overlap_and_none_has_less_than_no_time(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[int], spans: list[tuple[int, int]]
) -> None:
    ends = np.cumsum(gaps).tolist()
    found = starts(tmp_path_factory.mktemp("s"), ends, requests_of(*((sent, sent + took) for sent, took in spans)))
    assert all(start <= end for start, end in zip(found, ends, strict=True))
    assert all(start >= before for start, before in zip(found[1:], ends, strict=False))


def test_the_context_of_streams_is_their_prompts_and_what_has_arrived() -> None:
    request, t = np.array([0, 0, 0, 1, 1]), np.array([10, 20, 30, 20, 40])
    chunks = TokenChunks(
        request, t, np.ones(5, dtype=np.int64), np.ones(5), np.array([True, False, False, True, False])
    )
    held = context_held(chunks, np.array([100, 7]), np.array([5, 15, 25, 35, 45]))
    # Nobody; 0 after its first token; 0 after two and 1 after one; 0 is over; all are.
    assert held.tolist() == [0, 101, 102 + 8, 8, 0]
    none = np.zeros(0, dtype=np.int64)
    empty = TokenChunks(none, none, none, np.zeros(0), np.zeros(0, dtype=bool))
    assert context_held(empty, none, np.array([MISSING, 1])).tolist() == [0, 0]
