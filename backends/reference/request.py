"""A request's state between arrival and finish, and what a step does with it. Knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from backends.reference.messages import GREEDY, Sampling, TokenLogprobs
from backends.reference.prefix_cache import Node


@dataclass(slots=True, eq=False)
class Request:
    """One sequence from arrival to finish. `key` orders requests by arrival and is unique within an engine."""

    key: int
    request_id: str
    tokens: list[int]
    max_tokens: int
    sampling: Sampling = GREEDY
    num_prompt_tokens: int = field(init=False)
    num_computed: int = 0
    is_running: bool = False
    block_table: list[int] = field(default_factory=list)
    promised_blocks: int = 0  # by an admission policy that reserves
    published: int = 0  # blocks of the table that the prefix cache was told of, `prefix` being the last
    prefix: Node | None = None
    finish_reason: str | None = None
    preemptions: int = 0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known so far."""
        return len(self.tokens)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_left(self) -> int:
        """Known tokens whose KV is not in the pool."""
        return len(self.tokens) - self.num_computed


@dataclass(slots=True)
class Scheduled:
    """`count` tokens of `request` from position `start`, to be computed in this step."""

    request: Request
    start: int
    count: int
    is_padding: bool = False  # of a finished row, computed for nobody

    @property
    def end(self) -> int:
        """The context length after this step."""
        return self.start + self.count

    @property
    def samples(self) -> bool:
        """True when this step reaches the request's last known token, so that it gets a new one."""
        return self.end == self.request.num_tokens

    @property
    def is_decode(self) -> bool:
        """True for the KV of one generated token; prompt chunks and recomputation are prefill."""
        return self.count == 1 and self.start >= self.request.num_prompt_tokens and not self.is_padding


@dataclass(slots=True)
class StepPlan:
    """What one step computes, who left the queue for it (for the first time or again), whom it had to preempt, and how many prompt
    tokens a prefix match spared it."""

    items: list[Scheduled] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    cached_tokens: int = 0
