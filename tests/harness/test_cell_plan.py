"""What a cell sends: the same requests for every engine, at the times of its load, in the words of its endpoint."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backends.base import get_backend
from harness.cell_plan import make_plan, planned_requests, warmup_requests
from harness.experiment import Cell, Experiment, cells_of
from harness.load.plan import LoadPlan
from harness.models.planning import vocabulary
from harness.session import Session
from results.errors import UsageError
from workloads.base import PlannedRequest, Vocabulary

WORDS = Vocabulary(1000, frozenset({0, 1}))
LENGTHS = {"type": "random", "input_len": {"dist": "fixed", "tokens": 8}, "output_len": {"dist": "fixed", "tokens": 20}}
RATE = {"mode": "rate", "rate": 100.0, "arrival": "poisson", "requests": 30}


def experiment(load: dict[str, Any], **changes: Any) -> Experiment:
    workload = {**LENGTHS, **changes.pop("workload", {})}
    engines = [{"label": "a", "backend": "openai", "url": "http://h"}, {"label": "b", "backend": "reference"}]
    return Experiment.model_validate(
        {"model": "m", "engines": engines, "workloads": [workload], "loads": [load], **changes}
    )


def cell(load: dict[str, Any], **changes: Any) -> Cell:
    return cells_of(experiment(load, **changes))[0]


def plan_of(
    tmp_path: Path, load: dict[str, Any], words: Vocabulary = WORDS, **changes: Any
) -> tuple[LoadPlan, list[Any]]:
    """The worker's plan of a cell, and its bodies."""
    asked = experiment(load, **changes)
    one = cells_of(asked)[0]
    session = cast(Session, SimpleNamespace(backend=get_backend("openai"), served_name="m", url="http://h:1"))
    plan = make_plan(one, session, asked, words, planned_requests(one, words), one.load, tmp_path)
    return plan, [json.loads(line) for line in plan.bodies_path.read_bytes().splitlines()]


def test_cells_and_requests_of_earlier_versions_stay_what_they_were() -> None:
    made = Experiment.model_validate(
        {
            "model": "m",
            "engines": [{"label": "a", "backend": "openai"}],
            "workloads": [{**LENGTHS, "output_len": {"dist": "fixed", "tokens": 4}}],
            "loads": [
                {"mode": "batch", "batch": 4, "waves": 2},
                {"mode": "concurrency", "concurrency": 2, "requests": 8},
            ],
        }
    )
    batch, loop = cells_of(made)
    assert (batch.id, loop.id) == ("04f28e622f8542de", "d0d621598dbca426")
    assert next(iter(planned_requests(batch, Vocabulary(1000)))).prompt == (520, 731, 900, 938, 781, 500, 26, 247)
    lengths = [r.output_len for r in planned_requests(loop, Vocabulary(1000))]
    assert lengths == [2, 2, 4, 4, 4, 4, 4, 4]


def test_every_engine_gets_the_same_requests_at_the_same_times() -> None:
    first, second = ([*planned_requests(c, WORDS)] for c in cells_of(experiment(RATE)))
    assert first == second
    assert [r.at_ns for r in first] == sorted(r.at_ns or 0 for r in first)
    assert len({r.prompt for r in first}) == 30
    other = [*planned_requests(cells_of(experiment(RATE, seed=1))[0], WORDS)]
    assert [r.at_ns for r in other] != [r.at_ns for r in first]


def test_a_longer_time_repeats_no_prompt_and_begins_alike() -> None:
    loop = cell({"mode": "concurrency", "concurrency": 2, "duration_s": 60.0})
    some = list(islice(planned_requests(loop, WORDS), 2500))
    assert len({r.prompt for r in some}) == 2500
    assert [r.output_len for r in some[2:]] == [20] * 2498
    assert all(1 <= r.output_len <= 20 for r in some[:2])


