"""A plan says all the worker needs, survives its file, and refuses what cannot be sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.http_probe import ServerURL
from harness.experiment import Timeouts
from harness.load.build import PlannedBody, anti_lock_lengths, build_plan
from harness.load.plan import BatchMode, ConcurrencyMode, LoadPlan, RequestTimeouts
from harness.loads import BatchLoad, ConcurrencyLoad
from results.errors import StoreError, UsageError


@pytest.mark.parametrize(
    ("url", "target", "authority"),
    [
        ("http://127.0.0.1:8000", ServerURL("http", "127.0.0.1", 8000), "127.0.0.1:8000"),
        ("http://host/", ServerURL("http", "host", 80), "host"),
        ("https://host/v1", ServerURL("https", "host", 443), "host"),
        ("https://host:444/api/v1/", ServerURL("https", "host", 444, "/api"), "host:444"),
        ("http://[::1]:80", ServerURL("http", "::1", 80), "[::1]"),
    ],
)
def test_a_base_url_is_understood(url: str, target: ServerURL, authority: str) -> None:
    assert ServerURL.parse(url) == target
    assert ServerURL.parse(url).authority == authority


@pytest.mark.parametrize(
    "url",
    ["", "host:8000", "ftp://host", "http://", "http://host:port", "http://h:99999", "http://u:p@h", "http://h/?k=1"],
)
def test_what_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        ServerURL.parse(url)


def bodies(count: int) -> list[PlannedBody]:
    return [PlannedBody(f"r{i}", b'{"n": %d}' % i, 3, 4) for i in range(count)]


def test_a_plan_survives_its_file_and_finds_its_bodies(tmp_path: Path) -> None:
    load = BatchLoad(batch=2, waves=3)
    limits = Timeouts(connect_s=1, first_token_s=2, between_tokens_s=3, total_s=4)
    plan = build_plan(load, bodies(6), url="http://h:1", folder=tmp_path / "p", timeouts=limits, api_key_env="KEY")
    again = LoadPlan.load(plan.save(tmp_path / "out"))
    assert again.out_dir == str(tmp_path / "out")
    assert LoadPlan.from_json(plan.to_json()) == plan
    assert again.requests == plan.requests
    assert (again.mode, again.timeouts) == (BatchMode(2, 3), RequestTimeouts(1, 2, 3, 4))
    data = again.bodies_path.read_bytes()
    assert [data[r.offset : r.offset + r.length] for r in again.requests] == [b.body for b in bodies(6)]


def test_a_concurrency_plan_needs_no_more_connections_than_requests(tmp_path: Path) -> None:
    plan = build_plan(
        ConcurrencyLoad.model_construct(concurrency=8, requests=3), bodies(3), url="http://h", folder=tmp_path
    )
    assert plan.mode == ConcurrencyMode(8)
    assert plan.connections == 3


@pytest.mark.parametrize(
    ("given_bodies", "words"),
    [
        (bodies(2), "3 requests, but 2 bodies"),
        ([PlannedBody("a", b"{}", 1, 1)] * 3, "used once"),
        ([PlannedBody("a\r\nx: y", b"{}", 1, 1)], "cannot name a request"),
        ([PlannedBody("a", b"{\n}", 1, 1)], "one line"),
    ],
)
def test_bodies_that_do_not_fit_are_refused(given_bodies: list[PlannedBody], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        build_plan(
            ConcurrencyLoad.model_construct(concurrency=1, requests=3), given_bodies, url="http://h", folder=tmp_path
        )


def test_a_file_that_is_no_plan_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(StoreError, match=r"plan\.json"):
        LoadPlan.load(path)
    path.write_text('{"mode": {"mode": "batch"}}')
    with pytest.raises(UsageError, match=r"plan\.json is not a load plan"):
        LoadPlan.load(path)


def test_a_key_that_is_not_set_is_named_but_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = build_plan(
        ConcurrencyLoad.model_construct(concurrency=1, requests=1),
        bodies(1),
        url="http://h",
        folder=tmp_path,
        api_key_env="MY_KEY",
    )
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(UsageError, match="MY_KEY"):
        plan.api_key()
    monkeypatch.setenv("MY_KEY", "bad\nkey-value")
    with pytest.raises(UsageError, match="MY_KEY") as raised:
        plan.api_key()
    assert "key-value" not in str(raised.value)


@given(st.lists(st.integers(1, 500), max_size=60), st.integers(1, 40), st.integers(0, 2**64 - 1))
def test_only_the_first_request_of_each_slot_is_shortened(lens: list[int], slots: int, seed: int) -> None:
    shortened = anti_lock_lengths(lens, slots, seed)
    assert shortened[slots:] == lens[slots:]
    assert all(1 <= new <= asked for new, asked in zip(shortened, lens, strict=True))
    assert shortened == anti_lock_lengths(lens, slots, seed)


def test_first_lengths_are_spread_over_the_whole_of_what_was_asked() -> None:
    first = anti_lock_lengths([100] * 2000, 2000, 1)
    assert min(first) <= 2
    assert max(first) >= 99
    assert abs(sum(first) / 2000 - 50.5) < 3
