"""The scheduler's strategies, one small class each: what memory admits a request, when, and how a prompt is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from backends.reference.request import Request


class Admission(Protocol):
    """How much of the pool a request is promised when it enters."""

    def promise(self, request: Request, max_model_len: int) -> int:
        """Tokens promised to the request to its end; 0 promises nothing beyond the blocks it takes as it grows."""
        ...


class OnDemand:
    """vLLM's way: blocks as needed, and preemption when there are none left."""

    def promise(self, request: Request, max_model_len: int) -> int:
        """Nothing."""
        return 0


class ReserveMax:
    """The longest the model can make, whatever was asked (Orca's Max)."""

    def promise(self, request: Request, max_model_len: int) -> int:
        """max_model_len."""
        return max_model_len


class ReservePow2:
    """The asked output rounded up to a power of two (Orca's Pow2)."""

    def promise(self, request: Request, max_model_len: int) -> int:
        """Prompt and rounded output, at most max_model_len."""
        return min(request.num_prompt_tokens + (1 << (request.max_tokens - 1).bit_length()), max_model_len)


class ReserveOracle:
    """Prompt and max_tokens: TensorRT-LLM's GUARANTEED_NO_EVICT, and Orca's Oracle where nothing ends earlier."""

    def promise(self, request: Request, max_model_len: int) -> int:
        """All tokens that need KV: the last one generated does not."""
        return request.num_prompt_tokens + request.max_tokens - 1


class Batching(Protocol):
    """When requests may enter the running set, and what becomes of rows that finished."""

    pads: bool  # finished rows are computed on until the batch ends

    def is_open(self, running: Sequence[Request]) -> bool:
        """True when queued requests may enter now."""
        ...

    def waits_for_budget(self) -> bool:
        """True when a request enters only with tokens of this very step's budget."""
        ...


class Continuous:
    """Whoever finishes makes room at once."""

    pads = False

    def is_open(self, running: Sequence[Request]) -> bool:
        """Always."""
        return True

    def waits_for_budget(self) -> bool:
        """Otherwise it would hold blocks idle."""
        return True


class StaticDrop:
    """A batch is filled once from the queue and runs until all in it finished; finished rows are dropped from it."""

    pads = False

    def is_open(self, running: Sequence[Request]) -> bool:
        """Between batches."""
        return not running

    def waits_for_budget(self) -> bool:
        """The batch is filled at once, and its prompts are computed over as many steps as they need."""
        return False


class StaticPad(StaticDrop):
    """The same with finished rows computed on, their memory kept, until the batch ends."""

    pads = True


class Chunking(Protocol):
    """How much of a prompt one step takes."""

    def take(self, left: int, budget: int) -> int:
        """Of `left` tokens, how many when `budget` are left in the step."""
        ...


class Chunked:
    """What fits."""

    def take(self, left: int, budget: int) -> int:
        """See Chunking."""
        return min(left, budget)


class WholePrompts:
    """All or nothing; decodes of other requests still share the step."""

    def take(self, left: int, budget: int) -> int:
        """See Chunking."""
        return left if left <= budget else 0


ADMISSION: dict[str, type[Admission]] = {
    "on-demand": OnDemand,
    "reserve-max": ReserveMax,
    "reserve-pow2": ReservePow2,
    "reserve-oracle": ReserveOracle,
}
BATCHING: dict[str, type[Batching]] = {"continuous": Continuous, "static-drop": StaticDrop, "static-pad": StaticPad}


@dataclass(frozen=True, slots=True)
class Policies:
    """One strategy of each kind."""

    admission: Admission = field(default_factory=OnDemand)
    batching: Batching = field(default_factory=Continuous)
    chunking: Chunking = field(default_factory=Chunked)