def test_the_warm_up_keeps_to_the_cap_and_to_short_outputs_of_other_prompts() -> None:
    asked = cell({**RATE, "max_in_flight": 4}, workload={"max_tokens": 90})
    warm = warmup_requests(asked, WORDS)
    assert len(warm) == 4
    assert {(r.output_len, r.max_tokens, r.at_ns) for r in warm} == {(8, None, None)}
    assert not {r.prompt for r in warm} & {r.prompt for r in planned_requests(asked, WORDS)}


class Trace:
    """A workload that says when each of its requests is sent."""

    def __init__(self, times: list[int | None]) -> None:
        self.times = times

    def model_dump(self, mode: str) -> dict[str, Any]:
        return {"type": "trace"}

    def requests(self, n: int, seed: int, vocabulary: Vocabulary) -> list[PlannedRequest]:
        return [PlannedRequest((2, i), 3, at_ns=t) for i, t in enumerate(self.times[:n], start=2)]


def test_a_schedule_without_times_takes_those_of_the_workload_from_its_first_request_on() -> None:
    asked = cell({"mode": "schedule", "speed": 2.0})
    trace = Trace([5_000_000, 3_000_000, 9_000_000])
    played = list(planned_requests(asked.model_copy(update={"workload": trace}), WORDS))
    assert [(r.prompt, r.at_ns) for r in played] == [((2, 3), 0), ((2, 2), 1_000_000), ((2, 4), 3_000_000)]


@pytest.mark.parametrize("times", [[], [1, None]])
def test_a_workload_without_times_cannot_be_played_as_a_schedule(times: list[int | None]) -> None:
    asked = cell({"mode": "schedule"}).model_copy(update={"workload": Trace(times)})
    with pytest.raises(UsageError, match="the workload must say when"):
        planned_requests(asked, WORDS)


def test_requests_reach_the_worker_with_their_times_and_lengths(tmp_path: Path) -> None:
    plan, bodies = plan_of(tmp_path, {**RATE, "max_in_flight": 3})
    assert len(plan.requests) == len(bodies) == 30
    assert (plan.connections, plan.duration_ns, plan.path) == (3, None, "/v1/completions")
    assert plan.requests[0].at == 0
    assert {b["max_tokens"] for b in bodies} == {20}
    assert all(isinstance(b["prompt"], list) for b in bodies)
    assert {r.cancel_after_tokens for r in plan.requests} == {None}


def test_an_output_the_client_ends_is_asked_for_with_room(tmp_path: Path) -> None:
    plan, bodies = plan_of(tmp_path, RATE, workload={"max_tokens": 90})
    assert {b["max_tokens"] for b in bodies} == {90}
    assert {(r.cancel_after_tokens, r.output_tokens) for r in plan.requests} == {(20, 20)}


def test_a_closed_loop_that_ends_by_time_tells_the_worker_when(tmp_path: Path) -> None:
    plan, _ = plan_of(tmp_path, {"mode": "batch", "batch": 4, "waves": 2, "duration_s": 1.5})
    assert plan.duration_ns == 1_500_000_000


def test_chat_sends_the_text_of_the_same_prompts(tmp_path: Path, tiny_dir: Path) -> None:
    words = vocabulary(str(tiny_dir))
    plan, bodies = plan_of(tmp_path, RATE, words, endpoint="chat", stream=False)
    (message,) = bodies[0]["messages"]
    assert (message["role"], "prompt" in bodies[0], bodies[0]["stream"]) == ("user", False, False)
    first = next(iter(planned_requests(cell(RATE, endpoint="chat"), words)))
    assert message["content"] == words.text(cast(tuple[int, ...], first.prompt)) != ""
    assert (plan.path, plan.stream) == ("/v1/chat/completions", False)
    # Text of random ids may read as another number of tokens: planned is what it reads as.
    assert words.encode is not None
    texts = [b["messages"][0]["content"] for b in bodies]
    assert [r.input_tokens for r in plan.requests] == [len(words.encode(text)) for text in texts]


def test_chat_without_a_tokenizer_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--tokenizer"):
        plan_of(tmp_path, RATE, endpoint="chat")
