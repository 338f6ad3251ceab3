"""`dyno why`: what is changed of a cell and by how much, in which order, and what is concluded; engines are not started."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.experiment import Cell, EngineSpec, Experiment, cells_of
from harness.loads import BatchLoad, ConcurrencyLoad
from harness.why import Question, WhyPlanner, ask, conclude
from harness.why_knobs import KNOBS, Change, Measured, NoChange, changes_of
from results.errors import UnknownNameError, UsageError
from results.store import RunStore
from workloads.lengths import FixedLength
from workloads.random import RandomWorkload

SETTINGS: dict[str, Any] = {
    "max_num_seqs": 10,
    "max_num_batched_tokens": 2048,
    "kv_cache_tokens": 4096,
    "block_size": 16,
    "max_model_len": 512,
    "threads": 1,
    "chunked_prefill": True,
}


def cell(load: Any = None, backend: str = "reference", **spec: Any) -> Cell:
    engine = EngineSpec(label="e", backend=backend, **spec)
    workload = RandomWorkload(input_len=FixedLength(tokens=32), output_len=FixedLength(tokens=16))
    experiment = Experiment(
        model="random-tiny",
        engines=(engine,),
        workloads=(workload,),
        loads=(load or ConcurrencyLoad(concurrency=4, requests=16),),
    )
    return cells_of(experiment)[0]


def measured(one: Cell | None = None, cores: int = 2, **settings: Any) -> Measured:
    summary = {"id": "abc", "whole": {"e2e_ms": {"mean": 500.0}}}
    return Measured(one or cell(), {**SETTINGS, **settings}, summary, cores)


def changed(name: str, what: Measured) -> Change:
    found = KNOBS[name](what)
    assert isinstance(found, Change), found
    return found


def test_each_resource_is_changed_by_about_a_fifth() -> None:
    found, left_out = changes_of(measured(max_num_batched_tokens=16))
    assert {c.resource: (c.before, c.after) for c in found} == {
        "offered load": (1.0, 1 / 1.2),
        "max_num_seqs": (10, 8),
        "max_num_batched_tokens": (16, 12),
        "kv_cache_tokens": (4096, 3264),
        "threads": (1, 2),
    }
    assert not left_out


def test_only_that_resource_changes_and_each_variant_is_an_engine_of_its_own() -> None:
    base = cell()
    for change in changes_of(measured(base))[0]:
        asked = change.cell.engine.settings.asked()
        if change.resource == "offered load":
            assert change.cell.engine == base.engine
            load = change.cell.load
            assert isinstance(load, ConcurrencyLoad)
            assert load.think_s == pytest.approx(0.1)
        else:
            assert asked == {change.resource: change.after}
            assert change.cell.engine.label != base.engine.label
            assert change.cell.load == base.load
        assert change.cell.id != base.id


def test_small_numbers_go_up_where_they_cannot_go_down() -> None:
    one = changed("max_num_seqs", measured(max_num_seqs=1))
    assert (one.before, one.after) == (1, 2)
    # A request of the model's full length must still fit the pool.
    pool = changed("kv_cache_tokens", measured(kv_cache_tokens=512))
    assert (pool.before, pool.after) == (512, 640)
    assert changed("threads", measured(threads=2)).after == 1


def test_a_slower_client_is_slower_by_a_fifth_of_the_whole_cycle() -> None:
    resting = measured(cell(ConcurrencyLoad(concurrency=2, requests=8, think_s=0.5)))
    load = changed("offered load", resting).cell.load
    assert isinstance(load, ConcurrencyLoad)
    assert load.think_s == pytest.approx(0.5 + 0.2 * (0.5 + 0.5))


def test_of_a_batch_the_batch_is_changed() -> None:
    change = changed("offered load", measured(cell(BatchLoad(batch=1, waves=3))))
    assert (change.before, change.after) == (1, 2)
    assert isinstance(change.cell.load, BatchLoad)


@pytest.mark.parametrize(
    ("name", "what", "reason"),
    [
        ("threads", measured(cores=1), "one core"),
        ("threads", measured(cell(backend="openai", url="http://x:1")), "no way to set them"),
        ("max_num_batched_tokens", measured(chunked_prefill=False), "longest prompt"),
        ("max_num_seqs", measured(max_num_seqs=None), "not told by the engine"),
        ("max_num_seqs", measured(cell(backend="openai", url="http://x:1")), "not started by this run"),
        ("offered load", replace(measured(), summary={"whole": None}), "how long a request takes"),
    ],
)
def test_what_cannot_be_changed_says_why(name: str, what: Measured, reason: str) -> None:
    found = KNOBS[name](what)
    assert isinstance(found, NoChange)
    assert reason in found.why


class _Run:
    """A run's path and name are all that a question asks of it."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name


