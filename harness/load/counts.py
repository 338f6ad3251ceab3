"""Where a load stands, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

from harness.load.completion import StreamResult
from harness.load.exchange import Exchange
from results.schema import Outcome


@dataclass(slots=True)
class Counts:
    """`tokens` and the outcomes follow the parsing, `in_flight` the wire."""

    issued: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    done: int = 0
    ok: int = 0
    failed: int = 0
    tokens: int = 0
    retries: int = 0
    not_streamed: int = 0
    coalesced_events: int = 0
    usage_disagrees: int = 0
    ended_by_plan: int = 0
    no_done: int = 0

    def issue(self) -> None:
        """A request is on its way."""
        self.issued += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)

    def settle(self, exchange: Exchange, outcome: Outcome, result: StreamResult, *, stream: bool) -> None:
        """A request is judged. `stream`: an event stream was asked for."""
        self.done += 1
        self.tokens += result.output_tokens
        self.coalesced_events += result.coalesced_events
        self.usage_disagrees += result.usage_disagrees
        if outcome is Outcome.OK:
            self.ok += 1
            self.not_streamed += exchange.not_streamed and stream
            self.no_done += not (result.done or exchange.not_streamed or exchange.cut)
        else:
            self.failed += 1
