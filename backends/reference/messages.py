"""What crosses between the engine's owner thread and everyone else: plain data that could as well cross a process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a request's tokens are chosen, when they end, and what is told about them.

    `logprobs` and `prompt_logprobs` ask for the log probabilities of each output or prompt token and of that many of
    the likeliest; None asks for nothing and costs nothing.
    """

    temperature: float = 0.0
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    top_p: float = 1.0
    top_k: int = 0  # 0 is all
    min_p: float = 0.0
    min_tokens: int = 0  # stop ids cannot come before

    @property
    def truncates(self) -> bool:
        """True when only the likelier tokens may be drawn."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Submit:
    """Run a request. `key` is the sender's handle, unique and rising; `request_id` is the client's name for it."""

    key: int
    request_id: str
    prompt: list[int]
    max_tokens: int
    sampling: Sampling = GREEDY


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request at the next step boundary. Harmless for unknown and finished ones."""

    key: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End the owner thread; what is in flight is dropped."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probability of a token as the model gave it, before temperature; `rank` 1 is the likeliest.

    `top` has (token, log probability) of the likeliest tokens, best first.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class NewToken:
    """One generated token. `index` counts the request's output from 0; `sampled` is monotonic ns.

    `prompt_logprobs` comes with the first token: one entry for each prompt token but the first, which nothing predicts.
    """

    key: int
    token: int
    index: int
    step: int
    sampled: int
    finish_reason: str | None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended without (all of) its tokens."""

    key: int
    message: str


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Everything one step (or a failure) has for its requests, in one message."""

    tokens: list[NewToken]
    failed: list[Failed]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts as of one moment. Blocks and tokens are the pool's; totals count since start."""

    running: int = 0
    waiting: int = 0
    blocks_allocated: int = 0
    tokens_held: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    blocks_reserved: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