def question(tmp_path: Path, pairs: int = 3, budget_s: float | None = None, **limits: str) -> Question:
    found, left_out = changes_of(measured(), ["max_num_seqs", "threads", "offered load"])
    entry = {
        "id": "abc",
        "engine": "e",
        "load": {"mode": "concurrency", "value": 4},
        "workload": cell().workload.model_dump(mode="json"),
        "limits": {side: {"factor": name} for side, name in limits.items()},
    }
    base, experiment = (
        cell(),
        Experiment(model="random-tiny", engines=(cell().engine,), workloads=(cell().workload,), loads=(cell().load,)),
    )
    run: Any = _Run(tmp_path / "run")
    return Question(run, experiment, base, entry, tuple(found), tuple(left_out), pairs, budget_s)


def play(planner: WhyPlanner, tick: Callable[[], None] = lambda: None) -> list[Cell]:
    results: dict[str, Mapping[str, Any]] = {}
    order = []
    while (one := planner.next_cell(results)) is not None:
        order.append(one)
        results[one.id] = {}
        tick()
    return order


def test_each_change_is_tried_right_beside_the_cell_and_which_comes_first_alternates(tmp_path: Path) -> None:
    asked = question(tmp_path)
    order = play(WhyPlanner(asked))
    assert order == WhyPlanner(asked).planned()
    assert len({c.id for c in order}) == len(order) == 2 * 3 * 3
    pairs = [order[at : at + 2] for at in range(0, len(order), 2)]
    for number, pair in enumerate(pairs):
        change = asked.changes[number % 3]
        plain = {one.model_copy(update={"block": 0}).id for one in pair}
        assert plain == {asked.cell.id, change.cell.id}
        assert {one.block for one in pair} == {number}
    base_first = [pair[0].model_copy(update={"block": 0}).id == asked.cell.id for pair in pairs]
    assert base_first == [True, False, True, False, True, False, True, False, True]


def test_where_the_budget_ended_it_the_answer_says_so_and_asks_for_no_more_pairs(tmp_path: Path) -> None:
    now = [0]

    def tick() -> None:
        now[0] += 10**9

    asked = question(tmp_path, pairs=50, budget_s=13.5)
    planner = WhyPlanner(asked, lambda: now[0])
    play(planner, tick)
    assert planner.out_of_budget
    rates = {"": 100.0, "max_num_seqs": 82.0, "threads": 101.0, "offered load": 100.5}
    document = conclude(asked, summaries(replace(asked, pairs=1), rates), planner.out_of_budget)
    assert document["undetermined"]
    assert "the budget of 13.5 s ended it after 1 of 50 pairs" in document["words"]
    assert "longer --budget" in document["words"]
    assert "more --pairs" not in document["words"]
    enough = WhyPlanner(replace(asked, pairs=2), lambda: now[0])
    play(enough, tick)
    assert not enough.out_of_budget


