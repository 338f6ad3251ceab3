"""The truth server's loop: one thread, one epoll over raw sockets, chunks encoded beforehand, one heap of what is due.

It speaks enough of the OpenAI API for load tools: /v1/completions, /v1/chat/completions, /v1/models, /health, and /truth
(its counts). A request's own "truth" object changes the schedule for it, e.g. {"truth": {"fault": "reset"}}.

It rests at least a tenth of a millisecond between rounds, so that it does not take the machine from the client. What is
sent late is stamped with its real sending, and how late it was is told.
"""

from __future__ import annotations

import contextlib
import heapq
import select
import socket
import time
from typing import Any, Protocol

import orjson

from harness.load.stamps import ReceiveClock
from harness.truth.answers import BODY_END, Answer, Form, error, event, plain
from harness.truth.connection import BadRequestError, Connection, Request
from harness.truth.ledger import Ledger
from harness.truth.schedule import MAX_TOKENS, Fault, Schedule
from harness.truth.stream import DONE, LOST, Stream
from harness.truth.words import MODEL_NAME
from results.clock import NS_PER_MS, NS_PER_S, now_ns
from results.errors import EnvironmentProblemError, UsageError

_REST_NS = NS_PER_MS // 10
_SENDS_A_ROUND = 256
_TICK_S = 0.05
_FORMS = 256
_PATHS = {"/v1/completions": False, "/v1/chat/completions": True}


class Commands(Protocol):
    """Where orders come from: a descriptor, and what is done when it is ready (False: nothing more will come)."""

    fd: int

    def take(self, server: Server) -> bool: ...


