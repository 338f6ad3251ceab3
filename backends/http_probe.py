"""Small synchronous requests to a server: is it ready, how is it set. Never through a proxy, never compressed.

Not for load: `harness.load` has its own client.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import re
import socket
import ssl
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from results.errors import EngineError, UsageError

MAX_BODY_BYTES = 16 << 20
EXAMPLE_URL = "http://127.0.0.1:8000"


class Trouble(StrEnum):
    """Why there was no answer."""

    REFUSED = "refused"
    TIMEOUT = "timeout"
    NAME = "name"
    TLS = "tls"
    PROTOCOL = "protocol"


class ProbeError(EngineError):
    """No answer from a server; `trouble` says of which kind."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble


@dataclass(frozen=True, slots=True)
class ServerURL:
    """Where a server is. `base` comes before every path, without a slash at its end (and without `/v1`)."""

    scheme: str
    host: str
    port: int
    base: str = ""

    @classmethod
    def parse(cls, text: str) -> ServerURL:
        """Read a URL as a person types it. Raises UsageError with an example."""
        example = f" Give the root of an OpenAI-compatible server, for example {EXAMPLE_URL}."
        shown = "the URL" if "@" in text else re.split("[?#]", text)[0]
        try:
            parts = urlsplit(text.strip())
            port = parts.port
        except ValueError as error:
            why = "" if "@" in text else f": {error}"  # the error quotes what may be a password
            raise UsageError(f"{shown!r} is not a URL{why}.{example}") from None
        if parts.scheme not in ("http", "https"):
            raise UsageError(f"{shown!r} has no scheme http:// or https://.{example}")
        if not parts.hostname or any(c.isspace() for c in parts.netloc):
            raise UsageError(f"{shown!r} names no host.{example}")
        if parts.username or parts.password:
            raise UsageError(
                f"The URL for {parts.hostname} holds a user name or password, which would end up in files. "
                "Put a bearer key into the environment variable DYNO_API_KEY instead."
            )
        if parts.query or parts.fragment:
            raise UsageError(
                f"{shown!r} is followed by a query or fragment, which a server's root cannot have.{example}"
            )
        if port == 0:
            raise UsageError(f"{shown!r} has port 0: no server can be reached there.{example}")
        base = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        return cls(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), base)

    @property
    def is_loopback(self) -> bool:
        """Whether what is sent there stays on this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost" or self.host.endswith(".localhost")

    @property
    def authority(self) -> str:
        """The Host header: brackets around IPv6, the port where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        return host if self.port == default else f"{host}:{self.port}"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.base}"


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's answer, whatever its status."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The decoded body, or None when it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def document(self) -> Any:
        """Decoded JSON where it is JSON, else the text."""
        decoded = self.json()
        return self.text if decoded is None else decoded


def bearer(key_env: str | None, target: ServerURL) -> dict[str, str]:
    """The authorisation header with the key in that environment variable; empty without one.

    Raises UsageError for a key that cannot be sent, and for an OpenAI account's key that would cross a network in clear.
    """
    key = os.environ.get(key_env, "").strip() if key_env else ""
    if not key:
        return {}
    if key_env == "OPENAI_API_KEY" and target.scheme == "http" and not target.is_loopback:
        raise UsageError(
            f"OPENAI_API_KEY is set, and would be sent unencrypted to {target}. Set DYNO_API_KEY to the key that server "
            "wants, or to nothing (`export DYNO_API_KEY=`) if it wants none."
        )
    if not key.isascii() or not key.isprintable():
        raise UsageError(f"The key in {key_env} holds characters that cannot be sent in a header. Set it again.")
    return {"Authorization": f"Bearer {key}"}


def get(url: str | ServerURL, path: str, timeout_s: float = 5.0, key_env: str | None = None) -> Reply:
    """GET url + path within `timeout_s` altogether. Raises ProbeError when there is no answer."""
    target = ServerURL.parse(url) if isinstance(url, str) else url
    deadline = time.monotonic() + timeout_s
    connection: http.client.HTTPConnection
    if target.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(target.host, target.port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(target.host, target.port, timeout=timeout_s)
    headers = {"Connection": "close", "Accept-Encoding": "identity", **bearer(key_env, target)}
    where = f"{target}{path}"
    try:
        connection.request("GET", target.base + path, headers=headers)
        response = connection.getresponse()
        return Reply(response.status, _read(connection, response, deadline))
    except ssl.SSLError as error:
        raise ProbeError(
            Trouble.TLS,
            f"No TLS connection to {where}: {_tls_words(error)}. If the server speaks plain HTTP, write http://; for a "
            "certificate of your own, let SSL_CERT_FILE name the file of its authority.",
        ) from error
    except TimeoutError as error:
        raise ProbeError(
            Trouble.TIMEOUT,
            f"{where} gave no whole answer within {timeout_s:g} s. Is the server busy loading, or is a firewall between?",
        ) from error
    except (socket.gaierror, UnicodeError) as error:
        why = error.strerror if isinstance(error, socket.gaierror) else error
        raise ProbeError(
            Trouble.NAME, f"The host name {target.host!r} cannot be resolved ({why}). Check its spelling."
        ) from error
    except http.client.HTTPException as error:
        raise ProbeError(
            Trouble.PROTOCOL,
            f"What answers at {where} does not speak HTTP as expected ({type(error).__name__}: {str(error)[:100]}). "
            "Check the port, and whether the server wants https://.",
        ) from error
    except OSError as error:
        raise ProbeError(
            Trouble.REFUSED,
            f"Nothing answers at {where} ({error.strerror or error}). Is the server running, and is this its port?",
        ) from error
    finally:
        connection.close()


def _read(connection: http.client.HTTPConnection, response: http.client.HTTPResponse, deadline: float) -> bytes:
    """The body, bounded in size and time (a socket's own timeout bounds each read only)."""
    pieces: list[bytes] = []
    size = 0
    while piece := response.read1(1 << 16):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise http.client.HTTPException(f"body larger than {MAX_BODY_BYTES} bytes")
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(left)
    return b"".join(pieces)


def _tls_words(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    return (error.reason or str(error)).lower().replace("_", " ")
