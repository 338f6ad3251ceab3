"""An engine behind HTTP as an arm: whichever way a server tells ids and log probabilities, they are read alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.experiment import EngineSpec
from harness.open_server import open_server
from harness.verify import ServerArm
from results.agreement import Position
from results.errors import EngineError
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_steps import Received, Step, json_answer
from tests.waiting import LONG_S

# What every dialect below has to say: after any prompt come 11, 12, ... with these log probabilities.
LOGPROBS = (-0.1, -0.2, -0.3, -0.4)
OTHER = 40
Dialect = Callable[[dict[str, Any]], tuple[dict[str, Any], int]]


def said(n: int) -> tuple[list[int], list[float], list[dict[int, float]]]:
    ids = [11 + i for i in range(n)]
    return ids, list(LOGPROBS[:n]), [{token: LOGPROBS[i], OTHER: -3.0} for i, token in enumerate(ids)]


def openai_object(ids: list[int], values: list[Any], tops: list[Any], named: bool) -> dict[str, Any]:
    def name(token: int) -> str:
        return f"token_id:{token}" if named else f" w{token}"

    return {
        "tokens": [name(i) for i in ids],
        "token_logprobs": values,
        "top_logprobs": [None if top is None else {name(i): v for i, v in top.items()} for top in tops],
    }


def vllm(body: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Tells everything: ids, log probabilities by id, and those of the prompt."""
    ids, values, tops = said(body["max_tokens"])
    choice: dict[str, Any] = {"text": "", "logprobs": None, "prompt_logprobs": None}
    if body.get("return_token_ids"):
        choice["token_ids"] = ids
    if body.get("logprobs") is not None:
        choice["logprobs"] = openai_object(ids, values, tops, bool(body.get("return_tokens_as_token_ids")))
    if body.get("prompt_logprobs") is not None:
        entries = [
            {str(t): {"logprob": -1.5, "rank": 2}, "40": {"logprob": -0.5, "rank": 1}} for t in body["prompt"][1:]
        ]
        choice["prompt_logprobs"] = [None, *entries]
    return choice, 200