class Server:
    """The loop. `schedule` is that of requests to come; `ledger` keeps what was sent."""

    def __init__(self, host: str, port: int, schedule: Schedule, idle_close_s: float | None = None) -> None:
        self.schedule, self.ledger = schedule, Ledger()
        self.stopping = False
        self._idle_ns = None if idle_close_s is None else round(idle_close_s * NS_PER_S)
        self._next_tick = 0
        try:
            self._listener = socket.create_server((host, port), backlog=4096)
        except OSError as problem:
            raise EnvironmentProblemError(
                f"The truth server cannot listen on {host} port {port}: {problem.strerror or problem}."
            ) from problem
        self._listener.setblocking(False)
        self.url = f"http://{host}:{self._listener.getsockname()[1]}"
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._control: Commands | None = None
        self._connections: dict[int, Connection] = {}
        self._clock = ReceiveClock()
        self._heap: list[tuple[int, int, Stream]] = []
        self._answers: dict[Form, Answer] = {}

    def listen_to(self, control: Commands) -> None:
        """Take commands in the same loop."""
        self._control = control
        self._epoll.register(control.fd, select.EPOLLIN)

    def run(self) -> None:
        """Serve until `stopping`."""
        heap = self._heap
        while not self.stopping:
            now = now_ns()
            sends = 0
            while heap and heap[0][0] <= now and sends < _SENDS_A_ROUND:
                now = self._send_next(heap[0][2])
                sends += 1
            self._look(heap[0][0] - now if heap else None)
        for connection in list(self._connections.values()):
            self._drop(connection)

    def _look(self, left: int | None) -> None:
        """Wait until something is due (`left` ns from now) or comes in, and take in what came."""
        if left is None:
            timeout = -1.0 if self._idle_ns is None else _TICK_S
        elif left < 2 * NS_PER_MS:
            # epoll knows whole milliseconds only.
            if left > 0:
                time.sleep(max(left, _REST_NS) / NS_PER_S)
            timeout = 0.0
        else:
            timeout = min(left // NS_PER_MS - 1, 1000 * _TICK_S) / 1000
        for fd, mask in self._epoll.poll(timeout, len(self._connections) + 2):
            connection = self._connections.get(fd)
            if connection is not None:
                self._serve(connection, mask)
            elif fd == self._listener.fileno():
                self._accept()
            elif self._control is not None and not self._control.take(self):
                self._epoll.unregister(fd)
        if self._idle_ns is not None and (now := now_ns()) >= self._next_tick:
            self._next_tick = now + round(_TICK_S * NS_PER_S)
            for connection in [c for c in self._connections.values() if c.stream is None]:
                if now - connection.used > self._idle_ns:
                    self._drop(connection)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            connection = Connection(sock, self._epoll, self._clock)
            self._connections[connection.fd] = connection
            self.ledger.accepted += 1

    def _serve(self, connection: Connection, mask: int) -> None:
        try:
            if mask & select.EPOLLOUT:
                connection.flush()
            if mask & ~select.EPOLLOUT and not connection.read():
                self._drop(connection)
            else:
                self._requests(connection)
        except OSError:
            self._drop(connection)
        except BadRequestError as problem:
            with contextlib.suppress(OSError):
                connection.write(error(str(problem), "400 Bad Request"))
            self._drop(connection)

    def _requests(self, connection: Connection) -> None:
        """Answer what came, up to a request that takes its time."""
        while connection.open and connection.stream is None:
            request = connection.next_request()
            if request is None:
                return
            chat = _PATHS.get(request.path)
            if chat is None or request.method != b"POST":
                connection.write(self._page(request))
                continue
            try:
                self._begin(connection, request, chat)
            except (UsageError, ValueError, TypeError) as problem:
                self.ledger.refused += 1
                connection.write(error(str(problem), "400 Bad Request"))

    def _page(self, request: Request) -> bytes:
        if request.path == "/health":
            return plain({})
        if request.path == "/v1/models":
            model = {"id": MODEL_NAME, "object": "model", "owned_by": "dyno", "max_model_len": 131_072}
            return plain({"object": "list", "data": [model]})
        if request.path == "/truth":
            return plain(self.state())
        return error(f"no such path: {request.path}", "404 Not Found")

    def state(self) -> dict[str, Any]:
        """Counts of what was done, and the schedule."""
        return {
            **self.ledger.counts(),
            "connections": len(self._connections),
            "cpu_s": time.process_time(),
            "schedule": self.schedule.to_dict(),
        }

    def _begin(self, connection: Connection, request: Request, chat: bool) -> None:
        """A request for tokens. Raises UsageError or ValueError for a body that cannot be answered."""
        body = orjson.loads(request.body)
        if not isinstance(body, dict):
            raise UsageError("the body is a JSON object")
        schedule = self.schedule
        if own := body.get("truth"):
            schedule = schedule.changed(own)
        form = Form.of(body, chat, schedule.tokens_per_chunk, MAX_TOKENS)
        answer = self._answers.get(form)
        if answer is None:
            if len(self._answers) >= _FORMS:
                self._answers.clear()
            answer = self._answers[form] = Answer(form)
        stream = Stream(connection, request, self.ledger.begin(), answer, schedule)
        connection.stream = stream
        if schedule.early_head and form.stream and stream.fault_at != 0:
            connection.write(stream.opening())
        if stream.fault is Fault.NEVER:
            return
        heapq.heappush(self._heap, (stream.due[0], stream.index, stream))

    def _send_next(self, stream: Stream) -> int:
        """Send the chunk of `stream`, which is on top of the heap; the instant of it."""
        heap, connection = self._heap, stream.connection
        now = now_ns()
        if connection is None:  # the client has gone
            heapq.heappop(heap)
            return now
        at = len(stream.sent)
        if at == stream.fault_at:
            heapq.heappop(heap)
            self._go_wrong(stream, connection)
            return now
        data = stream.next_bytes()
        now = now_ns()
        stream.sent.append(now)
        try:
            if connection.write(data):
                self.ledger.blocked += 1
        except OSError:
            stream.sent.pop()
            heapq.heappop(heap)
            self._drop(connection)
            return now
        at += 1
        if at < len(stream.due):
            heapq.heapreplace(heap, (stream.due[at], stream.index, stream))
        else:
            heapq.heappop(heap)
            self._over(stream, connection, DONE)
        return now

    def _go_wrong(self, stream: Stream, connection: Connection) -> None:
        fault = stream.fault
        if fault is Fault.STALL:
            stream.pause(now_ns())
            heapq.heappush(self._heap, (stream.due[len(stream.sent)], stream.index, stream))
            return
        with contextlib.suppress(OSError):
            if fault is Fault.UNAVAILABLE:
                connection.write(error("the truth server was told to refuse this", "503 Service Unavailable"))
            elif fault is Fault.TRUNCATE:
                connection.write(stream.opening() + BODY_END)
            elif fault is Fault.ERROR:
                said = {"error": {"message": "the truth server was told to fail", "code": 500}}
                connection.write(stream.opening() + event(said) + BODY_END)
        self._over(stream, connection, str(fault))
        if fault in (Fault.RESET, Fault.CLOSE, Fault.HANG_UP):
            self._drop(connection, reset=fault is Fault.RESET)

    def _over(self, stream: Stream, connection: Connection, outcome: str) -> None:
        """The answer has ended; the connection may carry the next request, which may be here already."""
        connection.stream = stream.connection = None
        connection.used = now_ns()
        stream.outcome = outcome
        self.ledger.end(stream)
        if outcome not in (Fault.RESET, Fault.CLOSE, Fault.HANG_UP) and connection.open:
            try:
                self._requests(connection)
            except (OSError, BadRequestError):
                self._drop(connection)

    def _drop(self, connection: Connection, *, reset: bool = False) -> None:
        """The connection is gone, or is to be; what it was being sent is lost."""
        stream, connection.stream = connection.stream, None
        if self._connections.pop(connection.fd, None) is None:
            return
        connection.close(reset=reset)
        if stream is not None:
            stream.connection = None
            stream.outcome = str(stream.fault) if stream.fault is Fault.NEVER else LOST
            self.ledger.end(stream)
