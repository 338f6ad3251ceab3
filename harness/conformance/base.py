"""What every check has at hand, and how it answers: evidence, a failure, or "not claimed"."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any

from backends.base import Backend, Capabilities, CompletionRequest
from backends.http_probe import ProbeError, get
from backends.prometheus import MetricsReader, metrics_reader
from backends.redact import public_text
from harness.api_call import Answer, ask
from harness.open_server import OpenServer
from workloads.base import Vocabulary

# Where no vocabulary is known: ids that every model has, beyond the control tokens at its start.
PLAIN_IDS = (100, 250)


class Outcome(StrEnum):
    """How a check ended."""

    PASS = "pass"
    FAIL = "fail"
    NOT_CLAIMED = "not claimed"
    # The server was gone before its turn came.
    NOT_RUN = "not run"


class CheckFailedError(Exception):
    """A promise is not kept; the message is the evidence."""


class NotClaimedError(Exception):
    """The adapter does not promise this; the message says in which words."""


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the answer."""

    check: str
    words: str
    outcome: Outcome
    evidence: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "words": self.words,
            "outcome": str(self.outcome),
            "evidence": self.evidence,
            "seconds": round(self.seconds, 3),
        }


@dataclass(slots=True)
class Bench:
    """A ready server under test. `secret` was put into its environment and must appear nowhere."""

    server: OpenServer
    timeout_s: float = 120.0
    vocabulary: Vocabulary | None = None
    secret: str | None = None
    others: bool = False  # others may use the server as well: counters may move more than we made them
    # Requests that were answered to their end: the id they were sent under, and how many tokens they got.
    done: dict[str, int] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _random: Random = field(default_factory=lambda: Random(0))
    _reader: MetricsReader | None = None

    @property
    def backend(self) -> Backend:
        return self.server.backend

    @property
    def capabilities(self) -> Capabilities:
        return self.server.backend.capabilities

    @property
    def launched(self) -> bool:
        return self.server.process is not None

    def claims(self, capability: str) -> None:
        """Raise NotClaimedError unless the adapter claims it."""
        if not getattr(self.capabilities, capability):
            raise NotClaimedError(f"capabilities.{capability} is False")

    def prompt(self, length: int) -> list[int] | str:
        """A new prompt of `length` tokens; of so many words where the server takes no ids."""
        if not self.capabilities.token_id_prompts:
            return " ".join(self._random.choice(("one", "two", "red", "sun", "dog")) for _ in range(length))
        low, high = PLAIN_IDS
        if self.vocabulary is None:
            return [self._random.randrange(low, high) for _ in range(length)]
        ids: list[int] = []
        while len(ids) < length:
            token = self._random.randrange(self.vocabulary.size)
            if token not in self.vocabulary.special:
                ids.append(token)
        return ids

    def body(self, prompt: list[int] | str, max_tokens: int, *, stream: bool = True, **more: Any) -> dict[str, Any]:
        """The adapter's own body for these words, with `more` fields put in."""
        asked = CompletionRequest(self.server.served_name, prompt, max_tokens, stream=stream)
        return {**self.backend.completion_body(asked), **more}

    def send(self, body: dict[str, Any], *, cut_after: int | None = None) -> Answer:
        """POST a body, whatever comes back. A server that gives no answer fails the check."""
        request_id = f"check-{next(self._numbers)}"
        try:
            answer = ask(
                self.server.url,
                body,
                timeout_s=self.timeout_s,
                key_env=self.backend.api_key_env(),
                cut_after=cut_after,
                request_id=request_id,
            )
        except ProbeError as error:
            raise CheckFailedError(str(error)) from error
        if answer.ok and answer.whole:
            self.done[request_id] = answer.stream.output_tokens
        return answer

    def complete(self, prompt: list[int] | str, max_tokens: int, *, stream: bool = True, **more: Any) -> Answer:
        """A completion that must succeed."""
        answer = self.send(self.body(prompt, max_tokens, stream=stream, **more))
        if not answer.ok or not answer.whole:
            raise CheckFailedError(
                f"A prompt of {len(prompt)} with max_tokens {max_tokens} was answered: {answer.trouble()}"
            )
        return answer

    def metrics(self) -> dict[str, float] | None:
        """Server metrics under neutral names; None where the server has no such page."""
        if self.backend.metrics_path is None:
            return None
        try:
            reader = self._metrics_reader()
            reply = get(self.server.url, self.backend.metrics_path, self.timeout_s, self.backend.api_key_env())
        except ProbeError as error:
            raise CheckFailedError(str(error)) from error
        if reply.status in (404, 405, 501):
            return None
        if reply.status != 200:
            raise CheckFailedError(f"{self.backend.metrics_path} answered HTTP {reply.status}")
        return reader.read(reply.text)

    def _metrics_reader(self) -> MetricsReader:
        """One for all checks: it may keep sums between pages."""
        if self._reader is None:
            self._reader = metrics_reader(self.backend.metrics_reader, self.backend.metrics)
        return self._reader

    def wait_for(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Poll until it holds; False when it never did."""
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def hide(self, text: str) -> str:
        """A text as it may be shown: without the planted secret."""
        return public_text(text, [self.secret]) if self.secret else text


@dataclass(frozen=True, slots=True)
class Check:
    """A row of the table: `run` returns its evidence, or raises CheckFailedError or NotClaimedError."""

    id: str
    words: str
    run: Callable[[Bench], str]


def require(holds: bool, evidence: str) -> None:
    """Raise CheckFailedError with the evidence unless it holds."""
    if not holds:
        raise CheckFailedError(evidence)
