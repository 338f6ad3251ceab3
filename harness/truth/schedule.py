"""When a truth server sends what: a pure function of the schedule, its seed and the number of the request."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, Self

from results.clock import NS_PER_MS
from results.errors import UnknownNameError, UsageError

# Longer answers are refused, so that one bad request cannot fill the memory.
MAX_TOKENS = 1_000_000


class Fault(StrEnum):
    """How an answer goes wrong, after `fault_after` chunks (the last three: instead of any answer)."""

    STALL = "stall"  # silence for `stall_s`, then on
    RESET = "reset"  # the connection is reset
    CLOSE = "close"  # the connection is closed within the body
    TRUNCATE = "truncate"  # the body ends cleanly, without finish_reason, usage or [DONE]
    ERROR = "error"  # an error object inside the 200 answer
    UNAVAILABLE = "unavailable"  # HTTP 503
    NEVER = "never"  # no byte at all
    HANG_UP = "hang_up"  # the connection is closed without a byte


@dataclass(frozen=True, slots=True)
class Schedule:
    """The first chunk `ttft_ms` after the request's last byte came in, then one every `gap_ms`, `tokens_per_chunk` to each.

    `jitter` in [0, 1] varies each of these times uniformly by up to that share, by `seed` and the request's number.
    `early_head` sends the answer's head at once and not with the first chunk. Every `fault_every`-th request has `fault`.
    """

    ttft_ms: float = 100.0
    gap_ms: float = 10.0
    tokens_per_chunk: int = 1
    jitter: float = 0.0
    seed: int = 0
    early_head: bool = False
    fault: Fault | None = None
    fault_after: int = 1
    fault_every: int = 1
    stall_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "gap_ms", "stall_s"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value <= 1e9:
                raise UsageError(f"A truth server's {name} is a number from 0 up, not {value!r}.")
        if not _is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise UsageError(f"A truth server's jitter is a share from 0 to 1, not {self.jitter!r}.")
        for name, least in (("tokens_per_chunk", 1), ("fault_every", 1), ("fault_after", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"A truth server's {name} is a whole number from {least} up, not {value!r}.")

    def changed(self, values: Mapping[str, Any]) -> Self:
        """The same with some values given by name. Raises UsageError for a name or value that cannot be."""
        known = {field.name for field in fields(self)}
        for name in values:
            if name not in known:
                raise UnknownNameError("value of a truth server's schedule", name, known)
        fault = values.get("fault", self.fault)
        if fault is not None and fault not in list(Fault):
            raise UnknownNameError("fault", str(fault), list(Fault))
        return replace(self, **{**values, "fault": None if fault is None else Fault(fault)})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def fault_of(self, index: int) -> Fault | None:
        """What goes wrong with request number `index` (from 0)."""
        return self.fault if index % self.fault_every == self.fault_every - 1 else None

    def chunks(self, tokens: int) -> int:
        """Into how many chunks so many tokens go."""
        return -(-tokens // self.tokens_per_chunk)

    def offsets(self, index: int, chunks: int) -> list[int]:
        """When each chunk of request number `index` is due, in ns after the request came in; never falling."""
        ttft, gap = self.ttft_ms * NS_PER_MS, self.gap_ms * NS_PER_MS
        if not self.jitter:
            return [round(ttft + i * gap) for i in range(chunks)]
        draw = random.Random(f"{self.seed} {index}").uniform
        low, high = 1 - self.jitter, 1 + self.jitter
        due = ttft * draw(low, high)
        out = []
        for _ in range(chunks):
            out.append(round(due))
            due += gap * draw(low, high)
        return out


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
