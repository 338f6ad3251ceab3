"""What an arm of a study is: the requests it got, the steps they took and the tokens they made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request, and the step before which it comes."""

    step: int
    prompt: list[int]
    output: int


class Step(NamedTuple):
    """A step of the engine, in the order of results.schema.TRUTH_STEPS. Stamps are monotonic ns."""

    step: int
    start: int
    end: int
    prefill_tokens: int
    decodes: int
    prefills: int
    running: int
    waiting: int
    preempted: int
    context_tokens: int
    blocks_allocated: int
    blocks_total: int
    tokens_held: int
    blocks_reserved: int
    cached_tokens: int
    padding_tokens: int

    @property
    def computed(self) -> int:
        """Tokens computed, for whatever purpose."""
        return self.prefill_tokens + self.decodes + self.padding_tokens


class Made(NamedTuple):
    """A generated token: the place of its request among the arrivals, the step that made it, and when (ns)."""

    request: int
    step: int
    sampled: int


@dataclass(slots=True)
class StepLog:
    """A truth log that stays in memory."""

    steps: list[Step] = field(default_factory=list)

    def token(self, request_id: str, index: int, step: int, sampled: int, written: int | None) -> None:
        """Tokens are taken from the engine's own answers."""

    def scheduled(self, request_id: str, step: int, start: int) -> None:
        """Not needed here."""

    def step(self, *row: int) -> None:
        """Keep a step."""
        self.steps.append(Step(*row))

    def close(self) -> None:
        """Nothing to write."""


@dataclass(frozen=True, slots=True)
class Arm:
    """What one setting of the switch did with the arrivals. Counters repeat exactly; seconds are this machine's, now."""

    label: str
    arrivals: Sequence[Arrival]
    steps: Sequence[Step]
    tokens: Sequence[Made]
    budget: int
    block_size: int
    kv_bytes_per_token: int
    weight_bytes: int

    @property
    def seconds(self) -> float:
        """From the first step's start to the last one's end."""
        return (self.steps[-1].end - self.steps[0].start) / 1e9

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens a second."""
        return len(self.tokens) / self.seconds

    @property
    def computed(self) -> int:
        """Tokens computed, for whatever purpose."""
        return sum(s.computed for s in self.steps)

    @property
    def queued(self) -> list[Step]:
        """The steps while requests wait for memory or for a place, and not just for room in the step's token budget."""
        return [s for s in self.steps if s.waiting and s.computed < self.budget] or list(self.steps)

    @property
    def in_flight(self) -> float:
        """Requests running, mean over `queued`."""
        return mean([s.running for s in self.queued])

    @property
    def held_share(self) -> float:
        """Of the whole KV pool, the share that holds tokens; mean over `queued`."""
        return mean([s.tokens_held / (s.blocks_total * self.block_size) for s in self.queued])

    @property
    def preemptions(self) -> int:
        """Requests that gave their blocks back."""
        return sum(s.preempted for s in self.steps)

    @property
    def cached(self) -> int:
        """Prompt tokens that the prefix cache spared."""
        return sum(s.cached_tokens for s in self.steps)

    def made(self, request: int) -> list[Made]:
        """The tokens of one arrival."""
        return [t for t in self.tokens if t.request == request]

    def gaps(self, request: int) -> list[int]:
        """Tokens computed, for anybody, from each token of an arrival to its next."""
        done = [0]
        for step in self.steps:
            done.append(done[-1] + step.computed)
        made = self.made(request)
        return [done[b.step + 1] - done[a.step + 1] for a, b in pairwise(made)]

    def gaps_ms(self, request: int) -> list[float]:
        """The same in ms, here and now."""
        made = self.made(request)
        return [(b.sampled - a.sampled) / 1e6 for a, b in pairwise(made)]

    def first_token_ms(self, request: int) -> float:
        """From the start of the step before which a request came to its first token, here and now."""
        return (self.made(request)[0].sampled - self.steps[self.arrivals[request].step].start) / 1e6

    def first_token_computed(self, request: int) -> int:
        """Tokens computed, for anybody, from the step before which a request came up to its first token."""
        first = self.made(request)[0].step
        return sum(s.computed for s in self.steps[self.arrivals[request].step : first + 1])


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return sum(values) / len(values)
