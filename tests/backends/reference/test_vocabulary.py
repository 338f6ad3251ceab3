"""A tokenizer that has more tokens than the model: what it gives beyond the embedding is refused, never looked up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient, TestServer

from backends.reference.server import Server


class Encodes:
    """A tokenizer whose every text is the same ids, and a template."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    def encode(self, text: str, special: bool = True) -> list[int]:
        return self._ids

    def render(self, conversation: object) -> str:
        return "text"


async def asked(ids: list[int], path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    own = Encodes(ids)
    config = SimpleNamespace(vocab_size=100)
    server = Server(*(cast(Any, part) for part in (None, own, own, config, "m", {"max_model_len": 64})))
    async with TestClient(TestServer(server.app())) as client:
        answer = await client.post(path, json=body)
        return answer.status, await answer.json()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"model": "m", "prompt": "text"}, "prompt"),
        ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "text"}]}, "messages"),
    ],
)
def test_tokens_that_the_model_has_no_embedding_for_are_refused(path: str, body: dict[str, Any], param: str) -> None:
    status, told = asyncio.run(asked([1, 99, 100], path, body))
    assert status == 400
    assert told["error"]["param"] == param
    assert "Token id 100 is outside the vocabulary of 100 tokens" in told["error"]["message"]