def test_what_was_interrupted_goes_on_by_the_same_command_and_tells_the_pairs_of_each_resource(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    import harness.why
    from harness.cli.commands import app
    from harness.runner import RunOutcome

    asked = question(tmp_path, pairs=5)
    rates = {"": 100.0, "max_num_seqs": 82.0, "threads": 101.0, "offered load": 100.5}
    document = conclude(asked, summaries(replace(asked, pairs=1), rates)[:2], interrupted=True)
    assert document["words"].endswith("it was interrupted; the same command goes on")
    monkeypatch.setattr(harness.why, "ask", lambda *given: asked)
    monkeypatch.setattr(harness.why, "answer", lambda *given: (document, RunOutcome(interrupted=True)))
    shown = CliRunner().invoke(app, ["why", "run", "abc", "--quiet"], env={"COLUMNS": "80"})
    assert shown.exit_code == 130
    heading, columns, *rows = shown.output.splitlines()
    assert heading == "Cell abc of engine e, 0 to 1 of 5 pairs each:"
    place = columns.index("pairs") + len("pairs") - 1
    assert [row[place] for row in rows[:3]] == ["1", "0", "0"]
    assert "more --pairs" not in shown.output


def test_no_round_is_begun_that_would_not_fit_the_budget(tmp_path: Path) -> None:
    now = [0]

    def tick() -> None:
        now[0] += 10**9

    order = play(WhyPlanner(question(tmp_path, pairs=50, budget_s=13.5), lambda: now[0]), tick)
    assert len(order) == 12  # 6 s a round: a third would end at 18 s
    assert len(play(WhyPlanner(question(tmp_path, pairs=50, budget_s=0.1), lambda: now[0]), tick)) == 6


def summaries(asked: Question, rates: Mapping[str, float]) -> list[dict[str, Any]]:
    """Tokens/s of the cell and of each variant, by resource, a little different in each pair."""
    found = []
    for number in range(asked.pairs):
        for place, change in enumerate(asked.changes):
            base, changed_cell = asked.pair(number, place)
            drift = 1 + 0.05 * number
            for one, rate in ((base, rates[""]), (changed_cell, rates[change.resource] * (1 + 0.001 * (number % 2)))):
                found.append({"id": one.id, "verdict": "VALID", "whole": {"output_tokens_per_s": rate * drift}})
    return found


def test_the_resource_that_throughput_follows_is_named_and_the_shares_are_held_against_it(tmp_path: Path) -> None:
    asked = question(tmp_path, batch="max_num_seqs", step="undetermined")
    rates = {"": 100.0, "max_num_seqs": 82.0, "threads": 101.0, "offered load": 100.5}
    document = conclude(asked, summaries(asked, rates))
    assert document["holds"] == "max_num_seqs"
    told = {e["resource"]: e for e in document["elasticities"]}
    assert told["max_num_seqs"]["elasticity"] == pytest.approx(0.89, abs=0.01)
    assert told["threads"]["verdict"] == "does not hold"
    assert document["factors"]["batch"] == {"named": "max_num_seqs", "agrees": True, "tried": True}
    assert document["factors"]["step"]["agrees"] is None
    other = conclude(
        replace(asked, entry={**asked.entry, "limits": {"batch": {"factor": "offered_load"}}}), summaries(asked, rates)
    )
    assert other["factors"]["batch"]["agrees"] is False


def test_cells_that_are_missing_leave_their_pair_out(tmp_path: Path) -> None:
    asked = question(tmp_path)
    rates = {"": 100.0, "max_num_seqs": 82.0, "threads": 101.0, "offered load": 100.5}
    some = summaries(asked, rates)[:-6]
    assert {e["pairs"] for e in conclude(asked, some)["elasticities"]} == {2}
    nothing = conclude(asked, [])
    assert nothing["holds"] is None
    assert all(e["elasticity"] is None for e in nothing["elasticities"])


@pytest.fixture
def run(tmp_path: Path) -> RunStore:
    from tests.results.builders import synthetic_run

    return synthetic_run(tmp_path, batches=(4, 8), mode="concurrency")


def test_a_cell_is_found_by_the_beginning_of_its_id_and_asked_of_its_session(run: RunStore) -> None:
    record = run.cells()[0]
    found = ask(run.path, record.id, pairs=2)
    assert found.entry["id"] == record.id
    assert {c.resource for c in found.changes} >= {"max_num_seqs", "kv_cache_tokens"}
    assert found.folder.parent == run.path / "why"
    # More pairs complete what is there; other resources are another run.
    assert ask(run.path, record.id, pairs=3).folder == found.folder
    assert ask(run.path, record.id, only=["threads", "max_num_seqs"]).folder != found.folder
    assert [c.resource for c in ask(run.path, record.id, only=["max_num_seqs"]).changes] == ["max_num_seqs"]


def test_mistakes_are_told(run: RunStore) -> None:
    with pytest.raises(UsageError, match="Unknown cell 'nope'") as unknown:
        ask(run.path, "nope")
    # Each id stands beside what it is.
    for record in run.cells():
        assert f"{record.id}  {record.engine}, {record.load['concurrency']} in flight, 128 in / 16 out" in str(
            unknown.value
        )
    with pytest.raises(UsageError, match="is the beginning of"):
        ask(run.path, run.cells()[0].id[:1])
    with pytest.raises(UnknownNameError, match="Did you mean 'max_num_seqs'"):
        ask(run.path, run.cells()[0].id, only=["max_num_seq"])


def test_pairs_beyond_all_measure_are_refused(run: RunStore) -> None:
    from typer.testing import CliRunner

    from harness.cli.commands import app

    result = CliRunner().invoke(app, ["why", str(run.path), run.cells()[0].id, "--pairs", "100000"])
    assert isinstance(result.exception, UsageError)
    assert "at most" in str(result.exception)


def test_the_command_says_what_it_would_change(run: RunStore) -> None:
    from typer.testing import CliRunner

    from harness.cli.commands import app

    result = CliRunner().invoke(app, ["why", str(run.path), run.cells()[0].id, "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "max_num_seqs: 64 to 51" in result.output
    # The run's own sessions and cells tell what it will take.
    assert "of starting and stopping (by" in " ".join(result.output.split())


def test_a_long_plan_says_what_would_shorten_it_before_anything_runs(
    run: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    import harness.cli.why
    import harness.why
    from harness.cli.commands import app

    def stop(*given: object) -> None:
        raise UsageError("nothing is to run here")

    def plan(*more: str) -> str:
        output = CliRunner().invoke(app, ["why", str(run.path), run.cells()[0].id, *more]).output
        assert "of starting and stopping (by" in " ".join(output.split())
        return " ".join(output.split())

    monkeypatch.setattr(harness.why, "answer", stop)
    monkeypatch.setattr(harness.cli.why, "_LONG_S", 1e9)
    assert "--only RESOURCE" not in plan("--dry-run")
    monkeypatch.setattr(harness.cli.why, "_LONG_S", 0.0)
    assert "--budget 10m" in plan("--dry-run")
    assert "--only RESOURCE" in plan()
    assert "--only RESOURCE" not in plan("--budget", "5m"), "it has its limit already"


def test_only_the_cell_that_is_asked_about_is_read(run: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from results import cell_summary
    from results.events import Requests, read_requests

    read: list[str] = []

    def reading(folder: Path) -> Requests:
        read.append(folder.name)
        return read_requests(folder)

    monkeypatch.setattr(cell_summary, "read_requests", reading)
    asked = run.cells()[0]
    assert ask(run.path, asked.id).entry["id"] == asked.id
    assert read == [asked.id]


def test_the_answer_is_a_table_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    import harness.why
    from harness.cli.commands import app
    from harness.runner import RunOutcome

    asked = question(tmp_path, batch="max_num_seqs")
    document = conclude(
        asked, summaries(asked, {"": 100.0, "max_num_seqs": 82.0, "threads": 101.0, "offered load": 100.5})
    )
    monkeypatch.setattr(harness.why, "ask", lambda *given: asked)
    monkeypatch.setattr(harness.why, "answer", lambda *given: (document, RunOutcome()))
    shown = CliRunner().invoke(app, ["why", "run", "abc"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
    assert "Throughput follows max_num_seqs." in shown.output
    assert "the batch is held by: max_num_seqs (borne out)" in shown.output
    # The plan comes first, in words.
    assert shown.output.startswith("Cell abc: e, 4 in flight, 32 in / 16 out. 3 pairs for each change:")
    told = CliRunner().invoke(app, ["why", "run", "abc", "--json"])
    assert json.loads(told.stdout)["holds"] == "max_num_seqs"


@pytest.mark.parametrize(("asked_pairs", "code"), [(3, 0), (1, 3)])
def test_an_answer_that_cannot_be_told_exits_with_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_pairs: int, code: int
) -> None:
    from typer.testing import CliRunner

    import harness.why
    from harness.cli.commands import app
    from harness.runner import RunOutcome

    asked = question(tmp_path, pairs=asked_pairs, batch="offered_load")
    document = conclude(
        asked, summaries(asked, {"": 100.0, "max_num_seqs": 82.0, "threads": 101.0, "offered load": 100.5})
    )
    monkeypatch.setattr(harness.why, "ask", lambda *given: asked)
    monkeypatch.setattr(harness.why, "answer", lambda *given: (document, RunOutcome()))
    shown = CliRunner().invoke(app, ["why", "run", "abc"], env={"COLUMNS": "80"})
    assert shown.exit_code == code, shown.output
    # Factors in words, as the report has them.
    assert "the batch is held by: the offered load" in shown.output
