"""The twin on cells that it made itself: what made them is found again, and other settings follow."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.experiment import Cell, EngineSpec
from harness.loads import BatchLoad, ConcurrencyLoad, Load, RateLoad
from harness.twin.settings import scheduler_settings
from harness.twin.step_model import SETTLED, Made, fit_step_model
from harness.twin.twin import Twin, as_measured
from results.errors import UsageError
from tests.harness.twin.support import RESOLVED, TRUTH, VOCABULARY, cell_of, observed, real


@pytest.fixture(scope="module")
def twin() -> Twin:
    loads = (BatchLoad.of(1), BatchLoad.of(4), BatchLoad.of(32), ConcurrencyLoad.of(8))
    return Twin([observed(cell_of(load)) for load in loads])


@pytest.mark.parametrize(
    "cell",
    [
        cell_of(BatchLoad.of(16)),
        cell_of(ConcurrencyLoad.of(16), max_num_seqs=4),
        cell_of(ConcurrencyLoad.of(16), max_num_batched_tokens=32),
        cell_of(BatchLoad.of(16), kv_cache_tokens=2048, max_model_len=512),
        cell_of(BatchLoad.of(16), kv_cache_tokens=2048, max_model_len=512, admission="reserve-oracle"),
        cell_of(RateLoad(rate=4.0, requests=150)),
    ],
    ids=lambda cell: f"{cell.load.mode} {cell.engine.settings.asked()}",
)
def test_settings_nobody_measured_are_predicted(twin: Twin, cell: Cell) -> None:
    predicted = twin.predict(cell, VOCABULARY).entry["whole"]
    measured = as_measured(cell, "reference", real(cell, seed=5))["whole"]
    for path in (("output_tokens_per_s",), ("ttft_ms", "p50"), ("ttft_ms", "p90"), ("itl_pooled_ms", "p50")):
        ours, theirs = predicted, measured
        for name in path:
            ours, theirs = ours[name], theirs[name]
        assert ours == pytest.approx(theirs, rel=0.1), path


def test_what_made_the_step_times_is_found_again() -> None:
    draw = random.Random(0)
    rows = []
    for _ in range(2000):
        decodes, prompts = draw.randint(0, 16), draw.choice((0, 0, 1, 2))
        prefill = sum(draw.randint(8, 200) for _ in range(prompts))
        if decodes or prompts:
            rows.append((prefill, prompts, decodes, prefill + decodes * draw.randint(50, 900)))
    columns = np.array(rows, dtype=np.float64).T
    seconds = np.array([TRUTH.seconds(*(int(v) for v in row)) * draw.choice(TRUTH.mixed) for row in rows])
    seconds[::200] *= 8  # the machine was taken away
    session = np.array([draw.randrange(4) for _ in rows])
    paces = np.array([0.7, 0.9, 1.1, 1.5])
    fitted = fit_step_model(Made(*columns), seconds * paces[session], session)
    assert not isinstance(fitted, str)
    found, told = fitted
    assert found.moves < SETTLED
    assert told == pytest.approx(paces, rel=0.03)
    for row in ((0, 0, 1, 300), (0, 0, 12, 4000), (150, 1, 4, 900), (400, 2, 16, 6000)):
        assert found.seconds(*row) == pytest.approx(TRUTH.seconds(*row), rel=0.05)
    assert max(found.plain) > 5  # an interrupted step may be drawn, though it bends nothing


def test_what_differs_by_what_steps_hold_is_no_matter_of_pace() -> None:
    """A session of one request and one of sixteen: that the other's steps are longer is what they hold."""
    draw = random.Random(2)
    rows = [(0, 0, n, n * draw.randint(50, 900)) for n in (1, 16) for _ in range(400)]
    seconds = np.array([TRUTH.seconds(*row) * draw.choice(TRUTH.plain) for row in rows])
    fitted = fit_step_model(Made(*np.array(rows, dtype=np.float64).T), seconds, np.repeat([0, 1], 400))
    assert not isinstance(fitted, str)
    model, paces = fitted
    assert paces == pytest.approx([1.0, 1.0], abs=0.03)
    for decodes in (1, 16):
        assert model.seconds(0, 0, decodes, 400 * decodes) == pytest.approx(
            TRUTH.seconds(0, 0, decodes, 400 * decodes), rel=0.05
        )


