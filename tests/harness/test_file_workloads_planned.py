"""Workloads from files on their way to the load worker: times, turns, natural ends, and what the server cannot take."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backends.base import Resolved, Source, get_backend
from harness.cell_plan import make_plan, planned_requests, warmup_requests
from harness.cli.workload_args import guess_type, length_of, trace_of, workload_of
from harness.experiment import Experiment, cells_of
from harness.load.plan import LoadPlan
from harness.session import Session
from harness.session_checks import refuse_too_long
from results.errors import UnknownNameError, UsageError
from workloads.base import Vocabulary

DATA = Path(__file__).parents[1] / "data" / "workloads"
WORDS = Vocabulary(
    300,
    decode=lambda ids: bytes(i for i in ids if i < 256).decode("utf-8", "replace"),
    encode=lambda text: [*text.encode()],
)
LOOP = {"mode": "concurrency", "concurrency": 2, "requests": 8}


def experiment(workload: dict[str, Any], load: dict[str, Any]) -> Experiment:
    engines = [{"label": "a", "backend": "openai", "url": "http://h"}]
    return Experiment.model_validate({"model": "m", "engines": engines, "workloads": [workload], "loads": [load]})


def plan_of(
    tmp_path: Path, workload: dict[str, Any], load: dict[str, Any], limit: int | None = None
) -> tuple[LoadPlan, list[Any], Counter[str]]:
    asked = experiment(workload, load)
    (cell,) = cells_of(asked)
    record = SimpleNamespace(settings={"max_model_len": {"value": limit}})
    session = cast(
        Session, SimpleNamespace(backend=get_backend("openai"), served_name="m", url="http://h:1", record=record)
    )
    notes: Counter[str] = Counter()
    plan = make_plan(cell, session, asked, WORDS, planned_requests(cell, WORDS), cell.load, tmp_path, notes)
    return plan, [json.loads(line) for line in plan.bodies_path.read_bytes().splitlines()], notes


AZURE = {"type": "trace", "path": str(DATA / "azure_llm_conv_2023.csv")}


def test_a_trace_is_replayed_at_its_own_times_as_fast_as_asked_and_cut_where_asked(tmp_path: Path) -> None:
    plan, bodies, _ = plan_of(tmp_path / "a", AZURE, {"mode": "schedule", "speed": 10.0, "requests": 50})
    workload = experiment(AZURE, LOOP).workloads[0]
    times = cast(Any, workload).times_ns()
    assert [r.at for r in plan.requests] == [round(t / 10) for t in times[:50]]
    assert [(len(b["prompt"]), b["max_tokens"]) for b in bodies] == [
        (row.input_tokens, row.output_tokens) for row in cast(Any, workload).trace.rows[:50]
    ]
    cut, _, _ = plan_of(tmp_path / "b", AZURE, {"mode": "schedule", "duration_s": 1.0})
    assert len(cut.requests) == sum(t < 1_000_000_000 for t in times)


def test_a_rate_that_needs_more_than_the_file_has_is_refused(tmp_path: Path) -> None:
    load = {"mode": "rate", "rate": 100.0, "requests": 201}
    with pytest.raises(UsageError, match="has 200 usable entries, and 201 requests are asked for"):
        plan_of(tmp_path, AZURE, load)
    plan, _, _ = plan_of(tmp_path, {**AZURE, "oversample": True}, load)
    assert len(plan.requests) == 201


def test_the_turns_of_a_conversation_share_a_slot_and_the_first_of_each_slot_is_shortened(tmp_path: Path) -> None:
    fixed = {"dist": "fixed", "tokens": 40}
    workload = {
        "type": "conversations",
        "turns": {**fixed, "tokens": 2},
        "input_len": fixed,
        "turn_len": fixed,
        "output_len": fixed,
    }
    plan, _, _ = plan_of(tmp_path, workload, LOOP)
    assert [r.slot for r in plan.requests] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [r.output_tokens for r in plan.requests[4:]] == [40] * 4
    assert [r.output_tokens for r in plan.requests[1:4:2]] == [40, 40]
    assert all(r.output_tokens <= 40 for r in plan.requests)
    with pytest.raises(UsageError, match="The turns of a conversation wait for each other"):
        plan_of(tmp_path, workload, {"mode": "rate", "rate": 10.0, "requests": 8})


def test_natural_ends_ask_no_engine_to_ignore_its_end_of_text(tmp_path: Path) -> None:
    workload = {
        "type": "sharegpt",
        "path": str(DATA / "sharegpt_fastchat.json"),
        "natural_eos": True,
        "most_output": 77,
    }
    plan, bodies, _ = plan_of(tmp_path, workload, LOOP)
    assert not plan.ignore_eos
    assert not any("ignore_eos" in b for b in bodies)
    assert {b["max_tokens"] for b in bodies[2:]} == {77}


def test_a_file_that_lies_elsewhere_gives_the_same_requests(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere.json"
    copy.write_bytes((DATA / "sharegpt_fastchat.json").read_bytes())
    drawn = []
    for path in (DATA / "sharegpt_fastchat.json", copy):
        (cell,) = cells_of(experiment({"type": "sharegpt", "path": str(path)}, LOOP))
        drawn.append([tuple(r.prompt) for r in planned_requests(cell, WORDS)])
    assert drawn[0] == drawn[1]


def test_a_request_longer_than_the_server_takes_is_refused_before_any_is_sent(tmp_path: Path) -> None:
    workload = {"type": "sharegpt", "path": str(DATA / "conversations_role_content.json"), "max_skipped": 0.9}
    load = {"mode": "batch", "batch": 2, "waves": 1}
    with pytest.raises(UsageError, match=r"needs [\d,]+ tokens .* more than the 300 that engine 'a' takes"):
        plan_of(tmp_path, workload, load, limit=300)
    plan, _, notes = plan_of(
        tmp_path, {**workload, "max_len": 300, "too_long": "truncate", "most_output": 200}, load, limit=300
    )
    assert all((r.input_tokens or 0) + r.output_tokens <= 300 for r in plan.requests)
    assert notes["truncated"] >= 1


def test_all_requests_that_are_too_long_are_told(tmp_path: Path) -> None:
    lengths = {name: {"dist": "fixed", "tokens": tokens} for name, tokens in (("input_len", 400), ("output_len", 4))}
    workload = {"type": "random", **lengths}
    for count, told in (
        (1, "takes. Give"),
        (2, "takes; so does 2. Give"),
        (8, "takes; so do 7 others: 2, 3, 4, 5, 6 ... Give"),
    ):
        load = {"mode": "batch", "batch": count, "waves": 1}
        with pytest.raises(UsageError) as refused:
            plan_of(tmp_path, workload, load, limit=300)
        assert told in str(refused.value)


def test_a_trace_longer_than_the_server_takes_is_refused_with_the_ways_out() -> None:
    with pytest.raises(UsageError, match=r"requests of up to \d+ tokens, more than the 2048 .*too_long=drop"):
        refuse_too_long(experiment(AZURE, LOOP), "a", Resolved(2048, Source.ASKED))
    fitting = experiment({**AZURE, "max_len": 2048, "too_long": "drop"}, LOOP)
    refuse_too_long(fitting, "a", Resolved(2048, Source.ASKED))


def test_the_warm_up_of_a_trace_has_neither_its_times_nor_its_outputs() -> None:
    (cell,) = cells_of(experiment(AZURE, LOOP))
    assert {(r.output_len <= 8, r.at_ns, r.chain) for r in warmup_requests(cell, WORDS)} == {(True, None, None)}


def test_flags_name_workloads_by_file_or_by_kind() -> None:
    path = str(DATA / "sharegpt_fastchat.json")
    assert workload_of(path) == {"type": "sharegpt", "path": path}
    assert workload_of(f"{path},max_len=512,too_long=drop") == {
        "type": "sharegpt",
        "path": path,
        "max_len": 512,
        "too_long": "drop",
    }
    assert workload_of("prefix:prefix_len=64,hit_share=90%,input_len=normal:32:4,output_len=8") == {
        "type": "prefix",
        "prefix_len": 64,
        "hit_share": 0.9,
        "input_len": {"dist": "normal", "mean": 32, "std": 4},
        "output_len": {"dist": "fixed", "tokens": 8},
    }
    assert workload_of("prefix:hit_share=0")["hit_share"] == 0.0
    assert trace_of("t.csv,rows=5", "azure") == {"type": "trace", "path": "t.csv", "rows": 5, "format": "azure"}
    assert length_of("input_len", "uniform:3:9") == {"dist": "uniform", "low": 3, "high": 9}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sharegp:x.json", "Unknown workload 'sharegp'. Did you mean 'sharegpt'"),
        ("prefix:a=1,groups", "Unknown key of a workload 'a'"),
        ("random:input_len=normall:3:1", "Did you mean 'normal'"),
        ("random:input_len=fixed:3:1", "fixed takes tokens"),
        ("jsonl:f,oversample=maybe", "is true or false"),
        ("nothing.json", "Cannot read the workload nothing.json"),
    ],
)
def test_flags_that_make_no_sense_name_the_way_out(text: str, words: str) -> None:
    with pytest.raises((UsageError, UnknownNameError), match=words.replace("(", r"\(")):
        experiment(workload_of(text), LOOP)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("azure_llm_conv_2023.csv", "trace"),
        ("mooncake_synthetic.jsonl", "trace"),
        ("sharegpt_fastchat.json", "sharegpt"),
        ("conversations_role_content.json", "sharegpt"),
    ],
)
def test_what_a_file_is_shows_in_it(name: str, kind: str) -> None:
    assert guess_type(str(DATA / name)) == kind
