"""Probes answer or say why not, never through a proxy, and never tell a key."""

from __future__ import annotations

import socket
import threading

import pytest

from backends.http_probe import ProbeError, ServerURL, Trouble, get
from backends.ports import free_port
from results.errors import EngineError, UsageError
from tests.backends.conftest import answering
from tests.servers.openai_fake import CERTIFICATE, FakeServer
from tests.servers.openai_fake_tokens import TokenSchedule


def trouble_of(url: str, **options: float) -> tuple[Trouble, str]:
    with pytest.raises(ProbeError) as caught:
        get(url, "/health", **options)
    assert isinstance(caught.value, EngineError)
    return caught.value.trouble, str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://localhost:8000/v1/", "http://localhost:8000"),
        ("https://api.example.org/engines/a/v1", "https://api.example.org:443/engines/a"),
        (" http://[::1]:80/ ", "http://[::1]:80"),
        ("http://host", "http://host:80"),
    ],
)
def test_urls_as_people_type_them(text: str, shown: str) -> None:
    assert str(ServerURL.parse(text)) == shown
    assert ServerURL.parse(shown) == ServerURL.parse(text)


@pytest.mark.parametrize(
    "text",
    ["127.0.0.1:8000", "localhost", "", "ftp://x", "http://", "http://:8000", "http://x:port", "http://x:99999", "http://x:0",
     "http://x/?a=1", "http://x/#a", "http://a b:1", "http://[::1"],
)  # fmt: skip
def test_what_is_no_url_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"for example http://127\.0\.0\.1:8000"):
        ServerURL.parse(text)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="DYNO_API_KEY") as caught:
        ServerURL.parse("http://me:hunter2@host:1")
    assert "hunter2" not in str(caught.value)


def test_loopback_is_recognised() -> None:
    for text, loopback in [
        ("127.0.0.9", True),
        ("[::1]", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("a.b", False),
    ]:
        assert ServerURL.parse(f"http://{text}:1").is_loopback is loopback


def test_status_and_body_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody is there: a request through it would fail
    heads: list[bytes] = []

    def answer(connection: socket.socket, head: bytes) -> None:
        heads.append(head)
        connection.sendall(
            b'HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n4\r\n": 1\r\n1\r\n}\r\n0\r\n\r\n'
        )

    with answering(answer) as url:
        reply = get(f"{url}/base/v1", "/health")
    assert (reply.status, reply.json(), reply.document(), reply.text) == (503, {"a": 1}, {"a": 1}, '{"a": 1}')
    assert heads[0].startswith(b"GET /base/health HTTP/1.1\r\n")
    assert b"Accept-Encoding: identity" in heads[0]
    assert b"Authorization" not in heads[0]


def test_text_that_is_not_json_stays_text() -> None:
    with answering(lambda c, _: c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1\xff")) as url:
        reply = get(url, "/metrics")
    assert reply.json() is None
    assert reply.document() == "a 1�"


class TestAKey:
    def test_goes_into_the_header(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOME_KEY", " abc \n")
        heads: list[bytes] = []
        with answering(
            lambda c, h: (heads.append(h), c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))[0]
        ) as url:
            get(url, "/", key_env="SOME_KEY")
            get(url, "/", key_env="NOT_SET_AT_ALL")
        assert b"\r\nAuthorization: Bearer abc\r\n" in heads[0]
        assert b"Authorization" not in heads[1]

    def test_that_no_header_can_hold_is_refused_and_not_repeated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOME_KEY", "ab\nHost: x")
        with pytest.raises(UsageError, match="SOME_KEY") as caught:
            get("http://127.0.0.1:1", "/", key_env="SOME_KEY")
        assert "Host" not in str(caught.value)

    def test_of_an_openai_account_is_not_sent_in_clear_over_a_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-1234567")
        with pytest.raises(UsageError, match="DYNO_API_KEY") as caught:
            get("http://192.0.2.1:8000", "/", key_env="OPENAI_API_KEY")
        assert "sk-1234567" not in str(caught.value)


class TestNoAnswer:
    def test_nobody_listens(self) -> None:
        trouble, words = trouble_of(f"http://127.0.0.1:{free_port()}")
        assert trouble is Trouble.REFUSED
        assert "Is the server running" in words

    def test_a_name_that_does_not_resolve(self) -> None:
        trouble, words = trouble_of("http://no-such-host.invalid:80")
        assert trouble is Trouble.NAME
        assert "no-such-host.invalid" in words

    def test_silence(self) -> None:
        done = threading.Event()
        with answering(lambda *_: (done.wait(20), None)[1]) as url:
            trouble, words = trouble_of(url, timeout_s=0.2)
            done.set()
        assert trouble is Trouble.TIMEOUT
        assert "0.2 s" in words

    def test_a_body_that_drips_for_ever_ends_at_the_limit(self) -> None:
        done = threading.Event()

        def drip(connection: socket.socket, _: bytes) -> None:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while not done.wait(0.02):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

        with answering(drip) as url:
            assert trouble_of(url, timeout_s=0.3)[0] is Trouble.TIMEOUT
            done.set()

    def test_something_that_is_not_http(self) -> None:
        with answering(lambda c, _: c.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")) as url:
            trouble, words = trouble_of(url)
        assert trouble is Trouble.PROTOCOL
        assert "does not speak HTTP" in words

    def test_a_connection_that_closes_at_once(self) -> None:
        with answering(lambda *_: None) as url:
            assert trouble_of(url)[0] is Trouble.PROTOCOL

    def test_tls_against_a_plain_server(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def serve() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            trouble, words = trouble_of(f"https://127.0.0.1:{listener.getsockname()[1]}")
            thread.join(10)
        assert trouble is Trouble.TLS
        assert "write http://" in words

    def test_a_certificate_that_is_not_trusted_is_told_as_such(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        with FakeServer(TokenSchedule(interval_s=0.001), tls=True) as server:
            trouble, words = trouble_of(server.url)
            assert trouble is Trouble.TLS
            assert "not trusted (self-signed certificate)" in words
            assert "SSL_CERT_FILE" in words
            monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
            assert get(server.url, "/health").status == 200


@pytest.mark.parametrize(
    "text",
    [
        "http://h:9/v1?api_key=sk-12345678",
        "http://u:sk-1234/5678@h",
        "http://u:p@sk-12345678@h",
        "u:sk-12345678@h:80",
        "h#sk-1234",
    ],
)
def test_no_secret_of_a_url_is_repeated(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        ServerURL.parse(text)
    assert "sk-1234" not in str(refused.value)
