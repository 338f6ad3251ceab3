"""Watching a server while a cell runs: does its health page still say yes, does its log say that the engine is gone, does
it still generate?

A front can live on while its engine is dead, and answer 503 or nothing for ever. One small GET every two seconds, in a
thread of its own, so that whoever looks never waits; nothing is asked while no cell runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from backends.base import Backend
from backends.failure_table import ENGINE_DIED, GONE, STALLED, FailureClass
from backends.failures import classify, death_line
from backends.http_probe import ProbeError, Trouble, get
from backends.server_log import log_size, read_since
from harness.api_call import Answer
from harness.first_token import TokenProbe
from harness.load.process import Progress

POLL_S = 2.0
# Looks further apart than this belong to different loads: nobody asked in between.
_PAUSE_S = 5.0
_TOLD_CHARS = 1 << 16
# A front that finds its engine dead ends by itself, mostly: its own last words are the better cause.
_LAST_WORDS_S = 4.0
_NOT_WELL = frozenset({500, 502, 503, 504})
# A server that is not ours has no process to be seen ending: so many looks in a row at which nobody listens, and it is gone.
_GONE_LOOKS = 2


@dataclass(frozen=True, slots=True)
class Ailment:
    """Why a server that still runs has failed, and the failure class where its log tells none."""

    words: str
    failure: FailureClass


class HealthWatch:
    """`look` as often as you like while a cell runs; it tells at once what is known."""

    def __init__(
        self,
        backend: Backend,
        url: str,
        path: str,
        unhealthy_s: float,
        send: Callable[[float], Answer],
        log: Path,
        tree: Callable[[], list[int]],
    ) -> None:
        """`send` asks for one token; `tree` lists the processes of a server of ours, none of one that is not."""
        self._backend, self._url, self._path, self._unhealthy_s = backend, url, path, unhealthy_s
        self._send, self._log, self._tree = send, log, tree
        self._offset, self._told = log_size(log), ""
        self._workers = frozenset(tree())
        self._poll: threading.Thread | None = None
        self._said, self._refused = "", 0
        self._doom: tuple[float, str] | None = None
        self._probe: TokenProbe | None = None
        self._sign: object = None
        self._next_poll = self._looked = 0.0
        self._well = self._served = time.monotonic()

    def look(self, progress: Progress | None = None) -> Ailment | None:
        """What ails the server. While requests are answered the health page is not believed."""
        now = time.monotonic()
        sign = None if progress is None else (progress.ok, progress.tokens)
        if sign != self._sign or now - self._looked > _PAUSE_S:
            self._sign, self._well, self._served, self._said, self._refused = sign, now, now, "", 0
        self._looked = now
        if now >= self._next_poll and (self._poll is None or not self._poll.is_alive()):
            self._next_poll = now + POLL_S
            self._read_log(now)
            self._poll = threading.Thread(target=self._ask, name="health", daemon=True)
            self._poll.start()
        if self._doom is not None and now - self._doom[0] > _LAST_WORDS_S:
            return Ailment(f"it still runs, but its log says that it cannot go on: {self._doom[1]!r}", ENGINE_DIED)
        if self._refused >= _GONE_LOOKS:
            return Ailment("nothing accepts connections at its address any more, and no request was answered", GONE)
        if now - self._well > self._unhealthy_s:
            said = self._said or "gave no answer"
            words = f"it still runs, but for {self._unhealthy_s:g} s no request was answered and {self._path} {said}"
            return Ailment(words, STALLED)
        # Its page is green; when requests fail and none is answered, only a token of its own tells.
        if progress is not None and progress.failed and now - self._served > self._unhealthy_s:
            self._probe = self._probe or TokenProbe(self._send, self._unhealthy_s)
            told = self._probe.step(self._unhealthy_s)
            if told is not None:
                self._probe, self._served = None, now
                if told.why:
                    return Ailment(
                        f"it still runs, and {self._path} {self._said}, but it does not generate: {told.why}", STALLED
                    )
        return None

    def still_generates(self) -> Ailment | None:
        """Ask for one token and wait for it: after a load in which requests timed out."""
        probe, deadline = TokenProbe(self._send, self._unhealthy_s), time.monotonic() + self._unhealthy_s
        while (told := probe.step(self._unhealthy_s)) is None and (not probe.busy or time.monotonic() < deadline):
            time.sleep(0.02)
        why = f"it says for {self._unhealthy_s:g} s: {probe.busy}" if told is None else told.why
        if not why:
            return None
        return Ailment(f"it still runs, but after requests that timed out it does not generate: {why}", STALLED)

    def _ask(self) -> None:
        try:
            status = get(self._url, self._path, max(POLL_S, self._unhealthy_s), self._backend.api_key_env()).status
        except ProbeError as error:
            if error.trouble is Trouble.REFUSED and not self._workers:
                self._refused += 1
            self._said = "gave no answer" if error.trouble is Trouble.TIMEOUT else "could not be reached"
            return
        self._said, self._refused = f"answered HTTP {status}", 0
        if status not in _NOT_WELL:
            self._well = time.monotonic()

    def _read_log(self, now: float) -> None:
        """A line that only a dead engine writes; or one that names a lack of memory, with a process gone that was there."""
        if self._doom is not None:
            return
        text, self._offset = read_since(self._log, self._offset)
        self._told = (self._told + text)[-_TOLD_CHARS:]
        if not self._told:
            return
        line = death_line(self._told, self._backend.failures)
        if not line and self._workers - set(self._tree()):
            found = classify(self._told, None, self._backend.failures)
            line = found.evidence if found.is_out_of_memory else ""
        if line:
            self._doom = now, line