def by_name(body: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """No id field, but names that are ids; prompts by echo."""
    ids, values, tops = said(body["max_tokens"])
    if body.get("echo"):
        n = len(body["prompt"])
        ids = [*body["prompt"], *ids]
        values, tops = [None, *[-1.5] * (n - 1), *values], [None, *[{i: -1.5, 40: -0.5} for i in ids[1:n]], *tops]
    told = openai_object(ids, values, tops, True) if body.get("return_tokens_as_token_ids") else None
    return {"text": "", "logprobs": told}, 200


def strict(body: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Refuses every field it does not know, and knows few."""
    unknown = body.keys() - {"model", "prompt", "max_tokens", "temperature", "stream", "ignore_eos"}
    if unknown:
        return {"error": {"message": f"Extra inputs are not permitted: {sorted(unknown)}"}}, 400
    return {"text": " ".join(f"w{i}" for i in said(body["max_tokens"])[0])}, 200


def deaf(body: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Ignores what it does not know, and tells text alone."""
    return {"text": " ".join(f"w{i}" for i in said(body["max_tokens"])[0])}, 200


def ids_only(body: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Refuses log probabilities, tells ids."""
    if "logprobs" in body or "prompt_logprobs" in body:
        return {"error": {"message": "logprobs is not supported"}}, 400
    return {"text": "", "token_ids": said(body["max_tokens"])[0]}, 200


def nan(body: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Its numbers are broken, which JSON can only say as null."""
    ids = said(body["max_tokens"])[0]
    return {
        "text": "",
        "token_ids": ids,
        "logprobs": openai_object(ids, [None] * len(ids), [None] * len(ids), True),
    }, 200


def words_to_ids(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]


@contextmanager
def arm(dialect: Dialect, folder: Path, encode: Callable[[str], list[int]] | None = None) -> Iterator[ServerArm]:
    def script(request: Received) -> list[Step]:
        if request.path == "/v1/models":
            return json_answer({"data": [{"id": "m", "max_model_len": 512}]})
        if request.path != "/v1/completions":
            return json_answer("{}")
        choice, status = dialect(request.json)
        usage = {"prompt_tokens": len(request.json["prompt"]), "completion_tokens": request.json["max_tokens"]}
        return json_answer(choice if status != 200 else {"choices": [{"index": 0, **choice}], "usage": usage}, status)

    with FakeServer(script) as fake:
        engine = EngineSpec(label="fake", backend="openai", url=fake.url)
        with open_server(engine, None, "", folder) as server:
            yield ServerArm("fake", server, encode, timeout_s=LONG_S)


def full(n: int) -> list[Position]:
    return [Position(i, v, t) for i, v, t in zip(*said(n), strict=True)]


def bare(n: int) -> list[Position]:
    return [Position(i) for i in said(n)[0]]


@pytest.mark.parametrize(
    ("dialect", "encode", "expected"),
    [
        (vllm, None, full),
        (by_name, None, full),
        (ids_only, None, bare),
        (strict, words_to_ids, bare),
        (deaf, words_to_ids, bare),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_outputs_are_read_whichever_way_they_are_told(
    dialect: Dialect,
    encode: Callable[[str], list[int]] | None,
    expected: Callable[[int], list[Position]],
    together: bool,
    tmp_path: Path,
) -> None:
    with arm(dialect, tmp_path, encode) as engine:
        assert engine.generate([[1, 2, 3], [4, 5]], 4, together=together) == [expected(4), expected(4)]
        assert engine.about["told"]


@pytest.mark.parametrize("dialect", [vllm, by_name])
def test_a_prompt_is_scored_from_its_second_token_on(dialect: Dialect, tmp_path: Path) -> None:
    with arm(dialect, tmp_path) as engine:
        scores = engine.score([[7, 8, 9], [4, 5]])
    assert scores.reason is None
    assert scores.texts is not None
    assert [[p.token for p in text] for text in scores.texts] == [[8, 9], [5]]
    assert scores.texts[1] == [Position(5, -1.5, {5: -1.5, 40: -0.5})]


def test_a_server_that_tells_ids_alone_is_asked_for_its_favourite_in_each_place(tmp_path: Path) -> None:
    sent: list[list[int]] = []

    def counting(body: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """Its favourite is the last token plus one."""
        if not body.get("return_token_ids") or body.get("logprobs"):
            return {"error": {"message": "no such field"}}, 400
        sent.append(body["prompt"])
        return {"text": "", "token_ids": [body["prompt"][-1] + 1]}, 200

    with arm(counting, tmp_path) as engine:
        scores = engine.score([[7, 8, 9], [3, 1]])
    assert sent[-3:] == [[7], [7, 8], [3]]
    assert scores.texts is not None
    assert [[(p.token, list(p.top)) for p in text] for text in scores.texts] == [[(8, [8]), (9, [9])], [(1, [4])]]
    assert "its favourite was asked for in 3 of 3 places instead" in str(scores.reason)


@pytest.mark.parametrize("dialect", [strict, deaf])
def test_a_server_that_does_not_score_prompts_gives_the_reason(dialect: Dialect, tmp_path: Path) -> None:
    with arm(dialect, tmp_path, words_to_ids) as engine:
        scores = engine.score([[7, 8, 9]])
    assert scores.texts is None
    assert scores.reason is not None
    assert scores.reason.startswith("fake tells no log probabilities of a prompt (prompt_logprobs: ")
    assert "echo: " in scores.reason


def test_a_null_among_the_numbers_is_nan(tmp_path: Path) -> None:
    with arm(nan, tmp_path) as engine:
        (output,) = engine.generate([[1, 2, 3]], 2, together=False)
    assert [p.token for p in output] == [11, 12]
    assert all(p.logprob is not None and math.isnan(p.logprob) for p in output)


def test_text_alone_without_a_tokenizer_is_refused_with_what_was_tried(tmp_path: Path) -> None:
    with arm(strict, tmp_path) as engine, pytest.raises(EngineError) as error:
        engine.generate([[1, 2, 3]], 2, together=False)
    assert "Extra inputs are not permitted" in str(error.value)
    assert "--model" in str(error.value)


def test_a_server_that_fails_in_the_middle_is_an_error_that_names_the_engine(tmp_path: Path) -> None:
    calls = []

    def dying(body: dict[str, Any]) -> tuple[dict[str, Any], int]:
        calls.append(body)
        return vllm(body) if len(calls) < 3 else ({"error": {"message": "out of memory"}}, 500)

    with arm(dying, tmp_path) as engine, pytest.raises(EngineError, match=r"Engine 'fake' .* HTTP 500: out of memory"):
        engine.generate([[1, 2], [3, 4], [5, 6]], 2, together=False)
