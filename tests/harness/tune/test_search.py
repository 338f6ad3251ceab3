"""The search among settings: what it finds, in which order, and when it leaves off; engines are made up."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.experiment import Cell, EngineSpec, SloAsked
from harness.tune.ledger import Ledger
from harness.tune.outcome import ended
from harness.tune.search import SEARCH_SHARE, Score, SearchPlanner, ran_out
from harness.tune.space import Space, at_least
from results.errors import StoreError, UsageError
from results.slo import MET, NOT_MET
from results.statistics import wilson
from tests.harness.tune.made_up import SPACE, TOLD, Bench, died, entry, experiment, out_of_memory, search, settings_of


def rate(cell: Cell, best: Mapping[str, Any], noise: float = 0.0) -> float:
    """A rate that falls by a tenth for each setting away from the best, and differs from cell to cell."""
    away = sum(settings_of(cell)[name] != value for name, value in best.items())
    draw = np.random.default_rng(int(cell.id, 16) % 2**32)
    return 100.0 * 0.9**away * math.exp(draw.normal(0, noise) if noise else 0.0)


def trials_of(planner: SearchPlanner, bench: Bench, arm: str) -> list[dict[str, Any]]:
    return [dict(s.trial.values) for s in planner.standing(bench.results)[arm].rungs[0]]


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_it_finds_the_best_settings_one_by_one(tmp_path: Path, noise: float) -> None:
    best = {"max_num_seqs": 32, "max_num_batched_tokens": 2048, "chunked_prefill": False}
    bench = Bench(lambda cell: entry(cell, rate(cell, best, noise)))
    planner = search(tmp_path, bench, experiment(), trials=16)
    bench.run(planner)
    for arm in ("e0", "e1"):
        found = planner.standing(bench.results)[arm].best
        assert found is not None
        assert found.trial.values == best


def test_the_defaults_come_first_and_arms_take_turns(tmp_path: Path) -> None:
    bench = Bench(lambda cell: entry(cell, 100.0))
    bench.run(search(tmp_path, bench, experiment(), trials=4))
    labels = [cell.engine.label for cell in bench.order if cell.block == 0]
    assert labels[:2] == ["e0", "e1"]
    assert [label.split("-")[0] for label in labels[2:6]] == ["e1", "e0", "e0", "e1"]


def test_the_best_third_goes_on_with_longer_cells_and_the_last_of_them_is_whole(tmp_path: Path) -> None:
    bench = Bench(lambda cell: entry(cell, rate(cell, {"max_num_seqs": 64}, 0.01)))
    planner = search(tmp_path, bench, experiment(1), trials=12)
    bench.run(planner)
    standing = planner.standing(bench.results)["e0"]
    assert [len(rung) for rung in standing.rungs] == [12, 5, 2]
    assert standing.rungs[1][0].trial.values == {}, "the defaults, the first and coldest trial, are measured again"
    assert [standing.kept(rung) for rung in (1, 2, 3)] == [4, 2, 1]
    assert all(standing.whole)
    requests = {cell.block: cell.load.model_dump()["requests"] for cell in bench.order}
    assert requests == {0: 256, 1: 512, 2: 1024}
    best = standing.best
    assert best is not None
    assert best.rung == 2
    assert best.value == max(score.value or 0 for score in standing.rungs[2])


def test_the_trial_that_is_confirmed_is_called_the_best_where_the_search_was_cut_off_too(tmp_path: Path) -> None:
    """Interrupted among the longer trials: the best of the short ones is confirmed, whatever became of its longer one."""
    bench = Bench(lambda cell: entry(cell, 100.0 + settings_of(cell)["max_num_seqs"]), seconds=10.0)
    planner = search(tmp_path, bench, experiment(1), trials=5)
    bench.run(planner, until=6)
    standing = planner.standing(bench.results)["e0"]
    assert standing.whole == [True, False]
    assert standing.best is not None
    words = [ended(standing, standing.last(score.trial)) for score in standing.rungs[0]]
    assert words.count("the best, to be confirmed") == 1
    assert words[standing.rungs[0].index(standing.best)] == "the best, to be confirmed"


def test_of_equals_the_first_is_the_best_and_no_trial_is_no_change(tmp_path: Path) -> None:
    bench = Bench(lambda cell: entry(cell, 100.0))
    planner = search(tmp_path, bench, experiment(1), trials=100)
    bench.run(planner)
    standing = planner.standing(bench.results)["e0"]
    best = standing.best
    assert best is not None
    assert best.trial.values == {"max_num_seqs": 8}
    tried = trials_of(planner, bench, "e0")
    assert tried[0] == {}
    assert len(tried) == 5 * 3 * 2, "every combination of what differs from the defaults, once"
    assert all(TOLD[name] != value for values in tried for name, value in values.items())


def test_a_budget_with_no_room_for_a_trial_is_told_with_what_it_would_take(tmp_path: Path) -> None:
    bench = Bench(lambda cell: entry(cell, 100.0), seconds=35.0)
    planner = search(tmp_path, bench, experiment(1), trials=100, budget_s=180.0)
    bench.run(planner)
    assert trials_of(planner, bench, "e0") == [{}]
    assert (planner.longest_s, planner.wanted_s) == (35.0, 70.0)
    again = Bench(lambda cell: entry(cell, 100.0), seconds=35.0)
    again.results = dict(bench.results)
    more = search(tmp_path, again, experiment(1), trials=2, budget_s=1000.0)
    again.run(more)
    assert len(trials_of(more, again, "e0")) == 2
    assert more.wanted_s is None, "its trials ended it, not the budget"


def test_a_round_that_an_earlier_start_began_counts_and_one_that_was_cut_off_does_not(tmp_path: Path) -> None:
    loads = [{"mode": "concurrency", "concurrency": n, "requests": 1024} for n in (64, 128)]
    cut = Bench(lambda cell: entry(cell, 100.0), seconds=70.0)
    planner = search(tmp_path / "cut", cut, experiment(1, loads=loads), trials=100, budget_s=120.0)
    cut.run(planner)
    assert (len(cut.order), planner.longest_s) == (1, 0.0), "one of the two cells of the defaults"
    assert planner.wanted_s is not None
    first = Bench(lambda cell: entry(cell, 100.0), seconds=35.0)
    first.run(search(tmp_path, first, experiment(1), trials=100, budget_s=180.0), until=0)
    again = Bench(lambda cell: entry(cell, 100.0), seconds=35.0)
    planner = search(tmp_path, again, experiment(1), trials=100, budget_s=180.0)
    again.run(planner)
    assert (trials_of(planner, again, "e0"), planner.longest_s) == ([{}], 35.0)


def test_who_chose_the_order_is_only_told_once_somebody_did(tmp_path: Path) -> None:
    bench = Bench(lambda cell: entry(cell, 100.0))
    asked = {"varied": [str(SPACE.axes)] * 2}
    bench.run(search(tmp_path, bench, experiment(1), trials=1))
    assert Ledger.open(tmp_path, asked).order == ""
    bench.run(search(tmp_path, bench, experiment(1), trials=2))
    assert Ledger.open(tmp_path, asked).order.startswith("no twin")


def test_an_engine_whose_defaults_do_not_start_is_left_and_the_others_go_on(tmp_path: Path) -> None:
    bench = Bench(lambda cell: died() if cell.engine.label.startswith("e0") else entry(cell, 100.0))
    planner = search(tmp_path, bench, experiment(), trials=5)
    bench.run(planner)
    assert trials_of(planner, bench, "e0") == [{}]
    assert planner.standing(bench.results)["e0"].best is None
    assert len(trials_of(planner, bench, "e1")) == 5


def test_defaults_that_run_out_of_memory_are_tried_smaller(tmp_path: Path) -> None:
    bench = Bench(lambda cell: entry(cell, 50.0) if settings_of(cell)["max_num_seqs"] < 16 else out_of_memory(cell))
    planner = search(tmp_path, bench, experiment(1), trials=8)
    bench.run(planner)
    best = planner.standing(bench.results)["e0"].best
    assert best is not None
    assert best.trial.values["max_num_seqs"] < 16


def test_what_the_backend_refuses_is_never_started_and_told(tmp_path: Path) -> None:
    def refuse(engine: EngineSpec) -> str | None:
        return "too many" if (engine.settings.max_num_seqs or 0) > 8 else None

    bench = Bench(lambda cell: entry(cell, 100.0))
    planner = search(tmp_path, bench, experiment(1), trials=100, refuse=refuse)
    bench.run(planner)
    assert all((cell.engine.settings.max_num_seqs or 0) <= 8 for cell in bench.order)
    told = Ledger.open(tmp_path, {"varied": [str(SPACE.axes)] * 2})
    assert told.left_out["e0: seqs=32"] == "too many"


def test_more_seats_than_requests_are_no_trial(tmp_path: Path) -> None:
    loads = [{"mode": "concurrency", "concurrency": 8, "requests": 64}]
    bench = Bench(lambda cell: entry(cell, 100.0))
    planner = search(tmp_path, bench, experiment(1, loads=loads), trials=100)
    bench.run(planner)
    assert {values.get("max_num_seqs") for values in trials_of(planner, bench, "e0")} == {None, 4}
    told = Ledger.open(tmp_path, {"varied": [str(SPACE.axes)] * 2})
    assert "no more than 8 requests are in flight" in told.left_out["e0: seqs=32"]


class Oracle:
    """Knows what every engine will give."""

    words = "an oracle"

    def predict(self, engines: Sequence[EngineSpec], results: Mapping[str, Any]) -> list[float | None]:
        return [float(engine.settings.max_num_seqs or 16) for engine in engines]


def test_a_predictor_decides_the_order(tmp_path: Path) -> None:
    bench = Bench(lambda cell: entry(cell, float(settings_of(cell)["max_num_seqs"])))
    planner = search(tmp_path, bench, experiment(1), trials=3, predictor=Oracle())
    bench.run(planner)
    assert [values.get("max_num_seqs") for values in trials_of(planner, bench, "e0")] == [None, 64, 64]


class Foresight:
    """Tells every setting its rate, no two alike: above all a large step, then many seats, then chunks."""

    words = "foresight"

    def predict(self, engines: Sequence[EngineSpec], results: Mapping[str, Any]) -> list[float | None]:
        asked = [{**TOLD, **engine.settings.asked()} for engine in engines]
        return [float(a["max_num_batched_tokens"] + a["max_num_seqs"] + a["chunked_prefill"]) for a in asked]


@pytest.mark.parametrize("trials", [4, 6])
def test_the_three_that_are_predicted_best_are_run_before_all_others(tmp_path: Path, trials: int) -> None:
    # What is measured is the reverse: those are run that were predicted best, not the neighbours of what was found best.
    bench = Bench(lambda cell: entry(cell, 1e4 - settings_of(cell)["max_num_batched_tokens"]))
    planner = search(tmp_path, bench, experiment(1), trials=trials, predictor=Foresight())
    bench.run(planner)
    ran = trials_of(planner, bench, "e0")
    assert len(ran) == trials
    assert ran[:4] == [
        {},  # the defaults, which are always first
        {"max_num_seqs": 64, "max_num_batched_tokens": 2048},
        {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "chunked_prefill": False},
        {"max_num_seqs": 32, "max_num_batched_tokens": 2048},
    ]


def test_what_the_predictor_cannot_tell_of_gets_its_turn(tmp_path: Path) -> None:
    """Threads have no predicted step time until they were measured: after the three that are predicted best they are tried, long
    before all others are used up."""

    class Blind(Foresight):
        def predict(self, engines: Sequence[EngineSpec], results: Mapping[str, Any]) -> list[float | None]:
            told = super().predict(engines, results)
            return [None if e.settings.threads else value for e, value in zip(engines, told, strict=True)]

    bench = Bench(lambda cell: entry(cell, 100.0))
    space = Space({**SPACE.axes, "threads": [1, 2]})
    planner = search(tmp_path, bench, experiment(1), trials=8, spaces=[space], predictor=Blind())
    bench.run(planner)
    ran = trials_of(planner, bench, "e0")
    assert ["threads" in values for values in ran] == [False] * 4 + [True, False, True, False]
    assert [trial.why for trial in Ledger.open(tmp_path, {"varied": [str(space.axes)]}).trials()][4].endswith(
        "cannot tell"
    )


def test_an_interrupted_search_goes_on_where_it_was_and_starts_nothing_again(tmp_path: Path) -> None:
    def answer(cell: Cell) -> Mapping[str, Any]:
        return died() if settings_of(cell)["max_num_seqs"] == 4 else entry(cell, rate(cell, {"max_num_seqs": 64}, 0.05))

    whole = Bench(answer)
    whole.run(search(tmp_path / "whole", whole, experiment(), trials=10))
    first = Bench(answer)
    first.run(search(tmp_path / "cut", first, experiment(), trials=10), until=9)
    again = Bench(answer)
    # A failed start leaves no cell behind.
    again.results = {key: found for key, found in first.results.items() if "failure" not in found}
    again.run(search(tmp_path / "cut", again, experiment(), trials=10))
    assert [c.id for c in first.order + again.order] == [c.id for c in whole.order]


def test_another_search_in_the_same_place_is_refused(tmp_path: Path) -> None:
    Ledger.open(tmp_path, {"varied": 1}).save()
    with pytest.raises(UsageError, match="holds another search"):
        Ledger.open(tmp_path, {"varied": 2})
    (tmp_path / "trials.json").write_text('{"rounds": 3}')
    with pytest.raises(StoreError, match="is damaged"):
        Ledger.open(tmp_path, {"varied": 1})


def test_with_objectives_each_trial_searches_its_highest_load(tmp_path: Path) -> None:
    def answer(cell: Cell) -> Mapping[str, Any]:
        limit, value = settings_of(cell)["max_num_seqs"], float(cell.load.value or 0)
        share = 0.999 if value <= limit else 0.5
        found = wilson(share * 1000, 1000)
        met = MET if (found.low or 0) >= 0.95 else NOT_MET
        row = {"objective": "ttft_ms.p95<=1", "needed": 0.95, "share": share, "effective_n": 1000.0, "met": met}
        return entry(cell, 10 * value, slo={"met": met, "joint": None, "objectives": [row]})

    loads = [{"mode": "concurrency", "concurrency": c, "requests": 256} for c in (1, 64)]
    asked = experiment(1, loads=loads, slo=SloAsked(objectives=("ttft_ms.p95<=1",)))
    bench = Bench(answer)
    planner = search(tmp_path, bench, asked, trials=5, spaces=[Space({"max_num_seqs": [8, 4, 32, 64]})])
    bench.run(planner)
    best = planner.standing(bench.results)["e0"].best
    assert best is not None
    assert best.trial.values["max_num_seqs"] == 64
    assert {cell.block for cell in bench.order} == {0, 1}, "a trial is one session"
    assert best.value == pytest.approx(640.0)


@st.composite
def benches(draw: st.DrawFn) -> tuple[int, int, list[Space], dict[str, int], float | None, float]:
    """Arms, trials, their spaces, the most memory each takes, a budget and the seconds of a cell."""
    arms = draw(st.integers(1, 3))
    values = st.lists(st.sampled_from([1, 2, 8, 32, 64, 128]), min_size=1, max_size=4, unique=True)
    spaces = [
        Space(
            {
                "max_num_seqs": draw(values),
                "max_num_batched_tokens": draw(values),
                "chunked_prefill": [False, True],
                "kv_dtype": draw(st.sampled_from([["fp8"], ["fp8", "auto"]])),
            }
        )
        for _ in range(arms)
    ]
    memory = {f"e{i}": draw(st.sampled_from([1, 1000, 20_000, 10**9])) for i in range(arms)}
    budget = draw(st.none() | st.floats(1, 2000))
    return arms, draw(st.integers(1, 20)), spaces, memory, budget, draw(st.sampled_from([0.1, 7.0, 60.0]))


def left_to_try(space: Space, scores: Sequence[Score]) -> list[Mapping[str, Any]]:
    """Combinations that are new, and no larger than what ran out of memory."""
    failed = [s.trial.values for s in scores if ran_out(s)]
    every = [{k: v for k, v in values.items() if TOLD.get(k) != v} for values in space.combinations(0)]
    new = [values for values in every if values not in [s.trial.values for s in scores]]
    return [values for values in new if not any(at_least(values, f, TOLD) for f in failed)]


@settings(deadline=None, max_examples=60)
@given(benches())
def test_effort_is_equal_nothing_above_an_oom_is_tried_and_the_budget_is_kept(
    drawn: tuple[int, int, list[Space], dict[str, int], float | None, float],
) -> None:
    arms, trials, spaces, memory, budget, seconds = drawn

    def needs(values: Mapping[str, Any]) -> int:
        asked = {**TOLD, **values}
        return int(asked["max_num_seqs"] * asked["max_num_batched_tokens"])

    def answer(cell: Cell) -> Mapping[str, Any]:
        if needs(cell.engine.settings.asked()) > memory[cell.engine.label.split("-")[0]]:
            return out_of_memory(cell) if int(cell.id, 16) % 2 else died("out_of_memory_device")
        return entry(cell, rate(cell, {"max_num_seqs": 32}, 0.05))

    bench = Bench(answer, seconds)
    with tempfile.TemporaryDirectory() as folder:
        planner = search(Path(folder), bench, experiment(arms), trials, spaces, budget)
        bench.run(planner)
    standings = planner.standing(bench.results)
    sizes = [len(standings[f"e{i}"].rungs[0]) if standings[f"e{i}"].rungs else 0 for i in range(arms)]
    assert max(sizes) <= trials
    for i, space in enumerate(spaces):
        if sizes[i] < max(sizes):
            assert not left_to_try(space, standings[f"e{i}"].rungs[0]), "fewer trials only where nothing is left to try"
    if budget is not None:
        assert bench.now / 1e9 <= SEARCH_SHARE * budget + seconds + 1e-6
    for i in range(arms):
        failed: list[Mapping[str, Any]] = []
        for cell in bench.order:
            if cell.engine.label.split("-")[0] != f"e{i}":
                continue
            values = cell.engine.settings.asked()
            assert not any(at_least(values, f, TOLD) and values != f for f in failed)
            if needs(values) > memory[f"e{i}"]:
                failed.append(values)