def test_a_cell_is_predicted_at_the_pace_of_its_session() -> None:
    loads = (BatchLoad.of(1), BatchLoad.of(8), BatchLoad.of(32))
    paces = {"fast": 0.7, "usual": 1.0, "slow": 1.5}
    twin = Twin([observed(cell_of(load), session=name, pace=pace) for load in loads for name, pace in paces.items()])
    cell = cell_of(BatchLoad.of(16), max_num_seqs=8)
    for session, pace in [*paces.items(), ("unseen", 1.0)]:
        predicted = twin.predict(cell, VOCABULARY, session=session).entry["whole"]
        measured = as_measured(cell, "reference", real(cell, seed=5, pace=pace))["whole"]
        assert predicted["output_tokens_per_s"] == pytest.approx(measured["output_tokens_per_s"], rel=0.1)


def test_one_cell_does_not_tell_the_pace_of_its_session() -> None:
    known = [observed(cell_of(load), session="usual") for load in (BatchLoad.of(1), BatchLoad.of(8), BatchLoad.of(32))]
    slow = [observed(cell_of(load), session="slow", pace=1.5) for load in (BatchLoad.of(1), BatchLoad.of(8))]
    cell = cell_of(BatchLoad.of(16))
    alone, both = Twin([*known, slow[0]]), Twin([*known, *slow])
    assert alone.predict(cell, VOCABULARY, session="slow") == alone.predict(cell, VOCABULARY)
    assert both.predict(cell, VOCABULARY, session="slow") != both.predict(cell, VOCABULARY)


def test_too_few_steps_are_not_fitted() -> None:
    few = Made(*(np.ones(10) for _ in Made.__slots__))
    assert fit_step_model(few, np.ones(10), np.zeros(10, dtype=np.int64)) == "10 steps are too few to fit"


def test_a_pool_too_small_preempts_on_demand_and_holds_back_where_memory_is_promised() -> None:
    small = {"kv_cache_tokens": 1024, "max_model_len": 512}
    demand = real(cell_of(BatchLoad.of(16), **small))
    promised = {
        name: real(cell_of(BatchLoad.of(16), **small, admission=name)) for name in ("no-evict", "guaranteed_no_evict")
    }
    assert demand.preemptions > 0
    assert [p.preemptions for p in promised.values()] == [0, 0]
    assert [len(p.chunks) for p in promised.values()] == [len(demand.chunks)] * 2
    most = {id(s): max(step[6] for step in s.steps) for s in (demand, *promised.values())}
    assert most[id(demand)] > most[id(promised["no-evict"])]


def test_max_utilization_is_on_demand() -> None:
    small = {"kv_cache_tokens": 1024, "max_model_len": 512}
    arms = [real(cell_of(BatchLoad.of(16), **small, admission=name)) for name in ("max-utilization", "on-demand")]
    assert arms[0].steps == arms[1].steps


