"""A scriptable HTTP server that speaks (or misspeaks) the OpenAI API, for tests.

    with FakeServer(full_answer()) as server: ...            # the same steps for every request
    with FakeServer(lambda request: ...) as server: ...      # steps by request
    with FakeServer(TokenSchedule(interval_s=0.01)) as server: ...   # well-behaved, tokens at their times

As a program, for end-to-end tests: `python -m tests.servers.openai_fake --port 0 --tokens-interval-ms 5` prints its URL
and serves /health, /v1/models, /metrics, /v1/completions, /v1/chat/completions and /stamps (its own send stamps).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import uvloop

from tests.servers.openai_fake_steps import Close, Delay, Received, Reset, Step, Wait, Write
from tests.servers.openai_fake_tokens import TokenSchedule
from tests.waiting import LONG_S

Script = Sequence[Step] | Callable[[Received], Sequence[Step]] | TokenSchedule
CERTIFICATE = Path(__file__).with_name("localhost.pem")


class _Connection(asyncio.Protocol):
    """One connection: requests in order, each answered by its own task."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._number = len(server.connections)
        server.connections.append(self._number)
        self._buffer = b""
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]  # TLS gives a transport of another class
        self._server.open_transports.add(self.transport)
        if self._server.greeting is not None:
            self.transport.write(self._server.greeting)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.open_transports.discard(self.transport)
        if self._idle is not None:
            self._idle.cancel()
        if self._task is not None:
            self._task.cancel()

    def _rest(self) -> None:
        limit = self._server.close_idle_after
        if limit is not None:
            self._idle = asyncio.get_running_loop().call_later(limit, self.transport.close)

    def data_received(self, data: bytes) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or self._task is not None:
            return
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0)) if self._server.read_body else 0
        if len(self._buffer) < end + 4 + length:
            return
        body = self._buffer[end + 4 : end + 4 + length]
        self._buffer = self._buffer[end + 4 + length :]
        method, path, _ = first.split(" ", 2)
        server = self._server
        with server.changed:
            request = Received(len(server.requests), self._number, method, path, headers, body, time.monotonic_ns())
            server.requests.append(request)
            server.in_flight += 1
            server.max_in_flight = max(server.max_in_flight, server.in_flight)
            server.changed.notify_all()
        self._task = asyncio.get_running_loop().create_task(self._answer(request))

    async def _answer(self, request: Received) -> None:
        server = self._server
        try:
            script = server.script
            if isinstance(script, TokenSchedule):
                page = script.page(request)
                if page is None:
                    await script.generate(request, self.transport)
                else:
                    await self._play(page)
            else:
                await self._play(script(request) if callable(script) else script)
        except Exception as error:
            server.errors.append(error)
            self.transport.abort()
        finally:
            with server.changed:
                server.in_flight -= 1
                server.changed.notify_all()
        self._task = None
        if not self.transport.is_closing():
            self._rest()
            if self._buffer:
                self.data_received(b"")

    async def _play(self, steps: Sequence[Step]) -> None:
        for number, step in enumerate(steps, 1):
            if isinstance(step, Write):
                self.transport.write(step.data)
                # Let others run between the writes, but count the request as over before its end can be answered.
                if number < len(steps):
                    await asyncio.sleep(0)
            elif isinstance(step, Delay):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, Wait):
                await step.gate.passed()
            elif isinstance(step, Reset):
                sock = self.transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.transport.abort()
            elif isinstance(step, Close):
                self.transport.close()


class FakeServer:
    """The server in a thread of its own. What it saw: `requests`, `connections`, `in_flight`, `max_in_flight`.

    `close_idle_after`: seconds after an answer until an idle connection is closed. `read_body` False: it answers after the head.
    `greeting`: what it says to every connection before it closes it, unasked.
    """

    def __init__(
        self,
        script: Script,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: bool = False,
        close_idle_after: float | None = None,
        read_body: bool = True,
        greeting: bytes | None = None,
    ) -> None:
        self.script = script
        self.close_idle_after = close_idle_after
        self.read_body = read_body
        self.greeting = greeting
        self.requests: list[Received] = []
        self.connections: list[int] = []
        self.errors: list[Exception] = []
        self.in_flight = 0
        self.max_in_flight = 0
        self.changed = threading.Condition()
        self.open_transports: set[asyncio.Transport] = set()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=2048)
        shown = f"[{host}]" if ":" in host else ("localhost" if tls else host)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://{shown}:{self.port}"
        self._tls = tls
        self._loop = uvloop.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fake-server", daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        context = None
        if self._tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self), sock=self._socket, ssl=context)
        self._ready.set()
        await self._stop.wait()
        server.close()
        for transport in list(self.open_transports):
            transport.abort()
        await asyncio.sleep(0.01)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def __enter__(self) -> FakeServer:
        self._thread.start()
        if not self._ready.wait(LONG_S):
            raise RuntimeError("the fake server did not start")
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LONG_S)
        if self.errors and value is None:
            raise RuntimeError("the fake server's script failed") from self.errors[0]

    def wait_until(self, condition: Callable[[FakeServer], bool], timeout_s: float = LONG_S) -> None:
        """Wait for something the server sees (a request, a count in flight). Raises TimeoutError."""
        with self.changed:
            if not self.changed.wait_for(lambda: condition(self), timeout_s):
                raise TimeoutError(f"the server has seen {len(self.requests)} requests, {self.in_flight} in flight")


def main() -> None:
    """Serve until the process is ended; prints the URL on the first line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=0)
    parser.add_argument("--tokens-interval-ms", type=float, default=5)
    parser.add_argument("--tokens-per-chunk", type=int, default=1)
    parser.add_argument("--natural-tokens", type=int, default=None, help="length of answers without ignore_eos")
    parser.add_argument("--model", default="fake-model")
    parser.add_argument("--max-model-len", type=int, default=131_072)
    args = parser.parse_args()
    schedule = TokenSchedule(
        ttft_s=args.ttft_ms / 1000,
        interval_s=args.tokens_interval_ms / 1000,
        per_chunk=args.tokens_per_chunk,
        natural=args.natural_tokens,
        model=args.model,
        max_model_len=args.max_model_len,
    )
    with FakeServer(schedule, port=args.port) as server:
        sys.stdout.write(server.url + "\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
