"""Closed loops: what is sent next waits for an answer."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from harness.loads_base import FEWEST_REQUESTS, MOST_REQUESTS, LoadBase

# Where time ends a loop, requests are drawn ahead as if one took no longer than this ...
_FIXED_S, _TOKEN_S = 0.005, 0.001
# ... and prompts were read no faster than this; a cell that runs out all the same ends early and says so.
_PROMPT_TOKENS_PER_S, _MOST_PROMPT_TOKENS = 500_000, 50_000_000


def _ahead(in_flight: int, duration_s: float, input_tokens: int, output_tokens: int) -> int:
    """How many requests a closed loop could possibly need for `duration_s`."""
    by_answers = in_flight * duration_s / (_FIXED_S + _TOKEN_S * output_tokens)
    by_prompts = min(duration_s * _PROMPT_TOKENS_PER_S, _MOST_PROMPT_TOKENS) / max(input_tokens, 1)
    return min(math.ceil(min(by_answers, by_prompts)) + 2 * in_flight, MOST_REQUESTS)


class BatchLoad(LoadBase):
    """`batch` requests sent at once, `waves` times; a wave starts when the one before has ended. The deliberate lock."""

    mode: Literal["batch"] = "batch"
    batch: int = Field(gt=0)
    waves: int | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _ends(self) -> BatchLoad:
        if self.waves is None and self.duration_s is None:
            raise ValueError("a batch load needs waves or duration_s")
        return self

    @property
    def value(self) -> int:
        return self.batch

    @property
    def in_flight(self) -> int:
        """The most requests in flight at once."""
        return self.batch

    @property
    def requests(self) -> int | None:
        """How many at most; None where only time ends them."""
        return None if self.waves is None else self.batch * self.waves

    @property
    def expected_requests(self) -> int | None:
        """How many there will be; None where only time ends them."""
        return self.requests

    def ahead(self, input_tokens: int, output_tokens: int) -> int:
        """How many to plan, for requests of about these lengths."""
        if self.requests is not None:
            return self.requests
        waves = -(-_ahead(self.batch, self.duration_s or 0, input_tokens, output_tokens) // self.batch)
        return waves * self.batch

    @classmethod
    def of(cls, batch: int, requests: int | None = None, duration_s: float | None = None) -> BatchLoad:
        """As many waves as `requests` asks for; by default at least three and at least eight requests."""
        if requests is None and duration_s is not None:
            return cls(batch=batch, duration_s=duration_s)
        waves = max(3, -(-8 // batch)) if requests is None else max(1, -(-requests // batch))
        return cls(batch=batch, waves=waves, duration_s=duration_s)


class ConcurrencyLoad(LoadBase):
    """A closed loop: `concurrency` slots, each sending its next request when its last has ended.

    Each slot's first request gets an output length uniform in [1, asked], so that the loop does not lock in phase. With
    `think_s` a slot waits so long after each answer: a slower client, to see what that does.
    """

    mode: Literal["concurrency"] = "concurrency"
    concurrency: int = Field(gt=0)
    requests: int | None = Field(None, gt=0)
    think_s: float | None = Field(None, gt=0, le=3600)

    @model_validator(mode="after")
    def _enough(self) -> ConcurrencyLoad:
        if self.requests is None and self.duration_s is None:
            raise ValueError("a closed loop needs requests or duration_s")
        if self.requests is not None and self.requests < 2 * self.concurrency:
            raise ValueError(
                f"{self.requests} requests are too few for {self.concurrency} slots: the first of each slot is shortened so "
                f"that the loop starts out of phase, so at least {2 * self.concurrency} are needed"
            )
        return self

    @property
    def value(self) -> int:
        return self.concurrency

    @property
    def in_flight(self) -> int:
        """The most requests in flight at once."""
        return self.concurrency

    @property
    def expected_requests(self) -> int | None:
        """How many there will be; None where only time ends them."""
        return self.requests

    def ahead(self, input_tokens: int, output_tokens: int) -> int:
        """How many to plan, for requests of about these lengths."""
        if self.requests is not None:
            return self.requests
        return _ahead(self.concurrency, self.duration_s or 0, input_tokens, output_tokens)

    @classmethod
    def of(cls, concurrency: int, requests: int | None = None, duration_s: float | None = None) -> ConcurrencyLoad:
        """By default four requests a slot, at least 16."""
        if requests is None and duration_s is None:
            requests = max(FEWEST_REQUESTS, 4 * concurrency)
        return cls(concurrency=concurrency, requests=requests, duration_s=duration_s)
