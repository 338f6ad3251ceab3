"""One completion asked of a server by hand: for checks and comparisons, never for load (`harness.load` has its own client).

Everything the answer said is kept: status, the raw body, and of a stream each event as it was decoded.
"""

from __future__ import annotations

import http.client
import ssl
import time
from dataclasses import dataclass, field
from typing import Any

import orjson

from backends.http_probe import ProbeError, ServerURL, Trouble, bearer
from harness.load.completion import StreamResult, error_text, plain_result, shorten
from harness.load.sse import StreamParser
from results.clock import now_ns

COMPLETIONS = "/v1/completions"
PATHS = {"completions": COMPLETIONS, "chat": "/v1/chat/completions"}


@dataclass(slots=True)
class Answer:
    """What came back. `stream` holds counts and times; `token_ids` and `text` of the (first) choice where it told them.

    `whole` is False for a stream that the caller cut, or whose connection broke.
    """

    status: int
    body: bytes
    stream: StreamResult
    whole: bool = True
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """A 200 without an error inside."""
        return self.status == 200 and self.stream.error is None

    @property
    def message(self) -> dict[str, Any]:
        """The decoded body of an answer that is one JSON object; {} where it is none."""
        try:
            decoded = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return decoded if isinstance(decoded, dict) else {}

    @property
    def choice(self) -> dict[str, Any]:
        """The first choice of an answer that did not stream."""
        choices = self.message.get("choices")
        return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}

    def trouble(self) -> str:
        """Why the answer is none, in one line."""
        if self.status != 200:
            said = error_text(self.message) if self.message else self.body[:200].decode("utf-8", "replace")
            return f"HTTP {self.status}: {said}"
        return self.stream.error or ("" if self.whole else "the connection broke in the middle of the answer")


def ask(
    url: str,
    body: dict[str, Any],
    *,
    timeout_s: float = 120.0,
    key_env: str | None = None,
    cut_after: int | None = None,
    request_id: str | None = None,
    path: str = COMPLETIONS,
) -> Answer:
    """POST a body. With `cut_after` the connection is closed after so many events, as a client that leaves.

    Raises ProbeError when there is no answer at all, or not the whole of it within `timeout_s`.
    """
    target = ServerURL.parse(url)
    where = f"{target}{path}"
    deadline = time.monotonic() + timeout_s
    connection: http.client.HTTPConnection
    if target.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(target.host, target.port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(target.host, target.port, timeout=timeout_s)
    headers = {
        "Content-Type": "application/json",
        "Connection": "close",
        "Accept-Encoding": "identity",
        **bearer(key_env, target),
    }
    if request_id is not None:
        headers["X-Request-Id"] = request_id
    response: http.client.HTTPResponse | None = None
    try:
        connection.request("POST", target.base + path, orjson.dumps(body), headers)
        response = connection.getresponse()
        return _read(connection, response, deadline, cut_after)
    except TimeoutError as error:
        raise ProbeError(Trouble.TIMEOUT, f"{where} gave no whole answer within {timeout_s:g} s.") from error
    except (OSError, http.client.HTTPException) as error:
        raise ProbeError(Trouble.REFUSED, f"{where} gave no answer ({type(error).__name__}: {error}).") from error
    finally:
        if response is not None:
            response.close()
        connection.close()


def _read(
    connection: http.client.HTTPConnection,
    response: http.client.HTTPResponse,
    deadline: float,
    cut_after: int | None,
) -> Answer:
    """The body as it comes. A connection that breaks within a body gives an answer that is not whole."""
    streams = "text/event-stream" in response.headers.get("Content-Type", "")
    parser, pieces, whole = StreamParser(keep_text=True), [], True
    try:
        while piece := response.read1(1 << 16):
            pieces.append(piece)
            if streams:
                parser.feed(now_ns(), None, piece)
                if cut_after is not None and len(parser.result.chunks) >= cut_after:
                    whole = False
                    break
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if connection.sock is not None:
                connection.sock.settimeout(left)
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException):
        whole = False
    body = b"".join(pieces)
    if not streams:
        try:
            message = orjson.loads(body)
        except orjson.JSONDecodeError:
            message = {"error": f"not JSON: {shorten(body[:200].decode('utf-8', 'replace'))}"}
        return Answer(response.status, body, plain_result(message), whole)
    return Answer(response.status, body, parser.finish(), whole, _events(body))


def _events(body: bytes) -> list[dict[str, Any]]:
    """Each event of a stream that is a JSON object, in order. Meant for well-formed framing; `stream` copes with all."""
    events = []
    for line in body.replace(b"\r\n", b"\n").split(b"\n"):
        if line.startswith(b"data:"):
            try:
                event = orjson.loads(line[5:])
            except orjson.JSONDecodeError:
                continue
            if isinstance(event, dict):
                events.append(event)
    return events
