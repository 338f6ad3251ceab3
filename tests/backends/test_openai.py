"""Attaching to a server by URL: is it there, does it want a key, what does it serve, how is it set."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from backends.base import CompletionRequest, EngineSettings, LaunchContext, Resolved, Source, get_backend
from backends.http_probe import ProbeError, get
from backends.openai import BACKEND, MODELS_PATH, served_models
from backends.ports import free_port
from backends.prometheus import metric_names, neutral_metrics, parse_prometheus
from results.errors import EngineError, UnknownNameError, UsageError
from tests.backends.conftest import FakeEngine, answering
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_tokens import TokenSchedule
from tests.waiting import LONG_S, wait_until

MODELS = {"object": "list", "data": [{"id": "org/model-7b", "max_model_len": 4096}, {"id": "other"}]}


@contextmanager
def serving(pages: dict[str, tuple[int, Any]], key: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """A server with these pages (404 for others; 401 without `key`); yields its URL and the paths asked so far."""
    asked: list[str] = []

    def answer(connection: socket.socket, head: bytes) -> None:
        path = head.split()[1].decode()
        asked.append(path)
        status, document = pages.get(path, (404, {}))
        if key is not None and f"Bearer {key}\r\n".encode() not in head:
            status, document = 401, {"error": {"message": "no"}}
        body = document.encode() if isinstance(document, str) else json.dumps(document).encode()
        connection.sendall(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))

    with answering(answer) as url:
        yield url, asked


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYNO_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


class TestTheServer:
    def test_with_health_is_ready(self) -> None:
        with serving({"/health": (200, "")}) as (url, asked):
            BACKEND.check_attached(url, LONG_S)
        assert asked == ["/health"]

    def test_without_health_is_ready_when_it_lists_models(self) -> None:
        with serving({MODELS_PATH: (200, MODELS)}) as (url, asked):
            BACKEND.check_attached(url + "/v1", LONG_S)
        assert asked == ["/health", MODELS_PATH]

    def test_in_another_process_is_ready_after_its_503s(self, fake: FakeEngine) -> None:
        server = fake.start("--not-ready", "3")
        wait_until(lambda: "listening" in fake.words(), "the fake's socket")
        BACKEND.check_attached(fake.url, LONG_S)
        assert server.alive()

    def test_is_attached_to_and_read_back_over_http(self) -> None:
        with FakeServer(TokenSchedule(interval_s=0.001)) as server:
            BACKEND.check_attached(server.url, LONG_S)
            documents = {path: get(server.url, path).document() for path in BACKEND.settings_paths()}
        served = served_models(documents[MODELS_PATH])
        assert len(served) == 1
        assert BACKEND.served_name("", documents) == served[0]
        samples = parse_prometheus(documents["/metrics"], metric_names(BACKEND.metrics))
        assert neutral_metrics(BACKEND.metrics, samples)["running"] == 0

    def test_that_says_503_is_asked_again_until_the_limit(self) -> None:
        with (
            serving({"/health": (503, {})}) as (url, asked),
            pytest.raises(EngineError, match=r"503 \(not ready\) for 2 s"),
        ):
            BACKEND.check_attached(url, 2)
        assert len(asked) >= 2

    def test_that_becomes_healthy_meanwhile_is_taken(self) -> None:
        healthy_from = 3

        class Pages(dict[str, tuple[int, Any]]):
            asked = 0

            def get(self, *_: object) -> tuple[int, Any]:
                self.asked += 1
                return (200, {}) if self.asked >= healthy_from else (503, {})

        with serving(Pages()) as (url, asked):
            BACKEND.check_attached(url, LONG_S)
        assert asked == ["/health"] * healthy_from

    def test_that_is_not_there_is_told_at_once(self) -> None:
        with pytest.raises(ProbeError, match="Is the server running") as caught:
            BACKEND.check_attached(f"http://127.0.0.1:{free_port()}", 60)
        assert caught.value.exit_code == 4

    def test_of_another_kind_is_told(self) -> None:
        with serving({}) as (url, _), pytest.raises(EngineError, match=r"HTTP 404: it does not look like"):
            BACKEND.check_attached(url, LONG_S)

    def test_by_a_bad_url_is_a_usage_error(self) -> None:
        with pytest.raises(UsageError, match="for example"):
            BACKEND.check_attached("localhost:8000", 1)


class TestTheKey:
    def test_is_asked_for_by_name(self) -> None:
        with (
            serving({"/health": (200, {})}, key="abc") as (url, _),
            pytest.raises(EngineError, match=r"401.*DYNO_API_KEY"),
        ):
            BACKEND.check_attached(url, LONG_S)

    def test_comes_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DYNO_API_KEY", "abc")
        with serving({"/health": (200, {})}, key="abc") as (url, _):
            BACKEND.check_attached(url, LONG_S)

    def test_that_is_refused_is_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "wrong-one")
        with serving({"/health": (200, {})}, key="abc") as (url, _), pytest.raises(EngineError) as caught:
            BACKEND.check_attached(url, LONG_S)
        assert "OPENAI_API_KEY" in str(caught.value)
        assert "wrong-one" not in str(caught.value)

    def test_variable_of_our_own_comes_first_and_may_say_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert BACKEND.api_key_env() is None
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        assert BACKEND.api_key_env() == "OPENAI_API_KEY"
        monkeypatch.setenv("DYNO_API_KEY", "y")
        assert BACKEND.api_key_env() == "DYNO_API_KEY"
        monkeypatch.setenv("DYNO_API_KEY", "")
        assert BACKEND.api_key_env() is None


class TestTheModel:
    def test_must_be_served(self) -> None:
        assert BACKEND.served_name("other", {MODELS_PATH: MODELS}) == "other"
        with pytest.raises(UnknownNameError, match=r"Did you mean 'org/model-7b'\? Known: org/model-7b, other"):
            BACKEND.served_name("model-7b", {MODELS_PATH: MODELS})

    def test_is_the_only_one_where_none_is_named(self) -> None:
        assert BACKEND.served_name("", {MODELS_PATH: {"data": [{"id": "a"}]}}) == "a"
        with pytest.raises(UsageError, match="several models: org/model-7b, other"):
            BACKEND.served_name("", {MODELS_PATH: MODELS})

    def test_is_believed_where_the_server_lists_none(self) -> None:
        assert BACKEND.served_name("a", {}) == "a"
        with pytest.raises(EngineError, match="--model"):
            BACKEND.served_name("", {})

    @pytest.mark.parametrize("document", [None, "<html>", [], {"data": None}, {"data": [1, {"id": 2}, {}]}])
    def test_list_of_any_shape_is_tolerated(self, document: Any) -> None:
        assert served_models(document) == []


class TestSettings:
    def test_come_from_the_list_of_models_and_vllms_metrics(self) -> None:
        metrics = 'vllm:cache_config_info{block_size="16",kv_cache_size_tokens="4096",enable_prefix_caching="True"} 1\n'
        documents = {MODELS_PATH: MODELS, "/metrics": metrics, "/version": {"version": "0.32.0"}}
        resolved = BACKEND.resolved_settings(EngineSettings(dtype="bfloat16"), documents, "")
        assert resolved == {
            "dtype": Resolved("bfloat16", Source.ASKED),
            "max_model_len": Resolved(4096, Source.ENDPOINT),
            "block_size": Resolved(16, Source.ENDPOINT),
            "kv_cache_tokens": Resolved(4096, Source.ENDPOINT),
            "prefix_caching": Resolved(True, Source.ENDPOINT),
        }
        assert BACKEND.versions(documents, "") == {"server": "0.32.0"}

    def test_that_nobody_tells_are_unknown(self) -> None:
        several = {"data": [{"id": "a", "max_model_len": 1}, {"id": "b", "max_model_len": 2}]}
        assert BACKEND.resolved_settings(EngineSettings(), {MODELS_PATH: several, "/metrics": {}}, "") == {}
        assert BACKEND.versions({}, "") == {}

    def test_cannot_be_launched_with(self, tmp_path: Path) -> None:
        context = LaunchContext(Path("m"), "m", EngineSettings(), tmp_path, "h", 1, ())
        with pytest.raises(UsageError, match="--url"):
            get_backend("openai").launch_plan(context)
        assert not BACKEND.capabilities.launches

    def test_request_bodies_hold_only_what_such_servers_share(self) -> None:
        body = BACKEND.completion_body(CompletionRequest("m", "text", 5, ignore_eos=False))
        assert body["stream_options"] == {"include_usage": True}
        assert set(body) == {"model", "prompt", "max_tokens", "temperature", "stream", "stream_options"}
