"""Ready means that it generates: one short completion after a server's health page is green, before anything is measured.

Servers answer /health while weights still load or the engine warms up, and some go on doing so when they can never generate.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from backends.base import Backend, CompletionRequest
from backends.failures import Stage, StartupError
from backends.http_probe import ProbeError, ServerURL, Trouble
from backends.openai import refused_key
from backends.process import ServerProcess
from harness.api_call import PATHS, Answer, ask
from harness.experiment import Endpoint, Timeouts
from harness.load.completion import shorten
from results.clock import now_ns
from results.errors import EngineError
from workloads.base import request_seed

# Said by servers that are there and cannot take a request yet.
_BUSY = frozenset({425, 429, 502, 503, 504})
_PAUSE_S = 0.2
_NATURAL = (
    " By ignore_eos answers get the length they are asked for. A server that does not know it can be measured with answers that end "
    "by themselves: --workload random:input_len=128,output_len=64,natural_eos=true (or FILE,natural_eos=true)."
)
# Ids that every model has, beyond the control tokens at its start. So few share no block of a prefix cache with anything.
_IDS, _LENGTH = range(100, 250), 5


@dataclass(frozen=True, slots=True)
class Told:
    """How a request for one token ended: `why` it is no token ("" where it is one), and the HTTP status if there was any."""

    why: str
    status: int | None


class TokenProbe:
    """Asks for one token until there is an answer that is not "not yet". Each try has its thread, so that whoever waits can
    look at the server meanwhile. With `served_name` the model that answers must have that name."""

    def __init__(self, send: Callable[[float], Answer], try_s: float, served_name: str | None = None) -> None:
        self._send, self._try_s, self._served_name = send, try_s, served_name
        self._thread: threading.Thread | None = None
        self._found: Answer | ProbeError | None = None
        self._next_try = 0.0
        self.at = 0  # when the answer had come, monotonic ns
        self.busy = ""  # the last "not yet" in words

    def step(self, left_s: float) -> Told | None:
        """How it ended; None while it is waited for."""
        if self._thread is None:
            if time.monotonic() >= self._next_try:
                limit_s = min(self._try_s, max(0.1, left_s))
                self._thread = threading.Thread(target=self._try, args=(limit_s,), name="first-token", daemon=True)
                self._thread.start()
            return None
        if self._thread.is_alive():
            return None
        found, self._found, self._thread = self._found, None, None
        if isinstance(found, Answer) and found.status in _BUSY:
            self.busy = found.trouble()
        elif isinstance(found, ProbeError) and found.trouble is Trouble.REFUSED:
            self.busy = str(found)
        elif found is not None:
            return Told(trouble_with(found, self._served_name), found.status if isinstance(found, Answer) else None)
        self._next_try = time.monotonic() + _PAUSE_S
        return None

    def _try(self, limit_s: float) -> None:
        try:
            self._found = self._send(limit_s)
        except ProbeError as error:
            self._found = error
        self.at = now_ns()


def one_token(
    backend: Backend,
    url: str,
    endpoint: Endpoint,
    served_name: str,
    request_id: str,
    *salt: object,
    ignore_eos: bool = True,
) -> Callable[[float], Answer]:
    """A function that asks for one token with a prompt of that salt; it takes its time limit in seconds. `ignore_eos` as the
    run's requests have it: a server that refuses the field is found out here."""
    random = Random(request_seed("first token", *map(str, salt)))
    ids = [random.choice(_IDS) for _ in range(_LENGTH)]
    chat = endpoint == "chat"
    prompt = ids if backend.capabilities.token_id_prompts and not chat else " ".join(map(str, ids))
    asked = CompletionRequest(served_name, prompt, 1, stream=False, ignore_eos=ignore_eos)
    body, path = backend.chat_body(asked) if chat else backend.completion_body(asked), PATHS[endpoint]
    key_env = backend.api_key_env()
    return lambda limit_s: ask(url, body, timeout_s=limit_s, key_env=key_env, request_id=request_id, path=path)


def trouble_with(found: Answer | ProbeError, served_name: str | None = None) -> str:
    """Why that is no generated token, in words; "" where it is one. With `served_name` the model's name counts as well."""
    if isinstance(found, ProbeError):
        return str(found)
    if not found.ok or not found.whole:
        return found.trouble() or f"HTTP {found.status}"
    if not found.stream.answers:
        return f"an answer without a choice: {shorten(found.body[:200].decode('utf-8', 'replace'))}"
    told = found.message.get("model")
    if served_name is not None and isinstance(told, str) and told != served_name:
        return f"the model {told!r} answered where {served_name!r} was asked"
    return ""


def await_first_token(
    process: ServerProcess,
    send: Callable[[float], Answer],
    served_name: str,
    timeouts: Timeouts,
    on_tick: Callable[[float], None] | None = None,
) -> None:
    """Wait until a server of ours has given a token, noted as `first_token` on its timeline. Raises StartupError."""
    process.stage = Stage.FIRST_TOKEN
    probe = TokenProbe(send, timeouts.first_token_s, served_name)
    spent_s = (now_ns() - process.timeline["spawn"]) / 1e9
    left_s = max(timeouts.first_token_s, timeouts.ready_s - spent_s)
    tick = None if on_tick is None else (lambda elapsed_s: on_tick(spent_s + elapsed_s))
    what = "its health page was green, and it gave no token"
    told = process.watch(probe.step, left_s, what, on_tick=tick, stall_s=timeouts.stall_s)
    if told.why:
        said = f"its health page was green, but it cannot generate: {told.why}"
        raise process.failed(StartupError, said, said=told.why)
    process.reached(Stage.READY, "first_token")
    process.timeline["first_token"] = probe.at


def first_token_elsewhere(send: Callable[[float], Answer], url: str, key_env: str | None, timeouts: Timeouts) -> int:
    """When a server that is not ours gave a token (monotonic ns). Raises EngineError; "not yet" is taken for `connect_s`."""
    probe = TokenProbe(send, timeouts.first_token_s)
    deadline = time.monotonic() + timeouts.connect_s
    while (told := probe.step(timeouts.first_token_s)) is None:
        if probe.busy and time.monotonic() > deadline:
            raise EngineError(
                f"The server at {url} says that it is ready, but cannot generate for {timeouts.connect_s:g} s: {probe.busy}. "
                "Look into its log, or wait until its model is loaded."
            )
        time.sleep(0.02)
    if told.why:
        if told.status in (401, 403):
            raise EngineError(refused_key(ServerURL.parse(url), told.status, key_env))
        raise EngineError(
            f"The server at {url} says that it is ready, but gave no token when asked for one: {told.why.rstrip('.')}."
            f"{_NATURAL if 'ignore_eos' in told.why else ''}"
        )
    return probe.at
