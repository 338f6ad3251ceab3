"""Prompt tokens as planned against those counted: one cause for all is told as that cause, the rest as mismatches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from results.events import Requests
from results.prompt_counts import PromptCounts, prompt_counts

ERRORS = Path(__file__).parents[1] / "harness" / "load" / "data" / "error_bodies.json"


def counts(pairs: list[tuple[int | None, int | None]], endpoint: str = "completions") -> PromptCounts:
    rows: list[dict[str, Any]] = [
        {"request_id": f"r{i}", "outcome": "ok", "input_tokens_planned": planned, "input_tokens_counted": counted}
        for i, (planned, counted) in enumerate(pairs)
    ]
    return prompt_counts(Requests.of(rows), endpoint)


def test_a_second_begin_of_text_token_is_named_and_is_no_mismatch() -> None:
    found = counts([(24, 25)] * 3)
    assert found.notes["bos_duplicated"].startswith("24 tokens sent and 25 counted")
    assert (found.differ, found.overhead) == (0, None)


def test_one_more_token_in_some_prompts_alone_is_a_mismatch() -> None:
    found = counts([(24, 25), (30, 30)])
    assert (found.differ, found.example, found.notes) == (1, "e.g. 24 sent, 25 counted", {})


def test_a_template_adds_the_same_everywhere_and_what_it_does_not_explain_is_a_mismatch() -> None:
    alike = [(n, n + 5) for n in range(10, 60)]
    found = counts(alike, "chat")
    assert (found.overhead, found.differ) == (5, 0)
    found = counts([*alike, (70, 79)], "chat")
    assert (found.overhead, found.differ, found.example) == (5, 1, "e.g. 70 sent, 79 counted")
    assert found.notes["template_overhead"].startswith("5 tokens more")


@pytest.mark.parametrize("pairs", [[], [(None, 25), (None, 30)], [(24, None)]])
def test_counts_that_nobody_can_hold_against_each_other_say_nothing(pairs: list[tuple[int | None, int | None]]) -> None:
    assert counts(pairs) == PromptCounts()


@pytest.mark.parametrize("server", ["vllm", "sglang", "tgi"])
def test_prompts_the_server_calls_too_long_are_told_whatever_its_words(server: str) -> None:
    said = json.loads(ERRORS.read_text())[server]
    message = said["error"] if isinstance(said.get("error"), str) else said["message"]
    rows = [{"request_id": "a", "outcome": "http_error", "error": f"HTTP 400: {message}"}, {"request_id": "b"}]
    note = prompt_counts(Requests.of(rows), "completions").notes["prompts_too_long"]
    assert note.startswith("1 of 2 requests")
    assert "4096" in note
