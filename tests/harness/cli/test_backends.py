"""`dyno backends`: the list, and `check`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from harness.conformance import CHECKS
from tests.harness.cli.conftest import Result
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_defects import DEFECTS, Conforming


def test_the_list_tells_every_backend_with_its_settings(dyno: Callable[..., Result]) -> None:
    rows = {row["name"]: row for row in json.loads(dyno("backends", "--json").out)}
    assert rows.keys() >= {"reference", "openai"}
    assert "max_num_seqs" in rows["reference"]["settings"]
    assert rows["reference"]["command"]
    assert rows["openai"]["command"] is None
    text = dyno("backends").out
    assert dyno("backends", "list").out == text
    assert "started with" in text


def test_backends_check_attaches_and_says_so_as_json(dyno: Callable[..., Result]) -> None:
    with FakeServer(Conforming()) as fake:
        said = dyno("backends", "check", "openai", "--url", fake.url, "--json")
    assert said.code == 0, said.out + said.err
    document = json.loads(said.out)
    assert document["ok"] is True
    assert [row["check"] for row in document["checks"]] == [check.id for check in CHECKS]


def test_backends_check_exits_with_1_where_a_promise_is_broken(dyno: Callable[..., Result]) -> None:
    with FakeServer(dict(DEFECTS)["prompt_ids"]()) as fake:
        said = dyno("backends", "check", "openai", "--url", fake.url)
    assert said.code == 1
    assert "1 ids sent, 2 counted" in said.out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("nope",), 2, "Unknown backend 'nope'"),
        (("openai",), 2, "--url"),
        (("openai", "--url", "http://127.0.0.1:9"), 4, "Nothing answers"),
        (("reference", "--engine", "block_size=x"), 2, "block_size"),
        (("reference", "--engine", "blocksize=4"), 2, "block_size"),
        (("reference", "--engine", "kv_dtype=fp8"), 2, "kv_dtype"),
    ],
)
def test_backends_check_tells_mistakes(
    words: tuple[str, ...], code: int, message: str, dyno: Callable[..., Result]
) -> None:
    said = dyno("backends", "check", *words)
    assert said.code == code, said
    assert message in said.err
    assert "Traceback" not in said.err
