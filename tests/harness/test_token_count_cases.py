"""Known mistakes of counting tokens, met on a real socket: special tokens, begin-of-text, ends before the length, refused fields."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backends.base import get_backend
from harness.cell_plan import make_plan, planned_requests
from harness.experiment import Experiment, Timeouts, cells_of
from harness.first_token import first_token_elsewhere, one_token
from harness.load.plan import LoadPlan
from harness.models.planning import vocabulary
from harness.session import Session
from results.errors import EngineError
from tests.harness.load.support import run_load
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_steps import (
    DONE,
    Received,
    Step,
    full_answer,
    json_answer,
    stream,
    text_event,
    usage_event,
)
from workloads.base import Vocabulary
from workloads.lengths import FixedLength
from workloads.random import RandomWorkload


def chat_plan(workload: dict[str, Any], words: Vocabulary, folder: Path) -> tuple[LoadPlan, list[Any]]:
    """What a cell of 200 chat requests would send."""
    asked = Experiment.model_validate(
        {"model": "m", "endpoint": "chat", "engines": [{"label": "a", "backend": "openai", "url": "http://h"}]}
        | {"workloads": [workload], "loads": [{"mode": "concurrency", "concurrency": 2, "requests": 200}]}
    )
    (cell,) = cells_of(asked)
    server = SimpleNamespace(
        backend=get_backend("openai"), served_name="m", url="http://h:1", record=SimpleNamespace(settings={})
    )
    session = cast(Session, server)
    plan = make_plan(cell, session, asked, words, planned_requests(cell, words), cell.load, folder)
    return plan, [json.loads(line) for line in plan.bodies_path.read_bytes().splitlines()]


def test_no_special_id_is_ever_drawn_whatever_the_seed() -> None:
    special = frozenset({0, 1, 2, 998, 999, *range(300, 331)})
    workload = RandomWorkload(input_len=FixedLength(tokens=32), output_len=FixedLength(tokens=1))
    for seed in range(10):
        drawn = {i for r in workload.requests(1000, seed, Vocabulary(1000, special)) for i in r.prompt}
        assert not drawn & special
        assert len(drawn) == 1000 - len(special)


def test_prompts_sent_as_text_are_counted_as_they_will_be_read_and_hold_no_broken_or_special_token(
    smollm2_dir: Path, tmp_path: Path
) -> None:
    words = vocabulary(smollm2_dir)
    assert words.encode is not None
    workload = {
        "type": "random",
        "input_len": {"dist": "fixed", "tokens": 128},
        "output_len": {"dist": "fixed", "tokens": 1},
    }
    plan, bodies = chat_plan(workload, words, tmp_path)
    texts = [body["messages"][0]["content"] for body in bodies]
    lengths = [len(words.encode(text)) for text in texts]
    # Random ids read again are seldom as many: what is recorded is what a server will count, not what was asked.
    assert lengths != [128] * len(texts)
    assert [request.input_tokens for request in plan.requests] == lengths
    assert not any("\ufffd" in text for text in texts)
    assert not any(words.special & set(words.encode(text)) for text in texts)


@pytest.mark.parametrize("usage", [None, 4])
def test_output_is_counted_without_any_begin_of_text_token(usage: int | None, tmp_path: Path) -> None:
    events = [*(text_event(c) for c in "abc"), text_event("d", "length")]
    said = [usage_event(usage)] if usage is not None else []
    with FakeServer(stream(*events, *said, DONE)) as server:
        ran = run_load(server.url, tmp_path, tokens=4)
    assert ran.requests[0]["output_tokens"] == 4
    assert len([c for c in ran.chunks if c["kind"] == "text"]) == 4


def test_what_was_delivered_counts_and_not_what_was_asked(tmp_path: Path) -> None:
    events = [*(text_event("t") for _ in range(7)), text_event("t", "length"), usage_event(8), DONE]
    with FakeServer(stream(*events)) as server:
        (row,) = run_load(server.url, tmp_path, tokens=128).requests
    assert (row["output_tokens"], row["output_tokens_asked"]) == (8, 128)
    assert (row["outcome"], row["finish_reason"]) == ("short", "length")


def test_a_server_that_refuses_ignore_eos_is_found_by_one_request_before_any_load() -> None:
    words = "Unrecognized request argument supplied: ignore_eos"

    def answer(request: Received) -> list[Step]:
        if "ignore_eos" in request.json:
            return json_answer({"error": {"message": words, "type": "invalid_request_error"}}, 400)
        return full_answer(1)

    with FakeServer(answer) as server:
        send = one_token(get_backend("openai"), server.url, "completions", "m", "probe")
        with pytest.raises(EngineError, match=words):
            first_token_elsewhere(send, server.url, None, Timeouts(connect_s=2))
        assert len(server.requests) == 1
