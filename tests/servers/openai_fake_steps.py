"""What a fake server can be told to do with a request: steps, and helpers that build the usual sequences of them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Write:
    """Raw bytes, as they are, in one write."""

    data: bytes


@dataclass(frozen=True)
class Delay:
    """Wait so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Wait:
    """Wait until the test opens the gate."""

    gate: Gate


@dataclass(frozen=True)
class Reset:
    """Break the connection with a TCP reset."""


@dataclass(frozen=True)
class Close:
    """End the connection properly."""


Step = Write | Delay | Wait | Reset | Close


class Gate:
    """A door that a test opens from its own thread; any number of servers may wait at it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def open(self) -> None:
        with self._lock:
            self._open = True
            for loop, event in self._waiting:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(event.set)

    async def passed(self) -> None:
        event = asyncio.Event()
        with self._lock:
            if self._open:
                return
            self._waiting.append((asyncio.get_running_loop(), event))
        await event.wait()


@dataclass
class Received:
    """A request as the server got it. `index` counts requests, `connection` connections, both from 0."""

    index: int
    connection: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: int
    json: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.body:
            self.json = json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers.get("x-request-id", "")


def head(status: int = 200, *, reason: str = "X", chunked: bool = True, **headers: str | int) -> Write:
    """The head of an answer; keyword names become header names (`content_length` -> content-length)."""
    given = {name.replace("_", "-"): str(value) for name, value in headers.items()}
    given.setdefault("content-type", "text/event-stream; charset=utf-8")
    if chunked:
        given["transfer-encoding"] = "chunked"
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in given.items())]
    return Write(("\r\n".join(lines) + "\r\n\r\n").encode())


def chunk(data: bytes) -> bytes:
    """`data` as one chunk of the chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


END = Write(b"0\r\n\r\n")
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """One server-sent event of JSON (or of text as it is)."""
    return b"data: " + (value.encode() if isinstance(value, str) else json.dumps(value).encode()) + b"\n\n"


def text_event(text: str, finish_reason: str | None = None, **more: Any) -> bytes:
    """A completion chunk."""
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish_reason, **more}]})


def usage_event(completion: int, prompt: int = 3) -> bytes:
    """The final usage chunk."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return event({"choices": [], "usage": usage})


def stream(*pieces: bytes, end: bool = True) -> list[Step]:
    """A chunked stream, one write a piece."""
    steps: list[Step] = [head(), *(Write(chunk(piece)) for piece in pieces)]
    return [*steps, END] if end else steps


def full_answer(tokens: int = 4, prompt: int = 3) -> list[Step]:
    """A whole, well-formed answer of so many tokens, one a chunk, with final usage."""
    pieces = [text_event(f" t{i}", "length" if i == tokens - 1 else None) for i in range(tokens)]
    return stream(*pieces, usage_event(tokens, prompt), DONE)


def json_answer(value: Any, status: int = 200, **headers: str) -> list[Step]:
    """One JSON object with its length."""
    body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    headers.setdefault("content_type", "application/json")
    return [head(status, chunked=False, content_length=len(body), **headers), Write(body)]


def split(data: bytes, size: int = 1) -> Sequence[Write]:
    """The same bytes in writes of `size`."""
    return [Write(data[i : i + size]) for i in range(0, len(data), size)]