def test_tensorrt_llms_default_promises_the_output_that_is_asked() -> None:
    found = scheduler_settings("tensorrt_llm", RESOLVED, {"admission": "reserve-max"})
    assert found.switches.admission == "reserve-oracle"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"threads": 1}, "threads=1"),
        ({"max_model_len": 64, "kv_cache_tokens": 1024}, "max_model_len is 64"),
        ({"kv_cache_tokens": 1024}, "smaller than one request"),
        ({"chunked_prefill": False, "max_num_batched_tokens": 64}, "must fit a step"),
    ],
)
def test_what_cannot_be_predicted_says_why(twin: Twin, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        twin.predict(cell_of(BatchLoad.of(2), **asked), VOCABULARY)


def _of(label: str, load: Load | None = None, **asked: Any) -> Cell:
    cell = cell_of(load or BatchLoad.of(32), **asked)
    return cell.model_copy(update={"engine": cell.engine.model_copy(update={"label": label})})


def _rate(twin: Twin, cell: Cell) -> float:
    return float(twin.predict(cell, VOCABULARY, draws=1).entry["whole"]["output_tokens_per_s"])


def test_a_trial_has_what_its_own_engine_leaves_open_and_not_what_another_was_asked() -> None:
    twin = Twin([observed(_of("few", max_num_seqs=4)), observed(_of("wide"))])
    few, wide = _rate(twin, _of("few", max_num_seqs=4)), _rate(twin, _of("wide"))
    assert wide > 1.5 * few
    assert _rate(twin, _of("wide-prefix_caching=true", prefix_caching=True)) == pytest.approx(wide, rel=0.02)
    assert _rate(twin, _of("few-block_size=32", max_num_seqs=4, block_size=32)) == pytest.approx(few, rel=0.02)


def test_a_trial_that_asks_less_than_another_has_the_defaults_for_the_rest() -> None:
    """The only cell with its step times is of a trial that was asked for four places besides."""
    twin = Twin([observed(_of("e-max_num_seqs=4-threads=1", max_num_seqs=4, threads=1)), observed(_of("e"))])
    assert _rate(twin, _of("e-threads=1", threads=1)) == pytest.approx(_rate(twin, _of("e")), rel=0.1)


def test_of_engines_that_were_asked_alike_a_trial_is_as_the_one_it_is_named_after() -> None:
    """What tells them apart is then nothing that Dyno was asked for: their versions, or words of their own."""
    other = observed(_of("e"))
    other = replace(other, settings={**other.settings, "max_num_seqs": 4})
    twin = Twin([other, observed(_of("e-new"))])
    assert _rate(twin, _of("e-new-block_size=32", block_size=32)) > 1.5 * _rate(
        twin, _of("e-block_size=32", block_size=32)
    )


def test_where_every_engine_was_asked_for_something_else_it_cannot_tell() -> None:
    few = observed(_of("few", max_num_seqs=4))
    with pytest.raises(UsageError, match=r"what wide leaves open is not known.*\(max_num_seqs\)"):
        Twin([few]).predict(_of("wide"), VOCABULARY)
    # Another value of the same setting takes the place of the one that was asked.
    assert _rate(Twin([few]), _of("wide", max_num_seqs=32)) > 1.5 * _rate(Twin([few]), _of("few", max_num_seqs=4))


def test_what_an_engine_told_of_its_settings_is_known_without_its_numbers() -> None:
    few, wide = observed(_of("few", max_num_seqs=4)), observed(_of("wide"), pace=3.0)
    twin = Twin([few], [wide])
    assert twin.cells == [few]
    measured = as_measured(_of("wide"), "reference", real(_of("wide"), seed=5))["whole"]["output_tokens_per_s"]
    # Steps of more than four decodes were in no cell.
    assert _rate(twin, _of("wide")) == pytest.approx(measured, rel=0.15)


def test_only_settings_that_change_a_step_are_blamed_for_step_times_that_are_not_known() -> None:
    twin = Twin([observed(_of("e", dtype="float32")), observed(_of("b", dtype="bfloat16", threads=1))])
    with pytest.raises(UsageError, match=r"has the step times of threads=1\.$"):
        twin.predict(_of("e-1", dtype="float32", block_size=64, threads=1), VOCABULARY)


def test_another_backend_has_no_twin(twin: Twin) -> None:
    cell = cell_of(BatchLoad.of(2))
    other = cell.model_copy(update={"engine": EngineSpec(label="v", backend="vllm")})
    with pytest.raises(UsageError, match="No cell of backend vllm"):
        twin.predict(other, VOCABULARY)


def test_time_ends_a_closed_loop(twin: Twin) -> None:
    entry = twin.predict(cell_of(ConcurrencyLoad.of(4, duration_s=2.0)), VOCABULARY).entry
    assert 2.0 < entry["whole"]["duration_s"] < 3.5
    assert entry["requests"]["issued"] == entry["requests"]["ok"]


def test_the_same_cell_is_predicted_alike_every_time(twin: Twin) -> None:
    cell = cell_of(ConcurrencyLoad.of(4))
    assert twin.predict(cell, VOCABULARY) == twin.predict(cell, VOCABULARY)


def test_equal_prompts_teach_nothing_of_what_longer_ones_cost_beyond_their_tokens() -> None:
    draw = random.Random(1)
    rows = [(128 * n, n, 0, 128 * n) for n in range(1, 9) for _ in range(20)]
    rows += [(0, 0, n, 140 * n) for n in range(1, 9) for _ in range(20)]
    seconds = np.array([0.01 + 0.0006 * prefill + 0.0005 * decodes for prefill, _, decodes, _ in rows])
    seconds *= np.array([draw.uniform(0.95, 1.05) for _ in rows])
    fitted = fit_step_model(Made(*np.array(rows, dtype=np.float64).T), seconds, np.zeros(len(rows), dtype=np.int64))
    assert not isinstance(fitted, str)
    found, _ = fitted
    assert found.seconds(1024, 1, 0, 1024) == pytest.approx(0.01 + 0.0006 * 1024, rel=0.1)
